"""
A thumbnail service: photos are added to a queue, and workers make a thumbnail of each.

    pip install '.[cli]' pillow
    python examples/thumbnails.py add photos/*.jpg      any number of times, from any process
    leasehold worker examples.thumbnails                as many of these as there are cores
    python examples/thumbnails.py work                  or one that ends when there is nothing left
    python examples/thumbnails.py list                  which file is the thumbnail of which photo

A photo has one thumbnail, which a later run replaces. A run that was paused, replaced by another one and then wakes up
would put its old picture over the new one; the guard of the folder refuses it.
"""

import sys
from pathlib import Path

from PIL import Image

from leasehold import Lease, Retry, Router
from leasehold.guards import FileGuard

WIDTH = 256
router = Router("sqlite:///thumbnails.db")
thumbnails = router.guard("thumbnails", FileGuard("thumbnails", create=True))


def name_of(photo: Path, width: int = WIDTH) -> str:
    """Return the name of a thumbnail: that of the photo with its folders, so that no two photos share one."""
    return f"{photo.as_posix().lstrip('/')}.{width}.webp"


# The mark of the thumbnail is raised before the first line runs: from then on an older run is refused.
@router.task(
    run_seconds=60,
    retry=Retry(max_errors=3),
    final=(FileNotFoundError,),
    seals=lambda photo, width=WIDTH: [thumbnails.key(name_of(photo, width))],
)
def shrink(lease: Lease, photo: Path, width: int = WIDTH) -> Path:
    """Make the thumbnail of a photo, in place of an earlier one."""
    name = name_of(photo, width)
    with Image.open(photo) as image:
        image.thumbnail((width, width))
        with thumbnails.open(name, lease=lease) as file:  # at its end epochs are compared, and the file is replaced
            image.save(file, "webp")
    return thumbnails.path(name)


def add(photos: list[Path]) -> None:
    """Ask for a thumbnail of each; a photo that waits already is not asked for twice."""
    for photo in photos:
        added = shrink.options(unique=f"shrink:{photo.resolve()}").add(photo.resolve())
        print(photo, "is asked for" if added.created else "waits already")


def found() -> dict[str, str]:
    """Return the thumbnail of each photo."""
    files = sorted(file for file in thumbnails.folder.rglob("*.webp") if file.is_file())
    keys = {file: file.relative_to(thumbnails.folder).as_posix() for file in files}
    return {"/" + key.removesuffix(".webp").rpartition(".")[0]: str(file) for file, key in keys.items()}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", *photos]:
            add([Path(photo) for photo in photos])
        case ["work"]:
            print(router.work(until_empty=True))
        case ["list"]:
            for photo, thumbnail in found().items():
                print(photo, thumbnail)
        case _:
            print(__doc__)
