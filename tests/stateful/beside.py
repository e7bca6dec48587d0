"""The store that stands beside the memory store, and what it needs to answer the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from tests.postgres.fixtures import Place

from leasehold.core.clock import Clock
from leasehold.store import Store
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.sqlite import SqliteStore


class Beside(Protocol):
    """One run's place for a store."""

    every: int  # after so many steps, everything in it is looked at; its answers are, after each

    def open(self, clock: Clock, trace: bool) -> Store:
        """Open the store: empty the first time, and then with what it has."""
        ...

    def later(self, now: int) -> None:
        """The clock has moved to *now*."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Sqlite:
    """A file in a folder of its own."""

    def __init__(self, *, every: int = 1) -> None:
        self.every = every
        self._folder = TemporaryDirectory(prefix="leasehold-")

    def open(self, clock: Clock, trace: bool) -> Store:
        """Open the file."""
        path = Path(self._folder.name, "jobs.db")
        return SqliteStore(str(path), clock=clock, trace=trace, synchronous="normal")

    def later(self, now: int) -> None:
        """Nothing: it goes by its clock."""

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()


class Postgres:
    """A schema of a server, which goes by the clock of the test."""

    def __init__(self, url: str, *, every: int = 1) -> None:
        self.every = every
        self._place = Place(url, keeps=True)
        self._store: PostgresStore | None = None

    def open(self, clock: Clock, trace: bool) -> Store:
        """Open the schema."""
        if self._store is None:
            self._store = self._place.store(clock, trace=trace)
            self.later(clock.now() + 1)  # the others begin above the clock
            return self._store
        database = self._store.database
        self._store = PostgresStore(database.url, clock=clock, trace=trace, schema=database.schema)
        self._place.stores.append(self._store)
        return self._store

    def later(self, now: int) -> None:
        """Lift the next epoch to the clock: the other stores do so by themselves, and then all draw the same."""
        assert self._store is not None
        self._store.database.call("raise_epochs", now)

    def close(self) -> None:
        """Empty the schema, for the next run."""
        self._place.clear()
