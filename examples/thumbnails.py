"""
A thumbnail service: a folder that is watched by nobody, and a queue of pictures.

    pip install '.[cli]' pillow
    python examples/thumbnails.py add photos/*.jpg      any number of times, from any process
    leasehold worker examples.thumbnails                as many of these as there are cores
    python examples/thumbnails.py work                  or one that ends when there is nothing left
"""

import sys
from pathlib import Path

from PIL import Image

from leasehold import Lease, Retry, Router

router = Router("sqlite:///thumbnails.db")


@router.task(run_seconds=60, retry=Retry(max_errors=3), final=(FileNotFoundError,))
def shrink(lease: Lease, photo: Path, width: int = 256) -> Path:
    """Make a thumbnail beside the photo."""
    thumbnail = photo.with_name(f"{photo.stem}.{width}.webp")
    with Image.open(photo) as image:
        image.thumbnail((width, width))
        # Under a name of this run's own, then moved: a reader never sees half a file, nor does a slower twin.
        unfinished = thumbnail.with_suffix(f".{lease.epoch}")
        image.save(unfinished, "webp")
        lease.check()
        unfinished.rename(thumbnail)
    return thumbnail


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
        case _:
            print(__doc__)
