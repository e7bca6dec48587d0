"""Connections and sessions of SQLAlchemy, sync and async, on whichever driver."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .connection import Connection, Row, is_a, loaded


class Sqlalchemy(Connection):
    """A connection of SQLAlchemy, or the one that a session uses."""

    library = "SQLAlchemy"
    how_to_begin = "engine.begin(), without AUTOCOMMIT"

    def enter(self) -> None:
        """Take the connection of a session."""
        if isinstance(self.handle, _sessions()):
            self.handle = self.handle.connection()

    @property
    def vendor(self) -> str:
        """The database, as SQLAlchemy names it."""
        return str(self.handle.dialect.name)

    @property
    def style(self) -> str:
        """How the driver writes its first parameter."""
        return {"qmark": "?", "numeric_dollar": "$1"}.get(self.handle.dialect.paramstyle, "%s")

    def has_begun(self) -> bool:
        """Return whether SQLAlchemy has begun a transaction."""
        return bool(self.handle.in_transaction())

    def in_savepoint(self) -> bool:
        """Return whether it is inside a `begin_nested()`."""
        return bool(self.handle.in_nested_transaction())

    def watch(self) -> Callable[[Any], bool]:
        """Return a function that tells whether this transaction is still open."""
        root, seems_open = weakref.ref(self.handle.get_transaction()), super().watch()

        def is_open(handle: Any) -> bool:
            begun: Any = root()
            try:
                return begun is not None and begun.is_active and seems_open(handle)
            except Exception:  # invalidated or closed, in whatever words SQLAlchemy has for it
                return False

        return is_open

    @staticmethod
    def driver_of(handle: Any) -> Any:
        """Return the driver's connection: for PostgreSQL as SQLAlchemy adapts it, since asyncpg has no autocommit."""
        pooled = handle.connection
        return pooled.driver_connection if handle.dialect.name == "sqlite" else pooled.dbapi_connection

    def innermost_of(self, handle: Any) -> Any:
        """Return the connection that SQLAlchemy adapts, if its driver is an async one."""
        return handle.connection.driver_connection

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        if several and not params:
            return []  # SQLAlchemy would run it once
        return _rows(self.handle.exec_driver_sql(sql, _params(params, several)))


class AsyncSqlalchemy(Sqlalchemy):
    """A connection of SQLAlchemy on an event loop, or the one that an async session uses."""

    is_async = True

    async def enter_async(self) -> None:
        """Take the connection of a session, and of that the one which it wraps."""
        self._wrapper = self.handle
        if not is_a(self.handle, "sqlalchemy.ext.asyncio", "AsyncConnection"):
            self._wrapper = await self.handle.connection()
        self.handle = self._wrapper.sync_connection or self._wrapper

    async def execute_async(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        if several and not params:
            return []
        return _rows(await self._wrapper.exec_driver_sql(sql, _params(params, several)))


def find(connection: Any) -> Sqlalchemy | None:
    """Return what *connection* is, if it is SQLAlchemy's."""
    if isinstance(connection, (*loaded("sqlalchemy", "Connection"), *_sessions())):
        return Sqlalchemy(connection)
    asynchronous = loaded("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session")
    return AsyncSqlalchemy(connection) if isinstance(connection, asynchronous) else None


def _sessions() -> tuple[type[Any], ...]:
    return loaded("sqlalchemy.orm", "Session", "scoped_session")


def _params(params: Any, several: bool) -> Any:
    """Return *params* as SQLAlchemy takes them: in a list if they are several."""
    if several:
        return list(params)
    return params if isinstance(params, Mapping) else tuple(params)


def _rows(result: Any) -> list[Row]:
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []
