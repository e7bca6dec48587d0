"""
The server: connections, the schema, and errors in leasehold's words.

Connections are kept for whoever comes next, and made when there is none; nothing here starts a thread.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq

from ...errors import InvalidArgument, LeaseholdError, StaleSnapshot, StoreIncompatible, StoreUnavailable
from .rows import Row
from .sql import Statements, checked, functions, in_schema, latest, migrations, statements

log = logging.getLogger("leasehold")


LEAST_SERVER = 140000
_TRIES = 5
_LOST = {"57P01", "57P02", "57P03", "25P03"}  # the server has ended the session


class Database:
    """One schema of one PostgreSQL database, for one process."""

    def __init__(
        self, url: str, schema: str, *, now: Callable[[], int | None], connections: int, wait_seconds: float
    ) -> None:
        try:
            self._settings = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise InvalidArgument(f"{shown(url)} is not a URL that PostgreSQL understands: {error}.") from None
        self.url = url
        self._now = now
        self.schema = checked(schema)
        self.statements: Statements = statements(schema)
        self.store_id: uuid.UUID | None = None
        self._quoted = in_schema("leasehold.x", schema, escaped=True).removesuffix("x")
        self._limit = connections
        self._wait_seconds = wait_seconds
        self._closed = False
        # What a test may arm: it is called with the name of a function before the server is.
        self.point: Callable[[str], None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._free = threading.Semaphore(self._limit)
        self._idle: list[psycopg.Connection[Any]] = []

    # Asking

    def call(self, function: str, *args: Any, again: bool = False) -> list[Row]:
        """
        Return the rows of one of our functions, which is a transaction of its own.

        *again*: that it may be asked a second time if the first reply was lost.
        """
        query = self.query(function, len(args))
        for _ in range(_TRIES):
            try:
                return self.ask(query, args, function)
            except StoreUnavailable as error:
                code = sqlstate_of(error.__cause__)
                # After a deadlock nothing has happened; after a lost reply, who knows.
                if code not in ("40P01", "40001") and not (again and error.__cause__ is not None and _is_lost(code)):
                    raise
        return self.ask(query, args, function)

    def query(self, function: str, count: int) -> str:
        """Return the statement that calls one of our functions."""
        return f"SELECT * FROM {self._quoted}{function}({', '.join(['%s'] * count)})"

    def plain_query(self, function: str, placeholders: list[str]) -> str:
        """Return the same for a driver to which a percent sign means nothing."""
        return f"SELECT * FROM {in_schema('leasehold.' + function, self.schema)}({', '.join(placeholders)})"

    def ask(self, query: str, params: Any = (), what: str = "read") -> list[Row]:
        """Return the rows of one statement."""
        self.open()
        with self.connection() as connection:
            if self.point is not None:
                self.point(what)
            try:
                return connection.execute(query, params).fetchall()
            except psycopg.Error as error:
                if sqlstate_of(error) != "LH005":
                    raise
            # The role or the database has another default, and nothing has happened yet.
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
            return connection.execute(query, params).fetchall()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection that commits each statement by itself; what goes wrong on it is explained."""
        self._check_open()
        if not self._free.acquire(timeout=self._wait_seconds):
            raise StoreUnavailable(
                f"all {self._limit} connections to {shown(self.url)} have been in use for {self._wait_seconds:g} s "
                "(connections, wait_seconds). Nothing was changed."
            )
        try:
            connection = self._take()
            try:
                yield connection
            except psycopg.Error as error:
                if sqlstate_of(error) == "25006":
                    connection.close()  # the address may lead to a primary by now, and this session never will
                raise self.explained(error) from error
            finally:
                self._give(connection)
        finally:
            self._free.release()

    def _take(self) -> psycopg.Connection[Any]:
        while True:
            with self._lock:
                self._check_open()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if is_alive(connection):
                return connection
            connection.close()

    def _give(self, connection: psycopg.Connection[Any]) -> None:
        if connection.closed:
            return
        if connection.info.transaction_status == pq.TransactionStatus.IDLE:
            with self._lock:
                if not self._closed and self._pid == os.getpid():
                    self._idle.append(connection)
                    return
        connection.close()

    def connect(
        self, kind: type[psycopg.Connection[Any]] = psycopg.Connection, *, autocommit: bool = True
    ) -> psycopg.Connection[Any]:
        """Return a new connection, set up as this store wants it."""
        settings: dict[str, Any] = {
            "application_name": "leasehold",
            "connect_timeout": 10,
            # A server that is gone without a word is noticed within a minute and a half.
            "keepalives_idle": 30,
            "keepalives_interval": 15,
            "keepalives_count": 4,
            **self._settings,
            # A pooler between us and the server may give us another session for each statement.
            "prepare_threshold": 5,
        }
        try:
            connection = kind.connect(**settings, autocommit=autocommit)
        except psycopg.Error as error:
            raise self.explained(error, connecting=True) from error
        if connection.info.server_version < LEAST_SERVER:
            version = connection.info.server_version // 10000
            connection.close()
            raise StoreIncompatible(f"{shown(self.url)} is PostgreSQL {version}, and 14 is the least that will do.")
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    # Opening and closing

    def open(self) -> None:
        """Make sure, once, that the schema is there and that this leasehold knows it."""
        if self._pid != os.getpid():
            self._forked()
        if self.store_id is not None:
            return
        with self._opening:
            if self.store_id is not None:
                return
            with self.connection() as connection:
                found = self._version(connection)
                if found is None:
                    self._install(connection)
                    found = self._version(connection)
                assert found is not None
                self.store_id = found[1]

    def exists(self) -> bool:
        """Return whether the schema is there; make nothing."""
        with self.connection() as connection:
            return self._version(connection) is not None

    def _version(self, connection: psycopg.Connection[Any]) -> tuple[int, uuid.UUID] | None:
        [(exists,)] = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'store')",
            [self.schema],
        ).fetchall()
        if not exists:
            return None
        [(version, store_id)] = connection.execute(self.statements.version, {}).fetchall()
        if version > latest():
            raise StoreIncompatible(
                f"schema {self.schema!r} of {shown(self.url)} has version {version}, and this leasehold knows "
                f"{latest()} at most: a newer leasehold has used it. Install that one; nothing was changed."
            )
        if version < latest():
            raise StoreIncompatible(
                f"schema {self.schema!r} of {shown(self.url)} has version {version}, and this leasehold needs "
                f"{latest()}, and cannot bring it up to date; nothing was changed."
            )
        return version, uuid.UUID(store_id)

    def _install(self, connection: psycopg.Connection[Any]) -> None:
        """Make the schema, unless another process does so at the same time."""
        schema = in_schema("leasehold.x", self.schema).removesuffix(".x")
        with connection.transaction():
            connection.execute(
                "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 7))", [self.schema]
            )
            if self._version(connection) is not None:
                return
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            for step in migrations(self.schema):
                connection.execute(step.script)
            for script in functions(self.schema):
                connection.execute(script)
            connection.execute(f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
            connection.execute(
                f"INSERT INTO {self._quoted}store (schema_version, id, fingerprint) "
                f"SELECT %s, %s, {self._quoted}fingerprint()",
                [latest(), uuid.uuid4()],
            )
            # A store begins at its creation time: so a later one outranks an earlier one.
            connection.execute(f"SELECT {self._quoted}raise_epochs({self._quoted}instant(%s))", [self._now()])

    def close(self) -> None:
        """Close the connections; later verbs raise `StoreUnavailable`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"this store ({shown(self.url)}) is closed.")

    def _forked(self) -> None:
        # The parent's connections are the parent's: closing them here would end its sessions. They stay open, unused.
        inherited.extend(self._idle)
        self._begin()

    # Errors

    def explained(self, error: BaseException, *, connecting: bool = False) -> BaseException:
        """Return *error* in leasehold's words, if it is PostgreSQL's or its driver's."""
        if not isinstance(error, psycopg.Error):
            return error
        return explained(error, shown(self.url), self.schema, connecting=connecting)


inherited: list[Any] = []


def explained(error: Any, where: str, schema: str, *, connecting: bool = False) -> LeaseholdError:
    """Return the driver's *error* in leasehold's words; *error* has a `sqlstate`, or None for a lost connection."""
    code = sqlstate_of(error)
    said = str(error).strip().partition("\n")[0]
    nothing = "Nothing was changed"
    match code:
        case "LH002":
            return InvalidArgument(
                f"that connection is to another database than this store's ({where}): only rows in the same one can "
                "commit together."
            )
        case "LH003":
            return StoreUnavailable(
                f"{said}, after the year 2112. Set it right: epochs follow the clock and are never taken back. "
                f"{nothing}."
            )
        case "LH004":
            return StaleSnapshot(
                "your transaction had read before the job was claimed, so it cannot see whether the epoch is current: "
                "roll it back and run it again."
            )
        case "LH005":
            return StoreIncompatible(
                f"connections to {where} begin in another isolation than READ COMMITTED, which the store's own verbs "
                f"need: set default_transaction_isolation for the role or in the URL (options=…). {nothing}."
            )
        case "LH006":
            return InvalidArgument(
                "that connection is inside a savepoint: if it is rolled back, the outer transaction would commit "
                "without what was joined here. Call this outside of it, or pass savepoint=True if you know that it "
                "will not be."
            )
        case "3F000" | "42P01" | "42883":
            return StoreIncompatible(
                f"schema {schema!r} of {where} is not there, or is not this leasehold's: {said}. {nothing}."
            )
        case "42501":
            return StoreIncompatible(f"the role of {where} lacks a right: {said}. {nothing}.")
        case "25006":
            return StoreUnavailable(
                f"{where} is read-only, a standby perhaps: {said}. {nothing}. Name the primary, or, in the URL, "
                "all hosts that may become it and target_session_attrs=read-write."
            )
        case "55P03":
            return StoreUnavailable(
                f"somebody else has kept a row locked that this verb needs: {said}. {nothing}; try again."
            )
        case "40P01" | "40001":
            return StoreUnavailable(f"PostgreSQL gave up this transaction in favour of another: {said}. {nothing}.")
        case "57014":
            return StoreUnavailable(f"the statement was cancelled or timed out: {said}. {nothing}.")
        case "53100" | "53200" | "53300" | "53400":
            return StoreUnavailable(f"{where} has run out of something: {said}. {nothing}.")
        case "2200H":
            return StoreUnavailable(f"no epoch is left below 2**53: {said}. {nothing}.")
    if connecting:
        return StoreUnavailable(f"{where} does not answer: {said}. {nothing}.")
    if _is_lost(code):
        return StoreUnavailable(
            f"the connection to {where} was lost: {said}. What was asked may or may not have happened."
        )
    # The server has refused the statement, and with it the whole transaction.
    return StoreUnavailable(f"{where} refused this with {code}: {said}. {nothing}.")


def _is_lost(code: str | None) -> bool:
    return code is None or code in _LOST or code.startswith("08")


def sqlstate_of(error: object) -> str | None:
    """Return the SQLSTATE that a driver's error carries, by whatever name."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str):
            return code
    return None


def shown(url: str) -> str:
    """Return *url* for people: without its password."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    name, colon, _ = user.partition(":")
    return f"{scheme}{slashes}{name}{':…' if colon else ''}{at}{tail}" if at else url


def is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has not hung up while the connection was idle; asks the socket, not the server."""
    if connection.closed:
        return False
    try:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        for _ in range(8):  # the server's last words come before the end, and each read takes only what is there
            if not poll.poll(0):
                return not connection.closed
            connection.pgconn.consume_input()
        return False
    except (OSError, ValueError, psycopg.Error):
        return False
