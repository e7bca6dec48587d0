"""The write-ahead log beside a file: whether it is still there, and whether it is long enough to checkpoint."""

from __future__ import annotations

import os
from contextlib import suppress

_CHECKPOINT_PAGES = 1_000
_LOOK_COMMITS = 32
_LOOK_CHANGES = 1_000


class Wal:
    """
    The log of a file that is open.

    SQLite locks the file and never its log, so that the log may be open here as well, and be closed.
    """

    def __init__(self, file: str) -> None:
        self._path = f"{os.path.realpath(file)}-wal"  # SQLite puts it beside the file, not beside a link to it
        self._handle: int | None = None
        self._identity: tuple[int, ...] | None = None
        self._link = self._name = ""
        # Commits since the last look at its length; at how many changes to look again. The first look is after the
        # first commit: many processes that each write a little must checkpoint too.
        self._commits = self._look_at = 0
        with suppress(OSError):
            self._handle = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            self._identity = os.fstat(self._handle)[1:3]
            self._link = f"/proc/self/fd/{self._handle}"
            self._name = os.readlink(self._link)
        if not self._is_at_path():
            self._name = ""  # another one is there by now

    def close(self) -> None:
        """Close the handle; `is_there` then looks at the path alone."""
        self._name = ""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def is_there(self) -> bool:
        """
        Return whether the path still names this log.

        Linux tells where an open file is. A stat of the path would tell, too, but since Linux 6.13 a
        reader of the times of a file makes the next write to it slower, by a fifth of a commit.
        """
        try:
            if self._name and os.readlink(self._link) == self._name:
                return True
        except OSError:
            pass
        return self._is_at_path()

    def _is_at_path(self) -> bool:
        try:
            return os.stat(self._path)[1:3] == self._identity
        except OSError:
            return False

    def is_due(self, changes: int) -> bool:
        """Return whether to checkpoint after this commit; *changes* is how many rows its connection has changed."""
        self._commits += 1
        if self._commits < _LOOK_COMMITS and changes < self._look_at:
            return False
        self._commits, self._look_at = 0, changes + _LOOK_CHANGES
        return self.is_long(_CHECKPOINT_PAGES)

    def is_long(self, pages: int) -> bool:
        """
        Return whether *pages* or more have been written to it since it last began anew.

        Its length does not tell, which stays what it ever was. But before each page are two numbers of the log's
        header, and they are others after each beginning.
        """
        header = self._read(0, 32)
        page_bytes = int.from_bytes(header[8:12], "big")
        return len(header) == 32 and self._read(32 + (pages - 1) * (24 + page_bytes) + 8, 8) == header[16:24]

    def _read(self, where: int, count: int) -> bytes:
        if self._handle is None:
            return b""
        os.lseek(self._handle, where, os.SEEK_SET)
        return os.read(self._handle, count)
