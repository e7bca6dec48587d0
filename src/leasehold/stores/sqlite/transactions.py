"""The store's verbs inside a transaction: of the store's own for `lease.transaction()`, or on a caller's connection."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...connections import Connection, driver_error
from ...core.clock import Clock
from ...core.job import Added, NewJob, Progress, Settlement
from ...errors import (
    Conflict,
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    StaleEpoch,
    StoreUnavailable,
    UnknownJob,
)
from ...logs import log
from ...store import Refusal, Renewal
from ...transaction import FORKED, Joined, is_here, is_inside, refuse_inside
from ..transactions import DatabaseTransactions, cause
from . import owning, programs
from .connection import ROLLED_BACK, FencedConnection, drive
from .database import Database, inherited
from .programs import Program, Session, Standing, one

T = TypeVar("T")


class SqliteTransactions(DatabaseTransactions):
    """
    Runs programs in transactions that the caller ends.

    The record of a refusal would be rolled back with such a transaction. So the *joined* session defers it, and a
    transaction of the store's own *session* records it separately.
    """

    exclusive = True  # a write transaction holds the file's only write lock

    def __init__(
        self, database: Database, clock: Clock, session: Session, joined: Session, notify: Callable[[], None]
    ) -> None:
        self._database = database
        self.database = database.key
        self._clock = clock
        self._session = session
        self._joined = joined
        self._notify = notify  # called after a commit
        self._open: weakref.ref[FencedConnection] | None = None  # the last one: its turn to write excludes another
        self._begun = threading.local()  # .connection: what this thread has begun, until its block is entered

    # A transaction of ours, for the caller's rows

    def begin(self, job_id: str, epoch: int, *, idle_us: int | None = None) -> FencedConnection:
        """
        Return a connection with an open transaction that is fenced by *epoch*; raise the refusal otherwise.

        The transaction of a stopped process cannot be ended from outside: *idle_us* has no effect here.

        It is a new one each time. One that is used again would hand its settings, its temporary tables and a variable
        that outlived its block from one job to the next, and opening one takes less than a commit does.
        """
        database = self._database
        refuse_inside(database.key)
        turn = database.writing()  # and no ExitStack, which ties a Ctrl-C into a knot that only the collector undoes
        turn.__enter__()
        try:
            database.current_writer()
            connection = self._connect()
            try:
                self._open, self._begun.connection = weakref.ref(connection), connection
                connection.execute("BEGIN IMMEDIATE")
                _admitted(drive(connection, owning.fence(self._joined, self._clock.now(), job_id, epoch)))
                connection.set_authorizer(_only_inside(weakref.ref(connection)))
                connection.turn, connection.file = turn, database.file
                return connection
            except BaseException as error:
                connection.end()
                with suppress(LeaseholdError):  # the caller needs the refusal; its record can wait
                    if self._session.deferred:
                        database.write_in_turn(self._session, _nothing)
                raise database.explained(error) from error.__cause__
        except BaseException:
            turn.__exit__(None, None, None)
            raise

    def _connect(self) -> FencedConnection:
        # Without the cache, since SQLite asks the authorizer when a statement is prepared, and not each time it runs.
        connection = self._database.connect(FencedConnection, cached_statements=0)
        assert isinstance(connection, FencedConnection)
        # SQLite itself rolls back for some errors. Python would then begin anew before the next write, which the
        # authorizer refuses; without this level that write would commit by itself, and unfenced.
        connection.isolation_level = "IMMEDIATE"
        return connection

    def commit(self, connection: FencedConnection) -> None:
        """Commit what `begin` opened."""
        if connection.made_in != os.getpid():
            raise NotInTransaction(FORKED)
        try:
            connection.set_authorizer(None)
            if not connection.in_transaction:
                raise NotInTransaction(ROLLED_BACK)
            self._database.refuse_replaced(connection.file)  # SQLite would commit to a file that has no name any more
            connection.execute("COMMIT")
        except BaseException as error:
            explained = self._explained(error)
            raise explained from cause(explained, error)
        finally:
            connection.end()
        self._notify()

    def rollback(self, connection: FencedConnection | None) -> None:
        """
        Undo what `begin` opened, unless it is committed.

        None if Ctrl-C came while `begin` returned: it is what this thread has begun last. Only the garbage collector
        would close it, some time, since a sqlite3 connection refers to itself.
        """
        connection = connection or getattr(self._begun, "connection", None)
        self._begun.connection = None
        if connection is not None:
            connection.end()

    def was_ended(self, connection: FencedConnection | None) -> bool:
        """Return False: there is no server that could have hung up."""
        return False

    def is_rolled_back(self, number: str | None) -> bool:
        """Return True: there is no reply that could be lost, so a COMMIT that raised has not committed."""
        return True

    def forked_child(self) -> None:
        """Start afresh in a forked child."""
        inherited.append(self._open and self._open())

    # Deferred refusals

    def record_soon(self) -> None:
        """
        Record the refusals that were deferred, unless another transaction writes.

        That may be the very transaction in which they happened, so a reader does not wait for it.
        """
        if self._session.deferred and not is_inside(self._database.key):
            try:
                self._database.write_soon(self._session, _nothing)
            except LeaseholdError as error:
                log.debug(
                    "could not record %d refusals of stale owners yet; retrying later: %s",
                    len(self._session.deferred),
                    error,
                )

    def record_all(self) -> None:
        """Record the refusals that were deferred, as the store's last write: wait for it, and log a failure."""
        if self._session.deferred:
            try:
                refuse_inside(self._database.key)
                self._database.write(self._session, _nothing)
            except LeaseholdError as error:
                log.warning(
                    "could not record %d refusals of stale owners in the jobs' events: %s",
                    len(self._session.deferred),
                    error,
                )
            self._session.deferred.clear()

    # Programs

    def add(self, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add`."""
        yield from self._lock()
        return (yield from owning.add(self._joined, self._clock.now(), jobs))

    def fence(self, job_id: str, epoch: int) -> Program[None]:
        """The program that makes the transaction commit only if *epoch* is current."""
        yield from self._lock()
        return _admitted((yield from owning.fence(self._joined, self._clock.now(), job_id, epoch)))

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add_children`."""
        yield from self._lock()
        return _admitted((yield from owning.add_children(self._joined, self._clock.now(), job_id, epoch, jobs)))

    def check(self, job_id: str, epoch: int, verb: str = "check") -> Program[None]:
        """The program of `Store.check`, for one lease, as this transaction sees it; it raises the refusal."""
        [refusal] = yield from owning.check(self._joined, self._clock.now(), [(job_id, epoch)])
        return _admitted(refusal)

    def has_job(self, job_id: str) -> Program[bool]:
        """The program that returns whether the job exists, as this transaction sees it."""
        return (yield from programs.find(self._joined, job_id)) is not None

    def renew(self, renewal: Renewal) -> Program[int]:
        """The program of `Store.renew`, for one lease; it raises the refusal."""
        yield from self._lock()
        [reply] = yield from owning.renew(self._joined, self._clock.now(), [renewal])
        return _admitted(reply)

    def progress(self, report: Progress) -> Program[None]:
        """The program of `Store.progress`, for one lease; it raises the refusal."""
        yield from self._lock()
        [refusal] = yield from owning.progress(self._joined, self._clock.now(), [report])
        return _admitted(refusal)

    def settle(self, settlement: Settlement) -> Program[None]:
        """The program of `Store.settle`, for one lease; it raises the refusal."""
        yield from self._lock()
        now = self._clock.now()
        # Not by `settle` alone, which accepts the same settlement twice: the caller's rows would be written twice, too.
        held = yield from programs.find_held(
            self._joined, now, settlement.job_id, settlement.epoch, settlement.outcome.value
        )
        if not isinstance(held, Standing):
            raise held
        [refusal] = yield from owning.settle(self._joined, now, [settlement])
        return _admitted(refusal)

    def _lock(self) -> Program[None]:
        # The first statement is a write. From here to the end of the caller's transaction no other connection writes,
        # so what is compared now still holds at its COMMIT.
        if not self._database.opened:
            yield from self._database.migrate_in()
        [(_, _, last)] = yield one(self._joined.sql.lock)
        # No epoch is issued now, so another one in the file that the path names means that it is another file,
        # whatever its name: the caller's is still open from before it was replaced.
        if self._database.opened and last != self._database.read(programs.last_epoch(self._joined)):
            raise StoreUnavailable(
                f"the connection that you passed is to a file that has been replaced: {self._database.path} is another "
                "file now. Nothing was changed. Open a new connection, and pass that one."
            )

    # On a caller's connection

    def _statements(
        self, callers: Connection, program: Program[T], savepoint: bool, note: Callable[[Joined], None]
    ) -> Program[T]:
        """Return *program* as a part of the transaction that *callers* has open, or begins with it."""
        callers.require_vendor("sqlite")
        if not savepoint:
            callers.require_no_savepoint()
        _refuse_first_savepoint(callers)
        lent = callers.handle if isinstance(callers.handle, FencedConnection) else None
        if lent is None:
            self._refuse_other_file((yield one("PRAGMA database_list")))
        else:
            self._database.refuse_replaced(lent.file)
        callers.require_transaction()
        if not callers.in_transaction():
            # The driver would begin only before a write: by then a migration would have committed, by statements.
            yield one("BEGIN IMMEDIATE")
        if lent is None:
            note(Joined(self.database, callers.handle, callers.watch(), awaited=callers.is_async))
        return (yield from _whole(program))

    def _explained(self, error: BaseException) -> BaseException:
        driver = driver_error(error)
        # What is wrong with the caller's own connection (closed, of another thread) comes before the first statement.
        ours = isinstance(driver, sqlite3.Error) and not isinstance(driver, sqlite3.ProgrammingError)
        return self._database.explained(driver) if ours else error

    def _refuse_other_file(self, databases: list[Any]) -> None:
        name, path = next((file for _, name, file in databases if name == "main"), ""), self._database.path
        if name and os.path.realpath(name) == os.path.realpath(path):
            self._database.refuse_missing()
        elif not name or not os.path.exists(path) or not os.path.exists(name) or not os.path.samefile(name, path):
            raise InvalidArgument(
                f"the connection that you passed is to {name or 'a database in memory'}, and this store is in {path}: "
                "only rows in the same file can commit together."
            )


_SAVEPOINT = "leasehold_verb"


def _nothing(session: Session, now: int) -> Program[None]:
    """The program of a transaction that only records the deferred refusals."""
    yield from ()


def _whole(program: Program[T]) -> Program[T]:
    """Return *program* such that, if it fails halfway, nothing of it stays in the caller's transaction."""
    yield one(f"SAVEPOINT {_SAVEPOINT}")
    try:
        value = yield from program
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(Exception):  # after some errors SQLite itself has rolled everything back
            yield one(f"ROLLBACK TO {_SAVEPOINT}")
            yield one(f"RELEASE {_SAVEPOINT}")
        raise
    yield one(f"RELEASE {_SAVEPOINT}")
    return value


def _refuse_first_savepoint(callers: Connection) -> None:
    if callers.in_savepoint() and callers.begins() and not is_here(callers.handle):
        # A savepoint is no write, so the driver has not begun for it; if it came first, it is the transaction.
        raise Conflict(
            "the connection that you passed is inside a savepoint, and sqlite3 may not have begun a transaction "
            "around it. Without one, the end of the savepoint commits, and what follows is not fenced. Call fence() or "
            "another verb before the savepoint, or let the engine emit BEGIN."
        )


def _admitted(value: T | Refusal) -> T:
    if isinstance(value, StaleEpoch | UnknownJob):
        raise value
    return value


def _only_inside(connection: weakref.ref[sqlite3.Connection]) -> Callable[..., int]:
    """Return an authorizer that denies BEGIN, COMMIT and ROLLBACK, and every statement after a rollback."""

    def authorize(action: int, *_: object) -> int:
        here = connection()
        allowed = action != sqlite3.SQLITE_TRANSACTION and here is not None and here.in_transaction
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize
