"""
The worker: claim → run → settle, from `start` to `stop`.

    claim      claiming, while there is room
    run        runner, which has the decisions
    settle     settling, many jobs in one transaction
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ..aio import abandonable
from ..core import checks
from ..core.clock import Clock, SteadyClock
from ..core.workers import WorkerReport
from ..errors import Conflict, Unsupported
from ..liveness import this_process
from .claiming import LONGEST_REST_SECONDS, MOST, WAIT_SECONDS, Claimer
from .events import Observers
from .lifespan import Lifespan
from .log import log
from .presence import Presence
from .reporting import Reporter, Tally
from .runner import Runner
from .shop import Shop
from .signals import signals
from .tending import sealer, tender

_LOST_US = 10_000_000  # after which a handler that goes on without its job is expected to stay
_LISTEN_SECONDS = 1.0  # for listeners, at the very end


class Health(NamedTuple):
    """Whether a worker consumes, and if not, why."""

    consuming: bool
    why: str
    claimed_seconds: float | None  # since the store last answered a claim
    running: int
    free: int


class Worker:
    """
    Claims jobs, runs the handlers of their tasks and settles them, from `start` to `stop`.

    Use it as a context manager, sync or async, or call `run`. It works in the background, on threads of its own, and
    installs no signal handlers unless `run` is asked to.
    """

    def __init__(
        self,
        shop: Shop,
        *,
        concurrency: int = 16,
        queues: Sequence[str] | None = None,
        name: str | None = None,
        grace_seconds: float = 25.0,
        steady: Clock | None = None,
    ) -> None:
        self.given_name = checks.optional_name(name, "a worker's name") or socket.gethostname()
        self.owner = _unique(self.given_name)
        self.concurrency = checks.whole(concurrency, "concurrency", least=1, most=MOST)
        self.queues = queues
        self._shop = shop
        self._store = shop.store
        self._grace_us = checks.microseconds(grace_seconds, "grace_seconds", zero=True)
        self._steady = steady or SteadyClock()
        self._observers = Observers(shop.store, shop.listeners, shop.on_taken_back, shop.redaction.hides_errors)
        self._reporter = Reporter(self._observers, shop.redaction.hides_errors)
        self._stopping = threading.RLock()  # held by the one that stops it
        self.runner = Runner(shop, self.concurrency, self._steady, self._reporter)
        self._desk: SimpleQueue[str] = SimpleQueue()  # what `run` waits for; a signal handler may put into it
        self._started = False
        self._started_us = 0
        self._failure: BaseException | None = None
        self.unsettled = 0  # after `stop`: jobs that the store did not let us settle

    def __repr__(self) -> str:
        return f"<Worker {self.owner!r} {self.runner.runs.count_undecided} of {self.concurrency}>"

    # From start to stop

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None, until_empty: bool = False) -> None:
        """Begin to work, in the background; async handlers run on *loop*, or on a loop of the worker's own."""
        if self._started:
            raise Conflict("this worker was already started, and works only once: make another one.")
        self._started_us = self._steady.now()
        store, runner, shop, steady = self._store, self.runner, self._shop, self._steady
        self._presence = Presence(store, self.owner, runner, self._report, steady)
        is_reported = self._presence.is_reported
        self._upkeep = [tender(store, shop.retention, self._observers.swept, steady, is_reported, shop.redaction)]
        if shop.seal_open is not None:
            self._upkeep.append(sealer(shop.seal_open))
        self._claimer = Claimer(
            store,
            runner,
            steady,
            self._claimed_all,
            self._observers.swept,
            owner=self.owner,
            queues=self.queues,
            tasks=shop.tasks,
            lease_us=shop.lease_us,
            until_empty=until_empty,
        )
        runner.open(loop, self._claimer.freed, self._claimer.fail)
        self._lifespan = Lifespan(shop.hooks, lambda: runner.loop.loop)
        self._started = True  # only now, since `health` may be asked from elsewhere at any moment
        try:
            self._lifespan.enter()
        except BaseException:
            self._lifespan.is_over = True
            runner.loop.close()
            raise
        runner.start()
        for thread in (self._claimer, *self._upkeep, self._presence):
            thread.start()
        log.info("worker %s started on %s with concurrency %d", self.owner, _named(self.queues), self.concurrency)

    def stop(self, *, grace_seconds: float | None = None) -> None:
        """
        Claim no more, wait for the handlers, hand back what is not done by then, and end.

        A handler on a thread may still be running then. Its job may run elsewhere at the same time, and what it writes
        is refused.
        """
        grace = self._grace_us if grace_seconds is None else checks.microseconds(grace_seconds, "grace", zero=True)
        with self._stopping:
            if self._started and not self._lifespan.is_over:
                self._stop(grace)

    def _stop(self, grace: int) -> None:
        until = self._steady.now() + grace
        self.runner.closing = True
        self._claimer.stop()
        self.runner.finish(until)
        self._presence.end()
        self.unsettled = self.runner.end()
        self.tally.left = self._claimer.left
        for thread in self._upkeep:
            thread.end()
        try:
            self._lifespan.exit()
        finally:
            self.runner.close()
            self._observers.swept()
            self._observers.close(_LISTEN_SECONDS)
            log.info("worker %s has stopped: %s", self.owner, self.tally)
        if self._failure is not None:
            raise self._failure

    def hurry(self) -> None:
        """Make a `stop` that waits for handlers hand their jobs back now."""
        self.runner.hurry()

    def run(self, *, until_empty: bool = False) -> Tally:
        """
        Work until a signal comes (SIGTERM or SIGINT), or until nothing is pending or running; then stop.

        A second signal hands back at once what still runs.
        """
        _refuse_on_a_loop()
        if threading.current_thread() is not threading.main_thread():
            log.info("signals do not stop a worker that is not on the main thread; call its end(): %s", self)
        with signals(self._desk):
            self.start(until_empty=until_empty)
            reason = self._wait()
            if reason in ("signal", "end"):
                running = self.runner.runs.count_undecided
                log.info("stopping: waiting for running jobs (%d); a second signal releases them now", running)
            signalled = reason == "signal"
            stopping = threading.Thread(target=self._stop_beside, name="leasehold-stop", daemon=True)
            stopping.start()
            while stopping.is_alive():
                with suppress(Empty):
                    if self._desk.get(timeout=0.1) == "signal":
                        if signalled:
                            log.warning("second signal: releasing running jobs now")
                            self.hurry()
                        signalled = True
        if self._failure is not None:
            raise self._failure
        return self.tally

    def end(self) -> None:
        """Make `run` stop as at a signal, without counting as one: once more changes nothing."""
        self._desk.put("end")

    def _wait(self) -> str:
        """Return why to stop: "signal", "end", "empty" or "failed"."""
        while True:
            # Not for ever: a signal may reach another thread, as after SIGSTOP and SIGCONT, and does not end this wait.
            with suppress(Empty):
                return self._desk.get(timeout=0.5)

    def _stop_beside(self) -> None:
        # On a thread of its own, so that the main one goes on to listen for signals.
        try:
            self.stop()
        except BaseException as error:
            self._failure = error
        self._desk.put("stopped")

    def _claimed_all(self, failure: BaseException | None) -> None:
        self._failure = failure or self._failure
        self._desk.put("empty" if failure is None else "failed")

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(grace_seconds=0 if kind is not None and issubclass(kind, KeyboardInterrupt) else None)

    async def __aenter__(self) -> Worker:
        # On threads of their own: handlers may keep the shared ones busy. A caller that is cancelled leaves no worker.
        loop = asyncio.get_running_loop()
        await abandonable(lambda _: self.start(loop=loop), lambda _: self.stop(grace_seconds=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        stopping = asyncio.ensure_future(abandonable(lambda _: self.stop()))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self.hurry()
            await stopping
            raise

    @property
    def tally(self) -> Tally:
        """How many runs ended how, so far."""
        return self._reporter.tally

    @property
    def is_started(self) -> bool:
        """Whether it was started, now or before."""
        return self._started

    def health(self) -> Health:
        """Return whether this worker consumes: the store answers its claims, or its slots are busy with live work."""
        running, free = self.runner.runs.count_undecided, max(self.runner.room(), 0)
        claimed = self._claimer.claimed_us if self._started else None
        since = None if claimed is None else (self._steady.now() - claimed) / 1_000_000
        return Health(not (why := self._ailment(since, free)), why, since, running, free)

    def _ailment(self, since: float | None, free: int) -> str:
        if not self._started:
            return "it has not been started"
        if self._failure is not None:
            return f"it has failed: {self._failure}"
        if not self._claimer.is_alive():
            if self._lifespan.is_over:
                return "it has stopped"
            return "it is starting" if self._claimer.ident is None else "it no longer claims jobs"
        runner = self.runner
        for thread in (runner.settler, runner.renewer, runner.watch):
            if not thread.is_alive():
                return f"its thread {thread.name} has ended"
        if runner.settler.failing:
            return "the store does not accept its settlements"
        if runner.runs.count_without_job >= self.concurrency:
            return "every slot is held by a handler that cannot be stopped"
        waited = (self._steady.now() - self._started_us) / 1_000_000 if since is None else since
        if free and waited > 2 * WAIT_SECONDS + LONGEST_REST_SECONDS:
            return "the store does not answer its claims"
        return ""

    def _report(self) -> WorkerReport:
        """Return what the store is to show of this worker."""
        runs, now = self.runner.runs, self._steady.now()
        lost = runs.count_lost(now - _LOST_US)
        return WorkerReport(
            self.owner,
            self.given_name,
            this_process(),
            None if self.queues is None else tuple(self.queues),
            tuple(sorted(self._shop.tasks)),
            self.concurrency if lost < self.concurrency else 0,
            runs.count_handlers,
            max(now - self._started_us, 0),
        )


def _refuse_on_a_loop() -> None:
    """Refuse to block an event loop."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise Unsupported(
            "router.work() would block the event loop that runs on this thread: use `async with router.worker():`, "
            "whose async handlers run on that loop."
        )


def _unique(name: str) -> str:
    """Return an owner's name that no other start of a process has, even one that was given the same name."""
    return f"{name[:200]}:{os.getpid()}:{os.urandom(4).hex()}"


def _named(queues: Sequence[str] | None) -> str:
    return "all queues" if queues is None else "queues " + ", ".join(queues)
