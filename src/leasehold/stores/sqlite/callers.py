"""
The store's verbs inside a caller's own transaction: sqlite3, and SQLAlchemy's connections and sessions, sync and async.

The caller's library is never imported here: it is in `sys.modules` if the caller has an object of it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.clock import Clock
from ...core.job import Added, NewJob, Settlement
from ...errors import InvalidArgument, NotInTransaction, StaleEpoch, UnknownJob
from ...store import Refusal
from .base import Joined
from .database import Database, drive, inherited
from .owning import Owning
from .rows import Program, one

if TYPE_CHECKING:
    from .store import SqliteStore

T = TypeVar("T")

# In this context, whether each transaction that was joined is still open.
_open: ContextVar[tuple[Callable[[], bool], ...]] = ContextVar("leasehold_open_transactions", default=())


class JoinedVerbs(Joined, Owning):
    """Producers' and owners' programs, for a caller's transaction."""


class FencedConnection(sqlite3.Connection):
    """A connection whose transaction is the lease's to end, and not its user's."""

    ours = False

    def commit(self) -> None:
        """Refuse: the end of `with lease.transaction()` commits."""
        self._not_yours("commit")

    def rollback(self) -> None:
        """Refuse: raise an exception inside `with lease.transaction()` instead."""
        self._not_yours("rollback")

    def __exit__(self, *_: object) -> Any:
        """Refuse what sqlite3 does here, which is to commit."""
        self._not_yours("`with connection`")

    def close(self) -> None:
        """Refuse, unless the store closes it."""
        if not self.ours:
            self._not_yours("close")
        super().close()

    def _not_yours(self, what: str) -> None:
        raise InvalidArgument(
            f"{what} inside lease.transaction(): the end of the block commits, and an exception in it rolls back. "
            "What followed a commit of your own would be unfenced."
        )


class SqliteTransactions:
    """Runs programs in transactions that somebody else ends."""

    def __init__(self, store: SqliteStore, database: Database, clock: Clock, verbs: JoinedVerbs) -> None:
        self._store = store
        self._database = database
        self._clock = clock
        self._verbs = verbs
        self._idle: list[FencedConnection] = []

    # A transaction of ours, for the caller's rows

    def begin(self, job_id: str, epoch: int) -> FencedConnection:
        """Return a connection with an open transaction that is fenced by *epoch*; raise the refusal otherwise."""
        refuse_inside()
        database = self._database
        turn = database.writing()
        turn.__enter__()
        try:
            database.current_writer()
            connection = self._idle.pop() if self._idle else self._connect()
            connection.turn = turn  # type: ignore[attr-defined]  # ended by _end
            try:
                connection.execute("BEGIN IMMEDIATE")
                drive(connection, self.fence(job_id, epoch))
            except BaseException as error:
                _end(connection, "ROLLBACK")
                self._idle.append(connection)
                raise database.explained(error) from error.__cause__
            connection.set_authorizer(_no_transactions)
            return connection
        except BaseException:
            turn.__exit__(None, None, None)
            raise

    def _connect(self) -> FencedConnection:
        connection = self._database.connect(FencedConnection)
        assert isinstance(connection, FencedConnection)
        return connection

    def enter(self, connection: Any) -> None:
        """Remember, in the caller's context, that it has a transaction open."""
        still = [is_open for is_open in _open.get() if is_open()]
        _open.set((*still, lambda: _still_open(connection)))

    def commit(self, connection: FencedConnection) -> None:
        """Commit what `begin` opened."""
        self._finish(connection, "COMMIT")

    def rollback(self, connection: FencedConnection) -> None:
        """Undo what `begin` opened."""
        self._finish(connection, "ROLLBACK")

    def _finish(self, connection: FencedConnection, how: str) -> None:
        turn = connection.turn  # type: ignore[attr-defined]  # set by begin
        try:
            connection.set_authorizer(None)
            if not connection.in_transaction:
                raise NotInTransaction("the transaction of lease.transaction() has ended before its block did.")
            try:
                connection.execute(how)
            except sqlite3.Error as error:
                _end(connection, "ROLLBACK")
                raise self._database.explained(error) from error
            connection.row_factory = None
            self._idle.append(connection)
        finally:
            turn.__exit__(None, None, None)
        self._store.changed()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            connection = self._idle.pop()
            connection.ours = True
            connection.close()

    def forked(self) -> None:
        """Start afresh in a forked child."""
        inherited.extend(self._idle)
        self._idle = []

    # Programs

    def add(self, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add`."""
        yield from self._lock()
        return (yield from self._verbs.add(jobs, self._clock.now()))

    def fence(self, job_id: str, epoch: int) -> Program[None]:
        """The program that makes the transaction commit only if *epoch* is current."""
        yield from self._lock()
        return _admitted((yield from self._verbs.fence(job_id, epoch, self._clock.now())))

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add_children`."""
        yield from self._lock()
        return _admitted((yield from self._verbs.add_children(job_id, epoch, jobs, self._clock.now())))

    def settle(self, settlement: Settlement) -> Program[None]:
        """The program of `Store.settle`, for one lease; it raises the refusal."""
        yield from self._lock()
        [refusal] = yield from self._verbs.settle([settlement], self._clock.now())
        return _admitted(refusal)

    def _lock(self) -> Program[None]:
        # The first statement is a write. From here to the end of the caller's transaction nobody else writes, so
        # what is compared now still holds at its COMMIT.
        if not self._database.opened:
            yield from self._database.migrate_in()
        yield one(self._verbs.sql.lock)

    # On a caller's connection

    def is_async(self, connection: Any) -> bool:
        """Return whether *connection* belongs to an event loop."""
        return isinstance(connection, _types("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession"))

    def run(self, connection: Any, program: Program[T], *, savepoint: bool = False) -> T:
        """Run *program* inside the transaction that *connection* has open, and return its value."""
        if isinstance(connection, _types("sqlalchemy.orm", "Session", "scoped_session")):
            connection = connection.connection()
        if isinstance(connection, _types("sqlalchemy", "Connection")):
            _refuse_nested(connection, savepoint)
            run: Callable[[str, Any], list[Any]] = lambda sql, params: _rows(connection.exec_driver_sql(sql, params))  # noqa: E731
        elif isinstance(connection, sqlite3.Connection):
            run = _Cursor(connection)
        else:
            raise _unknown(connection)
        _refuse_autocommit(connection)
        self._refuse_other_file(run("PRAGMA database_list", ()))
        try:
            value = _run(program, run)
        except Exception as error:
            raise self._database.explained(_original(error)) from error
        self._joined(connection)
        return value

    async def run_async(self, connection: Any, program: Program[T], *, savepoint: bool = False) -> T:
        """Run *program* likewise, on an async connection."""
        if isinstance(connection, _types("sqlalchemy.ext.asyncio", "AsyncSession")):
            connection = await connection.connection()
        _refuse_nested(connection, savepoint)
        await connection.get_raw_connection()
        _refuse_autocommit(connection)
        self._refuse_other_file(_rows(await connection.exec_driver_sql("PRAGMA database_list")))
        try:
            answer: Any = None
            while True:
                sql, params, several = program.send(answer)
                answer = [] if several and not params else _rows(await connection.exec_driver_sql(sql, params))
        except StopIteration as end:
            value: T = end.value
        except Exception as error:
            raise self._database.explained(_original(error)) from error
        finally:
            program.close()
        self._joined(connection)
        return value

    def _joined(self, connection: Any) -> None:
        if not _driver(connection).in_transaction:
            raise NotInTransaction(_AUTOCOMMIT)
        self.enter(connection)

    def _refuse_other_file(self, databases: list[Any]) -> None:
        name = next((file for _, name, file in databases if name == "main"), "")
        if not name or not os.path.exists(self._database.path) or not os.path.samefile(name, self._database.path):
            raise InvalidArgument(
                f"that connection is to {name or 'a database in memory'}, and this store is in {self._database.path}: "
                "only rows in the same file can commit together."
            )


_AUTOCOMMIT = (
    "that connection has no transaction open, so each statement commits by itself and a fence would protect nothing: "
    "begin one first (sqlite3: execute('BEGIN IMMEDIATE'); SQLAlchemy: engine.begin(), without AUTOCOMMIT)."
)


def refuse_inside() -> None:
    """Refuse a write outside the transaction that this context has open: it would wait for itself."""
    if any(is_open() for is_open in _open.get()):
        raise InvalidArgument(
            "a transaction is open here, which holds the file's only write lock: pass connection=… to join it, "
            "or end it first. Without, this call would wait for itself."
        )


class _Cursor:
    """Runs statements on a sqlite3 connection, whatever its user made of its rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()
        self._cursor.row_factory = None

    def __call__(self, sql: str, params: Any) -> list[Any]:
        if isinstance(params, list):
            self._cursor.executemany(sql, params)
            return []
        return self._cursor.execute(sql, params).fetchall()


def _run(program: Program[T], run: Callable[[str, Any], list[Any]]) -> T:
    answer: Any = None
    try:
        while True:
            sql, params, several = program.send(answer)
            answer = [] if several and not params else run(sql, params)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typed as the program is
    finally:
        program.close()


def _rows(result: Any) -> list[Any]:
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def _driver(connection: Any) -> Any:
    """Return the connection of the driver below SQLAlchemy's layers."""
    if isinstance(connection, sqlite3.Connection):
        return connection
    sync = getattr(connection, "sync_connection", None) or connection
    return sync.connection.driver_connection


def _still_open(connection: Any) -> bool:
    try:
        return bool(_driver(connection).in_transaction)
    except Exception:  # closed, in whatever words the driver has for it
        return False


def _refuse_autocommit(connection: Any) -> None:
    driver = _driver(connection)
    begins_by_itself = driver.isolation_level is not None and getattr(driver, "autocommit", -1) is not True
    if not driver.in_transaction and not begins_by_itself:
        raise NotInTransaction(_AUTOCOMMIT)


def _refuse_nested(connection: Any, savepoint: bool) -> None:
    if not savepoint and connection.in_nested_transaction():
        raise InvalidArgument(
            "that connection is inside a savepoint: if it is rolled back, the outer transaction would commit without "
            "what was joined here. Call this outside of it, or pass savepoint=True if you know that it will not be."
        )


def _types(module: str, *names: str) -> tuple[type[Any], ...]:
    loaded: Any = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def _unknown(connection: Any) -> InvalidArgument:
    return InvalidArgument(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}, and a SQLite store can join "
        "sqlite3 connections, and SQLAlchemy connections and sessions (async ones through .aio)."
    )


def _original(error: BaseException) -> BaseException:
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, sqlite3.Error) else error


def _admitted(value: T | Refusal) -> T:
    if isinstance(value, StaleEpoch | UnknownJob):
        raise value
    return value


def _end(connection: sqlite3.Connection, how: str) -> None:
    if connection.in_transaction:
        connection.execute(how)


def _no_transactions(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
