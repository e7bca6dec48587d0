"""The connection that `lease.transaction()` lends: the end of its transaction is the lease's affair."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from ...errors import Conflict, NotInTransaction
from .connection import Connection
from .rows import Row

T = TypeVar("T")

_UNUSABLE = (pq.TransactionStatus.UNKNOWN, pq.TransactionStatus.ACTIVE)
_BLANK = rb"(?:\s|;|--[^\n\r]*(?:[\n\r]|\Z)|/\*.*?\*/)*"
_ENDS = re.compile(
    _BLANK + rb"(begin|start|commit|end|rollback|abort|prepare\s+transaction)\b(?!\s+(?:(?:work|transaction)\s+)?to\b)",
    re.IGNORECASE | re.DOTALL,
)
# What may outlast the transaction: then the session is cleared at once, so that it keeps no lock and no table while it
# is idle. `update … set` is taken for such a thing too, which costs one statement. What this does not see, in a
# function say, is cleared when the session is used again.
_LASTS = re.compile(
    rb"\b(set|reset|set_config|temp|temporary|listen|prepare|hold|load|do|call|pg_(?:try_)?advisory_lock\w*)\b",
    re.IGNORECASE,
)


_PREPARES = re.compile(rb"\b(prepare|deallocate|discard)\b", re.IGNORECASE)
# As DISCARD ALL, but for the statements that the driver has prepared and would not know to be gone, and for the plans,
# which nothing of a user's is part of.
_CLEAR = (
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all(); "
    "DISCARD TEMP; DISCARD SEQUENCES"
)


class FencedCursor(psycopg.Cursor[Any]):
    """A cursor that leaves the end of the transaction to the lease."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run *query*, unless it would end the transaction."""
        several = not params  # a text without parameters may have several statements
        return self._fenced(query, several, lambda: super(FencedCursor, self).execute(query, params, **options))

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """Run *query* for each of *params_seq*, likewise."""
        self._fenced(query, False, lambda: super(FencedCursor, self).executemany(query, params_seq, **options))

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Return rows one by one. The driver holds the connection's lock until the last one."""
        connection = self._connection()
        connection.streams.add(self)
        try:
            yield from super().stream(*args, **options)
        finally:
            connection.streams.discard(self)

    def _connection(self) -> FencedConnection:
        connection = self.connection
        assert isinstance(connection, FencedConnection)
        return connection

    def _fenced(self, query: Any, several: bool, run: Callable[[], Any]) -> Any:
        connection = self._connection()
        connection.note_end()
        text = _bytes(query, connection)
        # Behind every semicolon, also of a literal: which of them end a statement is more than this knows of SQL.
        begins = [0, *(end.end() for end in re.finditer(b";", text))] if several else [0]
        if ends := next(filter(None, (_ENDS.match(text, at) for at in begins)), None):
            raise Conflict(
                f"{ends[1].split()[0].decode().upper()} is not allowed inside lease.transaction(): the end of the "
                "block commits, and an exception in it rolls back. Rows written after a commit of your own would not "
                "be fenced."
            )
        if _LASTS.search(text):
            connection.touched = True
        if _PREPARES.search(text):
            connection.spoilt = True
        value = run()
        connection.note_end()
        return value


class _Gone:
    """Stands for a session that its connection has no more."""

    status = pq.ConnStatus.BAD
    transaction_status = pq.TransactionStatus.UNKNOWN
    pipeline_status = pq.PipelineStatus.OFF

    def finish(self) -> None:
        """Close nothing."""

    def __getattr__(self, name: str) -> Any:
        raise psycopg.OperationalError("the connection is closed")


class FencedConnection(Connection):
    """A connection whose transaction is the lease's to end, and not its user's."""

    ours = True  # whether the store may do with it what its user may not
    fenced: tuple[str, int] | None = None  # the job and the epoch of the transaction that it was lent for
    settles: str | None = None  # how its COMMIT will settle the job
    surely_settles = False  # whether that was outside of savepoints, so that it cannot be rolled back without the rest
    number: str | None = None  # by which the server knows its transaction
    touched = False  # whether its user may have changed what outlasts a transaction
    is_used = False  # whether the session may have what a user has left in it
    spoilt = False  # whether its user may have prepared statements by name, or removed the driver's
    ended = False  # whether its user has ended the transaction all the same
    over = False  # whether its block has ended, and another object has the session

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.streams: set[FencedCursor] = set()  # that have not come to their last row

    def lend(self) -> None:
        """Leave it to its user, apart from the end of the transaction."""
        self.row_factory = tuple_row
        self.cursor_factory = FencedCursor
        self.ours = self.touched = self.ended = False
        self.settles = None
        self.reply_seconds = None  # how long the caller's statements may take is the caller's affair

    def note_end(self) -> None:
        """Raise `NotInTransaction` if the transaction has ended: what followed would not be fenced."""
        if self.over:
            raise NotInTransaction(OVER)
        if self.ours:
            return
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self.ended = True
        if self.ended:
            raise NotInTransaction(ENDED)

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Return a cursor, if the transaction is still open."""
        self.note_end()
        return super().cursor(*args, **options)

    def executemany(self, query: Any, params_seq: Any) -> FencedCursor:
        """Run *query* for each of *params_seq*, as sqlite3's connection does; psycopg has this on its cursors alone."""
        cursor: FencedCursor = self.cursor()
        cursor.executemany(query, params_seq)
        return cursor

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Drive one of the driver's generators to its end, if the transaction is still open."""
        # Here, where the driver holds the lock: a statement that waited for it may come after the end of the block.
        self.note_end()
        return super().wait(gen, *args, **options)

    def taken(self) -> FencedConnection:
        """
        Return the session as an object that only the store has, and leave this one closed.

        To be called before the transaction is ended. The session commits each statement by itself as soon as it is, and
        a thread of the user's may be waiting for this object's lock with the next one.
        """
        # A stream that is not read to its end keeps the lock: then the session is left as it is, and is of no more use.
        with nullcontext() if self.streams else self.lock:
            # A new object, and not a copy: adapters, handlers of notices and row factories are the user's.
            other = type(self)(self.pgconn)
            other._autocommit, other._prepared = self._autocommit, self._prepared
            other.fenced, other.number = self.fenced, self.number
            other.settles, other.surely_settles = self.settles, self.surely_settles
            other.touched, other.spoilt, other.ended = self.touched, self.spoilt, self.ended
            other.reply_seconds, other.is_used = self.reply_seconds, True
            self.__dict__["pgconn"] = _Gone()
            self.over, self.fenced = True, None
        return other

    def can_end(self) -> bool:
        """Return whether the transaction is open and not failed, and no statement is under way."""
        return (
            not self.ended
            and self.pgconn.transaction_status == pq.TransactionStatus.INTRANS
            and self.pgconn.pipeline_status == pq.PipelineStatus.OFF
        )

    def cleared(self) -> bool:
        """Undo what is open, and what its user has left in the session; return whether it can be lent again."""
        self.fenced = None
        status = self.pgconn.transaction_status
        piped = self.pgconn.pipeline_status != pq.PipelineStatus.OFF
        if self.spoilt or self.ended or piped or status in _UNUSABLE:
            return False
        try:
            if status != pq.TransactionStatus.IDLE:
                super().rollback()
            if self.touched:
                # Settings, a role, temporary tables, locks: none of them is for the next job.
                psycopg.Cursor(self).execute(_CLEAR)
                self.is_used = False
        except psycopg.Error:
            return False  # it is gone, or as good as gone; and the server undoes what it had open
        return not self.closed

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
            raise Conflict(
                f"{what} is not allowed inside lease.transaction(): the end of the block commits, and an exception in "
                "it rolls back. Rows written after a commit of your own would not be fenced."
            )


def begin(connection: FencedConnection, fence: str, params: Sequence[Any], *, idle_us: int | None) -> list[Row]:
    """Begin a transaction and fence it, in one round trip, on a session without a trace of its last user."""
    if idle_us is not None:
        idle = max(idle_us // 1000, 1)
        fence += f", pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle}', true)"
    # In a transaction of its own: rolled back with the user's, settings would be what they were.
    clear = f"BEGIN; {_CLEAR}; END; " if connection.is_used else ""
    with psycopg.ClientCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(f"{clear}BEGIN ISOLATION LEVEL READ COMMITTED; {fence}", params)
        while cursor.nextset():
            pass
        rows = cursor.fetchall()
    connection.number = rows[0][1]
    return [row[:1] for row in rows]


ENDED = (
    "this transaction failed, or was ended, before the end of its block, so nothing was committed: after an error, "
    "PostgreSQL answers COMMIT with a rollback. Let such an error leave the block, and do not end the transaction "
    "inside it."
)
OVER = (
    "the lease.transaction() block of this connection has ended, and this statement was not run: it would not be "
    "fenced. Wait for the threads and tasks that use the connection before you leave the block."
)


def _bytes(query: Any, connection: FencedConnection) -> bytes:
    if isinstance(query, str):
        return query.encode()
    if isinstance(query, bytes):
        return query
    return query.as_bytes(connection) if hasattr(query, "as_bytes") else b""
