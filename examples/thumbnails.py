"""
A thumbnail service: a folder that is watched by nobody, and a queue of pictures.

    pip install '.[cli]' pillow
    python examples/thumbnails.py add photos/*.jpg      any number of times, from any process
    leasehold worker examples.thumbnails                as many of these as there are cores
    python examples/thumbnails.py work                  or one that ends when there is nothing left
    python examples/thumbnails.py list                  which file is the thumbnail of which photo

A file cannot compare epochs. So each run writes a file of its own, and a row in the store's database, which can, says
which file counts.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from PIL import Image

from leasehold import Lease, Retry, Router, StaleEpoch

FILE = "thumbnails.db"
TABLE = "create table if not exists thumbnails (photo text, width int, file text, primary key (photo, width))"
router = Router(f"sqlite:///{FILE}")


@router.task(run_seconds=60, retry=Retry(max_errors=3), final=(FileNotFoundError,))
def shrink(lease: Lease, photo: Path, width: int = 256) -> Path:
    """Make a thumbnail beside the photo, and point to it."""
    # Not renamed to a common name after a `lease.check()`: a pause in between would put an old picture over a new one.
    thumbnail = photo.with_name(f"{photo.stem}.{width}.{lease.epoch}.webp")
    with Image.open(photo) as image:
        image.thumbnail((width, width))
        image.save(thumbnail, "webp")
    try:
        with lease.transaction() as connection:  # commits only if this is still the current owner
            connection.execute(TABLE)
            connection.execute(
                "insert or replace into thumbnails values (?, ?, ?)", (str(photo), width, str(thumbnail))
            )
    except StaleEpoch:
        thumbnail.unlink()  # nobody points to it, and nobody else has this name
        raise
    return thumbnail


def thumbnails() -> dict[str, str]:
    """Return the thumbnail of each photo."""
    with closing(sqlite3.connect(FILE)) as connection:
        connection.execute(TABLE)
        return dict(connection.execute("select photo, file from thumbnails order by photo"))


def add(photos: list[Path]) -> None:
    """Ask for a thumbnail of each; a photo that waits already is not asked for twice."""
    for photo in photos:
        added = shrink.options(unique=f"shrink:{photo.resolve()}").add(photo.resolve())
        print(photo, "is asked for" if added.created else "waits already")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", *photos]:
            add([Path(photo) for photo in photos])
        case ["work"]:
            print(router.work(until_empty=True))
        case ["list"]:
            for photo, thumbnail in thumbnails().items():
                print(photo, thumbnail)
        case _:
            print(__doc__)
