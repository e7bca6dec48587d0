"""A caller's transaction in each library, one step at a time, so that a test can stop it anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import psycopg
import sqlalchemy
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine
from tests.django_connection import django_connection

from leasehold import Router
from leasehold.lease import Lease

from .fixtures import path_of, without_path

T = TypeVar("T")

LIBRARIES = ["psycopg", "sqlalchemy", "sqlalchemy async", "asyncpg", "django"]


class Transaction(Protocol):
    """What is open in some library."""

    def execute(self, sql: str) -> None:
        """Run a statement of the caller's own."""

    def fence(self, lease: Lease) -> None:
        """`lease.fence(connection)`"""

    def complete(self, lease: Lease, result: Any = None) -> None:
        """`lease.complete(connection=connection)`"""

    def add(self, router: Router, job_id: str, payload: Any) -> None:
        """`router.add(connection=connection)`"""

    def commit(self) -> None:
        """End it."""


@contextmanager
def transaction(
    library: str, url: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> Iterator[Transaction]:
    """A transaction in *library*; whatever it has open at the end of the block is undone."""
    with ExitStack() as stack:
        made: Any = _KINDS[library]
        opened = stack.enter_context(made(url, isolation))
        yield opened


class _Sync:
    def __init__(self, connection: Any, run: Any, end: Any) -> None:
        self.connection, self.execute, self.commit = connection, run, end

    def fence(self, lease: Lease) -> None:
        lease.fence(self.connection)

    def complete(self, lease: Lease, result: Any = None) -> None:
        lease.complete(result, connection=self.connection)

    def add(self, router: Router, job_id: str, payload: Any) -> None:
        router.add(job_id, payload, connection=self.connection)


@contextmanager
def _psycopg(url: str, isolation: IsolationLevel) -> Iterator[Transaction]:
    connection = psycopg.connect(url)
    connection.isolation_level = isolation
    try:
        yield _Sync(connection, connection.execute, connection.commit)
    finally:
        connection.close()


@contextmanager
def _sqlalchemy(url: str, isolation: IsolationLevel) -> Iterator[Transaction]:
    engine = sqlalchemy.create_engine(
        without_path(url).replace("postgresql://", "postgresql+psycopg://"),
        connect_args={"options": f"-csearch_path={path_of(url)}"},
        isolation_level=isolation.name.replace("_", " "),
    )
    connection = engine.connect()
    try:
        yield _Sync(connection, connection.exec_driver_sql, connection.commit)
    finally:
        connection.invalidate()  # it may be gone, and so may not be rolled back
        connection.close()
        engine.dispose()


@contextmanager
def _django(url: str, isolation: IsolationLevel) -> Iterator[Transaction]:
    from django.db import connection, transaction

    with django_of(url, isolation_level=isolation), ExitStack() as stack:
        stack.enter_context(_swallowing(block := transaction.atomic()))

        def run(sql: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(sql)

        yield _Sync(connection, run, lambda: block.__exit__(None, None, None))


@contextmanager
def _swallowing(block: AbstractContextManager[Any]) -> Iterator[None]:
    """Leave *block* unless that has been done."""
    from django.db import connection

    block.__enter__()
    try:
        yield
    finally:
        if connection.in_atomic_block:
            connection.close()
            error = RuntimeError("undo")
            block.__exit__(type(error), error, None)


def django_of(url: str, **options: Any) -> AbstractContextManager[Any]:
    """Django's default connection, to the database of *url*."""
    parts = conninfo_to_dict(url)
    return django_connection(
        ENGINE="django.db.backends.postgresql",
        NAME=parts["dbname"],
        USER=parts["user"],
        HOST=parts["host"],
        PORT=parts.get("port", ""),
        OPTIONS={"options": parts["options"], **options},
    )


class _Async:
    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Any) -> None:
        self._loop, self._connection = loop, connection

    def _wait(self, call: Awaitable[T]) -> T:
        return self._loop.run_until_complete(call)

    def execute(self, sql: str) -> None:
        self._wait(self._connection.exec_driver_sql(sql))

    def fence(self, lease: Lease) -> None:
        self._wait(lease.aio.fence(self._connection))

    def complete(self, lease: Lease, result: Any = None) -> None:
        self._wait(lease.aio.complete(result, connection=self._connection))

    def add(self, router: Router, job_id: str, payload: Any) -> None:
        self._wait(router.aio.add(job_id, payload, connection=self._connection))

    def commit(self) -> None:
        self._wait(self._connection.commit())


@contextmanager
def _async(driver: str, url: str, isolation: IsolationLevel) -> Iterator[Transaction]:
    loop = asyncio.new_event_loop()
    path: dict[str, Any] = {"options": f"-csearch_path={path_of(url)}"}
    if driver == "asyncpg":
        path = {"server_settings": {"search_path": path_of(url)}}  # its own form
    engine = create_async_engine(
        without_path(url).replace("postgresql://", f"postgresql+{driver}://"),
        connect_args=path,
        isolation_level=isolation.name.replace("_", " "),
    )

    async def connected() -> Any:
        return await engine.connect()

    async def gone() -> None:
        await connection.invalidate()
        await connection.close()
        await engine.dispose()

    connection = loop.run_until_complete(connected())
    try:
        yield _Async(loop, connection)
    finally:
        loop.run_until_complete(gone())
        loop.close()


_KINDS = {
    "psycopg": _psycopg,
    "sqlalchemy": _sqlalchemy,
    "sqlalchemy async": partial(_async, "psycopg"),
    "asyncpg": partial(_async, "asyncpg"),
    "django": _django,
}
