"""Jobs run here and now, one after the other, without a worker: for tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import NoReturn, Protocol

from ..core import inputs
from ..core.clock import Clock
from ..core.ids import new_claim_id
from ..core.job import Grant, Job, Status
from ..errors import Conflict, InvalidArgument, Unsupported
from ..lease import Lease
from ..liveness import this_process
from ..tasks.task import AnyTask, Kind, Unbindable
from .calling import End, call, call_async, released, settlement
from .executors.loop import Loop
from .lifespan import Lifespan
from .reporting import Reporter
from .run import Run, Runs
from .settling import Ending, settled
from .shop import Shop

OWNER = "drain"
_SLICE_SECONDS = 0.5
_MOST_FREE_RUNS = 1_000  # of one job: a handler that hands its job back spends no budget


class Advancing(Protocol):
    """A clock that is moved by hand."""

    def now(self) -> int:
        """Return the instant, in microseconds since 1970 (UTC)."""
        ...

    def advance(self, seconds: float) -> None:
        """Move it forward."""
        ...


def drained(
    shop: Shop,
    clock: Clock,
    queues: Sequence[str] | None,
    loop: asyncio.AbstractEventLoop | None = None,
    abandoned: Callable[[], bool] = lambda: False,
    *,
    advance: bool,
    raise_errors: bool,
) -> list[Job]:
    """Run everything that is due; return each job as it is after each of its runs, in their order."""
    named = None if queues is None else inputs.queues(queues)
    drain = Drain(shop, named, _advancing(clock) if advance else None, raise_errors, loop)
    return drain.run(abandoned)


class Drain:
    """
    Claims what is due, runs it and settles it, until nothing is.

    Plain handlers run on the calling thread. Async ones run on *loop*, which is another thread's, or on one of their
    own, while the caller waits: a loop that runs on the calling thread could not go on meanwhile.
    """

    def __init__(
        self,
        shop: Shop,
        queues: Sequence[str] | None,
        clock: Advancing | None,
        raise_errors: bool,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._shop = shop
        self._store = shop.store
        self._queues = queues
        self._clock = clock
        self._raise_errors = raise_errors
        self._loop = Loop(shop.hooks, lambda _: None, lambda _, __: None, loop)
        self._reporter = Reporter(hides_errors=shop.redaction.hides_errors)
        self._free_runs: Counter[str] = Counter()

    def run(self, abandoned: Callable[[], bool]) -> list[Job]:
        """Go on until nothing is due, or the caller has abandoned it."""
        lifespan = Lifespan(self._shop.hooks, lambda: self._loop.loop)
        jobs: list[Job] = []
        try:
            lifespan.enter()
            try:
                while not abandoned():
                    grant = self._claim()
                    if grant is not None:
                        jobs.append(self._handle(grant))
                    elif not self._advance():
                        break
                while self._shop.seal_open is not None and self._shop.seal_open():
                    pass
            finally:
                lifespan.exit()
        finally:
            self._loop.close()
        return jobs

    def _claim(self) -> Grant | None:
        grants = self._store.claim(
            OWNER,
            queues=self._queues,
            default_lease_us=self._shop.lease_us,
            claim_id=new_claim_id(),
            process=this_process(),
        )
        return grants[0] if grants else None

    def _handle(self, grant: Grant) -> Job:
        try:
            return self._run(grant)
        except KeyboardInterrupt:
            self._store.settle([released(grant)])  # refused, which does not matter, if it was settled just before
            raise

    def _run(self, grant: Grant) -> Job:
        name = grant.spec.task
        task = self._shop.tasks.get(name or "")
        if task is None:
            what = "names no task" if name is None else f"is for the task {name!r}, which is not a task here"
            self._refuse(grant, f"{what}; tasks here: {', '.join(sorted(self._shop.tasks)) or 'none'}")
        lease = Lease(self._store, grant)
        end = self._call(task, grant, lease)
        error = end.error
        if isinstance(error, Unbindable):
            self._refuse(grant, f"has arguments that do not fit: {error}", error)
        if isinstance(error, KeyboardInterrupt):  # not the handler's: the test is being interrupted
            raise error
        batch = [Ending(Run(Runs(), grant, lease, task, 0, 0), settlement(task, grant, lease, end), error)]
        self._reporter.over(batch, settled(self._store, batch))
        if error is not None and (self._raise_errors or _stops(error)):
            raise error
        return self._after(grant)

    def _call(self, task: AnyTask, grant: Grant, lease: Lease) -> End:
        if task.kind is not Kind.LOOP:
            return call(task, grant, lease, self._shop.hooks)
        loop, ended = self._loop.loop, None
        try:
            ended = asyncio.run_coroutine_threadsafe(call_async(task, grant, lease, self._shop.hooks), loop)
            # In slices: a signal that another thread has got does not end a wait for a lock without a time limit.
            while not wait([ended], _SLICE_SECONDS).done:
                pass
            return ended.result()
        except BaseException as error:  # Ctrl-C; or the loop is the caller's, and closed
            if ended is not None:
                ended.cancel()
            return End(None, error)

    def _refuse(self, grant: Grant, why: str, cause: Exception | None = None) -> NoReturn:
        """Hand the job back, and raise: a worker would leave it to others, and in a test there are none."""
        self._store.settle([released(grant)])
        raise Conflict(f"job {grant.spec.id!r} {why}. It was released.") from cause

    def _after(self, grant: Grant) -> Job:
        job = self._store.job(grant.spec.id)
        if job.status is Status.PENDING and job.errors == grant.errors:
            self._free_runs[job.id] += 1
            if self._free_runs[job.id] >= _MOST_FREE_RUNS:
                raise Conflict(
                    f"job {job.id!r} went back to pending {_MOST_FREE_RUNS} times in this drain without using up a "
                    "retry, so the drain might never end: check what its handler waits for."
                )
        return job

    def _advance(self) -> bool:
        """Move the clock to the next instant at which a job becomes due; return whether there is one."""
        clock = self._clock
        if clock is None:
            return False
        now = clock.now()
        paused = {queue.name for queue in self._store.queues()}
        pending = [job for job in self._store.jobs(status=Status.PENDING) if job.queue not in paused]
        due = [job.run_us for job in pending if self._queues is None or job.queue in self._queues]
        later = [instant for instant in due if instant > now]
        if not later:
            return False  # what is due and cannot be claimed waits for a key that another owner holds
        clock.advance((min(later) - now) / 1_000_000)
        if clock.now() < min(later):
            raise InvalidArgument(f"{clock!r} did not move far enough: after advance(), the next job is still not due.")
        return True


def _stops(error: BaseException) -> bool:
    """Return whether *error* is for the test runner, such as pytest's own for a failed or skipped test."""
    return not isinstance(error, Exception | SystemExit | asyncio.CancelledError)


def _advancing(clock: Clock) -> Advancing:
    if not callable(getattr(clock, "advance", None)):
        raise Unsupported(
            f"drain(advance=True) moves the clock to the time of the next job, and {type(clock).__name__} has no "
            "advance(): use Router(clock=ManualClock()), or router.override(clock=ManualClock())."
        )
    return clock  # type: ignore[return-value]  # as was just seen
