"""
A caller's own transaction on either database, through each library that can be joined.

Every library looks async here, so that one program serves all. A synchronous one is never suspended.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.django_connection import django_connection
from tests.postgres.fixtures import path_of, without_path

T = TypeVar("T")

BUSY_SECONDS = 0.05  # nobody else uses the file: whoever waits at all waits for its own caller


@dataclass(frozen=True)
class Database:
    """Where the store and the caller's rows are."""

    url: str  # a path, for SQLite
    is_sqlite: bool
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED

    def engine(self, make: Callable[..., Any], driver: str | None) -> Any:
        """Return an engine of SQLAlchemy."""
        if self.is_sqlite:
            url = f"sqlite{'+aiosqlite' if driver else ''}:///{self.url}"
            return make(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})
        path: dict[str, Any] = {"options": f"-csearch_path={path_of(self.url)}"}
        if driver == "asyncpg":
            path = {"server_settings": {"search_path": path_of(self.url)}}  # its own form
        url = without_path(self.url).replace("postgresql://", f"postgresql+{driver or 'psycopg'}://")
        return make(url, connect_args=path, isolation_level=self.isolation.name.replace("_", " "), poolclass=NullPool)


class Library:
    """A connection, and how its user begins, writes and ends a transaction."""

    is_async = False
    connection: Any

    def __init__(self, database: Database) -> None:
        self.database = database

    async def connect(self) -> None:
        """Connect."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Begin, as this library wants it; most of them do it by themselves."""

    async def execute(self, sql: str) -> None:
        """Run a statement of the caller's own."""
        self.connection.execute(text(sql))

    async def commit(self) -> None:
        """Commit."""
        self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    async def close(self) -> None:
        """Let go of the connection, and roll back what it has open."""
        self.connection.close()


class Driver(Library):
    """sqlite3 and psycopg as they come."""

    async def connect(self) -> None:
        if self.database.is_sqlite:
            self.connection = sqlite3.connect(self.database.url, timeout=BUSY_SECONDS)
        else:
            self.connection = psycopg.connect(self.database.url)
            self.connection.isolation_level = self.database.isolation

    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)


class Core(Library):
    """SQLAlchemy's Connection."""

    async def connect(self) -> None:
        self.engine = self.database.engine(create_engine, None)
        self.connection = self.engine.connect()

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class Orm(Library):
    """SQLAlchemy's Session."""

    async def connect(self) -> None:
        self.engine = self.database.engine(create_engine, None)
        self.connection = Session(self.engine)

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class Django(Library):
    """Django's default connection, inside `transaction.atomic()`."""

    _atomic: AbstractContextManager[Any] | None = None

    async def connect(self) -> None:
        if self.database.is_sqlite:
            self._made = django_connection(
                ENGINE="django.db.backends.sqlite3", NAME=self.database.url, OPTIONS={"timeout": BUSY_SECONDS}
            )
        else:
            parts = conninfo_to_dict(self.database.url)
            options = {"options": parts["options"], "isolation_level": self.database.isolation}
            self._made = django_connection(
                ENGINE="django.db.backends.postgresql",
                NAME=parts["dbname"],
                USER=parts["user"],
                HOST=parts["host"],
                OPTIONS=options,
            )
        self.connection = self._made.__enter__()

    async def begin(self) -> None:
        from django.db import transaction

        self._atomic = transaction.atomic()
        self._atomic.__enter__()

    async def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    async def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        assert atomic is not None
        atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        if self._atomic is not None:
            atomic, self._atomic = self._atomic, None
            error = RuntimeError("undo")
            atomic.__exit__(RuntimeError, error, None)

    async def close(self) -> None:
        await self.rollback()
        self._made.__exit__(None, None, None)


class AsyncCore(Library):
    """SQLAlchemy's AsyncConnection, on aiosqlite and psycopg."""

    is_async = True
    driver = "psycopg"

    async def connect(self) -> None:
        self.engine = self.database.engine(create_async_engine, self.driver)
        self.connection = await self.engine.connect()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(text(sql))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


class Asyncpg(AsyncCore):
    """SQLAlchemy's AsyncConnection, on aiosqlite and asyncpg."""

    driver = "asyncpg"


class AsyncOrm(AsyncCore):
    """SQLAlchemy's AsyncSession, on aiosqlite and asyncpg."""

    driver = "asyncpg"

    async def connect(self) -> None:
        self.engine = self.database.engine(create_async_engine, self.driver)
        self.connection = AsyncSession(self.engine)


LIBRARIES: dict[str, type[Library]] = {
    "driver": Driver,
    "sqlalchemy": Core,
    "session": Orm,
    "django": Django,
    "async sqlalchemy": AsyncCore,
    "asyncpg": Asyncpg,
    "async session": AsyncOrm,
}


class Direct:
    """Synchronous verbs that can be awaited, and are made right where they are called."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._of, name)(*args, **kwargs)

        return call


def run(program: Coroutine[Any, Any, T], *, is_async: bool) -> T:
    """Run *program* in a context of its own: on an event loop, or right here if it never waits."""
    context = contextvars.Context()
    if is_async:
        return context.run(asyncio.run, program)
    try:
        context.run(program.send, None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typed as the program is
    raise AssertionError("a synchronous program was suspended")
