"""
The fence, and the store's verbs, inside a transaction: of the store's own for `lease.transaction()`, or on a caller's
connection.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import pq

from ...connections import Connection, driver_error
from ...connections import Program as Statements
from ...connections.drivers import is_piped
from ...connections.psycopg import Psycopg
from ...core.job import Added, NewJob, Progress, Settlement
from ...core.redaction import shown_url
from ...errors import (
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    StoreUnavailable,
)
from ...store import Program, Renewal
from ...transaction import FORKED, Joined
from ..transactions import DatabaseTransactions, cause
from . import commits
from .commits import REFUSED_SQLSTATE, moved, unfinished
from .connection import Pool, inherited, outlive_fork
from .database import Database
from .errors import explained, is_lost, sqlstate_of
from .fenced import ENDED, FencedConnection, begin
from .rows import PIPED, SAVEPOINT, Call, Row, add_refusal, added, as_json, refusal_of, settlement_json, wishes

if TYPE_CHECKING:
    from .store import PostgresStore

T = TypeVar("T")
Steps = Generator[Call, list[Row], T]


class PostgresTransactions(DatabaseTransactions):
    """Runs programs in transactions that the store does not end by itself."""

    exclusive = False  # renewals and takeovers go on beside an open transaction

    def __init__(self, store: PostgresStore, database: Database, now: Callable[[], int | None], *, trace: bool) -> None:
        self._store = store
        self._database = database
        self.database = database.key
        self._now = now
        self._trace = trace
        # Autocommit, for the driver's own BEGIN would be one more round trip: `fenced.begin` sends it with the fence.
        self.pool = Pool(lambda: database.connect(FencedConnection), shown_url(database.url), most_idle=10)
        self.forked()
        outlive_fork(self)
        commits.recorders.add(self)

    def forked(self) -> None:
        """Begin anew, in a child process; what is left to record is the parent's."""
        self._begun = threading.local()  # .connection: what this thread has begun and no block has entered
        self._unrecorded: deque[tuple[str, str]] = deque()  # refusals that their own transaction could not record

    # A transaction of ours, for the caller's rows

    def begin(self, job_id: str, epoch: int, *, idle_us: int | None = None) -> FencedConnection:
        """
        Return a connection with an open transaction that is fenced by *epoch*; raise the refusal otherwise.

        The server ends it once it was idle for *idle_us*; None: as its own setting says.
        """
        self._database.open()
        connection = self.pool.borrow()
        try:
            try:
                self._open(connection, job_id, epoch, idle_us)
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                # Whatever became of it, it is not committed.
                self._put(connection)
                connection = self.pool.borrow()
                self._open(connection, job_id, epoch, idle_us)
        except BaseException as error:
            failure = self._database.explained(error) if isinstance(error, psycopg.Error) else error
            if isinstance(failure, StoreUnavailable):
                connection.close()  # to a standby, perhaps: the next one may lead to the primary
            self._undo(connection)
            raise failure from cause(failure, error)
        connection.lend()
        return connection

    def _open(self, connection: FencedConnection, job_id: str, epoch: int, idle_us: int | None) -> None:
        connection.fenced = job_id, epoch
        self._begun.connection = connection
        call = self._fencing(job_id, epoch, "fence", None)
        args = call.filled(savepoint=False, piped=False)
        statement, params = self._database.calls.numbered(call.function, args, "%s")
        [(refused,)] = begin(connection, statement, params, idle_us=idle_us)
        self._admit(job_id, epoch, "fence", refused)

    def _put(self, connection: FencedConnection) -> None:
        """Undo what the connection has open, and keep it for the next transaction. To do it again is no harm."""
        if connection.fenced is None:
            return  # another block may have it by now
        if connection.made_in != os.getpid():
            inherited.append(connection)  # of a block that a child process leaves; its parent is in it still
            return
        self._keep(connection.taken())

    def _keep(self, session: FencedConnection) -> None:
        """Keep a session for the next transaction, as an object that no user has."""
        session.reply_seconds = self._database.reply_seconds
        session.prepare_threshold = self._database.prepare_threshold
        if session.cleared():
            # Behind a pooler, the session that it will be is not the one that it was.
            session.is_used = session.is_used and not self._database.pooled
        else:
            session.close()
        self.pool.give(session)

    def commit(self, connection: FencedConnection) -> None:
        """
        Commit what `begin` opened.

        If the reply is lost, the server is asked what became of the transaction, and the store whether it has settled
        the job. If that proves nothing, `StoreUnavailable` says that the outcome is not known.
        """
        assert connection.fenced is not None
        if connection.made_in != os.getpid():
            raise NotInTransaction(FORKED)
        job_id, epoch = connection.fenced
        session = connection.taken()
        try:
            if session.pgconn.transaction_status == pq.TransactionStatus.UNKNOWN:
                raise moved(self._store, job_id, epoch) or unfinished()
            if not session.can_end():
                raise NotInTransaction(ENDED)
            session.reply_seconds = self._database.reply_seconds
            try:
                session.commit()
            except psycopg.Error as error:
                refused = commits.take(error)
                if refused is not None:
                    self._note(job_id, error.diag.message_detail)
                    raise refused from error
                if sqlstate_of(error) == "25P03":  # it had been idle for too long, and had not heard of this COMMIT
                    raise moved(self._store, job_id, epoch) or unfinished() from error
                if is_lost(error):
                    lost = commits.resolve(self._store, session, job_id, epoch, error)
                    if lost is None:
                        return
                    raise lost from error
                if sqlstate_of(error) in ("40001", REFUSED_SQLSTATE) and (refusal := moved(self._store, job_id, epoch)):
                    raise refusal from error
                raise self._database.explained(error) from error
        finally:
            self._keep(session)
            self.record()

    def is_rolled_back(self, number: str | None) -> bool:
        """Return whether the server knows that the transaction of that number was rolled back."""
        return number is not None and commits.is_rolled_back(self._database, number)

    def was_ended(self, connection: FencedConnection | None) -> bool:
        """Return whether the server has hung up in the middle of the transaction."""
        return connection is not None and connection.closed

    def rollback(self, connection: FencedConnection | None) -> None:
        """
        Undo what `begin` opened, unless it is ended; None if Ctrl-C came before the caller had it.

        If a statement of the caller has failed because the connection was lost, raise why: the job was taken over, or
        the store is unavailable.
        """
        connection = connection or getattr(self._begun, "connection", None)
        if connection is None or connection.fenced is None:
            self._begun.connection = None
            return
        holder, error = connection.fenced, sys.exc_info()[1]
        was_lost = connection.info.transaction_status == pq.TransactionStatus.UNKNOWN
        self._undo(connection)
        if was_lost and isinstance(error, psycopg.Error):
            raise moved(self._store, *holder) or unfinished() from error

    def _undo(self, connection: FencedConnection) -> None:
        self._begun.connection = None
        self._put(connection)
        self.record()

    def close(self) -> None:
        """Close the idle connections."""
        self.pool.close()

    # What a refused transaction could not record itself

    def _note(self, job_id: str, refused: str | None) -> None:
        if refused is None:
            return
        facts = json.loads(refused)
        is_own_check = facts.get("verb") == "check" and facts.get("settled")  # which is not recorded (C5)
        if "unknown" not in facts and not is_own_check:
            self._unrecorded.append((job_id, refused))

    def note(self, facts: dict[str, Any]) -> bool:
        """Keep a refusal to be recorded, if it is this store's; return whether it is."""
        if self._database.closed or facts.get("store") != str(self._database.store_id):
            return False
        self._note(facts["job_id"], as_json(facts))
        return True

    def record(self, *, surely: bool = False) -> None:
        """
        Record the refusals that were rolled back with the transactions they refused (trap 16).

        If that fails they are kept for the next upkeep, and only with *surely* is it an error.
        """
        while self._unrecorded:
            try:
                job_id, refused = self._unrecorded.popleft()
            except IndexError:
                return  # another thread has it
            facts = json.loads(refused)
            try:
                self._database.call("record_refusal", job_id, facts.get("owner"), refused, facts["now"])
            except LeaseholdError:
                self._unrecorded.appendleft((job_id, refused))
                if surely:
                    raise
                return

    # Programs

    def add(self, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add`."""
        args = (self._database.store_id, as_json(wishes(jobs)), SAVEPOINT, self._trace, None, self._now())
        return added(jobs, (yield Call("add", args)))

    def fence(self, job_id: str, epoch: int) -> Program[None]:
        """The program that makes the transaction commit only if *epoch* is current."""
        yield from self._fence(job_id, epoch, "fence", None)

    def check(self, job_id: str, epoch: int, verb: str = "check") -> Program[None]:
        """The program that raises the refusal of *verb* if this transaction has settled the lease."""
        [(refused,)] = yield Call("settled_in", (job_id, epoch, verb, self._now()))
        self._admit(job_id, epoch, verb, refused)

    def has_job(self, job_id: str) -> Program[bool]:
        """The program that returns whether the job exists, as this transaction sees it."""
        [(exists,)] = yield Call("has_job", (job_id,))
        return bool(exists)

    def renew(self, renewal: Renewal) -> Program[int]:
        """Not part of a transaction here: a renewal takes effect at once."""
        raise NotImplementedError

    def progress(self, report: Progress) -> Program[None]:
        """The program of `Store.progress`, for one lease; it raises the refusal."""
        job_id, epoch, fraction, note, checkpoint = report
        request = as_json({"fraction": fraction, "note": note, "checkpoint": checkpoint})
        yield from self._fence(job_id, epoch, "progress", request)

    def settle(self, settlement_: Settlement) -> Program[None]:
        """The program of `Store.settle`, for one lease; it raises the refusal."""
        request = as_json(settlement_json(settlement_))
        yield from self._fence(settlement_.job_id, settlement_.epoch, settlement_.outcome.value, request)

    def _fence(self, job_id: str, epoch: int, verb: str, request: str | None) -> Steps[None]:
        [(refused,)] = yield self._fencing(job_id, epoch, verb, request)
        self._admit(job_id, epoch, verb, refused)

    def _fencing(self, job_id: str, epoch: int, verb: str, request: str | None) -> Call:
        args = (self._database.store_id, job_id, epoch, verb, request, SAVEPOINT, PIPED, self._trace, self._now())
        return Call("fence", args, (job_id, epoch), settles=None if verb == "progress" else request)

    def _admit(self, job_id: str, epoch: int, verb: str, refused: str | None) -> None:
        """Raise the refusal that a function has answered with, and have it recorded."""
        if refused is not None:
            self._note(job_id, refused)
            raise refusal_of(job_id, epoch, verb, refused)

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add_children`."""
        wished = as_json(wishes(jobs))
        args = (self._database.store_id, job_id, epoch, wished, SAVEPOINT, self._trace, self._now())
        rows = yield Call("fence_children", args)
        self._admit(job_id, epoch, "add", add_refusal(rows))
        return added(jobs, rows)

    # On a caller's connection

    def _statements(
        self, callers: Connection, program: Program[T], savepoint: bool, note: Callable[[Joined], None]
    ) -> Statements[T]:
        """Return *program* as statements on *callers*; if it is a part of the transaction then, say so to *note*."""
        self._database.open()
        callers.require_vendor("postgresql")
        callers.require_transaction()
        if not savepoint:
            callers.require_no_savepoint()  # where the library knows; the server knows of the others
        lent = callers.handle if isinstance(callers.handle, FencedConnection) else None
        answer: Any = None
        number: str | None = None
        epoch: int | None = None
        try:
            while True:
                call = program.send(answer)
                args = call.filled(savepoint=savepoint, piped=callers.is_piped)
                sql, params = self._database.calls.numbered(call.function, args, callers.style)
                if isinstance(callers, Psycopg) and callers.is_piped and call.function == "fence":
                    callers.send(sql, params)
                    rows: list[Row] = [(None, None)]  # its answer comes with the pipeline's
                else:
                    rows = yield sql, params, False
                number, answer = rows[0][-1], [row[:-1] for row in rows]
                if call.fences is not None:
                    epoch = call.fences[1]
                if lent is not None and call.settles is not None and call.fences == lent.fenced and rows[0][0] is None:
                    lent.settles, lent.surely_settles = call.settles, not savepoint
        except StopIteration as end:
            if lent is None:
                note(self._joined(callers, number, epoch))
            return end.value  # type: ignore[no-any-return]  # typed as the program is
        finally:
            program.close()

    def _joined(self, callers: Connection, number: str | None, epoch: int | None) -> Joined:
        """Return the transaction that *callers* has open, which the server knows by *number*, or by its *epoch*."""
        seems_open = callers.watch()
        is_open = lambda handle: seems_open(handle) and self._is_open(handle, number, epoch)  # noqa: E731
        return Joined(
            self.database,
            callers.handle,
            is_open,
            awaited=callers.is_async,
            number=number,
            is_lost=callers.watch_loss(),
        )

    def _is_open(self, handle: Any, number: str | None, epoch: int | None) -> bool:
        """Return whether the transaction is still open, and not another one on the same connection."""
        if self._database.closed:
            return True
        if number is None:
            # Its fence was sent in a pipeline, and the answer was not read. While that is open, it may not be run yet.
            return epoch is None or is_piped(handle) or commits.is_fenced(self._database, epoch)
        # A pool, or its user, may have begun another transaction on the connection since.
        try:
            return commits.status_of(self._database, number) == "in progress"
        except StoreUnavailable as error:
            if sqlstate_of(error.__cause__) != "22023":  # a number that the server does not know, after a crash
                raise
            return False

    def _explained(self, error: BaseException) -> BaseException:
        inside = (driver_error(error), error.__cause__)  # which is where Django has it
        driver = next((one for one in inside if sqlstate_of(one) is not None), error)
        if isinstance(error, LeaseholdError) or (sqlstate_of(driver) is None and not isinstance(error, psycopg.Error)):
            return error
        where, schema = shown_url(self._database.url), self._database.schema
        code = sqlstate_of(driver)
        if code in ("LH002", "3F000", "42P01", "42883") and (gone := self._database.gone()) is not None:
            return gone  # the call was right: the store is no longer there
        if code in ("3F000", "42P01", "42883"):
            # Our schema is not where that connection leads.
            return InvalidArgument(
                f"the connection that you passed is to a database without the schema {schema!r} of this store "
                f"({where}). Only rows in the same database can commit together: pass a connection to that database."
            )
        return explained(driver, where, schema)
