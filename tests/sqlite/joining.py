"""Callers with a transaction of their own on the store's file, through every driver that can be joined."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, TypeVar

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")


class Caller:
    """
    Somebody whose rows are in the store's file.

    Every caller looks async here, so that one test serves all. A synchronous connection gets the synchronous verbs.
    """

    is_async = False

    def __init__(self, path: str) -> None:
        self.path = path

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """A connection without a transaction of its own yet, or with the one that the driver begins by itself."""
        raise NotImplementedError
        yield

    async def begin(self, connection: Any) -> None:
        """Begin, as this driver wants it; most of them do it by themselves."""

    async def execute(self, connection: Any, sql: str) -> Any:
        """Run a statement of the caller's own."""
        return connection.execute(text(sql)).fetchall() if sql.startswith("select") else connection.execute(text(sql))

    async def read_first(self, connection: Any) -> None:
        """Begin with a read, so that the transaction sees the file as it is now."""
        await self.execute(connection, "begin")
        await self.execute(connection, "select * from results")

    async def commit(self, connection: Any) -> None:
        """Commit."""
        connection.commit()

    async def rollback(self, connection: Any) -> None:
        """Roll back."""
        connection.rollback()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction that commits at the end of the block, or rolls back what an exception leaves."""
        async with self.connected() as connection:
            await self.begin(connection)
            try:
                yield connection
            except BaseException:
                await self.rollback(connection)
                raise
            await self.commit(connection)

    async def write(self, connection: Any, what: str = "mine") -> None:
        """Write a row."""
        await self.execute(connection, f"insert into results values ('{what}')")

    def verbs(self, of: Any) -> Any:
        """The verbs of a lease or a router, to be awaited, in the form that fits the connection."""
        return of.aio if self.is_async else Direct(of)


class Direct:
    """Synchronous verbs that can be awaited, and are made right where they are called."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._of, name)(*args, **kwargs)

        return call


class Plain(Caller):
    """sqlite3 as it comes: it begins by itself before the first INSERT, and not before a SELECT."""

    options: dict[str, Any] = {}  # noqa: RUF012  # of sqlite3.connect, never changed

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=0.05, **self.options)) as connection:
            yield connection

    async def execute(self, connection: sqlite3.Connection, sql: str) -> Any:
        return connection.execute(sql).fetchall()


class Explicit(Plain):
    """sqlite3 that begins when it is told to."""

    options = {"isolation_level": None}  # noqa: RUF012

    async def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin immediate")

    async def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("commit")


class Deferred(Explicit):
    """The same, with a transaction that has locked nothing yet."""

    async def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("begin")

    async def read_first(self, connection: sqlite3.Connection) -> None:
        connection.execute("select * from results").fetchall()


class OwnRows(Plain):
    """sqlite3 whose user likes rows to be dictionaries."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[sqlite3.Connection]:
        async with super().connected() as connection:
            connection.row_factory = lambda cursor, row: {
                column[0]: value for column, value in zip(cursor.description, row, strict=True)
            }
            yield connection


class AlwaysInside(Plain):
    """sqlite3 since Python 3.12 with autocommit=False: a transaction is always open."""

    options = {"autocommit": False}  # noqa: RUF012

    async def read_first(self, connection: sqlite3.Connection) -> None:
        connection.execute("select * from results").fetchall()


class Owned(sqlite3.Connection):
    """A class of the user's own."""


class Watchable(Plain):
    """sqlite3 with such a class, to which there can be weak references."""

    options = {"factory": Owned}  # noqa: RUF012


class CoreConnection(Caller):
    """SQLAlchemy's Connection."""

    options: dict[str, Any] = {}  # noqa: RUF012  # of the engine, never changed

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        engine = create_engine(
            f"sqlite:///{self.path}", poolclass=NullPool, connect_args={"timeout": 0.05}, **self.options
        )
        with engine.connect() as connection:
            yield connection


class OrmSession(CoreConnection):
    """SQLAlchemy's Session."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        async with super().connected() as connection:
            with Session(connection.engine) as session:
                yield session


class AsyncCore(Caller):
    """SQLAlchemy's AsyncConnection, on aiosqlite."""

    is_async = True
    options: dict[str, Any] = {}  # noqa: RUF012

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        url = f"sqlite+aiosqlite:///{self.path}"
        engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": 0.05}, **self.options)
        try:
            async with engine.connect() as connection:
                yield connection
        finally:
            await engine.dispose()

    async def execute(self, connection: Any, sql: str) -> Any:
        result = await connection.execute(text(sql))
        return result.fetchall() if result.returns_rows else []

    async def commit(self, connection: Any) -> None:
        await connection.commit()

    async def rollback(self, connection: Any) -> None:
        await connection.rollback()


class AsyncOrm(AsyncCore):
    """SQLAlchemy's AsyncSession, on aiosqlite."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        async with super().connected() as connection, AsyncSession(connection.engine) as session:
            yield session


CALLERS: list[type[Caller]] = [Plain, Explicit, Deferred, OwnRows, CoreConnection, OrmSession, AsyncCore, AsyncOrm]
if sys.version_info >= (3, 12):
    CALLERS.append(AlwaysInside)


class AutocommitPlain(Plain):
    """sqlite3 that commits each statement by itself."""

    options = {"isolation_level": None}  # noqa: RUF012


class AutocommitSince312(Plain):
    """The same, in the words of Python 3.12."""

    options = {"autocommit": True}  # noqa: RUF012


class AutocommitCore(CoreConnection):
    """SQLAlchemy's Connection in its autocommit mode."""

    options = {"isolation_level": "AUTOCOMMIT"}  # noqa: RUF012


class AutocommitOrm(OrmSession):
    """SQLAlchemy's Session in its autocommit mode."""

    options = {"isolation_level": "AUTOCOMMIT"}  # noqa: RUF012


class AutocommitAsync(AsyncCore):
    """SQLAlchemy's AsyncConnection in its autocommit mode."""

    options = {"isolation_level": "AUTOCOMMIT"}  # noqa: RUF012


AUTOCOMMITTING: list[type[Caller]] = [AutocommitPlain, AutocommitCore, AutocommitOrm, AutocommitAsync]
if sys.version_info >= (3, 12):
    AUTOCOMMITTING.append(AutocommitSince312)


def in_thread(call: Callable[[], T]) -> T:
    """Make *call* in a thread of its own, which knows nothing of this one's transactions; return or raise the same."""
    return Elsewhere(call).result()  # type: ignore[no-any-return]  # what the call returns


class Elsewhere:
    """A call under way in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # told to the test by `result`
            self._error = error

    @property
    def waits(self) -> bool:
        """Whether it has not come back yet."""
        return self._thread.is_alive()

    def result(self) -> Any:
        """What the call returned or raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._value
