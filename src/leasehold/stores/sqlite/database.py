"""
The file: opening it, bringing its schema up to date, and writing to it one transaction at a time.

One connection writes and one reads, each behind a lock of this process: threads queue for the lock instead of meeting
SQLITE_BUSY, and readers never wait for writers.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...core.clock import Clock
from ...errors import InvalidArgument, LeaseholdError, StoreIncompatible, StoreUnavailable
from ...logs import log
from ...transaction import refuse_inside
from .._stats import StoreStats
from .._versions import Migrated
from .connection import Turn, Wal, drive, explained
from .programs import Program, Session, Statements, migrate, migrations, schema_version, stats

P = ParamSpec("P")
T = TypeVar("T")

LEAST_SQLITE = (3, 37, 0)  # STRICT tables
SYNCHRONOUS = ("full", "normal", "extra")
_LOG_BYTES = 32 * 1024 * 1024

# Connections of a parent process that was inside a transaction when it forked. Closing one in the child could undo
# what the parent is writing, so they are kept, unused, for as long as the child lives.
inherited: list[Any] = []

_MOMENT = 0.2

_RESTORED = (
    "the write-ahead log of {path} was removed while this process had the file open: the file was restored in place. "
    "Nothing was changed. Restart this process; until then it does not touch the file. (To restore a file, stop its "
    "processes and replace it, or rename the new file over it while they run. In both cases, remove its -wal and -shm "
    "before the new file takes its place.)"
)


class Database:
    """One SQLite file, for one process."""

    def __init__(
        self, path: str, sql: Statements, schema: str, *, clock: Clock, busy_seconds: float, synchronous: str
    ) -> None:
        if synchronous.lower() not in SYNCHRONOUS:
            raise InvalidArgument(
                f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}. With normal, a power cut "
                "may undo the last commits; anything less could damage the file."
            )
        self.path = os.path.abspath(path)
        self.key = os.path.realpath(self.path)  # the same for every name of the file
        self.busy_seconds = busy_seconds
        self._sql = sql
        self._schema = schema
        self._clock = clock
        self._synchronous = synchronous.lower()
        # What a test may arm: it is called with "before commit" and "after commit" of every write.
        self.point: Callable[[str], None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._write_turn = Turn("write", self.path)
        self._read_turn = Turn("read", self.path)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: tuple[int, ...] | None = None  # inode and device
        self._wal: Wal | None = None  # while the file is open
        self._refusal: str | None = None  # why every later verb is refused
        self._readers = 0
        self._forking: ExitStack | None = None

    @property
    def file(self) -> tuple[int, ...] | None:
        """Which file was opened, None before the first one; another one after the path's file was replaced."""
        return self._file

    @property
    def opened(self) -> bool:
        """Whether the file has been opened, and so has its schema."""
        return self._writer is not None

    # Transactions

    def write(
        self,
        session: Session,
        program: Callable[Concatenate[Session, int, P], Program[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """
        Run `program(session, now, *args, **options)` in a write transaction of its own, and return its value.

        The clock is read once the write lock is held: however long that took, a lease begins when it is granted.
        """
        run: Callable[..., T] = self.write_in_turn  # mypy cannot match one generic signature with another
        return self._write_turn.run(self.busy_seconds, run, session, program, *args, **options)

    def write_soon(self, session: Session, program: Callable[[Session, int], Program[T]]) -> T:
        """Run *program* as `write` does, but wait for the lock only for a moment: the caller wanted something else."""
        with self.writing(_MOMENT):
            connection = self.current_writer()
            try:
                connection.execute(f"PRAGMA busy_timeout = {int(min(_MOMENT, self.busy_seconds) * 1000)}")
                return self.write_in_turn(session, program)
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(self.busy_seconds * 1000)}")

    def write_in_turn(
        self,
        session: Session,
        program: Callable[Concatenate[Session, int, P], Program[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run *program* as `write` does; this thread already holds the turn to write."""
        connection = self.current_writer()
        try:
            connection.execute("BEGIN IMMEDIATE")
            value = drive(connection, session.begin(program(session, self._clock.now(), *args, **options)))
            if self.point:
                self.point("before commit")
            connection.execute("COMMIT")
            session.committed()
            if self.point:
                self.point("after commit")
        except BaseException as error:
            _undo(connection)
            raise self.explained(error) from error if isinstance(error, sqlite3.Error) else error.__cause__
        self._checkpoint(connection)
        return value

    def read(self, program: Program[T]) -> T:
        """Run *program*, which only reads, on what is committed now, and return its value."""
        with self._reading() as reader:
            try:
                reader.execute("BEGIN")  # one snapshot for all its statements
                return drive(reader, program)
            finally:
                if reader.in_transaction:
                    reader.execute("COMMIT")

    def version(self) -> tuple[int, int]:
        """Return a value that changes with every commit, and when the file is replaced; for claims that wait."""
        with self._reading() as reader:
            # SQLite's number says nothing about another connection's, so we count the connections too.
            return self._readers, int(reader.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Hold this process's turn to read, on the file that the path names now."""
        if not self._is_current():
            with self.writing():
                self.current_writer()
        with self._read_turn.taken(self.busy_seconds):
            self._check_open()
            try:
                yield self._current_reader()
            except sqlite3.Error as error:
                raise self.explained(error) from error

    def writing(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """Hold this process's turn to write; wait up to *seconds* for it, or as long as the file may be busy."""
        return self._write_turn.taken(self.busy_seconds if seconds is None else min(seconds, self.busy_seconds))

    def current_writer(self) -> sqlite3.Connection:
        """Return the connection that writes; the turn to write is held. A file that was replaced is opened anew."""
        self._check_open()
        if self._file is not None and not self._is_current():
            log.warning("the file %s was replaced; opening the new one", self.path)
            with self._read_turn.taken(self.busy_seconds):
                self._disconnect()
        if self._writer is not None:
            return self._writer
        # Looked at before it is opened: if it is replaced in between, the next look tells.
        found = self._identity() if os.path.exists(self.path) else None
        connection = self.connect()
        try:
            self._migrate(connection)
            self._file = found or self._identity()
        except BaseException:
            connection.close()
            raise
        self._wal, self._writer = Wal(self.path), connection
        return connection

    def _current_reader(self) -> sqlite3.Connection:
        """Return the connection that reads; the turn to read is held."""
        if self._reader is None:
            self._reader = self.connect()
            self._readers += 1
        return self._reader

    def _is_current(self) -> bool:
        """Whether the connections are to the file that the path names now."""
        if self._file is None or self._file != self._identity():
            return False
        if self._is_restored():
            raise StoreUnavailable(_RESTORED.format(path=self.path))
        return True

    def _is_restored(self) -> bool:
        """
        Whether another content was copied into the open file, and its write-ahead log removed.

        SQLite itself never removes a log that is in use. What our connections see is in the one that is gone, so they
        and a process that opens the file now would each go on in a world of their own.
        """
        # In the order of `current_writer`, where another thread may just now open another file: never its name with the
        # log of the one before. And the file is looked at last: if it was replaced, its log is another one by right.
        file, wal = self._file, self._wal
        return wal is not None and not wal.is_there() and file == self._identity()

    def refuse_missing(self) -> None:
        """Refuse to go on if the path names no file."""
        self._identity()

    def refuse_replaced(self, file: tuple[int, ...] | None) -> None:
        """Refuse to go on with a transaction on *file* if the path names another one by now, or none."""
        if not os.path.exists(self.path) or self._identity() != file:
            raise StoreUnavailable(
                f"the file {self.path} was replaced or removed while this transaction was open on it: nothing was "
                "committed. Run it again."
            )
        if self._is_restored():
            raise StoreUnavailable(_RESTORED.format(path=self.path))

    def _identity(self) -> tuple[int, ...]:
        try:
            return os.stat(self.path)[1:3]
        except OSError as error:
            raise StoreUnavailable(f"the file {self.path} is gone ({error.strerror}). Nothing was changed.") from None

    # Connections

    def connect(
        self, factory: type[sqlite3.Connection] = sqlite3.Connection, *, cached_statements: int = 256
    ) -> sqlite3.Connection:
        """Return a new connection to the file, set up as this store wants it."""
        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            least = ".".join(map(str, LEAST_SQLITE))
            raise StoreIncompatible(
                f"this Python has SQLite {sqlite3.sqlite_version}, and leasehold needs at least {least}."
            )
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=cached_statements,
                factory=factory,
            )
        except sqlite3.Error as error:
            raise self.explained(error) from error
        try:
            self._set_up(connection)
        except BaseException as error:
            sqlite3.Connection.close(connection)  # a factory's own might refuse
            raise self.explained(error) from error if isinstance(error, sqlite3.Error) else error.__cause__
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # Changing to WAL does not wait for a busy file, however long the timeout: ask until it has been done.
        for last in [False] * int(max(self.busy_seconds, 1) * 100) + [True]:
            try:
                [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
                break
            except sqlite3.OperationalError as error:
                if last or error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
                refuse_inside(self.key)
                threading.Event().wait(0.01)
        if mode != "wal":
            raise StoreIncompatible(
                f"{self.path} cannot be put into WAL mode (it is in {mode!r} mode), perhaps because it is on "
                "a network share: use a local disk."
            )
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        # See _checkpoint: SQLite's own checkpoints would run beside other processes' writes.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # A log that begins anew keeps its length, since to write over it is twice as fast as to make it longer. Only
        # what a long reader or a huge commit has left is cut.
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")

    def _checkpoint(self, writer: sqlite3.Connection) -> None:
        """
        Now and then, copy the write-ahead log into the file.

        Up to SQLite 3.51.2, a checkpoint beside another process's write can, rarely, reset the log under it and damage
        the file. So no connection of ours checkpoints by itself; one does while this one holds the write lock, and
        no other connection either writes or checkpoints.
        """
        if self._wal is None or not self._wal.is_due(writer.total_changes):
            return
        try:
            try:
                writer.execute("BEGIN IMMEDIATE")
                with self._read_turn.taken(self.busy_seconds):
                    self._current_reader().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                _undo(writer)  # there is nothing to commit
        except (sqlite3.Error, LeaseholdError) as error:  # the write is committed; this can wait
            log.warning("could not checkpoint %s: %s; trying again later", self.path, error)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        steps = migrations(self._schema)
        try:
            if drive(connection, schema_version(self._sql, self.path, steps)):
                return
            refuse_inside(self.key)
            try:
                connection.execute("BEGIN IMMEDIATE")
                drive(connection, migrate(self._sql, self.path, steps, self._clock.now()))
                connection.execute("COMMIT")
            finally:
                _undo(connection)
        except sqlite3.Error as error:
            raise self.explained(error) from error

    def migrate_in(self) -> Program[None]:
        """The program that makes the schema inside a caller's transaction, if there is none."""
        steps = migrations(self._schema)
        if not (yield from schema_version(self._sql, self.path, steps)):
            yield from migrate(self._sql, self.path, steps, self._clock.now())

    def stats(self) -> StoreStats:
        """Return how large the store is; each table is counted."""
        return self.read(stats(self._schema, self.path))

    def migrate(self, *, dry_run: bool) -> Migrated:
        """Bring the schema up to date, or make it, while no other connection is open."""
        steps = migrations(self._schema)
        names = {step.version: f"{step.version:04}_{step.name}" for step in steps}
        if dry_run and not os.path.exists(self.path):
            return Migrated(0, steps[-1].version, list(names.values()))
        with self.writing():
            connection = self.connect()
            try:
                before = drive(connection, schema_version(self._sql, self.path, steps, older=True))
                if before < steps[-1].version and not dry_run:
                    # A process that has the file open has looked at its version, and would go on with what it knows.
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                    connection.execute("BEGIN EXCLUSIVE")
                    before = drive(connection, migrate(self._sql, self.path, steps, self._clock.now()))
                    connection.execute("COMMIT")
            except sqlite3.Error as error:
                _undo(connection)
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    raise StoreUnavailable(
                        f"{self.path} is in use by another process, or by another Router of this process, which would "
                        "not notice that the schema has changed. Stop that process or close that Router, and run this "
                        "again. Nothing was changed."
                    ) from error
                raise self.explained(error) from error
            finally:
                connection.close()
        return Migrated(before, steps[-1].version, [name for version, name in names.items() if version > before])

    def close(self) -> None:
        """Close the connections; later verbs raise `StoreUnavailable`."""
        with self._write_turn.taken(self.busy_seconds), self._read_turn.taken(self.busy_seconds):
            self._disconnect()
            self._refusal = f"this store ({self.path}) is closed."

    def _disconnect(self) -> None:
        connections = [connection for connection in (self._reader, self._writer) if connection is not None]
        restored = bool(connections) and os.path.exists(self.path) and self._is_restored()
        self._close_wal()
        self._writer = self._reader = None
        if restored:
            self._refusal = _RESTORED.format(path=self.path)
            for connection in connections:
                _keep(connection)
            return
        for connection in connections:
            connection.close()

    def _close_wal(self) -> None:
        if self._wal is not None:
            self._wal.close()
            self._wal = None

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise StoreUnavailable(self._refusal)

    # Forking. SQLite remembers in a process's own memory which locks that process has. A forked child would believe
    # that it has them too and take none, and the next process to close the file would remove the log under it.
    # So the file is not open while the process forks; afterwards both sides open it anew.

    def before_fork(self) -> bool:
        """Let go of the file, after the write under way; return False if that does not end, or is this thread's own."""
        with ExitStack() as turns:
            try:
                refuse_inside(self.key)
                turns.enter_context(self._write_turn.taken(self.busy_seconds))
                turns.enter_context(self._read_turn.taken(self.busy_seconds))
            except LeaseholdError:
                return False
            self._disconnect()
            self._forking = turns.pop_all()
            return True

    def forked_parent(self) -> None:
        """Go on in the parent."""
        if self._forking is not None:
            self._forking.close()
            self._forking = None

    def forked_child(self) -> None:
        """Start afresh in the child: the parent's locks are the parent's."""
        inherited.extend((self._writer, self._reader))
        self._close_wal()
        refusal, file = self._refusal, self._file
        if self._forking is None and file is not None:
            refusal = (
                f"this process was forked while its parent had a transaction open on {self.path}. SQLite cannot tell "
                "the parent's locks from its own. Fork outside of transactions, or start processes by spawn."
            )
        self._begin()
        self._refusal, self._file = refusal, file

    def explained(self, error: BaseException) -> BaseException:
        """Return *error* as an error of leasehold's, if it is SQLite's."""
        return explained(error, self.path, self.busy_seconds)


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _keep(connection: sqlite3.Connection) -> None:
    # To close it would copy its old log over what was restored, and the interpreter closes whatever it can find when it
    # ends. Its collector cannot look into SQLite, so what is only in this circle stays until the process is gone.
    connection.create_function("leasehold_keeps", 0, lambda: str(connection))
