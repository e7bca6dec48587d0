"""Where the guard's own connections come from: a URL, an engine of SQLAlchemy, or a function of the caller's."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from ...connections import Connection, is_async, recognise
from ...core.redaction import shown_url
from ...errors import Conflict, GuardUnavailable, InvalidArgument, Unsupported

_IDLE = 4  # connections that are kept
_IN_ERROR = 3  # of libpq's PGTransactionStatusType
_TAKES = (
    "a URL (postgresql://…, sqlite:///…), an engine of SQLAlchemy, or a function without arguments that returns a "
    "connection of its own"
)


class Source(ABC):
    """Makes connections, and takes them back."""

    where: str  # for messages, without secrets
    vendor: str | None = None  # and the file of SQLite, where they are known before the first connection
    file: str | None = None

    @abstractmethod
    def open(self) -> Any:
        """Return a connection that no transaction is open on."""

    @abstractmethod
    def give(self, handle: Any, *, whole: bool) -> None:
        """Take a connection back; not *whole* if it may be broken."""

    def close(self) -> None:
        """Close what is kept: nothing, unless a source keeps connections."""
        return

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Yield a connection, and commit what was done on it; roll back if an exception leaves the block."""
        handle = self.open()
        whole = False
        try:
            connection = recognise(handle)
            if connection.in_transaction() and not _is_always_in_one(connection):
                raise Conflict(
                    f"the guard's function returned a connection to {self.where} with an open transaction, so a seal "
                    "on it would not be durable: let the function open a connection for the guard alone."
                )
            try:
                yield connection
                commit(handle)
            except BaseException:
                with suppress(Exception):  # it may be gone; what matters is what left the block
                    handle.rollback()
                raise
            whole = True
        finally:
            self.give(handle, whole=whole)


def _is_always_in_one(connection: Connection) -> bool:
    """Return whether the driver begins a transaction with the connection, and anew with each COMMIT."""
    driver = connection.driver_of(connection.handle)
    return connection.vendor == "sqlite" and getattr(driver, "autocommit", None) is False


def begin(handle: Any) -> Callable[[], None]:
    """
    Begin a transaction on a connection that a source has opened; return a function that restores autocommit.

    From then on the driver begins every transaction. Otherwise a statement behind a ROLLBACK in the caller's block
    would commit by itself, before anything is compared.
    """
    connection = recognise(handle)
    if connection.library == "Django":
        raise Unsupported(
            "guard.transaction() does not support Django's connections: write `with transaction.atomic():` and call "
            "guard.fence(connection, key) in it."
        )
    restore: Callable[[], None] = no_change
    if connection.library == "psycopg" and handle.autocommit:
        handle.autocommit = False
        restore = partial(setattr, handle, "autocommit", True)
    elif connection.library == "sqlite3" and handle.isolation_level is None:
        handle.isolation_level = "DEFERRED"  # not restored: that would commit, and every source closes it
    if connection.vendor == "sqlite" and connection.library == "sqlite3":
        if not connection.in_transaction():
            handle.execute("BEGIN")  # the fence is its first statement, and takes the write lock
    elif not connection.begins():
        connection.execute("BEGIN")
    return restore


def no_change() -> None:
    """Restore nothing."""


def commit(handle: Any) -> None:
    """Commit what is open on a connection, also where its driver would commit by itself."""
    connection = recognise(handle)
    if not connection.begins() and connection.in_transaction() and connection.library in ("psycopg", "sqlite3"):
        connection.execute("COMMIT")
    else:
        handle.commit()


def has_failed(handle: Any) -> bool:
    """Return whether PostgreSQL would answer a COMMIT on this connection with ROLLBACK."""
    connection = recognise(handle)
    info = getattr(connection.driver_of(connection.handle), "info", None)
    return info is not None and int(info.transaction_status) == _IN_ERROR


class Factory(Source):
    """A function of the caller's, whose connections are closed after use: to a pool, that means given back."""

    def __init__(self, make: Callable[[], Any], where: str = "the database") -> None:
        self._function = make
        self.where = where

    def open(self) -> Any:
        """Call the function."""
        handle = self._function()
        if is_async(handle):
            raise Unsupported(
                f"the guard's function returned a {type(handle).__name__}, an async connection, which the guard cannot "
                "use for itself. Give the guard a URL, or a function that returns a sync connection. To fence an async "
                "connection of yours: `await guard.aio.fence(connection, key)`."
            )
        return handle

    def give(self, handle: Any, *, whole: bool) -> None:
        """Close it, unless it is Django's, which has one per thread."""
        if recognise(handle).library != "Django":
            handle.close()


class SqliteFile(Source):
    """A file; each use has a connection of its own."""

    vendor = "sqlite"

    def __init__(self, url: str, busy_seconds: float) -> None:
        self.path = unquote(urlsplit(url).path[1:])
        if not url.startswith("sqlite:///") or not self.path or self.path.endswith(":memory:"):
            raise InvalidArgument(
                f"{url!r} names no file: write sqlite:///app.db for a file in the current folder, "
                "sqlite:////var/lib/app.db for an absolute path."
            )
        self.where = self.file = self.path
        self._busy_seconds = busy_seconds

    def open(self) -> Any:
        """Connect."""
        import sqlite3  # on use: it is missing from some builds of Python

        try:
            return sqlite3.connect(self.path, timeout=self._busy_seconds, isolation_level=None)
        except sqlite3.Error as error:
            raise GuardUnavailable(f"{self.path} cannot be opened: {error}. Nothing was written.") from error

    def give(self, handle: Any, *, whole: bool) -> None:
        """Close it."""
        handle.close()


class PostgresUrl(Source):
    """A server; a few idle connections are kept, for the process that made them."""

    vendor = "postgresql"

    def __init__(self, url: str, busy_seconds: float) -> None:
        self._url = url
        self._busy_ms = max(int(busy_seconds * 1000), 1)
        self.where = shown_url(url)
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle, self._process)

    def open(self) -> Any:
        """Take an idle connection, or connect."""
        with self._lock:
            if self._process != os.getpid():  # forked: those belong to the parent
                self._idle, self._process = [], os.getpid()
                weakref.finalize(self, _close_all, self._idle, self._process)
            while self._idle:
                handle = self._idle.pop()
                if not handle.closed:
                    return handle
        try:
            import psycopg
        except ImportError as error:
            raise Unsupported(
                f"a guard in PostgreSQL needs a driver that is not installed ({error}): pip install 'psycopg[binary]'."
            ) from error
        try:
            handle = psycopg.connect(self._url, autocommit=True, application_name="leasehold guard")
            # A paused owner may hold locks on rows of its own, and its successor must not wait for them for ever.
            handle.execute(f"SET lock_timeout = {self._busy_ms}")
            return handle
        except psycopg.Error as error:
            reason = str(error).strip().partition("\n")[0]
            raise GuardUnavailable(f"{self.where} cannot be reached: {reason}. Nothing was written.") from error

    def give(self, handle: Any, *, whole: bool) -> None:
        """Keep it, if it is whole and there is room."""
        with self._lock:
            if whole and not handle.closed and len(self._idle) < _IDLE:
                self._idle.append(handle)
                return
        handle.close()

    def close(self) -> None:
        """Close the idle ones."""
        with self._lock:
            _close_all(self._idle, self._process)


def _close_all(idle: list[Any], process: int) -> None:
    """Close what a guard has kept, in the process that has made it."""
    while idle and process == os.getpid():
        idle.pop().close()


def source_of(connect: Any, busy_seconds: float) -> Source:
    """Return what *connect* means."""
    if isinstance(connect, str):
        scheme = connect.partition(":")[0]
        if scheme == "sqlite":
            return SqliteFile(connect, busy_seconds)
        if scheme in ("postgresql", "postgres"):
            return PostgresUrl(connect, busy_seconds)
        raise InvalidArgument(f"SqlGuard takes {_TAKES}, not a URL that begins with {scheme[:20]!r}.")
    engine = getattr(connect, "connect", None)
    if engine is not None and hasattr(connect, "dialect"):
        return Factory(engine, where=f"the {connect.dialect.name} database")
    if callable(connect):
        return Factory(connect)
    raise InvalidArgument(f"SqlGuard takes {_TAKES}, not {type(connect).__name__}.")
