"""The write-ahead log beside a file: whether it is still there, and whether it has become long."""

from __future__ import annotations

import os
from contextlib import suppress


class LogFile:
    """
    The log of a file that is open.

    SQLite locks the file and never its log, so that the log may be opened and closed beside it.
    """

    def __init__(self, file: str) -> None:
        self._path = f"{os.path.realpath(file)}-wal"  # SQLite puts it beside the file, not beside a link to it
        self._identity = _identity(self._path)
        self._handle: int | None = None
        self._link = self._name = ""
        if hasattr(os, "O_PATH"):
            with suppress(OSError):
                self._handle = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
                self._link = f"/proc/self/fd/{self._handle}"
                self._name = os.readlink(self._link)
        if _identity(self._path) != self._identity or _identity(self._link) != self._identity:
            self._name = ""  # it was replaced just now

    def close(self) -> None:
        """Look at it no more."""
        self._name = ""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def is_there(self) -> bool:
        """
        Return whether the path still names this log.

        Linux tells where an open file is. To ask for the file that is at the path would do, but since Linux 6.13
        whoever looks at the times of a file makes the next write to it slower, by a fifth of a commit.
        """
        try:
            if self._name and os.readlink(self._link) == self._name:
                return True
        except OSError:
            pass
        return self._identity is not None and self._identity == _identity(self._path)

    def is_long(self, pages: int) -> bool:
        """
        Return whether *pages* or more have been written to it since it last began anew.

        Its length does not tell, which stays what it ever was. But before each page are two numbers of the log's
        header, and they are others after each beginning.
        """
        try:
            with open(self._path, "rb", buffering=0) as file:
                header = file.read(32)
                file.seek(32 + (pages - 1) * (24 + int.from_bytes(header[8:12], "big")) + 8)
                return len(header) == 32 and file.read(8) == header[16:24]
        except OSError:
            return False


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        return os.stat(path)[1:3]
    except OSError:
        return None
