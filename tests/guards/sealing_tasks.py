"""A router whose handler runs in a process of its own and seals a key: imported by that process anew."""

from __future__ import annotations

import os
from pathlib import Path

from tests.guards.reference import Reference

from leasehold import Lease, Router, current_lease

FOLDER = Path(os.environ.get("SEALING_FOLDER", "."))

router = Router()
shelf = router.guard("shelf", Reference(FOLDER))


@router.task(process=True, seals=lambda name: [shelf.key(name)])
def write(lease: Lease, name: str) -> list[int]:
    """Return the process, and the mark that the key had before the first line."""
    mark = shelf.mark(name)
    assert mark is not None
    assert current_lease() is lease
    shelf.write(name, b"by a process")
    return [os.getpid(), mark.epoch]
