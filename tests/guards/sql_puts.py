"""
How each library writes a row in a transaction of its own that a guard fences: the battery calls these.

Libraries are imported on use: a child process of the battery needs one of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from leasehold import GuardUnavailable, StaleEpoch
from leasehold.guards import SqlGuard

TABLE = "create table if not exists guarded (key text primary key, value {bytes})"
_UPSERT = "insert into guarded values ({0}, {1}) on conflict (key) do update set value = excluded.value"
_DELETE = "delete from guarded where key = {0}"
_STYLES = {"?": ("?", "?"), "%s": ("%s", "%s"), "$1": ("$1", "$2")}
BUSY_SECONDS = 0.5  # of every connection here: a stopped owner holds locks on its own rows


class LibraryGuard(SqlGuard):
    """A guard that knows with which library and URL a test writes."""

    def __init__(self, url: str, library: str, schema: str) -> None:
        super().__init__(url, busy_seconds=BUSY_SECONDS, schema=schema)
        self.url, self.library = url, library

    @property
    def is_sqlite(self) -> bool:
        """Whether the rows are in a file."""
        return self.url.startswith("sqlite:")

    @property
    def path(self) -> str:
        """That file."""
        return self.url.removeprefix("sqlite:///")


def opened(url: str, library: str, schema: str = "leasehold_guard") -> LibraryGuard:
    """Return a guard, in this process or a child."""
    return LibraryGuard(url, library, schema)


def statement(style: str, value: bytes | None) -> tuple[str, Callable[[str], tuple[Any, ...]]]:
    """Return the statement that writes or deletes, and its parameters for a key."""
    if value is None:
        return _DELETE.format(*_STYLES[style]), lambda key: (key,)
    return _UPSERT.format(*_STYLES[style]), lambda key: (key, value)


def put(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    """Write a row, or delete it, with the guard's library; a refusal at COMMIT is found as an application finds it."""
    try:
        _PUTS[guard.library](guard, key, value, presented)
    except Exception as error:
        refusal = StaleEpoch.find(error)
        if refusal is not None:
            raise refusal from error
        if getattr(getattr(error, "orig", error), "sqlstate", None) == "55P03":  # the row of a stopped owner
            raise GuardUnavailable("a row is locked") from error
        raise


def _transaction(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    sql, params = statement("?" if guard.is_sqlite else "%s", value)
    with guard.transaction(key, **presented) as connection:
        connection.execute(sql, params(key))


def _driver(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    connection: Any
    if guard.is_sqlite:
        connection = sqlite3.connect(guard.path, timeout=BUSY_SECONDS)
    else:
        connection = psycopg.connect(guard.url, options=f"-clock_timeout={BUSY_SECONDS * 1000:.0f}")
    sql, params = statement("?" if guard.is_sqlite else "%s", value)
    try:
        guard.fence(connection, key, **presented)
        connection.execute(sql, params(key))
        guard.at("committing")
        connection.commit()
        guard.at("committed")
    finally:
        connection.close()


def _engine_url(guard: LibraryGuard, driver: str) -> str:
    if guard.is_sqlite:
        return guard.url.replace("sqlite:", f"sqlite+{driver}:" if driver else "sqlite:")
    return guard.url.replace("postgresql:", f"postgresql+{driver or 'psycopg'}:")


def _arguments(guard: LibraryGuard, driver: str) -> dict[str, Any]:
    if guard.is_sqlite:
        return {"timeout": BUSY_SECONDS}
    timeout = f"{BUSY_SECONDS * 1000:.0f}"
    return (
        {"server_settings": {"lock_timeout": timeout}}
        if driver == "asyncpg"
        else {"options": f"-clock_timeout={timeout}"}
    )


def _sqlalchemy(
    guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any], session: bool = False
) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(_engine_url(guard, ""), connect_args=_arguments(guard, ""), poolclass=NullPool)
    sql, params = statement("?" if guard.is_sqlite else "%s", value)
    with Session(engine) if session else engine.connect() as connection:
        guard.fence(connection, key, **presented)
        inner = connection.connection() if isinstance(connection, Session) else connection
        inner.exec_driver_sql(sql, params(key))
        guard.at("committing")
        connection.commit()
        guard.at("committed")


def _session(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    _sqlalchemy(guard, key, value, presented, session=True)


def _async(
    guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any], driver: str = "psycopg"
) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    driver = "aiosqlite" if guard.is_sqlite else driver
    style = "?" if guard.is_sqlite else "$1" if driver == "asyncpg" else "%s"
    sql, params = statement(style, value)

    async def write() -> None:
        engine = create_async_engine(
            _engine_url(guard, driver), connect_args=_arguments(guard, driver), poolclass=NullPool
        )
        try:
            async with engine.connect() as connection:
                await guard.aio.fence(connection, key, **presented)
                await connection.exec_driver_sql(sql, params(key))
                guard.at("committing")
                await connection.commit()
                guard.at("committed")
        finally:
            await engine.dispose()

    asyncio.run(write())


def _asyncpg(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    _async(guard, key, value, presented, "asyncpg")


def _django(guard: LibraryGuard, key: str, value: bytes | None, presented: dict[str, Any]) -> None:
    from django.db import transaction
    from tests.django_connection import django_connection

    if guard.is_sqlite:
        database: dict[str, Any] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": guard.path,
            "OPTIONS": {"timeout": BUSY_SECONDS},
        }
    else:
        parts = conninfo_to_dict(guard.url)
        options = {"options": f"-clock_timeout={BUSY_SECONDS * 1000:.0f}"}
        names = {"NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts.get("port", "")}
        database = {"ENGINE": "django.db.backends.postgresql", **names, "OPTIONS": options}
    sql, params = statement("%s", value)
    with django_connection(**database) as connection:
        with transaction.atomic():
            guard.fence(connection, key, **presented)
            with connection.cursor() as cursor:
                cursor.execute(sql, params(key))
            guard.at("committing")
        guard.at("committed")


_PUTS: dict[str, Callable[[LibraryGuard, str, bytes | None, dict[str, Any]], None]] = {
    "guard": _transaction,
    "driver": _driver,
    "sqlalchemy": _sqlalchemy,
    "session": _session,
    "async": _async,
    "asyncpg": _asyncpg,
    "django": _django,
}
