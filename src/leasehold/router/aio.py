"""`AsyncRouter`: the verbs of `Router` for async callers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..aio import Facade, abandonable, threaded
from ..core import checks
from ..core.job import Added, Job
from ..core.ownership import Process
from ..errors import NoLease, NotFinished, StaleEpoch, StoreUnavailable
from ..lease import Lease
from ..liveness import SELF
from .front import Router
from .owners import find_lease
from .results import pauses, waited

# A call waits in short slices, so that the thread of a cancelled call ends soon.
_SLICE_SECONDS = 0.1


def _give_back(leases: list[Lease]) -> None:
    for lease in leases:
        with suppress(StaleEpoch, StoreUnavailable):  # taken over already, or waiting for its deadline
            lease.release()


class AsyncRouter(Facade):
    """The verbs of a `Router`, to be awaited."""

    add = threaded(Router.add)
    add_many = threaded(Router.add_many)
    transfer = threaded(Router.transfer)
    cancel = threaded(Router.cancel)
    replay = threaded(Router.replay)
    requeue = threaded(Router.requeue)
    complete = threaded(Router.complete)
    resolve = threaded(Router.resolve)
    pause = threaded(Router.pause)
    resume = threaded(Router.resume)
    seal = threaded(Router.seal)
    bulk = threaded(Router.bulk)
    reclaim = threaded(Router.reclaim)
    prune = threaded(Router.prune)
    advance = threaded(Router.advance)
    verify = threaded(Router.verify)
    job = threaded(Router.job)
    jobs = threaded(Router.jobs)
    snapshot = threaded(Router.snapshot)
    ownerships = threaded(Router.ownerships)
    effects = threaded(Router.effects)
    events = threaded(Router.events)
    search = threaded(Router.search)
    explain = threaded(Router.explain)
    observations = threaded(Router.observations)
    queues = threaded(Router.queues)
    workers = threaded(Router.workers)
    counts = threaded(Router.counts)
    close = threaded(Router.close)

    async def result(self, id: str | Added | Job, *, wait_seconds: float | None = 0) -> Any:
        """Return the result of the job as `Router.result` does, and raise as it does; no thread is held meanwhile."""
        router: Router = self._sync
        for pause in pauses(wait_seconds):
            with suppress(NotFinished):
                return await asyncio.to_thread(router._result, id)
            await asyncio.sleep(pause)
        return await asyncio.to_thread(router.result, id)

    async def drain(
        self, *, queues: Sequence[str] | None = None, advance: bool = False, raise_errors: bool = False
    ) -> list[Job]:
        """Run what is due, as `Router.drain` does, and raise as it does; async handlers run on this loop."""
        router: Router = self._sync
        from ..worker.drain import drained

        call = functools.partial(drained, router._shop(), router._clock, queues, asyncio.get_running_loop())
        return await abandonable(functools.partial(call, advance=advance, raise_errors=raise_errors))

    async def lease(self, job_id: str, *, owner: str, wait_seconds: float = 0) -> Lease:
        """Return the live lease of *owner* on the job, and raise, as `Router.lease` does."""
        ask = functools.partial(find_lease, self._sync, job_id, owner=owner)
        checks.microseconds(wait_seconds, "wait_seconds", zero=True)

        def wait(abandoned: Callable[[], bool]) -> Lease:
            left = wait_seconds
            while True:
                try:
                    return ask(wait_seconds=min(left, _SLICE_SECONDS))
                except NoLease as error:
                    left -= _SLICE_SECONDS
                    if left <= 0 or abandoned():
                        raise waited(error, wait_seconds) from None

        return await abandonable(wait)

    async def claim_many(
        self,
        owner: str,
        *,
        limit: int = 100,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = SELF,
    ) -> list[Lease]:
        """Lease up to *limit* due jobs, and raise, as `Router.claim_many` does; if cancelled, it gives them back."""
        router: Router = self._sync
        claim = functools.partial(
            router.claim_many, owner, limit=limit, queues=queues, lease_seconds=lease_seconds, process=process
        )
        checks.microseconds(wait_seconds, "wait_seconds", zero=True)

        def wait(abandoned: Callable[[], bool]) -> list[Lease]:
            left = wait_seconds
            while not (leases := claim(wait_seconds=min(left, _SLICE_SECONDS))):
                left -= _SLICE_SECONDS
                if left <= 0 or abandoned():
                    break
            return leases

        return await abandonable(wait, _give_back)

    async def claim(
        self,
        owner: str,
        *,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = SELF,
    ) -> Lease | None:
        """Lease the next due job to *owner*, and raise, as `Router.claim` does."""
        leases = await self.claim_many(
            owner, limit=1, queues=queues, lease_seconds=lease_seconds, wait_seconds=wait_seconds, process=process
        )
        return leases[0] if leases else None
