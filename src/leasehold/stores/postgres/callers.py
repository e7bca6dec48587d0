"""
The fence, and the store's verbs, inside a caller's own transaction: psycopg, and SQLAlchemy's connections and sessions.

The caller's library is never imported here: it is in `sys.modules` if the caller has an object of it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from ...core.job import Added, NewJob, Settlement
from ...core.ownership import Reason
from ...core.values import shown_url
from ...errors import (
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    Settled,
    StaleEpoch,
    StoreUnavailable,
    finders,
)
from ...store import Program
from .database import Connection, Database, inherited, is_alive, outlive_fork
from .faults import explained, is_lost, is_unknown, sqlstate_of, unknown
from .rows import Row, added, as_json, refusal_of, settlement, wishes

if TYPE_CHECKING:
    from .store import PostgresStore

T = TypeVar("T")
Step = tuple[str, tuple[Any, ...]]  # one of our functions, and its arguments
Steps = Generator[Step, list[Row], T]

REFUSED_SQLSTATE = "LH001"  # of a fence's refusal inside COMMIT; the facts are in its DETAIL
_SAVEPOINT: Any = object()  # stands for what whoever runs a program says about savepoints
_ENDS = re.compile(rb"\s*(begin|start|commit|end|rollback|abort|prepare\s+transaction)\b(?!\s+to\b)", re.IGNORECASE)


class FencedCursor(psycopg.Cursor[Any]):
    """A cursor that leaves the end of the transaction to the lease."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run *query*, unless it would end the transaction."""
        refuse_end(query)
        return super().execute(query, params, **options)


class FencedConnection(Connection):
    """A connection whose transaction is the lease's to end, and not its user's."""

    ours = True
    lent = False
    fenced = ("", 0)
    said: str | None = None  # how its COMMIT will settle the job

    def commit(self) -> None:
        """Refuse: the end of `with lease.transaction()` commits."""
        self._only_ours("commit")
        super().commit()

    def rollback(self) -> None:
        """Refuse: raise an exception inside `with lease.transaction()` instead."""
        self._only_ours("rollback")
        super().rollback()

    def close(self) -> None:
        """Refuse, unless the store closes it."""
        self._only_ours("close")
        super().close()

    def __exit__(self, *_: object) -> None:
        """Refuse what psycopg does here, which is to commit and close."""
        self._only_ours("`with connection`")

    def _only_ours(self, what: str) -> None:
        if not self.ours:
            raise InvalidArgument(
                f"{what} inside lease.transaction(): the end of the block commits, and an exception in it rolls back. "
                "What followed a commit of your own would be unfenced."
            )


class PostgresTransactions:
    """Runs programs in transactions that somebody else ends."""

    def __init__(self, store: PostgresStore, database: Database, now: Callable[[], int | None], *, trace: bool) -> None:
        self._store = store
        self._database = database
        self._now = now
        self._trace = trace
        self._begin()
        outlive_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[FencedConnection] = []
        self._apart: deque[tuple[str, str]] = deque()  # refusals that their own transaction could not record

    def forked(self) -> None:
        """Begin anew, in a child process; what is left to record is the parent's."""
        inherited.extend(self._idle)
        self._begin()

    # A transaction of ours, for the caller's rows

    def begin(self, job_id: str, epoch: int) -> FencedConnection:
        """Return a connection with an open transaction that is fenced by *epoch*; raise the refusal otherwise."""
        self._database.open()
        connection = self._take()
        try:
            try:
                self.run(connection, self.fence(job_id, epoch))
            except StoreUnavailable as error:
                if not is_unknown(error):
                    connection.close()  # to a standby, perhaps: the next one may lead to the primary
                    raise
                # Whatever became of it, it is not committed.
                self._put(connection)
                connection = self._take()
                self.run(connection, self.fence(job_id, epoch))
        except BaseException:
            self._put(connection)
            self.record()
            raise
        connection.ours = False
        connection.fenced = (job_id, epoch)
        connection.reply_seconds = None  # how long the caller's statements may take is the caller's affair
        return connection

    def _take(self) -> FencedConnection:
        while self._idle:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is not None and is_alive(connection):
                connection.lent = True
                return connection
        made = self._database.connect(FencedConnection, autocommit=False)
        made.cursor_factory = FencedCursor
        made.lent = True
        return made

    def _put(self, connection: FencedConnection) -> None:
        """Keep the connection for the next transaction; what it has open is undone."""
        if not connection.lent:
            return  # it was put back before: twice, and two transactions would share it
        connection.lent = False
        if connection.made_in != os.getpid():
            inherited.append(connection)  # of a block that a child process leaves; its parent is in it still
            return
        connection.ours = True
        connection.said = None
        connection.reply_seconds = self._database.reply_seconds
        try:
            if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                psycopg.Connection.rollback(connection)
        except psycopg.Error:
            pass  # it is gone, and the server undoes what it had open
        with self._lock:
            if not connection.closed and len(self._idle) < 10:
                connection.row_factory = tuple_row
                self._idle.append(connection)
                return
        connection.close()

    def enter(self, connection: Any) -> None:
        """Nothing to remember: a verb outside runs on a connection of its own."""

    def commit(self, connection: FencedConnection) -> None:
        """
        Commit what `begin` opened.

        If the reply is lost, the store is asked: it knows if the transaction has settled the job, and if the job has
        moved since. If that tells nothing, `StoreUnavailable` says that the outcome is not known.
        """
        job_id, epoch = connection.fenced
        status, said = connection.info.transaction_status, connection.said
        if status != pq.TransactionStatus.INTRANS:
            self._put(connection)
            if status == pq.TransactionStatus.UNKNOWN:
                raise self._moved(job_id, epoch) or _unfinished()
            raise NotInTransaction(
                "this transaction had failed, or was ended, before its block was: nothing was committed, since "
                "PostgreSQL answers COMMIT after an error with a rollback. Let such an error leave the block."
            )
        connection.ours = True
        connection.reply_seconds = self._database.reply_seconds
        try:
            connection.commit()
        except psycopg.Error as error:
            refused = StaleEpoch.find(error)
            if refused is not None:
                self._note(job_id, error.diag.message_detail)
                raise refused from error
            if is_lost(error):
                if said is not None and self._was_said(job_id, epoch, said):
                    return
                raise self._moved(job_id, epoch) or unknown(
                    f"the connection to {shown_url(self._database.url)} was lost in COMMIT: {_first(error)}. The "
                    "transaction may or may not have been committed: look for what it wrote before you run it again."
                ) from error
            if sqlstate_of(error) == "40001" and (moved := self._moved(job_id, epoch)):
                raise moved from error
            raise self._database.explained(error) from error
        finally:
            self._put(connection)
            self.record()

    def _moved(self, job_id: str, epoch: int) -> LeaseholdError | None:
        """Return why the epoch is not current, or None if it is, or if nobody answers."""
        try:
            return self._store.check([(job_id, epoch)])[0]
        except StoreUnavailable:
            return None

    def _was_said(self, job_id: str, epoch: int, said: str) -> bool:
        """Whether the job has been settled with these words: then the transaction that carried them has committed."""
        try:
            [(heard,)] = self._database.call("was_said", job_id, epoch, json.loads(said)["said"], again=True)
        except LeaseholdError:
            return False
        return bool(heard)

    def rollback(self, connection: FencedConnection | None) -> None:
        """
        Undo what `begin` opened.

        If a statement of the caller has failed because the connection was lost, raise why: the job was taken over, or
        the store is unavailable.
        """
        if connection is None:
            return
        was_lost = connection.lent and connection.info.transaction_status == pq.TransactionStatus.UNKNOWN
        self._put(connection)
        self.record()
        error = sys.exc_info()[1]
        if was_lost and isinstance(error, psycopg.Error):
            raise self._moved(*connection.fenced) or _unfinished() from error

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # What a refused transaction could not record itself

    def _note(self, job_id: str, said: str | None) -> None:
        if said is not None and "unknown" not in json.loads(said):
            self._apart.append((job_id, said))

    def record(self, *, surely: bool = False) -> None:
        """
        Record the refusals that were rolled back with the transactions they refused (trap 16).

        If that fails they are kept for the next verb, and only with *surely* is it an error.
        """
        while self._apart:
            try:
                job_id, said = self._apart.popleft()
            except IndexError:
                return  # another thread has it
            facts = json.loads(said)
            try:
                self._database.call("record_refusal", job_id, facts.get("owner"), said, facts["now"])
            except LeaseholdError:
                self._apart.appendleft((job_id, said))
                if surely:
                    raise
                return

    # Programs

    def add(self, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add`."""
        args = (self._database.store_id, as_json(wishes(jobs)), self._trace, self._now())
        return added(jobs, (yield "add", args))

    def fence(self, job_id: str, epoch: int) -> Program[None]:
        """The program that makes the transaction commit only if *epoch* is current."""
        yield from self._fence(job_id, epoch, "fence", None)

    def settle(self, settlement_: Settlement) -> Program[None]:
        """The program of `Store.settle`, for one lease; it raises the refusal."""
        said = as_json(settlement(settlement_))
        yield from self._fence(settlement_.job_id, settlement_.epoch, settlement_.outcome.value, said)

    def _fence(self, job_id: str, epoch: int, verb: str, said: str | None) -> Steps[None]:
        args = (self._database.store_id, job_id, epoch, verb, said, _SAVEPOINT, self._trace, self._now())
        [(refused,)] = yield "fence", args
        if refused is not None:
            self._note(job_id, refused)
            raise refusal_of(job_id, epoch, verb, refused)

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add_children`."""
        wished = as_json(wishes(jobs))
        args = (self._database.store_id, job_id, epoch, wished, _SAVEPOINT, self._trace, self._now())
        rows = yield "fence_children", args
        refused = next(row[24] for row in rows if row[0] == 0)
        if refused is not None:
            self._note(job_id, refused)
            raise refusal_of(job_id, epoch, "add", refused)
        return added(jobs, rows)

    # On a caller's connection

    def is_async(self, connection: Any) -> bool:
        """Return whether *connection* belongs to an event loop."""
        return isinstance(
            connection,
            (psycopg.AsyncConnection, *_types("sqlalchemy.ext.asyncio", "AsyncConnection", *_ASYNC_SESSIONS)),
        )

    def run(self, connection: Any, program: Program[T], *, savepoint: bool = False) -> T:
        """Run *program* inside the transaction that *connection* has open, and return its value."""
        self._database.open()
        if isinstance(connection, _types("sqlalchemy.orm", "Session", "scoped_session")):
            connection = connection.connection()
        try:
            if isinstance(connection, psycopg.Connection):
                refuse_autocommit(connection)
                with connection.cursor(row_factory=tuple_row) as cursor:

                    def step(sql: str, args: Any) -> list[Row]:
                        rows: list[Row] = list(cursor.execute(sql, args))
                        if isinstance(connection, FencedConnection) and (said := _said(args)):
                            connection.said = said
                        return rows

                    return _run(program, step, self._sql("%s"), savepoint)
            if isinstance(connection, _types("sqlalchemy", "Connection")):
                refuse_autocommit(connection.connection.dbapi_connection)
                style = _placeholders(connection)
                return _run(
                    program, lambda sql, args: _rows(connection.exec_driver_sql(sql, args)), style(self), savepoint
                )
        except Exception as error:
            raise self._explained(error) from error
        finally:
            program.close()
        raise _unknown(connection)

    async def run_async(self, connection: Any, program: Program[T], *, savepoint: bool = False) -> T:
        """Run *program* likewise, on an async connection."""
        self._database.open()
        if isinstance(connection, _types("sqlalchemy.ext.asyncio", *_ASYNC_SESSIONS)):
            connection = await connection.connection()
        try:
            if isinstance(connection, psycopg.AsyncConnection):
                refuse_autocommit(connection)
                sql = self._sql("%s")
            else:
                refuse_autocommit(connection.sync_connection.connection.dbapi_connection)
                sql = _placeholders(connection)(self)
            answer: Any = None
            while True:
                function, args = program.send(answer)
                args = _with_savepoint(args, savepoint)
                if isinstance(connection, psycopg.AsyncConnection):
                    async with connection.cursor(row_factory=tuple_row) as cursor:
                        answer = await (await cursor.execute(sql(function, len(args)), args)).fetchall()
                else:
                    answer = _rows(await connection.exec_driver_sql(sql(function, len(args)), args))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as the program is
        except Exception as error:
            raise self._explained(error) from error
        finally:
            program.close()

    def _sql(self, style: str) -> Callable[[str, int], str]:
        if style == "%s":
            return self._database.query
        plain = self._database.plain_query
        return lambda function, count: plain(function, [f"${number}" for number in range(1, count + 1)])

    def _explained(self, error: BaseException) -> BaseException:
        driver = getattr(error, "orig", None) or error
        if isinstance(error, LeaseholdError) or (sqlstate_of(driver) is None and not isinstance(error, psycopg.Error)):
            return error
        where, schema = shown_url(self._database.url), self._database.schema
        if sqlstate_of(driver) in ("3F000", "42P01", "42883"):
            # Our schema is not where that connection leads.
            return InvalidArgument(
                f"that connection is to a database without the schema {schema!r} of this store ({where}): only rows in "
                "the same database can commit together."
            )
        return explained(driver, where, schema)


_ASYNC_SESSIONS = ("AsyncSession", "async_scoped_session")


def refuse_autocommit(driver: Any) -> None:
    """Refuse a connection on which each statement would commit by itself."""
    if not getattr(driver, "autocommit", False):
        return
    status = getattr(getattr(driver, "info", None), "transaction_status", pq.TransactionStatus.IDLE)
    if status == pq.TransactionStatus.IDLE:
        raise NotInTransaction(
            "that connection has no transaction open, so each statement commits by itself and a fence would protect "
            "nothing: begin one first (psycopg: connection.transaction(); SQLAlchemy: engine.begin(), no AUTOCOMMIT)."
        )


def refuse_end(query: Any) -> None:
    """Refuse a statement that would end the transaction of `lease.transaction()`."""
    text = query.encode() if isinstance(query, str) else query if isinstance(query, bytes) else b""
    if _ENDS.match(text):
        raise InvalidArgument(
            f"{text.split()[0].decode().upper()} inside lease.transaction(): the end of the block commits, and an "
            "exception in it rolls back. What followed a commit of your own would be unfenced."
        )


def _run(
    program: Program[T], run: Callable[[str, Any], list[Row]], sql: Callable[[str, int], str], savepoint: bool
) -> T:
    answer: Any = None
    try:
        while True:
            function, args = program.send(answer)
            answer = run(sql(function, len(args)), _with_savepoint(args, savepoint))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typed as the program is


def _with_savepoint(args: tuple[Any, ...], savepoint: bool) -> tuple[Any, ...]:
    return tuple(savepoint if arg is _SAVEPOINT else arg for arg in args)


def _said(args: tuple[Any, ...]) -> str | None:
    """Return how a step settles a lease, if it does: see `PostgresTransactions._fence`."""
    return args[4] if len(args) == 8 and isinstance(args[4], str) else None


def _unfinished() -> StoreUnavailable:
    return StoreUnavailable(
        "the connection of this transaction was lost before its end: nothing was committed. Run it again."
    )


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _rows(result: Any) -> list[Row]:
    return [tuple(row) for row in result.fetchall()]


def _placeholders(connection: Any) -> Callable[[PostgresTransactions], Callable[[str, int], str]]:
    numbered = connection.dialect.driver == "asyncpg"
    return lambda transactions: transactions._sql("$1" if numbered else "%s")


def _types(module: str, *names: str) -> tuple[type[Any], ...]:
    loaded: Any = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def _unknown(connection: Any) -> InvalidArgument:
    return InvalidArgument(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}, and a PostgreSQL store can "
        "join psycopg connections, and SQLAlchemy connections and sessions (async ones through .aio)."
    )


def _refused_at_commit(error: BaseException) -> StaleEpoch | None:
    """Return the refusal that a fence raised inside COMMIT as *error*, whichever driver brings it."""
    if (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) != REFUSED_SQLSTATE:
        return None
    said = getattr(getattr(error, "diag", None), "message_detail", None) or getattr(error, "detail", None)
    try:
        facts = json.loads(said or "")
    except ValueError:
        return None  # an ORM's copy of the error, without its facts; they are in its cause
    reason = facts.get("reason")
    return (Settled if facts.get("settled") else StaleEpoch)(
        facts["job_id"],
        presented=facts["presented"],
        current=facts["current"],
        owner=facts.get("owner"),
        reason=None if reason is None else Reason(reason),
        verb=facts["verb"],
    )


finders.append(_refused_at_commit)
