"""The verbs of a lease, for async callers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from ..aio import Facade, abandonable, threaded
from ..core import documents, inputs
from ..core.effects import Effect
from ..transaction import Block, inside
from .block import commit, roll_back_elsewhere
from .effects import begin_effect, end_effect
from .joining import joined_here, refuse_beside
from .keep import Keeper, checked
from .lease import IDLE_SECONDS, Lease

P = ParamSpec("P")
T = TypeVar("T")


def _beside_connection(
    verb: Callable[Concatenate[Lease, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the async form of a verb that, in a transaction of the caller's, uses a connection of this thread."""
    elsewhere = threaded(verb)

    @functools.wraps(verb)
    async def call(self: AsyncLease, *args: P.args, **kwargs: P.kwargs) -> T:
        if joined_here(self._sync) is not None:
            return verb(self._sync, *args, **kwargs)
        return await elsewhere(self, *args, **kwargs)

    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], call)


class AsyncLease(Facade):
    """The verbs of a `Lease`, to be awaited."""

    check = _beside_connection(Lease.check)
    renew = _beside_connection(Lease.renew)
    progress = threaded(Lease.progress)
    add = threaded(Lease.add)
    complete = threaded(Lease.complete)
    fail = threaded(Lease.fail)
    release = threaded(Lease.release)
    fence = threaded(Lease.fence)
    wait_lost = threaded(Lease.wait_lost)
    is_settled = threaded(Lease.is_settled)
    credential = threaded(Lease.credential)

    async def once(
        self,
        name: str,
        call: Callable[[str], Awaitable[T]],
        *,
        in_doubt: Literal["raise", "retry"] = "raise",
        undone: tuple[type[BaseException], ...] = (),
    ) -> T:
        """Bring about a named effect once, and raise, as `Lease.once` does; *call* is awaited."""
        lease: Lease = self._sync

        def clear(begun: Effect) -> None:
            # Cancelled before the call was made: so nothing is in doubt, unless it was before.
            if not begun.known and in_doubt == "raise":
                end_effect(lease, name, None)

        effect = await abandonable(lambda _: begin_effect(lease, name, call, in_doubt, undone), clear)
        outcome = effect.outcome
        if not effect.known:
            try:
                value = await call(effect.key)
            except undone:
                await asyncio.to_thread(end_effect, lease, name, None)
                raise
            outcome = documents.encode(value, f"the outcome of effect {name!r}")
            await asyncio.to_thread(end_effect, lease, name, outcome)
        return documents.decode(outcome)  # type: ignore[no-any-return]  # as typed as JSON is

    @asynccontextmanager
    async def keep(self, *, on_lost: Callable[[Lease], object] | None = None) -> AsyncIterator[Lease]:
        """Renew the lease in the background, and raise, as `Lease.keep` does; *on_lost* is called on this loop."""
        lease: Lease = self._sync
        keeper = Keeper(lease, _on_loop(checked(on_lost)))
        keeper.start()
        try:
            yield lease
        finally:
            await abandonable(lambda _: keeper.end())

    @asynccontextmanager
    async def transaction(self, *, idle_seconds: float | None = IDLE_SECONDS) -> AsyncIterator[Any]:
        """Open a fenced transaction, and raise, as `Lease.transaction` does; its connection is a synchronous one."""
        lease: Lease = self._sync
        verbs = lease._transactions("lease.aio.transaction()")
        idle = inputs.idle_us(idle_seconds)
        await asyncio.to_thread(refuse_beside, lease)
        await asyncio.to_thread(lease._flush)
        # On threads of their own: the shared ones may all be waiting for the lock that is to be let go here.
        connection = await abandonable(
            lambda _: lease._noting(lambda: verbs.begin(lease.job_id, lease.epoch, idle_us=idle)), verbs.rollback
        )
        block = Block(verbs, (lease.job_id, lease.epoch), connection)
        try:
            verbs.entered(connection)
            with inside(block):
                yield connection
        except BaseException as error:
            ended = error  # which is unbound when this clause ends
            await abandonable(lambda _: roll_back_elsewhere(lease, verbs, block, ended))
            raise
        await abandonable(lambda _: commit(lease, verbs, block))


def _on_loop(on_lost: Callable[[Lease], object] | None) -> Callable[[Lease], object] | None:
    loop = asyncio.get_running_loop()
    return None if on_lost is None else lambda lease: loop.call_soon_threadsafe(on_lost, lease)
