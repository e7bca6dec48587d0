"""
What a caller's connection is, and how to ask something on it: psycopg, Django, SQLAlchemy.

None of the caller's libraries is imported here: one of whose objects the caller has is in `sys.modules`.
"""

from __future__ import annotations

import sys
from typing import Any

import psycopg
from psycopg import pq

from ...errors import NotInTransaction, Unsupported
from .. import django
from .rows import Row

ASYNC_SESSIONS = ("AsyncSession", "async_scoped_session")


def refuse_autocommit(driver: Any) -> None:
    """Refuse a connection on which each statement would commit by itself."""
    if not getattr(driver, "autocommit", False):
        return
    status = getattr(getattr(driver, "info", None), "transaction_status", pq.TransactionStatus.IDLE)
    if status == pq.TransactionStatus.IDLE:
        raise NotInTransaction(
            "that connection has no transaction open, so each statement commits by itself, and nothing would commit or "
            "roll back together with this: begin one first (psycopg: connection.transaction(); SQLAlchemy: "
            "engine.begin(), no AUTOCOMMIT)."
        )


def is_piped(connection: Any) -> bool:
    """Return whether *connection* is in pipeline mode, where answers come later."""
    return bool(connection.pgconn.pipeline_status != pq.PipelineStatus.OFF)


def is_in_transaction(connection: Any) -> bool:
    """Return whether the library of *connection* knows of an open transaction on it."""
    if django.wrapper_of(connection) is not None:
        connection = connection.connection
    if connection is None or getattr(connection, "closed", False):
        return False
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return bool(connection.info.transaction_status != pq.TransactionStatus.IDLE)
    return bool(connection.in_transaction())


def ask_on(cursor: Any, sql: str, params: tuple[Any, ...]) -> list[Row]:
    """Return the rows of a statement, whatever the cursor makes of a row."""
    cursor.execute(sql, params)
    return [tuple(row) for row in cursor.fetchall()]


def rows_of(result: Any) -> list[Row]:
    """Return the rows of a result of SQLAlchemy's."""
    return [tuple(row) for row in result.fetchall()]


def style_of(connection: Any) -> str:
    """Return how the driver below *connection* writes a parameter."""
    return "$1" if connection.dialect.driver == "asyncpg" else "%s"


def types_of(module: str, *names: str) -> tuple[type[Any], ...]:
    """Return these classes of a module, if it is loaded."""
    loaded: Any = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def unsupported(connection: Any) -> Unsupported:
    """Return the refusal of a connection of a kind that nothing here knows."""
    return Unsupported(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}, and a PostgreSQL store can "
        "join psycopg connections, Django's, and SQLAlchemy connections and sessions (async ones through .aio)."
    )
