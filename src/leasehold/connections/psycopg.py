"""Connections of psycopg, sync and async."""

from __future__ import annotations

import sys
from typing import Any

from .connection import Connection, Row, loaded
from .drivers import is_piped


class Psycopg(Connection):
    """A connection of psycopg."""

    library = "psycopg"
    how_to_begin = "connection.transaction()"
    vendor = "postgresql"

    def enter(self) -> None:
        """In a pipeline, wait for what was sent, if only that tells whether a transaction is open."""
        self.is_piped = is_piped(self.handle)
        if self._is_unsure():
            with self.handle.pipeline():
                pass

    def in_transaction(self) -> bool:
        """Return whether a transaction is open on it, or will be once the pipeline has begun it."""
        return super().in_transaction() or (is_piped(self.handle) and _knows(self.handle))

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        cursor = self._cursor()
        if several:
            cursor.executemany(sql, params)
            return []
        cursor.execute(sql, params)
        # Rows of `tuple_row` are tuples already, and `cursor.description` makes an object of each column.
        return cursor.fetchall() if cursor.pgresult.nfields else []

    def send(self, sql: str, params: Any) -> None:
        """Run a statement and read no answer; in a pipeline its error is the pipeline's."""
        self._cursor().execute(sql, params)

    def _cursor(self) -> Any:
        return self.handle.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)

    def _is_unsure(self) -> bool:
        return is_piped(self.handle) and bool(self.handle.autocommit) and not _knows(self.handle)


class AsyncPsycopg(Psycopg):
    """A connection of psycopg on an event loop."""

    is_async = True

    async def enter_async(self) -> None:
        """In a pipeline, wait for what was sent, if only that tells whether a transaction is open."""
        if self._is_unsure():
            async with self.handle.pipeline():
                pass

    async def execute_async(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        async with self._cursor() as cursor:
            if several:
                await cursor.executemany(sql, params)
                return []
            await cursor.execute(sql, params)
            return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []


def find(connection: Any) -> Psycopg | None:
    """Return what *connection* is, if it is psycopg's."""
    if isinstance(connection, loaded("psycopg", "Connection")):
        return Psycopg(connection)
    return AsyncPsycopg(connection) if isinstance(connection, loaded("psycopg", "AsyncConnection")) else None


def _knows(driver: Any) -> bool:
    # Inside `with connection.transaction()` psycopg itself knows. (It does not say so to others; if it keeps it
    # elsewhere one day, the server is asked.)
    return bool(getattr(driver, "_num_transactions", False))
