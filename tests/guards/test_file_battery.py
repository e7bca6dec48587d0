"""The battery of the guard contract on files of a disk."""

from __future__ import annotations

import fcntl
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.guards import FileGuard
from leasehold.guards.files import names
from leasehold.testing.guard_contract import GuardContract


class TestFileGuard(GuardContract):
    """A folder per test. A lock is waited for shortly: a writer that stands still is met often here."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path
        self.monkeypatch = monkeypatch

    def open(self) -> FileGuard:
        """A guard that has seen nothing yet."""
        return self.factory()

    @property
    def factory(self) -> Callable[[], FileGuard]:
        """For child processes too."""
        return functools.partial(FileGuard, self.folder, busy_seconds=0.2)

    def spoil_mark(self, key: str) -> None:
        """One digit of it."""
        path = self.folder / ".leasehold/marks" / f"{names.file_name(key)}.mark"
        content = path.read_bytes()
        path.write_bytes(content.replace(b"0", b"1", 1))

    def unfenced(self) -> FileGuard:
        """A file system on which locks exclude no one."""
        self.monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
        return self.open()
