"""
The worker: claim → run → settle.

    claim      claiming: while there is room, in batches
    run        dispatching: as many at a time as there are slots; threads, loops, processes: one module for each kind
    settle     settling: what many handlers have said, in one transaction
    meanwhile  keeping: leases are renewed, and noticed to be lost; progress: what handlers report is written;
               presence: the worker reports itself, and picks up what is transferred to it

This module has the decisions. Each is a transition of a run (see `run`), and the thread whose transition succeeds has
the run settled: so each is settled once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..aio import abandonable
from ..core import checks, failure
from ..core.clock import FAR, Clock, SteadyClock
from ..core.job import Grant, Settlement
from ..core.retention import DEFAULT_RETENTION, Retention
from ..core.wording import counted
from ..core.workers import WorkerReport
from ..errors import Conflict, Settled, Unsupported
from ..lease import Lease, worker_side
from ..liveness import this_process
from ..store import Refusal, Store
from ..tasks.hooks import Hooks
from ..tasks.task import AnyTask, Kind
from .calling import End, failed, released, settlement
from .claiming import LONGEST_REST_SECONDS, MOST, WAIT_SECONDS, Claimer
from .dispatching import Dispatcher
from .events import Listener, Observers
from .executor import Executor
from .executors.loop import Loop
from .executors.process.pool import Processes
from .executors.process.supervisor import Killed, Unguarded
from .executors.threads import Threads
from .lifespan import Lifespan
from .log import log
from .presence import Presence
from .progress import ProgressWriter
from .renewing import Renewer
from .reporting import TAKEN, Reporter, Tally
from .run import EXECUTING, LINGERING, OUTLIVED, OVER, SETTLING, STOPPING, WAITING, Run, Runs, Stop
from .settling import Ending, Settler
from .signals import signals
from .tending import Tender
from .watching import Watch

_NO_TASK: Any = None  # the task of a job that only goes back
# With a grace of 25 seconds, all of this is over before Kubernetes' 30.
_CLEAN_UP_SECONDS = 1.5  # for handlers that were told to stop at the end
_LAST_SECONDS = 1.5  # for settlements, at the end
_LISTEN_SECONDS = 1.0  # for listeners, at the very end


class Shop(NamedTuple):
    """What a router gives its workers."""

    store: Store
    tasks: Mapping[str, AnyTask]
    hooks: Hooks
    listeners: Mapping[str, Sequence[Listener]]
    lease_us: int
    retention: Retention = DEFAULT_RETENTION


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
        self._observers = Observers(shop.store, shop.listeners)
        self._reporter = Reporter(self._observers)
        self._stopping = threading.RLock()  # held by the one that stops it
        self.runs = Runs()
        self._changed = threading.Event()  # a run has ended, or somebody is in a hurry
        self._desk: SimpleQueue[str] = SimpleQueue()  # what `run` waits for; a signal handler may put into it
        self.closing = False  # from the beginning of `stop`: nothing begins any more
        self._started = False
        self._started_us = 0
        self._hurried = False
        self._failure: BaseException | None = None
        self.unsettled = 0  # after `stop`: jobs that the store did not let us settle

    def __repr__(self) -> str:
        return f"<Worker {self.owner!r} {self.runs.count_undecided} of {self.concurrency}>"

    # From start to stop

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None, until_empty: bool = False) -> None:
        """Begin to work, in the background; async handlers run on *loop*, or on a loop of the worker's own."""
        if self._started:
            raise Conflict("this worker has been started before: make another one.")
        self._started_us = self._steady.now()
        steady, hooks, most = self._steady, self._shop.hooks, self.concurrency
        loops = Loop(hooks, self._began, self._ended, loop)
        self._kinds: dict[Kind, Executor] = {
            Kind.THREAD: Threads(most, hooks, self._began, self._ended),
            Kind.LOOP: loops,
            Kind.PROCESS: Processes(most, self._began, self._ended),
        }
        self._dispatcher = Dispatcher(most, self._kinds)
        self._progress = ProgressWriter(self._store, steady, self.runs, self)
        self._settler = Settler(self._store, steady, self._over, self.is_empty, self._progress.flush_all)
        self._renewer = Renewer(self._store, steady, self.runs, self)
        self._watch = Watch(steady, self.runs, self)
        self._tender = Tender(self._store, self._shop.retention, self.swept)
        self._presence = Presence(self._store, self, self._report, steady)
        self._claimer = Claimer(
            self._store, self, steady, self._claimed_all, lease_us=self._shop.lease_us, until_empty=until_empty
        )
        self._lifespan = Lifespan(hooks, lambda: loops.loop)
        self._started = True  # only now, since `health` may be asked from elsewhere at any moment
        try:
            self._lifespan.enter()
        except BaseException:
            self._lifespan.is_over = True
            loops.close()
            raise
        for thread in (self._settler, self._renewer, self._watch, self._claimer, self._tender, self._presence):
            thread.start()
        log.info("worker %s works on %s, %d at a time", self.owner, _named(self.queues), self.concurrency)

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
        self.closing = True
        self._claimer.stop()
        for run in self.runs.undecided():
            self.waited(run)
        if not self._wait_for_handlers(until):
            self._hand_back()
        self._presence.end()
        if not self._settler.close(_LAST_SECONDS):
            self.unsettled = self.runs.count_in_flight
            left = counted(self.unsettled, "job is not settled, and waits", "jobs are not settled, and wait")
            log.error("the store does not answer; %s to be reclaimed", left)
        self._renewer.end()
        self._watch.end()
        self._progress.end()
        self.tally.left = self._claimer.left
        self._tender.end()
        try:
            self._lifespan.exit()
        finally:
            for kind in self._kinds.values():
                kind.close()
            self._observers.swept()
            self._observers.close(_LISTEN_SECONDS)
            log.info("worker %s has stopped: %s", self.owner, self.tally)
        if self._failure is not None:
            raise self._failure

    def hurry(self) -> None:
        """Make a `stop` that waits for handlers hand their jobs back now."""
        self._hurried = True
        self._changed.set()

    def _wait_for_handlers(self, until: int) -> bool:
        """Wait until no handler runs, or somebody is in a hurry, or *until* has come; return whether none runs."""
        while self.runs.count_undecided and not self._hurried:
            self._changed.clear()
            left = until - self._steady.now()
            if left <= 0:
                break
            if self.runs.count_undecided and not self._hurried:
                self._changed.wait(min(left / 1_000_000, 1.0))
        return not self.runs.count_undecided

    def _hand_back(self) -> None:
        runs = self.runs.undecided()
        some = ", ".join(run.lease.job_id for run in runs[:10])
        left = counted(len(runs), "job is not done and is", "jobs are not done and are")
        log.warning("%s handed back: %s%s", left, some, " …" if len(runs) > 10 else "")
        for run in runs:
            self._stop_run(run, released(run.grant))
        self._hurried = False
        self._wait_for_handlers(self._steady.now() + round(_CLEAN_UP_SECONDS * 1_000_000))
        for run in self.runs.undecided():
            self.outlived(run)

    def run(self, *, until_empty: bool = False) -> Tally:
        """
        Work until a signal comes (SIGTERM or SIGINT), or until nothing is pending or running; then stop.

        A second signal hands back at once what still runs.
        """
        _refuse_on_a_loop()
        if threading.current_thread() is not threading.main_thread():
            log.info("no signal stops a worker that runs on another thread than the main one; its end() does: %s", self)
        with signals(self._desk):
            self.start(until_empty=until_empty)
            said = self._told()
            if said in ("signal", "end"):
                log.info("finishing what runs (%d); a second signal hands it back now", self.runs.count_undecided)
            signalled = said == "signal"
            stopping = threading.Thread(target=self._stop_apart, name="leasehold-stop", daemon=True)
            stopping.start()
            while stopping.is_alive():
                with suppress(Empty):
                    if self._desk.get(timeout=0.1) == "signal":
                        if signalled:
                            log.warning("a second signal: what still runs is handed back now")
                            self.hurry()
                        signalled = True
        if self._failure is not None:
            raise self._failure
        return self.tally

    def end(self) -> None:
        """Make `run` stop as at a signal, without counting as one: once more changes nothing."""
        self._desk.put("end")

    def _told(self) -> str:
        while True:
            # Not for ever: a signal may reach another thread, as after SIGSTOP and SIGCONT, and does not end this wait.
            with suppress(Empty):
                return self._desk.get(timeout=0.5)

    def _stop_apart(self) -> None:
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
        running, free = self.runs.count_undecided, max(self.room(), 0)
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
            return "it is starting" if self._claimer.ident is None else "it claims no more"
        for thread in (self._settler, self._renewer, self._watch):
            if not thread.is_alive():
                return f"its thread {thread.name} has ended"
        if self._settler.failing:
            return "the store does not take its settlements"
        if self.runs.count_without_job >= self.concurrency:
            return "every slot is held by a handler that cannot be stopped"
        waited = (self._steady.now() - self._started_us) / 1_000_000 if since is None else since
        if free and waited > 2 * WAIT_SECONDS + LONGEST_REST_SECONDS:
            return "the store does not answer its claims"
        return ""

    # Claim

    def room(self) -> int:
        """Return how many handlers could begin now; below zero, so many jobs are claimed ahead."""
        return self.concurrency - self.runs.count_slots

    def claims_ahead(self) -> bool:
        """Return whether jobs may be claimed that cannot begin at once: unless a slot is held and may never be free."""
        return not self.runs.count_without_job

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        """The tasks that can be handled here, by name."""
        return self._shop.tasks

    def knows(self, task: str | None) -> bool:
        """Return whether jobs of *task* can be handled here."""
        return (task or "") in self._shop.tasks

    def is_empty(self) -> bool:
        """Return whether nothing is in flight here."""
        return not self.runs.count_in_flight

    def begin(self, grants: Sequence[Grant], sent_us: int, *, transferred: bool = False) -> None:
        """Begin what a claim or a transfer has got; a job that this worker cannot handle goes back."""
        tasks, store, reports, now = self._shop.tasks, self._store, self._progress, self._steady.now()
        runs: list[Run] = []
        soonest = now + 1_000_000
        leases = [Lease(store, grant, reports) for grant in grants]
        self._reporter.claimed(leases)
        for grant, lease in zip(grants, leases, strict=True):
            task = tasks.get(grant.spec.task or "")
            if task is None:
                self._unhandled(Run(self.runs, grant, lease, _NO_TASK, sent_us, now))
                continue
            run = Run(self.runs, grant, lease, task, sent_us, now, transferred=transferred)
            if grant.attempt and grant.reason in TAKEN:
                self._reporter.took_over(run)
            runs.append(run)
            if run.renew_us < soonest:
                soonest = run.renew_us
        self.runs.add(runs)
        # Before they begin, and after they are noted: `stop` may have looked before, and waits for no handler any more.
        if self.closing and transferred:
            for run in runs:
                self.waited(run)
        self._dispatcher.start(runs)
        self._renewer.wake_by(soonest)
        self._watch.wake_by(soonest)

    def _unhandled(self, run: Run) -> None:
        # No claim grants it; it was found after a lost reply, of a claim that knew more. The next claim parks it behind
        # its task, for a worker that knows it.
        self._reporter.unhandled(run.lease, self._shop.tasks)
        self.runs.add([run])
        self.waited(run)

    def waiting_transfers(self) -> list[Run]:
        """Return what was transferred here and waits for a slot."""
        return [run for run in self.runs.undecided() if run.transferred and run.waits]

    def _report(self) -> WorkerReport:
        """Return what this worker says of itself."""
        return WorkerReport(
            self.owner,
            self.given_name,
            this_process(),
            None if self.queues is None else tuple(self.queues),
            tuple(sorted(self._shop.tasks)),
            self.concurrency,
            sum(not run.waits for run in self.runs.undecided()),
            max(self._steady.now() - self._started_us, 0),
        )

    def swept(self) -> None:
        """Notice what upkeep has failed in this process."""
        self._observers.swept()

    # A handler, from its beginning to its end

    def _began(self, run: Run) -> None:
        run.began_us = self._steady.now()
        if run.transferred:
            run.moved(run.began_us)
        self._reporter.began(run)

    def _ended(self, run: Run, end: End) -> None:
        """Have the run settled as its handler's end says, or as the worker had decided before."""
        # Before the transition: it may take its time, since it calls the task's own delay function.
        settlement = self._settlement(run, end) if run.is_undecided else None
        if run.transition(EXECUTING, SETTLING):
            self._settler.put(Ending(run, settlement, end.error))
            if isinstance(end.error, Unguarded):
                self._claimer.fail(Unsupported(str(end.error)))
        else:
            self._ended_late(run, end, settlement)
        self._free(run)

    def _ended_late(self, run: Run, end: End, settlement: Settlement | None) -> None:
        """Settle a run that was stopped: as its handler says if it has returned a value, else as was decided."""
        verdict = run.verdict
        if run.transition(STOPPING, SETTLING if verdict is not None else OVER):
            if verdict is not None and end.error is None:
                self._settler.put(Ending(run, settlement))
            elif verdict is not None:
                self._settler.put(Ending(run, verdict, None if isinstance(end.error, Killed) else end.error))
        elif run.transition(OUTLIVED, SETTLING) or run.transition(LINGERING, OVER):
            self._reporter.returned(run)

    def _settlement(self, run: Run, end: End) -> Settlement | None:
        try:
            return settlement(run.task, run.grant, run.lease, end)
        except BaseException as error:
            log.exception("cannot tell how %r ended", run)
            return failed(run.task, run.grant, error, text="the error of the handler cannot be recorded")

    def _free(self, run: Run) -> None:
        """Give the slot of a run that has ended, or will never begin, to the next one."""
        self._dispatcher.free(run)
        self._claimer.freed()
        if not self._changed.is_set():
            self._changed.set()

    def _stop_run(self, run: Run, verdict: Settlement | None, report: Callable[[], None] = lambda: None) -> None:
        """Stop the handler where that can be done, and settle *verdict* when it has ended; else at once."""
        if run.transition(WAITING, SETTLING if verdict is not None else OVER):
            report()
            if verdict is not None:
                self._settler.put(Ending(run, verdict))
            self._free(run)
        elif run.transition(EXECUTING, STOPPING, Stop(self._steady.now(), verdict)):
            report()
            if not self._kinds[run.task.kind].stop(run):
                self.outlived(run)

    # What the keepers notice

    def lost(self, run: Run, refusal: Refusal | None) -> None:
        """Stop the handler of a lease that is lost."""
        lease = run.lease
        if run.stop is not None or (lease.lost and refusal is None):
            return
        if isinstance(refusal, Settled) or worker_side.settled(lease) is True:
            # By its own handler, which still runs: the job was not taken over, and there is nothing left to renew.
            run.deadline_us = run.renew_us = FAR
            return
        worker_side.note_lost(lease)
        if refusal is not None:
            self._stop_run(run, None, lambda: self._reporter.lost(run, refusal))
        elif run.waits or run.task.kind is not Kind.THREAD:
            self._stop_run(run, released(run.grant), lambda: self._reporter.lost(run, None))
        elif run.is_undecided:
            # It runs on a thread, which cannot be stopped, so let it end: the store will refuse its settlement or not.
            self._reporter.lost(run, None)

    def outran(self, run: Run) -> None:
        """Stop the handler and record an error: it has had its `run_seconds`."""
        if not run.is_undecided:
            return
        seconds = (run.run_us or 0) / 1_000_000
        text = f"the handler ran for longer than its run_seconds, {seconds:g}"
        kept = failure.written(
            f"TimeoutError: {text}", "(the worker keeps the time, and does not know where the handler was)"
        )
        verdict = failed(run.task, run.grant, TimeoutError(text), text=kept)
        self._stop_run(run, verdict, lambda: self._reporter.outran(run, text))

    def waited(self, run: Run) -> None:
        """Hand back a job that was claimed, if it has not begun."""
        if run.transition(WAITING, SETTLING):
            self._settler.put(Ending(run, released(run.grant)))
            self._free(run)

    def outlived(self, run: Run) -> None:
        """Settle what was decided about a handler that cannot be stopped, or does not stop. Its slot is not free."""
        verdict = run.verdict
        if run.transition(STOPPING, OUTLIVED if verdict is not None else LINGERING):
            self._reporter.outlived(run)
            if verdict is not None:
                self._settler.put(Ending(run, verdict))

    # Settle

    def _over(self, batch: list[Ending], refusals: list[Refusal | Exception | None]) -> None:
        """Let go of what the store has confirmed or refused: only now a run is over."""
        self._reporter.over(batch, refusals)
        self.runs.confirm([ending.run for ending in batch])


def _refuse_on_a_loop() -> None:
    """Refuse to block an event loop."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise Unsupported(
            "router.work() would block the event loop that runs on this thread: use `async with router.worker():`, "
            "whose async handlers run on that loop."
        )


def _unique(name: str) -> str:
    """Return an owner's name that no other process start has, also one that was given the same name."""
    return f"{name[:200]}:{os.getpid()}:{os.urandom(4).hex()}"


def _named(queues: Sequence[str] | None) -> str:
    return "all queues" if queues is None else "queues " + ", ".join(queues)
