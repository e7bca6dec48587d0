"""
Marks on disk: one small file per key.

A mark that fits into a sector is overwritten where it is. A disk writes a sector wholly or not at all (PostgreSQL keeps
its control file below 512 bytes for the same reason), so a power loss leaves the old mark or the new one, for the price
of one sync without a change of the file system's own records. A longer mark, and a key's first, is a new file, renamed.
A checksum finds what neither way may leave behind.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress

from ...core.marks import Mark, unreadable
from .syncing import sync_content, sync_file, sync_folder
from .temporary import Temporary

SECTOR = 512
_READS = 5


class MarkFile:
    """The mark of one key. `write` is called under the key's lock; `read` needs no lock."""

    def __init__(self, path: str, temporary: str, resource: str) -> None:
        self._path = path
        self._temporary = temporary  # the folder in which a new file begins
        self._resource = resource

    def read(self) -> Mark | None:
        """Return the mark; None if the key has none. Raises `GuardUnavailable` if it cannot be read."""
        content = b""
        for _ in range(_READS):  # without the lock, half of a write may be seen
            try:
                with open(self._path, "rb") as file:
                    content = file.read()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise unreadable(self._resource, f"{self._path}: {error.strerror}") from error
            with suppress(ValueError):
                return Mark.decode(_content(content), self._resource)
        raise unreadable(self._resource, f"{self._path} is damaged: {content[:60]!r}")

    def write(self, mark: Mark) -> None:
        """Replace the mark; durable on return."""
        content = _record(mark)
        if len(content) == SECTOR:
            with suppress(FileNotFoundError):
                fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if os.fstat(fd).st_size == SECTOR:
                        _write(fd, content)
                        sync_content(fd)
                        return
                finally:
                    os.close(fd)
        new = Temporary(self._temporary)
        try:
            _write(new.fd, content)
            sync_file(new.fd)
            new.rename(self._path)
            sync_folder(os.path.dirname(self._path))
        finally:
            new.discard()


def _write(fd: int, content: bytes) -> None:
    """Write all of it: at a limit of the file's size, the system writes a part and reports no error."""
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)


def _record(mark: Mark) -> bytes:
    text = mark.encode().encode()
    return b"%s\n%08x\n" % (text, zlib.crc32(text)) + b"\n" * (SECTOR - len(text) - 10)


def _content(record: bytes) -> bytes:
    """Return what *record* holds; raise `ValueError` if it is not what was written."""
    text, _, rest = record.partition(b"\n")  # not split: a record is mostly newlines
    if not rest.startswith(b"%08x\n" % zlib.crc32(text)) or rest[9:].strip(b"\n") or len(record) < SECTOR:
        raise ValueError("damaged")
    return text
