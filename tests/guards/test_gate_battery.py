"""The battery of the guard contract on gates: uses in memory, in an SQLite file and on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from leasehold.core.marks import Mark
from leasehold.guard import Guard
from leasehold.guards import Gate
from leasehold.testing.guard_contract import GuardContract

from .gates import FilesGate, Places, places

__all__ = ["places"]  # a fixture


class _GateContract(GuardContract):
    """A gate in front of plain files. Older uses are waited for shortly: many stand still here until the end."""

    home: ClassVar[str]
    drain_seconds: ClassVar[float] = 1.0

    @pytest.fixture(autouse=True)
    def _places(self, places: Places) -> Iterator[None]:
        self.places = places
        self.opened: list[FilesGate] = []
        yield
        for gate in self.opened:
            gate.close()

    def open(self) -> FilesGate:
        """A gate on the state of this test; of a thousand, the early ones are done."""
        self.opened.append(self._opener()())
        while len(self.opened) > 4:
            self.opened.pop(0).close()
        return self.opened[-1]

    def _opener(self) -> Callable[[], FilesGate]:
        return self.places.opener(self.home, drain_seconds=self.drain_seconds)

    def in_doubt(self, guard: Guard, key: str, epoch: int) -> bool:
        """Whether a seal has given up waiting for a use."""
        assert isinstance(guard, Gate)
        return any(doubt.epoch == epoch for doubt in guard.doubts(key))

    def unfenced(self) -> FilesGate:
        """A state that keeps what it is given, whatever was there."""
        gate = self.open()
        gate._home.begin = lambda use, admit: Mark(use.epoch, 1, use.owner, "")  # type: ignore[method-assign]
        return gate


class TestGateInMemory(_GateContract):
    """One process: gates on one file share its uses. A second process cannot open it."""

    home = "memory"


class _Shared(_GateContract):
    @property
    def factory(self) -> Callable[[], FilesGate]:
        """For child processes."""
        return self._opener()

    def spoil_mark(self, key: str) -> None:
        """A count that no owner has written."""
        self.places.execute(self.home, f"update leasehold_gate_marks set counter = -7 where key = '{key}'")


class TestGateInSqlite(_Shared):
    """Several processes of one machine."""

    home = "sqlite"
    names_holder = False  # SQLite does not tell


class TestGateInPostgres(_Shared):
    """Several processes of several machines."""

    home = "postgresql"
