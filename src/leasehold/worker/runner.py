"""
From a grant to its settlement: begins handlers, stops them, and has what they end with settled.

Here are the decisions. Each is a transition of a run (see `run`), and the thread whose transition succeeds has the run
settled: so each is settled once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..core import failure
from ..core.clock import FAR, Clock
from ..core.job import Grant, Settlement
from ..core.wording import counted
from ..errors import Settled, Unsupported
from ..lease import Lease, worker_side
from ..store import Refusal
from ..tasks.task import Kind
from .calling import End, failed, released, settlement
from .dispatching import Dispatcher
from .events import Started
from .executor import Executor
from .executors.loop import Loop
from .executors.process.pool import Processes
from .executors.process.supervisor import Killed, Unguarded
from .executors.threads import Threads
from .log import log
from .progress import ProgressWriter
from .renewing import Renewer
from .reporting import TAKEN, Reporter
from .run import EXECUTING, LINGERING, OUTLIVED, OVER, SETTLING, STOPPING, WAITING, Run, Runs, Stop
from .settling import Ending, Settler
from .shop import Shop
from .watching import Watch

_NO_TASK: Any = None  # the task of a job that only goes back
# With a grace of 25 seconds, all of this is over before Kubernetes' 30.
_CLEAN_UP_SECONDS = 1.5  # for handlers that were stopped at the end
_LAST_SECONDS = 1.5  # for settlements, at the end


class Runner:
    """Runs what its worker was granted, as many at a time as there are slots."""

    def __init__(self, shop: Shop, slots: int, steady: Clock, reporter: Reporter) -> None:
        self.runs = Runs()
        self.closing = False  # from the beginning of the worker's `stop`: nothing begins any more
        self._shop = shop
        self._store = shop.store
        self._slots = slots
        self._steady = steady
        self._reporter = reporter
        self._changed = threading.Event()  # a run has ended, or `hurry` was called
        self._hurried = False
        self._reports_starts = False  # looked up once for each claim, not for each run

    # From start to stop

    def open(
        self,
        loop: asyncio.AbstractEventLoop | None,
        freed: Callable[[], None],
        unable: Callable[[Exception], None],
    ) -> None:
        """
        Make executors and threads, and start none of them; async handlers run on *loop*, if there is one.

        *freed* is called when a slot may be free, *unable* when no handler of a task can ever begin here.
        """
        self._freed = freed
        self._unable = unable
        store, steady, hooks = self._store, self._steady, self._shop.hooks
        self.loop = Loop(hooks, self._began, self._ended, loop)
        self._executors: dict[Kind, Executor] = {
            Kind.THREAD: Threads(self._slots, hooks, self._began, self._ended),
            Kind.LOOP: self.loop,
            Kind.PROCESS: Processes(self._slots, self._began, self._ended),
        }
        self.dispatcher = Dispatcher(self._slots, self._executors, self.runs.lock)
        self.progress = ProgressWriter(store, steady, self.runs, self)
        self.settler = Settler(store, steady, self._over, self.is_empty, self.progress.flush_all)
        self.renewer = Renewer(store, steady, self.runs, self)
        self.watch = Watch(steady, self.runs, self)

    def start(self) -> None:
        """Start the threads."""
        for thread in (self.settler, self.renewer, self.watch):
            thread.start()

    def finish(self, until: int) -> None:
        """Hand back what has not begun, wait for handlers until that instant, and hand back the others."""
        self.closing = True
        for run in self.runs.undecided():
            self.waited(run)
        if not self.wait_for_handlers(until):
            self._hand_back()

    def end(self) -> int:
        """Settle what is left and end the threads; return how many jobs the store did not let us settle."""
        unsettled = 0
        if not self.settler.close(_LAST_SECONDS):
            unsettled = self.runs.count_in_flight
            jobs = counted(unsettled, "job", "jobs")
            log.error("the store does not answer; could not settle %s, which will be reclaimed", jobs)
        for thread in (self.renewer, self.watch, self.progress):
            thread.end()
        return unsettled

    def close(self) -> None:
        """Let go of the executors."""
        for executor in self._executors.values():
            executor.close()

    def hurry(self) -> None:
        """Make a `finish` that waits for handlers hand their jobs back now."""
        self._hurried = True
        self._changed.set()

    def wait_for_handlers(self, until: int) -> bool:
        """Wait until no handler runs, or `hurry` is called, or *until* has come; return whether none runs."""
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
        some = ", ".join(run.grant.spec.id for run in runs[:10])
        jobs = counted(len(runs), "job", "jobs")
        log.warning("releasing %s whose handlers have not ended: %s%s", jobs, some, " …" if len(runs) > 10 else "")
        for run in runs:
            self._stop_run(run, released(run.grant))
        self._hurried = False
        self.wait_for_handlers(self._steady.now() + round(_CLEAN_UP_SECONDS * 1_000_000))
        for run in self.runs.undecided():
            self.outlived(run)

    # Claim

    def room(self) -> int:
        """Return how many handlers could begin now; below zero, so many jobs are claimed ahead."""
        return self._slots - self.runs.count_slots

    def claims_ahead(self) -> bool:
        """Return whether jobs may be claimed that cannot begin at once: unless a slot is held and may never be free."""
        return not self.runs.count_without_job

    def is_empty(self) -> bool:
        """Return whether nothing is in flight here."""
        return not self.runs.count_in_flight

    def begin(self, grants: Sequence[Grant], sent_us: int, *, transferred: bool = False) -> None:
        """Begin what a claim or a transfer has got; a job that this worker cannot handle goes back."""
        tasks, store, reports, now = self._shop.tasks, self._store, self.progress, self._steady.now()
        runs: list[Run] = []
        soonest = now + 1_000_000
        leases = [Lease(store, grant, reports) for grant in grants]
        self._reporter.claimed(leases)
        self._reports_starts = self._reporter.wants(Started)
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
        self.dispatcher.start(runs)
        self.renewer.wake_by(soonest)
        self.watch.wake_by(soonest)

    def _unhandled(self, run: Run) -> None:
        # No claim grants it; it was found after a lost reply, of a claim that knew more. The next claim parks it behind
        # its task, for a worker that knows it.
        self._reporter.unhandled(run.lease, self._shop.tasks)
        self.runs.add([run])
        self.waited(run)

    def waiting_transfers(self) -> list[Run]:
        """Return what was transferred here and waits for a slot."""
        return [run for run in self.runs.undecided() if run.transferred and run.waits]

    # A handler, from its beginning to its end

    def _began(self, run: Run) -> None:
        run.began_us = self._steady.now()
        if run.transferred:
            run.moved(run.began_us)
        if self._reports_starts:
            self._reporter.began(run)

    def _ended(self, run: Run, end: End) -> Run | None:
        """Have the run settled as its handler ended, or as was decided before; return the next run for its executor."""
        decided: Settlement | None = None
        if run.state <= STOPPING:
            # Before the transition: it may take its time, since it calls the task's own delay function.
            try:
                decided = settlement(run.task, run.grant, run.lease, end)
            except BaseException as error:
                log.exception(
                    "could not determine how the handler of job %r ended; recording it as an error", run.lease.job_id
                )
                decided = failed(run.task, run.grant, error, text="the error of the handler cannot be recorded")
        is_first, following = self.dispatcher.settle(run)
        if is_first:
            self.settler.put(Ending(run, decided, end.error))
            if end.error is not None and isinstance(end.error, Unguarded):
                self._unable(Unsupported(str(end.error)))
        else:
            self._ended_late(run, end, decided)
            following = self.dispatcher.replace(run)
        self._freed()
        if self.closing:
            self._changed.set()
        return following

    def _ended_late(self, run: Run, end: End, settlement: Settlement | None) -> None:
        """Settle a run that was stopped: as its handler says if it has returned a value, else as was decided."""
        verdict = run.verdict
        if run.transition(STOPPING, SETTLING if verdict is not None else OVER):
            if verdict is not None and end.error is None:
                self.settler.put(Ending(run, settlement))
            elif verdict is not None:
                self.settler.put(Ending(run, verdict, None if isinstance(end.error, Killed) else end.error))
        elif run.transition(OUTLIVED, SETTLING) or run.transition(LINGERING, OVER):
            self._reporter.returned(run)

    def _free(self, run: Run) -> None:
        """Give the slot of a run that will never begin to the next one."""
        self.dispatcher.free(run)
        self._freed()
        if self.closing:
            self._changed.set()

    def _stop_run(self, run: Run, verdict: Settlement | None, report: Callable[[], None] = lambda: None) -> None:
        """Stop the handler where that can be done, and settle *verdict* when it has ended; else at once."""
        if run.transition(WAITING, SETTLING if verdict is not None else OVER):
            report()
            if verdict is not None:
                self.settler.put(Ending(run, verdict))
            self._free(run)
        elif run.transition(EXECUTING, STOPPING, Stop(self._steady.now(), verdict)):
            report()
            if not self._executors[run.task.kind].stop(run):
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
            f"TimeoutError: {text}",
            "(no traceback: the worker only measures the time, and cannot see where the handler was)",
        )
        verdict = failed(run.task, run.grant, TimeoutError(text), text=kept)
        self._stop_run(run, verdict, lambda: self._reporter.outran(run, text))

    def waited(self, run: Run) -> None:
        """Hand back a job that was claimed, if it has not begun."""
        if run.transition(WAITING, SETTLING):
            self.settler.put(Ending(run, released(run.grant)))
            self._free(run)

    def outlived(self, run: Run) -> None:
        """Settle what was decided about a handler that cannot be stopped, or does not stop. Its slot is not free."""
        verdict = run.verdict
        if run.transition(STOPPING, OUTLIVED if verdict is not None else LINGERING):
            self._reporter.outlived(run)
            if verdict is not None:
                self.settler.put(Ending(run, verdict))

    # Settle

    def _over(self, batch: list[Ending], refusals: list[Refusal | Exception | None]) -> None:
        """Let go of what the store has confirmed or refused: only now a run is over."""
        self._reporter.over(batch, refusals)
        self.runs.confirm([ending.run for ending in batch])
