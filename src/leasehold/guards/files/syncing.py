"""What makes bytes and names survive a power loss."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_FULL = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves the data in the drive's cache


def sync_file(fd: int) -> None:
    """Return once the content and the facts of the file are on the disk."""
    if _FULL is not None:
        fcntl.fcntl(fd, _FULL)
    else:
        os.fsync(fd)


def sync_content(fd: int) -> None:
    """Return once the content is on the disk; cheaper than `sync_file` where neither size nor blocks have changed."""
    if _FULL is not None or not hasattr(os, "fdatasync"):
        sync_file(fd)
    else:
        os.fdatasync(fd)


def sync_folder(path: str) -> None:
    """Return once the names in the folder are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def make_folders(path: str) -> None:
    """Make the folder and those above it, as far as they are missing, so that they survive a power loss."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process made it; it may not have synced yet, so we do too
            os.mkdir(folder)
        sync_folder(os.path.dirname(folder))
