"""The database of a gate: an SQLite file or a PostgreSQL server, behind one small interface."""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ...core.redaction import shown_url
from ...errors import Conflict, GuardUnavailable, Unsupported
from .forks import generation

_IDLE = 8  # connections to a server that are kept for later, at most
_CONNECT_SECONDS = 10

Row = tuple[Any, ...]
Run = Callable[[str, Sequence[Any]], list[Row]]


class Database(ABC):
    """Runs statements whose parameters are written `?`; raises `GuardUnavailable` if it cannot."""

    has_data_modifying_with: bool  # whether one statement can write to several tables

    @abstractmethod
    def run(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run one statement, which commits by itself, and return its rows."""

    @abstractmethod
    def transaction(self) -> Any:
        """Return a context that yields a function like `run`, whose statements commit together at its end."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection; a later statement opens one for itself."""


class SqliteDatabase(Database):
    """
    An SQLite file, on one connection of this process.

    The journal is not a write-ahead log: commits are few, and a log that several processes write has to be checkpointed
    with care (see the page on the SQLite store). A commit is on the disk when it returns (TRUNCATE with FULL).

    With *exclusive* the file is locked for as long as it is open, and `Conflict` is raised if another process has it.
    """

    has_data_modifying_with = False

    def __init__(self, path: str, tables: Sequence[str], *, busy_seconds: float = 5.0, exclusive: bool = False) -> None:
        self.path = path
        self._tables = tables
        self._busy_seconds = busy_seconds
        self._exclusive = exclusive
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._closed = False
        self._made_in = os.getpid()
        self._generation = generation()
        with self.transaction():
            pass

    def run(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run one statement."""
        self.check_process()
        with self._explained(), self._lock, self._borrowed() as connection:
            return connection.execute(sql, params).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Hold the file's write lock for a few statements."""
        self.check_process()
        with self._explained(), self._lock, self._borrowed() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield partial(_fetch, connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    def check_process(self) -> None:
        """
        Let go of what was made before a fork: neither the connection nor a lock that was held may be used here.

        Raises `Conflict` if the file belongs to the parent alone.
        """
        if not self.is_of_another_process():
            return
        if self._exclusive:
            raise Conflict(
                f"the gate at {self.path} was opened in process {self._made_in} and keeps the list of running requests "
                f"in the memory of that process, so this forked process ({os.getpid()}) cannot share it. Open the gate "
                "after the fork, in one process only; for several processes, pass uses='sql'."
            )
        _abandoned.append(self._open)  # closing it here would disturb the parent's
        self._open, self._lock, self._generation = None, threading.Lock(), generation()

    def is_of_another_process(self) -> bool:
        """Return whether this process was forked from the one that opened the file."""
        return self._generation != generation()

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, which stays open until `close`; a use that ends later opens one for that alone."""
        if self._open is None:
            self._open = self._connect()
        try:
            yield self._open
        finally:
            if self._closed:
                self._shut()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            if self._exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN EXCLUSIVE" if self._exclusive else "BEGIN IMMEDIATE")
            for table in self._tables:
                connection.execute(table)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if busy and self._exclusive:
                raise Conflict(
                    f"the gate at {self.path} is already open in another process. With uses='memory', a "
                    "process cannot see which requests are still running in another one, so a seal would not wait for "
                    "them. To share the gate between processes, open it with uses='sql' in all of them."
                ) from None
            if busy:
                raise GuardUnavailable(
                    f"another connection has held the write lock of {self.path} for {self._busy_seconds:g} s: a "
                    "process may be stopped inside a transaction, or another process has the gate open with "
                    "uses='memory'. Nothing was written."
                ) from error
            raise GuardUnavailable(f"the gate at {self.path} cannot be used: {error}. Nothing was written.") from error

    def close(self) -> None:
        """Close the connection."""
        if self.is_of_another_process():
            return
        with self._lock:
            self._closed = True
            self._shut()

    def _shut(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _fetch(connection: sqlite3.Connection, sql: str, params: Sequence[Any]) -> list[Row]:
    return connection.execute(sql, params).fetchall()


_abandoned: list[Any] = []  # connections of a parent process, which must not be closed here


class PostgresDatabase(Database):
    """A PostgreSQL database, on connections that are kept for the next call. Each statement commits by itself."""

    has_data_modifying_with = True

    def __init__(self, url: str, tables: Sequence[str]) -> None:
        try:
            import psycopg
        except ImportError:
            raise Unsupported("a gate in PostgreSQL needs psycopg: pip install 'psycopg[binary]'.") from None
        self._psycopg: Any = psycopg
        self._url = url
        self._idle: list[Any] = []
        self._closed = False
        self._generation = generation()
        self._install(tables)

    def _install(self, tables: Sequence[str]) -> None:
        if self.run("SELECT to_regclass('leasehold_gate_doubts') IS NOT NULL")[0][0]:
            return  # so a role without the right to create tables can use those that are there
        with self._borrowed() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('leasehold_gate'))")
            for table in tables:
                connection.execute(table)

    def run(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run one statement; on a new connection again, if one that was idle turns out to be dead."""
        sql = sql.replace("?", "%s")
        was_idle = bool(self._idle)
        try:
            return self._run(sql, params)
        except GuardUnavailable as error:
            # Each statement has the same effect when it is run twice: a use has an id, and a mark only goes up.
            if not was_idle or not isinstance(error.__cause__, self._psycopg.OperationalError):
                raise
            self._let_go()
            return self._run(sql, params)

    def _run(self, sql: str, params: Sequence[Any]) -> list[Row]:
        with self._borrowed() as connection:
            cursor = connection.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        if self._generation != generation():
            _abandoned.append(self._idle)
            self._idle, self._generation = [], generation()
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            yield connection
        except self._psycopg.Error as error:
            raise GuardUnavailable(
                f"the gate in {shown_url(self._url)} cannot be used: {error}. Whether anything was written is unknown."
            ) from error
        finally:
            if connection is not None:
                is_idle = connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
                if is_idle and not self._closed and len(self._idle) < _IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()  # it was lost, or Ctrl-C came in the middle of a statement

    def _connect(self) -> Any:
        options = {} if "connect_timeout" in self._url else {"connect_timeout": _CONNECT_SECONDS}
        connection = self._psycopg.connect(self._url, autocommit=True, **options)
        # At a higher level a use that meets another one would fail instead of waiting for it.
        connection.execute("SET default_transaction_isolation = 'read committed'")
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")  # a mark that a crash forgets lets an old owner pass
        return connection

    def transaction(self) -> Any:
        """Refuse: a client that is stopped between two statements would keep the mark locked."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections that are not in use, and later those that are."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()
