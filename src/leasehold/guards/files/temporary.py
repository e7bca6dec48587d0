"""
Data that has no name yet.

A temporary file is locked by its writer from beginning to end. A file that can be locked has lost its writer and is
removed; so nothing depends on process ids, which containers and reboots give out again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress


class Temporary:
    """A new file below *folder*, open as `fd`: `rename` gives it its name, `discard` removes it."""

    def __init__(self, folder: str) -> None:
        self._process = os.getpid()
        self._is_renamed = False
        while True:
            self.path = os.path.join(folder, f"{self._process}-{secrets.token_hex(8)}")
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with suppress(BlockingIOError):
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self.fd).st_nlink:
                    return
            os.close(self.fd)  # `collect` of another process came before our lock

    def write(self, content: bytes) -> None:
        """Write *content* at the end."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def rename(self, path: str) -> None:
        """Give the file its name, in place of the one that has it."""
        os.rename(self.path, path)
        self._is_renamed = True

    def discard(self) -> None:
        """Close the file, and remove it unless it was renamed."""
        if self._process != os.getpid():
            return  # a forked child has only a copy of this object; the file is its parent's
        if not self._is_renamed:
            with suppress(OSError):  # whatever happened, that is what the caller should hear; `collect` tries again
                os.unlink(self.path)
        os.close(self.fd)


def collect(folder: str) -> int:
    """Remove the temporary files whose writers have ended; return how many there were."""
    found = 0
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it got its name meanwhile, or belongs to another user
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            found += 1
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            os.close(fd)
    return found
