"""
What a caller's database connection is, and how to run statements in the transaction that it has open.

    recognise(connection)               a `Connection`; raises `Unsupported` for anything else
    await recognise_async(connection)   the same, for a connection that `is_async`: that belongs to an event loop
    look_at(connection)                 either, to `enter` or to `await … enter_async()` before it is used

    connection  CONTRACT: what is known of a connection, and what can be done with it
    sqlite3 · psycopg · sqlalchemy · django     one module for each library
    drivers     what the driver below says of its transaction

No library is imported here. A caller with a connection has its library loaded, so it is found in `sys.modules`.
"""

from typing import Any

from ..errors import Unsupported
from . import django, psycopg, sqlalchemy, sqlite3
from .connection import IN_SAVEPOINT, Connection, Program, Row, Statement, driver_error

__all__ = [
    "IN_SAVEPOINT",
    "Connection",
    "Program",
    "Row",
    "Statement",
    "driver_error",
    "is_async",
    "look_at",
    "recognise",
    "recognise_async",
]


def is_async(connection: Any) -> bool:
    """Return whether *connection* belongs to an event loop, so that only `recognise_async` can use it."""
    found = _find(connection)
    return found is not None and found.is_async


def recognise(connection: Any) -> Connection:
    """
    Return what *connection* is, ready to run statements on; of a session, the connection that it uses.

    Raises `Unsupported` for what is not a connection, or belongs to an event loop.
    """
    found = look_at(connection)
    if found.is_async:
        raise _unsupported(connection)
    found.enter()
    return found


async def recognise_async(connection: Any) -> Connection:
    """Return what *connection* is likewise, where it belongs to an event loop; raises `Unsupported` if it does not."""
    found = look_at(connection)
    if not found.is_async:
        raise _unsupported(connection)
    await found.enter_async()
    return found


def look_at(connection: Any) -> Connection:
    """Return what *connection* is, sync or async, before it is entered. Raises `Unsupported`."""
    found = _find(connection)
    if found is None:
        raise _unsupported(connection)
    return found


def _find(connection: Any) -> Connection | None:
    return (
        sqlite3.find(connection) or psycopg.find(connection) or sqlalchemy.find(connection) or django.find(connection)
    )


def _unsupported(connection: Any) -> Unsupported:
    return Unsupported(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}, which leasehold cannot join. "
        "Pass a connection of sqlite3, psycopg or Django, or a connection or session of SQLAlchemy (async ones "
        "through .aio)."
    )
