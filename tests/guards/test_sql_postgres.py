"""SqlGuard on PostgreSQL keeps the contract, with each library, on the oldest and the newest server."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg import sql
from tests.guards import sql_puts
from tests.guards.sql_puts import TABLE, LibraryGuard, opened
from tests.guards.test_sql_sqlite import InProcess
from tests.postgres.fixtures import server_url
from tests.postgres.proxy import Proxy, Where

from leasehold.guard import Guard
from leasehold.guards.sql.connecting import PostgresUrl
from leasehold.testing.guard_contract import GuardContract
from leasehold.testing.guard_contract.support import Battery

__all__ = ["server_url"]  # a fixture

_numbers = itertools.count()


class LosingProxy(Proxy):
    """A proxy that does something after a COMMIT has taken effect, and then loses its reply."""

    meanwhile: Callable[[], None]

    def _strike(self, where: Where, request: bytes, client: socket.socket, server: socket.socket) -> None:
        super()._strike(where, request, client, server)
        self.meanwhile()


class OnPostgres(Battery):
    """How the battery reaches rows of a server."""

    library: ClassVar[str] = "guard"
    # A seal is never blocked by a stopped owner; its successor's write of the same rows is, by a lock of those rows.
    names_holder = False

    @pytest.fixture(autouse=True)
    def resource(self, server_url: str) -> Iterator[None]:
        """A schema for the guard of each test; the table of the application is shared, by keys of their own."""
        self.url = server_url
        self.number = next(_numbers)
        self.schema = f"guard {self.number} \"%s' é"  # nothing that a name may contain needs care
        self.execute(TABLE.format(bytes="bytea"))
        yield
        self.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self.schema)))
        self.execute(sql.SQL("delete from guarded"))

    def execute(self, statement: Any, params: Any = None) -> list[Any]:
        """Run a statement past the guard."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning; set lock_timeout = '20s'")
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def key(self, number: int = 0) -> str:
        """A key of this test."""
        return f"test-{self.number}-{number}"

    def open(self) -> Guard:
        """Return a guard on the database."""
        return opened(self.url, self.library, self.schema)

    @property
    def factory(self) -> Callable[[], Guard]:
        """What a child process opens."""
        return functools.partial(opened, self.url, self.library, self.schema)

    put = staticmethod(sql_puts.put)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """Read the row, past the guard."""
        rows = self.execute("select value from guarded where key = %s", [key])
        return rows[0][0] if rows else None

    def delete(self, guard: Guard, key: str, **presented: Any) -> None:
        """Delete the row."""
        assert isinstance(guard, LibraryGuard)
        sql_puts.put(guard, key, None, presented)

    def marks(self, statement: Any, key: str = "") -> None:
        """Run a statement on the guard's tables."""
        self.execute(sql.SQL(statement).format(schema=sql.Identifier(self.schema), key=sql.Literal(key)))

    def spoil_mark(self, key: str) -> None:
        """Make the counter one that no mark has."""
        self.marks("update {schema}.marks set counter = 0 where key = {key}", key)

    def unfenced(self) -> Guard:
        """Return a guard whose trigger was disabled."""
        guard = opened(self.url, self.library, self.schema)
        guard.install()
        self.marks("alter table {schema}.fences disable trigger at_commit")
        return guard


class TestOwnTransaction(OnPostgres, GuardContract):
    """`guard.transaction()`."""

    @contextmanager
    def lose_reply(self, guard: Guard, meanwhile: Callable[[], None]) -> Iterator[None]:
        """Send the guard through a proxy that loses the reply of its next COMMIT."""
        assert isinstance(guard, LibraryGuard)
        guard.install()  # whose COMMIT is not the one that is meant
        losing = LosingProxy(self.url)
        losing.meanwhile = meanwhile
        with losing as proxy:
            direct, guard._source = guard._source, PostgresUrl(proxy.url, 30)
            proxy.cut(Where.AFTER, "COMMIT")
            try:
                yield
                assert proxy.cuts == 1
            finally:
                guard._source.close()
                guard._source = direct


class TestDriver(OnPostgres, GuardContract):
    """A connection of psycopg."""

    library = "driver"


class TestSqlalchemy(OnPostgres, InProcess):
    """A connection of SQLAlchemy, on psycopg."""

    library = "sqlalchemy"


class TestSession(OnPostgres, InProcess):
    """A session of SQLAlchemy."""

    library = "session"


class TestAsync(OnPostgres, InProcess):
    """An async connection of SQLAlchemy, on psycopg."""

    library = "async"


class TestAsyncpg(OnPostgres, InProcess):
    """An async connection of SQLAlchemy, on asyncpg."""

    library = "asyncpg"


class TestDjango(OnPostgres, InProcess):
    """Django's connection."""

    library = "django"
