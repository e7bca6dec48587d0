"""Connections of sqlite3."""

from __future__ import annotations

from typing import Any

from .connection import Connection, Row, is_a, run_on


class Sqlite3(Connection):
    """A connection of sqlite3."""

    library = "sqlite3"
    how_to_begin = "execute('BEGIN IMMEDIATE')"
    vendor = "sqlite"

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows, whatever the caller has sqlite3 make of them."""
        cursor = self.handle.cursor()
        cursor.row_factory = None
        callers = self.handle.text_factory
        if callers is str and not several:
            return cursor.execute(sql, params).fetchall()  # type: ignore[no-any-return]  # none, if it has no rows
        self.handle.text_factory = str
        try:
            return run_on(cursor, sql, params, several)
        finally:
            self.handle.text_factory = callers


def find(connection: Any) -> Sqlite3 | None:
    """Return what *connection* is, if it is sqlite3's."""
    return Sqlite3(connection) if is_a(connection, "sqlite3", "Connection") else None
