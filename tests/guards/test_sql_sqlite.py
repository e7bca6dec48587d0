"""SqlGuard on SQLite keeps the contract, with each library; and what is SQLite's own."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.guards import sql_puts
from tests.guards.sql_puts import TABLE, LibraryGuard, opened

from leasehold.guard import Guard
from leasehold.testing.guard_contract import GuardContract
from leasehold.testing.guard_contract.marking import Marking
from leasehold.testing.guard_contract.racing import Racing
from leasehold.testing.guard_contract.sealing import Sealing
from leasehold.testing.guard_contract.support import Battery


class InProcess(Racing, Sealing, Marking):
    """What may differ between libraries. Arguments are checked before any of them, and a dead process has none."""


class OnSqlite(Battery):
    """How the battery reaches rows of a file."""

    library = "guard"

    @pytest.fixture(autouse=True)
    def resource(self, tmp_path: Path) -> None:
        """A file for each test, with a table of the application's."""
        self.path = tmp_path / "app.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(TABLE.format(bytes="blob"))

    @property
    def url(self) -> str:
        """The file, as a URL."""
        return f"sqlite:///{self.path}"

    def open(self) -> Guard:
        """Return a guard on the file."""
        return opened(self.url, self.library)

    @property
    def factory(self) -> Callable[[], Guard]:
        """What a child process opens."""
        return functools.partial(opened, self.url, self.library)

    put = staticmethod(sql_puts.put)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """Read the row, past the guard."""
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("select value from guarded where key = ?", [key]).fetchall()
        return rows[0][0] if rows else None

    def delete(self, guard: Guard, key: str, **presented: Any) -> None:
        """Delete the row."""
        assert isinstance(guard, LibraryGuard)
        sql_puts.put(guard, key, None, presented)

    def spoil_mark(self, key: str) -> None:
        """Put text where the epoch was."""
        self._execute(f"update leasehold_guard_marks set epoch = 'seven' where key = '{key}'")

    def unfenced(self) -> Guard:
        """Return a guard whose table has a trigger that lowers the marks."""
        guard = self.open()
        guard.seal("any", epoch=1, owner="x", store="y")
        self._execute(
            "create trigger lower after insert on leasehold_guard_marks begin "
            "update leasehold_guard_marks set epoch = 1; end"
        )
        return guard

    def _execute(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(sql)


class TestOwnTransaction(OnSqlite, GuardContract):
    """`guard.transaction()`."""


class TestDriver(OnSqlite, GuardContract):
    """A connection of sqlite3."""

    library = "driver"


class TestSqlalchemy(OnSqlite, InProcess):
    """A connection of SQLAlchemy."""

    library = "sqlalchemy"


class TestSession(OnSqlite, InProcess):
    """A session of SQLAlchemy."""

    library = "session"


class TestAsync(OnSqlite, InProcess):
    """An async connection of SQLAlchemy, on aiosqlite."""

    library = "async"


class TestDjango(OnSqlite, InProcess):
    """Django's connection."""

    library = "django"
