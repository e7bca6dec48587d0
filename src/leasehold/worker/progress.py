"""
Writes the progress that handlers report, at most once a second for each job.

A report without a checkpoint tells people how far a job is, and nothing depends on each of them: a transaction for
every one would only make the handler wait. What a report does decide is whether its job stalls, so it is written within
a third of the job's `stall_seconds`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from ..core.clock import Clock
from ..core.job import Grant, Progress
from ..core.wording import counted
from ..errors import StoreUnavailable
from ..store import Refusal, Store
from .log import log
from .run import Run, Runs
from .sleeper import Keeper, Sleeper

_WITHIN_US = 1_000_000
_TOGETHER_US = 100_000  # those that are due within this time are one transaction
_LEAST_US = 50_000  # what must be written sooner than this is written at once
_AGAIN_US = 500_000
_MOST = 1_000  # in one transaction
_IDLE_US = 60_000_000


class _Waiting(NamedTuple):
    report: Progress
    due_us: int
    within_us: int


class ProgressWriter(Sleeper):
    """
    Keeps the newest report of each run in flight until it is due. Its thread starts with the first report.

    The *keeper* learns of a report that the store has refused; one that it could not take is tried again.
    """

    def __init__(self, store: Store, steady: Clock, runs: Runs, keeper: Keeper) -> None:
        super().__init__("leasehold-progress", steady, runs)
        self._store = store
        self._keeper = keeper
        self._changed = threading.Condition()  # holds all that follows; notified when a write is over
        self._waiting: dict[int, _Waiting] = {}  # by epoch
        self._writing: set[int] = set()  # epochs
        self._most = _MOST
        self._started_it = False
        self._failing = False

    # For leases

    def put(self, grant: Grant, report: Progress) -> bool:
        """Write *report* before long; return False if the caller must write it now."""
        stall_us, epoch = grant.spec.stall_us, grant.epoch
        within = _WITHIN_US if stall_us is None else min(_WITHIN_US, stall_us // 3)
        # One that is no longer in flight goes to the store, which refuses it.
        if within < _LEAST_US or self._ended or self._runs.find(epoch) is None:
            return False
        due = self._steady.now() + within
        if within == _WITHIN_US:
            due = -(-due // _TOGETHER_US) * _TOGETHER_US
        with self._changed:
            waiting = self._waiting.get(epoch)
            if waiting is not None:
                self._waiting[epoch] = waiting._replace(report=report.after(waiting.report))
                return True
            self._waiting[epoch] = _Waiting(report, due, within)
            if not self._started_it:
                self._started_it = True
                self.start()
        self.wake_by(due)
        return True

    def take(self, epoch: int, *, wait: bool = True) -> Progress | None:
        """Return what waits, for the caller to write, after a write that is under way."""
        if not self._has_any():
            return None
        with self._changed:
            while wait and epoch in self._writing:
                self._changed.wait()
            waiting = self._waiting.pop(epoch, None)
        return None if waiting is None else waiting.report

    def flush(self, grant: Grant) -> None:
        """Write what waits for this lease, now."""
        report = self.take(grant.epoch)
        if report is not None:
            self._store.progress([report])

    # For the worker

    def flush_all(self, runs: Iterable[Run]) -> None:
        """Write what waits for *runs*, which are about to be settled. What is refused, their settlements are too."""
        if not self._has_any():
            return
        with self._changed:
            batch = {}
            for run in runs:
                while run.grant.epoch in self._writing:
                    self._changed.wait()
                if (waiting := self._waiting.pop(run.grant.epoch, None)) is not None:
                    batch[run.grant.epoch] = waiting
            self._writing.update(batch)
        if batch:
            error = self._write(batch)[1]
            if error is not None:
                raise error

    def end(self) -> None:
        """Write no more: what comes from now on, its lease writes at once."""
        self._ended = True
        with self._changed:
            started = self._started_it
        if started:
            super().end()

    def _has_any(self) -> bool:
        # Without the lock, as each handler that ends comes here: what is being written is in both for a moment.
        return bool(self._waiting or self._writing)

    # On its thread

    def _look(self, runs: list[Run]) -> int:
        now = self._steady.now()
        batch = self._due(now)
        if batch:
            for epoch, refusal in self._write(batch)[0].items():
                run = self._runs.find(epoch)
                if run is not None:
                    self._keeper.lost(run, refusal)
        with self._changed:
            return min((waiting.due_us for waiting in self._waiting.values()), default=now + _IDLE_US)

    def _due(self, now: int) -> dict[int, _Waiting]:
        """Take out what is due, of runs that are still in flight."""
        with self._changed:
            for epoch in [epoch for epoch in self._waiting if self._runs.find(epoch) is None]:
                del self._waiting[epoch]
            due = [(epoch, waiting) for epoch, waiting in self._waiting.items() if waiting.due_us <= now]
            batch = dict(due[: self._most])
            self._writing.update(batch)
            for epoch in batch:
                del self._waiting[epoch]
        return batch

    def _write(self, batch: dict[int, _Waiting]) -> tuple[dict[int, Refusal], StoreUnavailable | None]:
        """Write what was taken out; return the refusals. What the store could not take now waits again."""
        failure: StoreUnavailable | None = None
        replies: list[Refusal | None] = []
        try:
            replies = self._store.progress([waiting.report for waiting in batch.values()])
        except StoreUnavailable as error:
            failure = error
            self._failed(len(batch), error)
        except Exception:
            log.exception("could not write %s", counted(len(batch), "progress report", "progress reports"))
        else:
            self._failing, self._most = False, _MOST
        with self._changed:
            if failure is not None:
                self._put_back(batch)
            self._writing.difference_update(batch)
            self._changed.notify_all()
        return {epoch: reply for epoch, reply in zip(batch, replies, strict=False) if reply is not None}, failure

    def _put_back(self, batch: dict[int, _Waiting]) -> None:
        now = self._steady.now()
        for epoch, earlier in batch.items():
            newer = self._waiting.get(epoch)
            report = earlier.report if newer is None else newer.report.after(earlier.report)
            self._waiting[epoch] = _Waiting(report, now + min(_AGAIN_US, earlier.within_us), earlier.within_us)

    def _failed(self, count: int, error: StoreUnavailable) -> None:
        if not self._failing:
            log.warning(
                "could not write %s; retrying: %s", counted(count, "progress report", "progress reports"), error
            )
        self._failing = True
        self._most = max(count // 2, 1)  # maybe one of them is locked, and the others are not
