"""
A caller's transaction: CONTRACT of a store's verbs in it, and which ones this context has open.

Open are `lease.transaction()` blocks, and a caller's own transactions that a verb has joined.

A verb that ran beside one of them would commit by itself what its caller means to commit together; on SQLite it would
wait for its own caller. So the verbs of a block's lease join the block, and every other write is refused until the
transaction has ended.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from .core.job import Added, NewJob, Progress, Renewal, Settlement
from .errors import Conflict

T = TypeVar("T")
Program = Generator[Any, Any, T]  # its statements are the store's own affair


class Joined:
    """A caller's own transaction that a verb has joined, until it has ended."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_ended",
        "_is_open",
        "_thread",
        "awaited",
        "database",
        "is_lost",
        "number",
    )

    def __init__(
        self,
        database: Hashable,
        connection: Any,
        is_open: Callable[[Any], bool],
        *,
        awaited: bool = False,
        number: str | None = None,
        is_lost: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """*is_open* is asked with the connection. Neither it nor *is_lost* refers to anything that keeps it alive."""
        self.database = database
        self.awaited = awaited  # whether the connection belongs to an event loop
        self.number = number  # by which the server knows the transaction
        self.is_lost = is_lost  # whether its connection was lost; None if that cannot be known
        self._is_open = is_open
        self._ended = False
        self._thread = threading.get_ident()
        try:
            # Weak: a strong one would keep a connection open, and its locks held, that its user has dropped.
            self._connection: Callable[[], Any] = weakref.ref(connection)
        except TypeError:  # a plain sqlite3.Connection takes no weak reference
            self._connection = lambda: connection

    @property
    def connection(self) -> Any:
        """The caller's connection, or None if it is gone."""
        return self._connection()

    @property
    def keeps_connection(self) -> bool:
        """Whether this keeps the connection alive, so that only its lease may keep this."""
        return not isinstance(self._connection, weakref.ref)

    def is_usable_here(self) -> bool:
        """Return whether it is open, this context has joined it, and this thread may use its connection."""
        # sqlite3 refuses other threads, which may have this context by `asyncio.to_thread`.
        return not self.awaited and self._thread == threading.get_ident() and is_here(self.connection)

    def is_open(self) -> bool:
        """Return whether the transaction has not ended yet. Asked again after that, it costs nothing."""
        connection = self.connection
        if not self._ended and (connection is None or not self._is_open(connection)):
            self._ended = True
            self._connection = _gone
        return not self._ended


class End(StrEnum):
    """How a transaction of the caller's has ended."""

    NOT_YET = "not yet"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


_numbers = itertools.count(-1, -1)  # of blocks: an `id` may be another one's later, and these are never an `id`


class Block:
    """An open `lease.transaction()`: in its context, the verbs of its lease run on its connection, one at a time."""

    __slots__ = (
        "_lock",
        "_opener",
        "_transactions",
        "connection",
        "database",
        "ended",
        "holder",
        "number",
        "open",
        "renewed",
    )

    def __init__(self, transactions: Transactions, holder: tuple[str, int], connection: Any) -> None:
        self._transactions = transactions
        # Tasks and threads that inherit the context are inside, too. If the connection has a lock for statements, it is
        # that one: a verb of several statements must not be interleaved with the caller's own.
        self._lock = getattr(connection, "statements", None) or threading.RLock()
        self.database = transactions.database
        self.holder = holder
        self.connection = connection
        self.open = True
        self._opener = _here_and_now()
        self.ended = End.NOT_YET
        self.number = next(_numbers)
        self.renewed: int | None = None  # for how long a renewal in it asked

    def is_open(self) -> bool:
        """Return whether the block has not ended yet."""
        return self.open

    def is_left_behind(self) -> bool:
        """Return whether it has ended without a commit, and a task or thread that was inside has not noticed."""
        # The thread or task that opened it is outside, even if another one has ended it.
        return not self.open and self.ended is not End.COMMITTED and self._opener != _here_and_now()

    def wait(self) -> None:
        """Wait for a verb that is under way; the block is not open any more, so none can follow it."""
        with self._lock:
            pass

    def run(self, program: Callable[[Transactions], Generator[Any, Any, T]], *, savepoint: bool = False) -> T:
        """Run *program* in the block's transaction and return its value."""
        with self._lock:
            if not self.open:  # it has ended since this context was copied, and its connection may be another block's
                raise Conflict(
                    "the lease.transaction() that this call belongs to has ended, and has not committed: wait for the "
                    "tasks and threads that use it before you leave the block. Nothing was changed."
                )
            return self._transactions.run(self.connection, program(self._transactions), savepoint=savepoint)


Entry = Joined | Block | weakref.ref[Joined]  # weak, where only the lease may keep it

_here: ContextVar[tuple[Entry, ...]] = ContextVar("leasehold_transactions", default=())


def remember(joined: Joined) -> None:
    """Remember, in this context, a transaction that a verb has joined."""
    # Entries that a lease keeps stay. The router's own entry for the same connection is replaced.
    others = [
        entry for entry, found in _entries() if isinstance(entry, weakref.ref) or not _is_on(found, joined.connection)
    ]
    _here.set((*others, weakref.ref(joined) if joined.keeps_connection else joined))


@contextmanager
def inside(block: Block) -> Iterator[None]:
    """Make *block* the open block of this context, until the end of the `with`."""
    try:
        _here.set((*(entry for entry, _ in _entries()), block))
        yield
    finally:
        block.open = False  # first: Ctrl-C behind it leaves an entry that counts no more
        # Not by the token of the `set` above: an async block may end in another copy of the context.
        _here.set(tuple(entry for entry, found in _entries() if found is not block))


def block_of(holder: tuple[str, int], database: Callable[[], Hashable]) -> Block | None:
    """
    Return the block of a lease in this context, or None; *database* is asked for only if there is one.

    A context that was copied inside a block may outlive it. If the block has committed, the context is outside; else
    the block is returned, and refuses what it is asked to run.
    """
    for entry in reversed(_here.get()):
        if not isinstance(entry, Block) or entry.holder != holder or entry.database != database():
            continue
        if entry.open or entry.is_left_behind():
            return entry
    return None


def is_here(connection: Any) -> bool:
    """Return whether the transaction that *connection* has open has been joined in this context."""
    return any(_is_on(found, connection) and found.is_open() for _, found in _entries())


# Whether this context may have a transaction open. Each verb asks, so it is the bare look: a function around it takes
# three times as long (55 ns and 17 ns).
is_anything_open: Callable[[], object] = _here.get


def is_inside(database: Hashable) -> bool:
    """Return whether this context is known to have a transaction open on *database*."""
    return any(found.database == database and found.is_open() for _, found in _entries())


def refuse_inside(database: Hashable) -> None:
    """Refuse a call that would run beside a transaction that this context has open on *database*."""
    if is_anything_open() and is_inside(database):
        raise Conflict(INSIDE)


INSIDE = (
    "a transaction on this database is open here, and this call is not part of it: it would commit by itself, or wait "
    "until the transaction has ended. Pass connection=…, if the verb takes one, or make the call after the "
    "transaction has ended. Inside `with lease.transaction()`, the verbs of that lease are part of it without "
    "connection=…. Nothing was changed."
)

FORKED = (
    "this process was forked inside a lease.transaction() of its parent, and only the parent may end the transaction: "
    "this process has committed nothing. Leave the child with os._exit() before the end of the block."
)


def _entries() -> Iterator[tuple[Entry, Joined | Block]]:
    for entry in _here.get():
        found = entry() if isinstance(entry, weakref.ref) else entry
        if found is not None and (found.open if isinstance(found, Block) else found.connection is not None):
            yield entry, found


def _is_on(found: Joined | Block, connection: Any) -> bool:
    return found.connection is connection


def running_loop() -> Any:
    """Return the event loop that runs on this thread; None for none, as in a program that has not loaded asyncio."""
    get = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)  # another thread may be loading it
    return None if get is None else get()


def _here_and_now() -> tuple[int, object]:
    """Return this thread, and the task that runs on it."""
    loop = running_loop()
    task = None if loop is None else sys.modules["asyncio"].current_task(loop)
    return threading.get_ident(), None if task is None else weakref.ref(task)


def _gone() -> None:
    pass


def _forked() -> None:
    _here.set(())  # they are the parent's


if hasattr(os, "register_at_fork"):  # where a process can fork
    os.register_at_fork(after_in_child=_forked)


class Transactions(Protocol):
    """
    The verbs of a store that shares its database with the caller's rows.

    A verb in the caller's transaction is a program: a generator of statements, which knows no driver. `run` and
    `run_async` drive one on the caller's connection.

    C41.  What `begin` opened, or `fence` has passed, commits only if the epoch is current.
    C42.  What a program wrote commits and rolls back with the caller's transaction. A settlement that was made before
          is `Settled`, also if it says the same (unlike C27): the caller's own rows would be written again.
    C43.  A connection that would commit each statement by itself is `NotInTransaction`; one whose driver begins a
          transaction with its first write is in one afterwards. One to another database is `InvalidArgument`, and one
          of a kind that the store does not know is `Unsupported`.
    C44.  A refusal is recorded apart from the caller's transaction, at the latest by the next `tend`.
    C46.  Progress and its checkpoint commit and roll back with the caller's transaction, and move the stall deadline
          from its commit on. A renewal in between fails none of it.
    C47.  After a settlement, every later verb of that lease in the same transaction is `Settled`; a savepoint that is
          rolled back takes the settlement with it.
    """

    @property
    def database(self) -> Hashable:
        """What is equal for two stores if they share a database, as far as one can tell."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether an open transaction keeps out every other writer, so that no job is taken over meanwhile."""
        ...

    def begin(self, job_id: str, epoch: int, *, idle_us: int | None = None) -> Any:
        """
        Return a connection with an open transaction that is fenced by *epoch*; raise the refusal otherwise.

        Where there is a server, it ends the transaction once it was idle for *idle_us*; None: as the server is set.
        """
        ...

    def entered(self, connection: Any) -> None:
        """Note that the caller has what `begin` opened, and will end it."""
        ...

    def commit(self, connection: Any) -> None:
        """Commit what `begin` opened."""
        ...

    def rollback(self, connection: Any) -> None:
        """Undo what `begin` opened; None if Ctrl-C came before the caller had it."""
        ...

    def was_ended(self, connection: Any) -> bool:
        """Return whether a server has hung up on what `begin` opened, so that the store must be asked why."""
        ...

    def is_rolled_back(self, number: str | None) -> bool:
        """Return whether the transaction of that `Joined.number`, which raised at its end, is known to be undone."""
        ...

    def add(self, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add`."""
        ...

    def fence(self, job_id: str, epoch: int) -> Program[None]:
        """The program that makes the transaction commit only if *epoch* is current."""
        ...

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
        """The program of `Store.add_children`."""
        ...

    def check(self, job_id: str, epoch: int, verb: str = "check") -> Program[None]:
        """
        The program that raises the refusal of *verb* if this transaction has settled the lease.

        Where transactions are `exclusive`, it is the check itself, and raises also if the epoch is not current.
        """
        ...

    def has_job(self, job_id: str) -> Program[bool]:
        """The program that returns whether the job exists, as this transaction sees it."""
        ...

    def renew(self, renewal: Renewal) -> Program[int]:
        """The program of `Store.renew`, for one lease, where transactions are `exclusive`; it raises the refusal."""
        ...

    def progress(self, report: Progress) -> Program[None]:
        """The program of `Store.progress`, for one lease; it raises the refusal."""
        ...

    def settle(self, settlement: Settlement) -> Program[None]:
        """The program of `Store.settle`, for one lease; it raises the refusal."""
        ...

    def run(
        self,
        connection: Any,
        program: Program[T],
        *,
        savepoint: bool = False,
        note: Callable[[Joined], None] = remember,
    ) -> T:
        """
        Run *program* inside the transaction that *connection* has open, and return its value.

        *note* is called with the transaction, unless it is one that `begin` opened.

        Inside a savepoint, where the library or the server knows of it, that is a `Conflict` unless *savepoint*:
        it may be rolled back, and the transaction commit without what the program wrote.
        """
        ...

    async def run_async(
        self,
        connection: Any,
        program: Program[T],
        *,
        savepoint: bool = False,
        note: Callable[[Joined], None] = remember,
    ) -> T:
        """Run *program* likewise, on a connection that belongs to an event loop (`connections.is_async`)."""
        ...
