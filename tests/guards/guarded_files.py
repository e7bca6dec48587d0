"""A guarded folder, and what the tests of the file guard look at in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold.guards import FileGuard
from leasehold.guards.files import names

OLD, NEW, NEWEST = 1_794_776_400_000_007, 1_794_776_400_000_011, 1_794_776_400_000_019


def under(epoch: int, owner: str = "a") -> dict[str, Any]:
    """What an owner without a lease presents."""
    return {"epoch": epoch, "owner": owner, "store": "store-1"}


@pytest.fixture
def guard(tmp_path: Path) -> FileGuard:
    """A guard of a folder."""
    return FileGuard(tmp_path, busy_seconds=PATIENCE_SECONDS)


def left_over(guard: FileGuard) -> list[str]:
    """The temporary files."""
    return os.listdir(guard.folder / ".leasehold/tmp")


def mark_path(guard: FileGuard, key: str) -> Path:
    """Where the mark of a key is."""
    return guard.folder / ".leasehold/marks" / f"{names.file_name(key)}.mark"
