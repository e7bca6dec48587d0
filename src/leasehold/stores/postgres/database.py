"""Calls to the server: how a connection is set up, and the retry policy for calls whose reply was lost."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
from psycopg import sql

from ...core.clock import patience
from ...core.redaction import shown_url
from ...errors import InvalidArgument, LeaseholdError, StoreIncompatible, StoreUnavailable
from .._stats import StoreStats
from .._versions import Migrated
from .connection import Connection, ConnectionT, Pool, is_pooled, outlive_fork
from .errors import cannot_connect, explained, sqlstate_of, without_secrets
from .rights import check_role
from .rows import Calls, Row
from .schema import Statements, admitted, checked, index_meta, look, make, migrate, statements, stats

LEAST_SERVER = 140000
REPLY_SECONDS = 60.0  # how long a server may take over a reply
AGAIN_SECONDS = 5.0  # how long a call whose reply was lost is repeated
_LONGEST_PAUSE_SECONDS = 0.5
_TRIES = 5  # of a transaction that was rolled back
_ROLLED_BACK_SECONDS = 0.02  # at most, before the next try
# Not done, and may be repeated: a deadlock, a conflict; and a function that a migration has changed while it waited.
_ROLLED_BACK = {"40P01", "40001", "42804", "0A000"}
# The common cases of a verb, which is what a test waits for.
_COMMON = {"add_alike": "add", "claim_next": "claim", "complete": "settle"}
_READ_COMMITTED = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
_CHANGED = {"42883", "42P01", "42703", "42704"}  # a function, a table, a column or a type is not there


class _Borrowed:
    """Borrows a connection for a block; a class, since a generator takes twice as long over it."""

    __slots__ = ("_connection", "_database", "_patient")

    def __init__(self, database: Database, patient: bool) -> None:
        self._database = database
        self._patient = patient

    def __enter__(self) -> Connection:
        self._connection = connection = self._database.pool.borrow()
        connection.reply_seconds = None if self._patient else self._database.reply_seconds
        return connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, psycopg.Error):
                if sqlstate_of(error) == "25006":
                    self._connection.close()  # the address may lead to a primary by now, and this session never will
                raise self._database.explained(error) from error
        finally:
            self._database.pool.give(self._connection)


class Database:
    """One schema of one PostgreSQL database, for one process."""

    def __init__(
        self, url: str, schema: str, *, now: Callable[[], int | None], connections: int, wait_seconds: float
    ) -> None:
        try:
            self._settings = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            why = without_secrets(str(error).strip(), url)
            raise InvalidArgument(f"{shown_url(url)} is not a URL that PostgreSQL understands: {why}.") from None
        self.url = url
        # The same for two stores that share a database, if their URLs name it in the same way.
        self.key = tuple(self._settings.get(name) for name in ("service", "host", "hostaddr", "port", "dbname"))
        self._now = now
        self.schema = checked(schema)
        self.statements: Statements = statements(schema)
        self.store_id: uuid.UUID | None = None
        self.calls = Calls(schema)
        self.pool = Pool(
            lambda: self.connect(Connection),
            shown_url(url),
            most_idle=connections,
            limit=connections,
            wait_seconds=wait_seconds,
        )
        self.reply_seconds = REPLY_SECONDS
        self.prepare_threshold: int | None = 5  # how often a statement is sent before it is prepared; None: never
        self._role: str | None = None  # as whom we are connected
        self.pooled = False  # whether a pooler was found before the server; each new connection is asked
        self._isolated_otherwise = False  # whether sessions begin in another isolation than READ COMMITTED, behind one
        # What a test may arm: it is called with the name of a function before the server is.
        self.point: Callable[[str], None] | None = None
        self.forked()
        outlive_fork(self)

    def forked(self) -> None:
        """Begin anew, in a child process: another thread of its parent may hold the lock."""
        self._pause = threading.Event()  # never set: to wait
        self._opening = threading.Lock()

    # Calls

    def call(self, function: str, *args: Any, again: bool = False) -> list[Row]:
        """
        Return the rows of one of our functions, which is a transaction of its own.

        *again*: it may be called a second time if the first reply was lost.
        """
        query, params = self.calls.statement(function, args)
        return self._with_retry(Connection.ask, query, params, function, again=again)[0]

    def call_again(self, function: str, *args: Any) -> tuple[list[Row], bool]:
        """Return the same, and whether a reply was lost before: then it may have happened already."""
        query, params = self.calls.statement(function, args)
        return self._with_retry(Connection.ask, query, params, function, again=True)

    def read(self, query: str, params: Any = (), *, patient: bool = False) -> list[Row]:
        """Return the rows of a statement that only reads; *patient*, if the server may take its time."""
        return self._with_retry(Connection.read, query, params, "read", again=True, patient=patient)[0]

    def _with_retry(
        self,
        ask: Callable[[Connection, str, Any], list[Row]],
        query: str,
        params: Any,
        what: str,
        *,
        again: bool,
        patient: bool = False,
    ) -> tuple[list[Row], bool]:
        """
        Return the rows, and whether a reply was lost before they came.

        What the server has rolled back is repeated a few times. With *again*, so is what lost its reply, for a while.
        """
        if self.store_id is None:
            self.open()
        lost: StoreUnavailable | None = None
        left, pause, tries = None, 0.0, _TRIES
        while True:
            try:
                with _Borrowed(self, patient) as connection:
                    if self.point is not None:
                        self.point(_COMMON.get(what, what))
                    if not self._isolated_otherwise:
                        try:
                            return ask(connection, query, params), lost is not None
                        except psycopg.Error as error:
                            self._check_isolation(connection, error)
                    with self._read_committed(connection):
                        return ask(connection, query, params), lost is not None
            except StoreUnavailable as error:
                code = sqlstate_of(error.__cause__)
                if code in _ROLLED_BACK and tries > 1:
                    tries -= 1  # nothing has happened; the transaction that it met must come first, or they meet again
                    self._pause.wait(random.uniform(0, _ROLLED_BACK_SECONDS))
                    continue
                if lost is None:
                    if not (again and error.outcome_unknown):
                        raise
                    lost = error
                # From here on, "nothing was changed" would hold for the last try only.
                elif not _is_gone(error):
                    raise StoreUnavailable(
                        f"{lost} The call was repeated, and the store answered: {error}", outcome_unknown=True
                    ) from error.__cause__
                left = left or patience(AGAIN_SECONDS)
                if left() <= pause:
                    raise lost from lost.__cause__
            # Not at once: every client asks a server that has just restarted.
            self._pause.wait(pause * random.uniform(0.5, 1))
            pause = min(max(2 * pause, 0.01), _LONGEST_PAUSE_SECONDS)

    def _check_isolation(self, connection: Connection, error: psycopg.Error) -> None:
        """Raise *error*, unless it says that the session is in another isolation: then nothing has happened yet."""
        if sqlstate_of(error) == "0A000":  # a migration has changed what was prepared, here and elsewhere
            self.pool.drop(connection)
        if sqlstate_of(error) in _CHANGED and (found := look(connection, self.schema)) is not None:
            admitted(found, self.named)  # a migration under our feet has its own words
        if sqlstate_of(error) != "LH005":
            raise error

    def _read_committed(self, connection: Connection) -> AbstractContextManager[object]:
        """Have the next statement run in READ COMMITTED, where the role or the database has another default."""
        if not self.pooled:
            # For the session: a transaction of several requests stays open, and keeps its locks, for as long as
            # this process is paused between two of them.
            connection.execute(_READ_COMMITTED)
            return nullcontext()
        # For one transaction, since the session is another client's next.
        self._isolated_otherwise = True
        return connection.transaction()

    def connection(self, *, patient: bool = False) -> AbstractContextManager[Connection]:
        """
        Borrow a connection that commits each statement by itself; what goes wrong on it is explained.

        A server that does not reply within `reply_seconds` is given up, unless *patient*.
        """
        return _Borrowed(self, patient)

    def connect(self, kind: type[ConnectionT], *, autocommit: bool = True) -> ConnectionT:
        """Return a new connection, set up as this store wants it."""
        settings: dict[str, Any] = {
            "application_name": "leasehold",
            "connect_timeout": 10,
            # A machine that vanishes is noticed within a minute and a half, even without `reply_seconds`: while
            # nothing is under way by the first three, else by the last.
            "keepalives_idle": 30,
            "keepalives_interval": 15,
            "keepalives_count": 4,
            "tcp_user_timeout": 90_000,
            **self._settings,
            "client_encoding": "UTF8",  # as which `Connection.ask` sends, whatever the role or the URL has
            "prepare_threshold": self.prepare_threshold,
        }
        try:
            connection = kind.connect(**settings, autocommit=autocommit)
        except psycopg.Error as error:
            raise cannot_connect(error, self.url) from error
        if connection.info.server_version < LEAST_SERVER:
            version = connection.info.server_version // 10000
            connection.close()
            raise StoreIncompatible(
                f"{shown_url(self.url)} is PostgreSQL {version}, and leasehold needs PostgreSQL 14 or newer."
            )
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.reply_seconds = self.reply_seconds
        self._role = connection.info.user
        if self.prepare_threshold is not None:
            # Of each, since a pooler may be put before the server while this process lives.
            try:
                pooled = is_pooled(connection)
            except psycopg.Error as error:
                connection.close()
                raise cannot_connect(error, self.url) from error
            if pooled:
                self.pooled = True
                self.prepare_threshold = connection.prepare_threshold = None  # the next session does not know it
        return connection

    # Opening and closing

    def open(self) -> None:
        """Make sure, once, that the schema is there and that this leasehold knows it."""
        if self.store_id is not None:
            return
        with self._opening:
            if self.store_id is not None:
                return
            with self.connection(patient=True) as connection:
                found = look(connection, self.schema)
                if found is None:
                    make(connection, self.schema, self.named, self._now())
                    found = look(connection, self.schema)
                assert found is not None
                self.store_id = admitted(found, self.named)

    def exists(self) -> bool:
        """Return whether the schema is there; make nothing."""
        with self.connection() as connection:
            return look(connection, self.schema) is not None

    def gone(self) -> LeaseholdError | None:
        """Return the error for a schema that was removed or replaced since it was opened here; None if it was not."""
        try:
            with self.connection() as connection:
                found = look(connection, self.schema)
        except LeaseholdError as error:
            return error if isinstance(error, StoreIncompatible) else None
        if found is not None and found.store_id == self.store_id:
            return None
        what = "removed" if found is None else "replaced by another store"
        return StoreUnavailable(
            f"{self.named} was {what} since this process opened it, perhaps because a backup is being restored. "
            "Nothing was changed. Restart this process once the store is back."
        )

    def migrate(self, *, dry_run: bool, wait_seconds: float, say: Callable[[str], None]) -> Migrated:
        """Bring the schema up to date, or make it; with *dry_run*, only say what that would be."""
        with self.connection(patient=True) as connection:
            return migrate(
                connection, self.schema, self.named, self._now(), dry_run=dry_run, wait_seconds=wait_seconds, say=say
            )

    def index_meta(self, *, dry_run: bool) -> list[str]:
        """Index the meta of jobs, unless *dry_run*; return the statements, none if it is indexed already."""
        self.open()
        with self.connection(patient=True) as connection:
            return index_meta(connection, self.schema, dry_run=dry_run)

    def stats(self) -> StoreStats:
        """Return how large the store is, by PostgreSQL's own figures."""
        return stats(self.read, self.schema)

    def administer(
        self, role: str, make: Callable[[psycopg.Connection[Any], str], list[sql.Composed]], *, dry_run: bool
    ) -> list[str]:
        """Run statements about the rights of *role* in one transaction, unless *dry_run*; return them."""
        self.open()
        with self.connection() as connection, connection.transaction():
            check_role(connection, self.schema, role, self.named)
            statements = make(connection, self.schema)
            for statement in statements if not dry_run else ():
                connection.execute(statement)
            return [statement.as_string(connection) for statement in statements]

    @property
    def named(self) -> str:
        """The schema and its database, for people."""
        return f"schema {self.schema!r} of {shown_url(self.url)}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.pool.closed

    def close(self) -> None:
        """Close the connections; later verbs raise `StoreUnavailable`."""
        self.pool.close()

    def explained(self, error: psycopg.Error) -> BaseException:
        """Return *error* in leasehold's words."""
        return explained(error, shown_url(self.url), self.schema, role=self._role)


def _is_gone(error: StoreUnavailable) -> bool:
    """Whether there is no connection to ask on: it was lost, or none could be made."""
    return error.outcome_unknown or (error.__cause__ is not None and sqlstate_of(error.__cause__) is None)
