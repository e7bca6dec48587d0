"""The transactions that a lease is part of: its own open block, and those that the caller has open."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..aio import alone, joined
from ..errors import Conflict, StaleEpoch, StoreUnavailable, UnknownJob
from ..store import Program, Store, Transactions
from ..transaction import Block, End, Joined, block_of, remember
from .children import Within

if TYPE_CHECKING:
    from .lease import Lease

T = TypeVar("T")
Run = Callable[..., Any]  # runs a program in a transaction, as `Block.run` does

_remembering = threading.Lock()  # held for an instant, by a lease that becomes part of a transaction


def run_here(lease: Lease) -> Run | None:
    """Return what runs a program in the transaction that the lease is part of here, or None."""
    if (block := block_here(lease)) is not None and block.open:
        return block.run
    joined_ = joined_here(lease)
    return None if joined_ is None else partial(join, lease, joined_.connection)


def block_here(lease: Lease) -> Block | None:
    """Return the open `lease.transaction()` of this context, or None."""
    return block_of((lease.job_id, lease.epoch), lambda: lease._transactions().database)


def joined_here(lease: Lease) -> Joined | None:
    """Return a transaction of the caller's that can be used on this thread, or None."""
    return next((one for one in lease._joined if one.is_usable_here()), None)


def join(
    lease: Lease,
    connection: Any,
    program: Callable[[Transactions], Program[T]],
    *,
    savepoint: bool = False,
    note: Callable[[Joined], None] | None = None,
) -> T:
    """Run *program* in the transaction that *connection* has open, and remember that the lease is part of it."""

    def remember_it(one: Joined) -> None:
        _remember(lease, one)
        if note is not None:
            note(one)

    reply = unless_lost(
        lease,
        lambda: joined(
            lease.store,
            connection,
            lambda verbs: _marked(lease, program(verbs)),
            savepoint=savepoint,
            note=remember_it,
        ),
    )
    # With an async connection it is a coroutine, for the async form of the verb.
    return cast(T, _unless_lost_async(lease, reply)) if inspect.iscoroutine(reply) else reply


def unless_lost(lease: Lease, verb: Callable[[], T]) -> T:
    """Run a verb in a transaction. If its connection is gone since the job was taken over, raise the refusal."""
    try:
        return lease._noting(verb)
    except StoreUnavailable as error:
        _check_lost(lease, error)
        raise


async def _unless_lost_async(lease: Lease, reply: Coroutine[Any, Any, T]) -> T:
    """Await the reply of a verb on an async connection, as `unless_lost` does for the others."""
    try:
        return await reply
    except StoreUnavailable as error:
        import asyncio

        await asyncio.to_thread(_check_lost, lease, error)
        raise


def _check_lost(lease: Lease, error: StoreUnavailable) -> None:
    """Raise the refusal if the session is gone and the job was taken over, which may be why."""
    if error.outcome_unknown and not lease._transactions().exclusive:
        with suppress(StoreUnavailable):
            lease._check_store()


def _remember(lease: Lease, one: Joined) -> None:
    """Keep in mind that the lease is part of a transaction that the caller will end."""
    remember(one)
    with _remembering:
        # One whose connection was lost stays, even if it has ended: `StaleEpoch.find` may have to ask about it.
        others = (other for other in lease._joined if other.connection not in (None, one.connection) or other.is_lost())
        lease._joined = (*others, one)


def _marked(lease: Lease, program: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    try:
        return (yield from program)
    except (StaleEpoch, UnknownJob) as refusal:
        raise lease._note_refusal(refusal) from refusal.__cause__


def refuse_beside(lease: Lease) -> Store:
    """Return the store, for a verb that commits by itself; refuse it while the lease is part of a transaction."""
    # Of another thread or task, too: after a settlement of its own, the rows of that transaction would be lost.
    if alone(lease.store) and has_open_transaction(lease):
        raise Conflict(
            f"job {lease.job_id!r} is part of a transaction of yours that is still open: pass connection=… to make "
            "this call part of it, or end it first. Without connection=…, this call would commit at once, and the "
            "transaction could still roll back or be refused. Nothing was changed."
        )
    return lease.store


def has_open_transaction(lease: Lease) -> bool:
    """Return whether a transaction of the caller's that the lease is part of is still open."""
    # None is forgotten here: another thread may join one while the server is asked.
    return any(one.is_open() for one in lease._joined)


def within(lease: Lease, connection: Any) -> Within:
    """Return what is to be known about the transaction in which a child is added."""
    block = block_here(lease)
    if block is not None and connection in (None, block.connection):
        return Within(block.number, lambda _: block.ended)
    return Within(id(connection), partial(_end_of, lease))


def _end_of(lease: Lease, joined_: Joined | None) -> End:
    """Return how a transaction of the caller's own has ended, as far as that can be known."""
    if joined_ is not None and joined_.is_open():
        return End.NOT_YET
    number = None if joined_ is None else joined_.number
    is_undone = number is not None and lease._transactions().is_rolled_back(number)
    return End.ROLLED_BACK if is_undone else End.UNKNOWN
