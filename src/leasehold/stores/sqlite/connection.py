"""
Connections to the file: how threads share one, how a program runs on it, what its errors mean, the fenced one; the
file's write-ahead log; and forks.

One connection writes and one reads, each behind a `Turn`; threads with nothing to do wait for `Changes`.
`lease.transaction()` lends a `FencedConnection`: the lease ends its transaction.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ...core.clock import patience
from ...errors import Conflict, NotInTransaction, StaleSnapshot, StoreIncompatible, StoreUnavailable
from .programs import Program

if TYPE_CHECKING:
    from .store import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")

_TURN_SECONDS = 0.05
_POLL_SECONDS = 0.005
_CHECKPOINT_PAGES = 1_000
_LOOK_COMMITS = 32
_LOOK_CHANGES = 1_000

ROLLED_BACK = (
    "SQLite has rolled this transaction back before its block ended, as it does after some errors (INSERT OR ROLLBACK, "
    "a full disk): nothing was committed. Let such an error leave the block."
)


# Threads of this process


class _Ticket(NamedTuple):
    thread: threading.Thread


class Turn:
    """
    A lock of this process that knows its holder: a call that would wait for its own thread is refused at once.

    Not a threading.Lock: Ctrl-C between its acquire and the line behind it would lock it for ever, and a signal handler
    would wait for the very thread that it interrupts. Not an RLock either: an async transaction ends on another thread
    than the one that began it.
    """

    def __init__(self, what: str, path: str) -> None:
        self._what = what
        self._path = path
        self._held: dict[str, _Ticket] = {}  # "by": the holder. One step of a dict takes the turn and names its holder
        self._freed = threading.Lock()  # released to wake one waiter; a missed release costs only a poll
        self._freed.acquire()

    @contextmanager
    def taken(self, seconds: float) -> Iterator[None]:
        """Hold the turn; wait up to *seconds* for it."""
        mine, held = _Ticket(threading.current_thread()), self._held
        try:
            self._take(mine, seconds)
            yield
        finally:
            # Python handles signals after calls, and there is none before the turn is given back.
            if "by" in held and held["by"] is mine:
                del held["by"]
                self._wake_one()

    def run(self, seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Hold the turn for a call, which is several times faster than `with`; wait up to *seconds* for it."""
        mine, held = _Ticket(threading.current_thread()), self._held
        try:
            self._take(mine, seconds)
            return call(*args, **kwargs)
        finally:
            # As above.
            if "by" in held and held["by"] is mine:
                del held["by"]
                self._wake_one()

    def _wake_one(self) -> None:
        if self._freed.locked():  # else no thread has waited since the last time
            with suppress(RuntimeError):  # nor now: another has had its turn meanwhile
                self._freed.release()

    def _take(self, mine: _Ticket, seconds: float) -> None:
        if self._held.setdefault("by", mine) is mine:
            return
        left = patience(seconds)
        while (holder := self._held.setdefault("by", mine)) is not mine:
            if holder.thread is mine.thread:
                raise Conflict(
                    f"this thread is itself in the middle of a {self._what} of {self._path}, so this call would wait "
                    "for ever. In a signal handler, set a flag and make the call later; in a transaction, pass "
                    "connection=…."
                )
            if left() <= 0:
                raise StoreUnavailable(
                    f"another thread of this process has held the only {self._what} lock of {self._path} for "
                    f"{seconds:g} s (busy_seconds): that thread may be stopped inside lease.transaction(). Nothing "
                    "was changed."
                )
            self._freed.acquire(timeout=max(min(left(), _TURN_SECONDS), 0))


class Changes:
    """Wakes the claims of this process that wait for work; those of other processes poll the file."""

    def __init__(self) -> None:
        # `with` a Condition runs lines of Python around its lock, and Ctrl-C in between would lock it for ever; `with`
        # the lock itself does not.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.awaited = False  # whether a claim waits; read without the lock
        self.interrupted = 0  # how often waiting claims were asked to return

    def notify(self) -> None:
        """Have the claims that wait look again, after a write."""
        with self._lock:
            self.awaited = False
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Have the claims that wait return."""
        with self._lock:
            self.interrupted += 1
            self._changed.notify_all()

    def pause(self) -> None:
        """Wait until this process writes, or until it is time to look whether another one has."""
        with self._lock:
            self.awaited = True
            self._changed.wait(_POLL_SECONDS)


# Programs, and what can be wrong


def drive(connection: sqlite3.Connection, program: Program[T]) -> T:
    """Run *program* on *connection*, in whatever transaction it has, and return the program's value."""
    cursor, send = connection.cursor(), program.send
    answer: Any = None
    try:
        while True:
            sql, params, several = send(answer)
            answer = cursor.executemany(sql, params) if several else cursor.execute(sql, params).fetchall()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typed as the program is
    finally:
        program.close()


def explained(error: BaseException, path: str, busy_seconds: float) -> BaseException:
    """Return *error* as an error of leasehold's, if it is SQLite's about the file at *path*."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StaleSnapshot(
            "your transaction had read before another one wrote, so SQLite no longer lets it write (BUSY_SNAPSHOT). "
            "Nothing was changed: roll it back and run it again, beginning with BEGIN IMMEDIATE or with the fence."
        )
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(
                f"another connection has held the only write lock of {path} for {busy_seconds:g} s (busy_seconds): "
                "either a process is stopped inside a write transaction, or this call was made inside a transaction "
                "of your own (then pass connection=…). Nothing was changed."
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk of {path} is full. Nothing was changed.")
        case sqlite3.SQLITE_NOTADB:
            return StoreIncompatible(f"{path} is not an SQLite database. Nothing was changed.")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(f"{path} cannot be opened: {_why_not(path)}")
        case sqlite3.SQLITE_READONLY:
            return StoreUnavailable(f"{path} or its folder cannot be written: {error}. Nothing was changed.")
        case sqlite3.SQLITE_CORRUPT:
            return StoreIncompatible(f"{path} is damaged ({error}): restore a backup. Nothing was changed.")
    return StoreUnavailable(
        f"{path}: {error}. This call may or may not have taken effect; check before you repeat it.",
        outcome_unknown=True,
    )


def _why_not(path: str) -> str:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"the folder {folder} does not exist. Create it first."
    if os.path.isdir(path):
        return "it is a folder."
    return f"is the folder {folder} writable for this user?"


# The connection that `lease.transaction()` lends


class LockedCursor(sqlite3.Cursor):
    """
    A cursor that takes the lock of its connection's statements.

    Two threads that prepare and bind statements at once stop the process: the one holds SQLite's mutex and waits for
    Python's lock, which the authorizer needs, and the other holds that and waits for the mutex.
    """

    connection: FencedConnection

    def execute(self, *args: Any) -> Any:
        """Run a statement."""
        with self.connection.statements:
            return super().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Run a statement for each set of parameters."""
        with self.connection.statements:
            return super().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Run several statements."""
        with self.connection.statements:
            return super().executescript(*args)

    def fetchone(self) -> Any:
        """Return the next row."""
        with self.connection.statements:
            return super().fetchone()

    def fetchmany(self, *args: Any, **options: Any) -> Any:
        """Return the next rows."""
        with self.connection.statements:
            return super().fetchmany(*args, **options)

    def fetchall(self) -> Any:
        """Return the rows that are left."""
        with self.connection.statements:
            return super().fetchall()

    def __next__(self) -> Any:
        """Return the next row."""
        with self.connection.statements:
            return super().__next__()


class FencedConnection(sqlite3.Connection):
    """A connection whose transaction is the lease's to end, and not its user's."""

    turn: AbstractContextManager[None] | None = None  # to write, as long as the block lasts
    file: tuple[int, ...] | None = None  # which file it is to: see `Database.file`

    def __init__(self, *args: Any, **options: Any) -> None:
        self.statements = threading.RLock()  # held for each statement, and for all of a verb
        self.made_in = os.getpid()
        super().__init__(*args, **options)

    def cursor(self, factory: Any = LockedCursor) -> Any:
        """Return a cursor that other threads inside the block do not disturb."""
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        """Run a statement on such a cursor; sqlite3's own would make another."""
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Run a statement for each set of parameters on such a cursor."""
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Run several statements on such a cursor."""
        return self.cursor().executescript(*args)

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
        """Refuse: the end of `with lease.transaction()` closes it."""
        self._not_yours("close")

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """Open a blob, unless SQLite has rolled back: no authorizer is asked about what is written to one."""
        if not self.in_transaction:
            raise NotInTransaction(ROLLED_BACK)
        return super().blobopen(*args, **kwargs)

    def end(self) -> None:
        """
        Roll back what is not committed, close, and give the turn back.

        It may be called twice, since Ctrl-C may have come in between. In a child process that was forked inside the
        block it does nothing: the file's write-ahead log and its index are shared with the parent, which is still
        writing.
        """
        if self.made_in != os.getpid():
            return
        try:
            with suppress(sqlite3.Error):  # it is closed already, or its file is in a state that closing has to settle
                self.set_authorizer(None)
                # Closing alone does not roll back while a cursor is open.
                _end(self, "ROLLBACK")
            super().close()
        finally:
            if self.turn is not None:
                self.turn.__exit__(None, None, None)
                self.turn = None

    def _not_yours(self, what: str) -> None:
        raise Conflict(
            f"{what} is not allowed inside lease.transaction(): the end of the block commits, and an exception in it "
            "rolls back. Rows written after a commit of your own would not be fenced."
        )


def _end(connection: sqlite3.Connection, how: str) -> None:
    if connection.in_transaction:
        connection.execute(how)


# The write-ahead log


class Wal:
    """
    The log of a file that is open.

    SQLite locks the file and never its log, so that the log may be open here as well, and be closed.
    """

    def __init__(self, file: str) -> None:
        self._path = f"{os.path.realpath(file)}-wal"  # SQLite puts it beside the file, not beside a link to it
        self._handle: int | None = None
        self._identity: tuple[int, ...] | None = None
        self._link = self._name = ""
        # Commits since the last look at its length; at how many changes to look again. The first look is after the
        # first commit: many processes that each write a little must checkpoint too.
        self._commits = self._look_at = 0
        with suppress(OSError):
            self._handle = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            self._identity = os.fstat(self._handle)[1:3]
            self._link = f"/proc/self/fd/{self._handle}"
            self._name = os.readlink(self._link)
        if not self._is_at_path():
            self._name = ""  # another one is there by now

    def close(self) -> None:
        """Close the handle; `is_there` then looks at the path alone."""
        self._name = ""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def is_there(self) -> bool:
        """
        Return whether the path still names this log.

        Linux tells where an open file is. A stat of the path would tell, too, but since Linux 6.13 a
        reader of the times of a file makes the next write to it slower, by a fifth of a commit.
        """
        try:
            if self._name and os.readlink(self._link) == self._name:
                return True
        except OSError:
            pass
        return self._is_at_path()

    def _is_at_path(self) -> bool:
        try:
            return os.stat(self._path)[1:3] == self._identity
        except OSError:
            return False

    def is_due(self, changes: int) -> bool:
        """Return whether to checkpoint after this commit; *changes* is how many rows its connection has changed."""
        self._commits += 1
        if self._commits < _LOOK_COMMITS and changes < self._look_at:
            return False
        self._commits, self._look_at = 0, changes + _LOOK_CHANGES
        return self.is_long(_CHECKPOINT_PAGES)

    def is_long(self, pages: int) -> bool:
        """
        Return whether *pages* or more have been written to it since it last began anew.

        Its length does not tell, which stays what it ever was. But before each page are two numbers of the log's
        header, and they are others after each beginning.
        """
        header = self._read(0, 32)
        page_bytes = int.from_bytes(header[8:12], "big")
        return len(header) == 32 and self._read(32 + (pages - 1) * (24 + page_bytes) + 8, 8) == header[16:24]

    def _read(self, where: int, count: int) -> bytes:
        if self._handle is None:
            return b""
        os.lseek(self._handle, where, os.SEEK_SET)
        return os.read(self._handle, count)


# Every open store of the process: what happens to it at a fork, and at the end of the process

open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _for_each_store(step: Callable[[SqliteStore], object]) -> Callable[[], None]:
    def every() -> None:
        for store in list(open_stores):
            step(store)

    return every


atexit.register(_for_each_store(lambda store: store.transactions.record_all()))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        # No connection may be carried into a forked child.
        before=_for_each_store(lambda store: store.database.before_fork()),
        after_in_parent=_for_each_store(lambda store: store.database.forked_parent()),
        after_in_child=_for_each_store(lambda store: store.forked_child()),
    )
