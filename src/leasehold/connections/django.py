"""Django's connections."""

from __future__ import annotations

import sys
from typing import Any

from .connection import Connection, Row, run_on
from .sqlite3 import Sqlite3


class Django(Connection):
    """A connection of Django."""

    library = "Django"
    how_to_begin = "`with transaction.atomic():`, since its default is autocommit"
    savepoint_advice = (
        " It is a nested transaction.atomic(): call this in the outermost one. (Django's TestCase is an atomic() of "
        "its own: use TransactionTestCase.)"
    )

    @property
    def vendor(self) -> str:
        """The database, as Django names it."""
        return str(self.handle.vendor)

    def enter(self) -> None:
        """Connect, which Django does on use."""
        self.handle.ensure_connection()

    def has_begun(self) -> bool:
        """Return whether it is inside an `atomic()`."""
        return bool(self.handle.in_atomic_block)

    def in_savepoint(self) -> bool:
        """Return whether it is inside a nested `atomic()`."""
        return any(self.handle.savepoint_ids)  # a level of atomic(savepoint=False) is None there

    @staticmethod
    def driver_of(handle: Any) -> Any:
        """Return the driver's connection; None if it is closed."""
        return handle.connection

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        if self.vendor == "sqlite":
            # Django's cursor would take a ? for a character like any other.
            return Sqlite3(self.handle.connection).execute(sql, params, several=several)
        # Through Django's own cursor, which knows whether this transaction can still be used.
        with self.handle.cursor() as cursor:
            return run_on(cursor, sql, params, several)


def find(connection: Any) -> Django | None:
    """Return what *connection* is, if it is Django's, or stands for this thread's."""
    database: Any = sys.modules.get("django.db")
    base: Any = sys.modules.get("django.db.backends.base.base")  # loaded with the first connection
    if database is None or base is None:
        return None
    # What `from django.db import connection` gives: it stands for the default one, of whichever thread asks.
    if type(connection) is type(database.connection):
        alias = getattr(connection, "alias", None)
        connection = database.connections[alias] if isinstance(alias, str) else None
    return Django(connection) if isinstance(connection, base.BaseDatabaseWrapper) else None
