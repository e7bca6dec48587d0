"""What a connection to SQLite is, and how to run statements on it, in each library; no store is involved."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection as django_default
from django.db import transaction
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from tests.django_connection import django_connection

from leasehold import Conflict, InvalidArgument, NotInTransaction, Unsupported
from leasehold.connections import Connection, Program, is_async, recognise, recognise_async

Opened = Callable[[str], AbstractAsyncContextManager[tuple[Any, Callable[[], Any]]]]
"""Opens a file; gives the connection, and what ends its transaction."""


@asynccontextmanager
async def _sqlite3(path: str) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("begin")
        yield connection, connection.commit


@asynccontextmanager
async def _core(path: str) -> AsyncIterator[Any]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection, connection.commit


@asynccontextmanager
async def _session(path: str) -> AsyncIterator[Any]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with Session(engine) as session:
        yield session, session.commit


@asynccontextmanager
async def _scoped(path: str) -> AsyncIterator[Any]:
    sessions = scoped_session(sessionmaker(create_engine(f"sqlite:///{path}", poolclass=NullPool)))
    yield sessions, sessions.commit
    sessions.remove()


@asynccontextmanager
async def _async_core(path: str) -> AsyncIterator[Any]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection, connection.commit


@asynccontextmanager
async def _async_session(path: str) -> AsyncIterator[Any]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session, session.commit


@asynccontextmanager
async def _django(path: str) -> AsyncIterator[Any]:
    with django_connection(ENGINE="django.db.backends.sqlite3", NAME=path):
        outer = transaction.atomic()
        outer.__enter__()
        yield django_default, lambda: outer.__exit__(None, None, None)


LIBRARIES: dict[str, tuple[Opened, str]] = {
    "sqlite3": (_sqlite3, "sqlite3"),
    "core": (_core, "SQLAlchemy"),
    "session": (_session, "SQLAlchemy"),
    "scoped session": (_scoped, "SQLAlchemy"),
    "async core": (_async_core, "SQLAlchemy"),
    "async session": (_async_session, "SQLAlchemy"),
    "django": (_django, "Django"),
}


@pytest.fixture(autouse=True)
def _django_on_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test serves all libraries, so it runs on a loop, where Django must be told that this is meant."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


each = pytest.mark.parametrize("how", LIBRARIES)


async def _recognised(connection: Any) -> Connection:
    return await recognise_async(connection) if is_async(connection) else recognise(connection)


async def _execute(found: Connection, sql: str, params: Any = (), *, several: bool = False) -> list[Any]:
    if found.is_async:
        return await found.execute_async(sql, params, several=several)
    return found.execute(sql, params, several=several)


async def _run(found: Connection, program: Program[Any]) -> Any:
    return await found.run_async(program) if found.is_async else found.run(program)


@each
def test_each_library_is_recognised_and_runs_statements(how: str, tmp_path: Path) -> None:
    """One at a time or several, with the rows as tuples; and its transaction is known until it ends."""
    opened, library = LIBRARIES[how]

    async def body() -> None:
        async with opened(str(tmp_path / "rows.db")) as (connection, end):
            found = await _recognised(connection)
            assert (found.library, found.vendor, found.style) == (library, "sqlite", "?")
            found.require_vendor("sqlite")
            found.require_transaction()
            found.require_no_savepoint()

            await _execute(found, "create table t (n)")
            assert await _execute(found, "insert into t values (?)", [(1,), (2,)], several=True) == []
            assert await _execute(found, "insert into t values (?)", [], several=True) == []
            assert await _execute(found, "select n, ? from t order by n", ["x"]) == [(1, "x"), (2, "x")]
            assert await _execute(found, "select n from t where n = :n", {"n": 2}) == [(2,)]

            assert found.in_transaction()
            is_open = found.watch()
            assert is_open(found.handle)
            ended = end()
            if found.is_async:
                await ended
            assert not is_open(found.handle)

    asyncio.run(body())


@each
def test_a_program_gets_the_errors_of_its_statements(how: str, tmp_path: Path) -> None:
    """So that it can undo what it has begun; and what it returns is returned."""
    opened, _ = LIBRARIES[how]

    def program() -> Program[str]:
        try:
            yield "select * from nowhere", (), False
        except Exception as error:
            return str(error)
        return "no error"

    async def body() -> str:
        async with opened(str(tmp_path / "rows.db")) as (connection, _):
            return str(await _run(await _recognised(connection), program()))

    assert "no such table: nowhere" in asyncio.run(body())


@pytest.mark.parametrize("how", ["core", "async core"])
def test_a_savepoint_is_seen_where_the_library_knows_of_it(how: str, tmp_path: Path) -> None:
    """What was joined inside one could be rolled back alone."""
    opened, _ = LIBRARIES[how]

    async def body() -> None:
        async with opened(str(tmp_path / "rows.db")) as (connection, _):
            nested = connection.begin_nested()
            if is_async(connection):
                await nested
            found = await _recognised(connection)
            with pytest.raises(Conflict, match=r"inside a savepoint.*savepoint=True"):
                found.require_no_savepoint()

    asyncio.run(body())


def test_a_later_transaction_of_sqlalchemy_is_another_one(tmp_path: Path) -> None:
    """Although the connection is the same."""
    with create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql("create table t (n)")
        connection.exec_driver_sql("insert into t values (1)")
        is_open = recognise(connection).watch()
        assert is_open(connection)
        connection.commit()
        connection.exec_driver_sql("insert into t values (2)")

        assert recognise(connection).in_transaction()
        assert not is_open(connection)


def test_rows_are_tuples_of_texts_whatever_the_caller_makes_of_them(tmp_path: Path) -> None:
    """And the caller's own factories are left as they were."""
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes

        rows = recognise(connection).execute("select 'a'")

        assert (rows, type(rows[0])) == ([("a",)], tuple)
        assert connection.text_factory is bytes


def test_a_connection_that_commits_each_statement_is_refused_with_how_to_begin(tmp_path: Path) -> None:
    """Each library has its own way."""
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as connection:
        with pytest.raises(NotInTransaction, match=r"begin one first \(sqlite3: execute\('BEGIN IMMEDIATE'\)\)"):
            recognise(connection).require_transaction()
        connection.execute("begin")
        recognise(connection).require_transaction()


def test_another_kind_of_database_is_refused(tmp_path: Path) -> None:
    """Rows of two never commit together."""
    with (
        closing(sqlite3.connect(tmp_path / "rows.db")) as connection,
        pytest.raises(InvalidArgument, match="is to sqlite, and this call needs one to postgresql"),
    ):
        recognise(connection).require_vendor("postgresql")


@pytest.mark.parametrize("how", ["async core", "async session"])
def test_a_connection_of_a_loop_is_for_the_async_door(how: str, tmp_path: Path) -> None:
    """And the other way round."""
    opened, _ = LIBRARIES[how]

    async def body() -> None:
        async with opened(str(tmp_path / "rows.db")) as (connection, _):
            assert is_async(connection)
            with pytest.raises(Unsupported, match=r"through \.aio"):
                recognise(connection)
        with closing(sqlite3.connect(":memory:")) as memory, pytest.raises(Unsupported):
            await recognise_async(memory)

    asyncio.run(body())


@pytest.mark.parametrize("thing", [None, object(), "sqlite:///jobs.db"], ids=lambda thing: type(thing).__name__)
def test_what_is_not_a_connection_is_refused_by_its_type(thing: object) -> None:
    """With what would do."""
    assert not is_async(thing)
    with pytest.raises(Unsupported, match=rf"connection is a builtins\.{type(thing).__name__}.*psycopg.*SQLAlchemy"):
        recognise(thing)
