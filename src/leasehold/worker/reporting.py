"""What a worker says about how its runs ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from ..core.job import Outcome, Settlement
from ..errors import Settled
from ..lease import Lease
from ..store import Refusal
from .handling import Crashed
from .log import log
from .run import Run
from .settling import Said
from .task import Unbindable

_COMPLETE = Outcome.COMPLETE  # in Python 3.11 an enum's member is found through its metaclass, ten times slower


@dataclass(slots=True)
class Tally:
    """How many runs of a worker ended how."""

    done: int = 0
    retried: int = 0  # an error, and the job goes back
    failed: int = 0  # an error, and it was the last
    released: int = 0  # handed back
    refused: int = 0  # somebody else has the job
    settled: int = 0  # by the handler itself
    crashed: int = 0  # with the process of the handler, and the job was reclaimed

    def __str__(self) -> str:
        names = ("done", "settled", "retried", "failed", "released", "refused", "crashed")
        counted = [(name, getattr(self, name)) for name in names]
        return ", ".join(f"{count} {name}" for name, count in counted if count) or "nothing done"


class Reporter:
    """Counts and logs how runs came out at the store."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._counting = threading.Lock()  # a claim, a renewal and a settlement may tell of something at the same time
        self._strange: set[str | None] = set()  # tasks whose jobs go back, each logged once

    def over(self, batch: list[Said], refusals: list[Refusal | Exception | None]) -> None:
        """Tell of runs that are over."""
        done = 0
        with self._counting:
            for (run, said, error), refusal in zip(batch, refusals, strict=True):
                if refusal is None and said is not None and said.outcome is _COMPLETE:
                    done += 1
                else:
                    self._over(run, said, error, refusal)
            self.tally.done += done

    def _over(self, run: Run, said: Settlement | None, error: BaseException | None, refusal: Exception | None) -> None:
        if refusal is not None:
            self._refused(run, refusal, error)
        elif isinstance(error, Crashed) and said is None:
            self.tally.crashed += 1
            log.error("job %r goes back, and counts a reclaim: %s", run.lease.job_id, error, **_of(run))
        elif said is None:
            self.tally.settled += 1
            if error is not None:
                log.warning(
                    "the handler of job %r raised after it had settled the job", run.lease.job_id, **_of(run, error)
                )
        elif said.outcome is Outcome.RELEASE:
            self.tally.released += 1
            if isinstance(error, Unbindable):
                self._unbindable(run, error)
        else:
            self._failed(run, said, error)

    def unhandled(self, lease: Lease, tasks: Iterable[str]) -> None:
        """Tell of a job that goes back because nobody here knows its task."""
        if self._is_new(lease.task):
            what = "names no task" if lease.task is None else f"is for the task {lease.task!r}, which is not known here"
            known = ", ".join(sorted(tasks)) or "none"
            log.warning("job %r %s, so it goes back for others; tasks here: %s", lease.job_id, what, known)

    def lost(self, run: Run, refusal: Exception | None) -> None:
        """Tell of a lease that was lost while its handler worked."""
        if refusal is None:
            log.warning("the lease of job %r was not renewed in time; others may take it", run.lease.job_id, **_of(run))
        else:
            with self._counting:
                self.tally.refused += 1
            log.warning("the lease of job %r is lost: %s", run.lease.job_id, refusal, **_of(run))

    def outran(self, run: Run, text: str) -> None:
        """Tell of a handler that has had its time."""
        log.warning("job %r: %s", run.lease.job_id, text, **_of(run))

    def outlived(self, run: Run) -> None:
        """Tell of a handler that goes on although its job is settled."""
        log.warning(
            "the handler of job %r cannot be stopped, keeps its slot, and is refused from now on",
            run.lease.job_id,
            **_of(run),
        )

    def returned(self, run: Run) -> None:
        """Tell that such a handler has ended."""
        log.info("the handler of job %r has ended, after its job went on without it", run.lease.job_id, **_of(run))

    def _is_new(self, task: str | None) -> bool:
        new = task not in self._strange
        self._strange.add(task)
        return new

    def _refused(self, run: Run, refusal: Exception, error: BaseException | None) -> None:
        if isinstance(refusal, Settled):
            self.tally.settled += 1
        else:
            self.tally.refused += 1
            run.lease._lost = True
        log.warning("job %r: what its handler said is refused: %s", run.lease.job_id, refusal, **_of(run, error))

    def _unbindable(self, run: Run, error: BaseException) -> None:
        if self._is_new(run.task.name):
            log.warning("job %r goes back, since its arguments do not fit: %s", run.lease.job_id, error, **_of(run))

    def _failed(self, run: Run, said: Settlement, error: BaseException | None) -> None:
        lease, errors = run.lease, run.lease._grant.errors + 1
        if said.retry and errors < lease.retry.max_errors:
            self.tally.retried += 1
            rest = said.delay_us / 1_000_000
            most = lease.retry.max_errors
            log.warning("job %r failed, %d of %d; again in %.3g s", lease.job_id, errors, most, rest, **_of(run, error))
        else:
            self.tally.failed += 1
            log.error("job %r failed for good", lease.job_id, **_of(run, error))


class _Facts(TypedDict):
    extra: dict[str, object]
    exc_info: BaseException | None


def _of(run: Run, error: BaseException | None = None) -> _Facts:
    """Return the facts of a run, for logs that a program reads."""
    lease = run.lease
    facts: dict[str, object] = {"job_id": lease.job_id, "task": lease.task, "epoch": lease.epoch, "owner": lease.owner}
    return {"extra": facts, "exc_info": error}
