"""
CONTRACT: where a gate keeps its marks, the uses that are running, and the doubts.

A use is admitted and recorded in one atomic step: a seal that comes before it refuses it, and a seal that comes after
it sees it. A home holds no lock between two calls, so a caller that is stopped between them blocks no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...core.marks import Mark
from ...core.ownership import Process
from ...guard import Doubt

Admit = Callable[[Mark | None], Mark]  # returns the mark that a key has next; raises `StaleEpoch`


class Running(NamedTuple):
    """A use that has been admitted and has not ended."""

    id: str
    key: str
    epoch: int
    owner: str
    process: Process | None


class Home(ABC):
    """Keeps the state of one gate. Every call is atomic, and raises `GuardUnavailable` if it cannot be done now."""

    @abstractmethod
    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key*."""

    @abstractmethod
    def begin(self, use: Running, admit: Admit) -> Mark | None:
        """
        Record *use* and the mark that *admit* returns; return that mark.

        If the key has a mark with a lower epoch, nothing changes and None is returned: it has to be sealed first, since
        uses under that epoch may be running.
        """

    def try_begin(self, use: Running, store: str) -> bool:
        """Do what `begin` does for an owner of *store*, if that takes no I/O; else change nothing and return False."""
        return False

    @abstractmethod
    def seal(self, key: str, admit: Admit) -> Mark:
        """Set the mark of *key* to what *admit* returns; durable on return."""

    @abstractmethod
    def end(self, use: Running) -> None:
        """Forget *use*, which has ended. It never raises: a use that cannot be removed now is removed later."""

    @abstractmethod
    def running(self, key: str, below: int) -> list[Running]:
        """Return the uses of *key* that are running under an epoch below *below*."""

    @abstractmethod
    def doubt(self, key: str, notes: Mapping[str, str]) -> None:
        """Turn the running uses of *key* with these ids into doubts, each with its note, durably."""

    @abstractmethod
    def doubts(self, key: str | None = None) -> list[Doubt]:
        """Return the doubts that are not resolved, of *key* or of all keys."""

    @abstractmethod
    def resolve(self, key: str, epoch: int | None, by: str, note: str) -> int:
        """Resolve the doubts of *key*, those under *epoch* if given; return how many uses they were."""

    @abstractmethod
    def wait(self, key: str, below: int, micros: int) -> None:
        """Wait until one of the uses that `running` returns may have ended, for at most *micros*."""

    @abstractmethod
    def rest(self) -> None:
        """Record that no use is running, if so, until the next one begins."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    @property
    def waits(self) -> bool:
        """Whether `end` may wait for I/O, so that an event loop must not call it."""
        return True
