"""The SQLite store keeps the contract."""

import itertools
import sqlite3
from pathlib import Path

import pytest

from leasehold.store import Store
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.store_contract import AlarmClock, StoreContract


class TestSqliteStore(StoreContract):
    """Every clause, on a file."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        """Give each test files of its own."""
        self.paths = (str(tmp_path / f"jobs-{number}.db") for number in itertools.count())
        self.files: dict[int, str] = {}

    def open(self, clock: AlarmClock, *, trace: bool = False) -> Store:
        path = next(self.paths)
        store = SqliteStore(path, clock=clock, trace=trace)
        self.files[id(store)] = path
        return store

    def traced(self, clock: AlarmClock) -> Store:
        return self.open(clock, trace=True)

    def reopen(self, store: Store, clock: AlarmClock) -> Store:
        return SqliteStore(self.files[id(store)], clock=clock)

    def connect(self, store: Store) -> sqlite3.Connection:
        return sqlite3.connect(self.files[id(store)])

    def connect_autocommit(self, store: Store) -> sqlite3.Connection:
        return sqlite3.connect(self.files[id(store)], isolation_level=None)
