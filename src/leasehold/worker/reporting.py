"""What a worker says about how its runs ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from ..core.job import Outcome, Settlement
from ..core.ownership import Reason
from ..errors import Settled
from ..lease import Lease
from ..store import Refusal
from .handling import Raised
from .log import log
from .run import Run
from .settling import Said
from .task import Unbindable, Unready

TAKEN = frozenset({Reason.TIMEOUT, Reason.STALL, Reason.RECOVERY})  # from an owner, who is refused
_COMPLETE = Outcome.COMPLETE  # in Python 3.11 an enum's member is found through its metaclass, ten times slower


@dataclass(slots=True)
class Tally:
    """How many runs of a worker ended how."""

    done: int = 0
    retried: int = 0  # an error, and the job goes back
    failed: int = 0  # an error, and it was the last
    released: int = 0  # handed back
    refused: int = 0  # somebody else has the job
    settled: int = 0  # by the handler itself, with lease.complete(), fail() or release()
    crashed: int = 0  # with the process of the handler, and the job was reclaimed

    def __str__(self) -> str:
        names = ("done", "settled", "retried", "failed", "released", "refused", "crashed")
        counted = [("settled by their handlers" if name == "settled" else name, getattr(self, name)) for name in names]
        return ", ".join(f"{count} {name}" for name, count in counted if count) or "nothing done"


class Reporter:
    """Counts and logs how runs came out at the store."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._counting = threading.Lock()  # a claim, a renewal and a settlement may tell of something at the same time
        self._strange: set[str | None] = set()  # tasks whose jobs go back, each logged once

    def over(self, batch: list[Said], refusals: list[Refusal | Exception | None]) -> None:
        """Tell of runs that are over."""
        done, chatty = 0, log.isEnabledFor(logging.DEBUG)
        with self._counting:
            for (run, said, error), refusal in zip(batch, refusals, strict=True):
                if refusal is None and said is not None and said.outcome is _COMPLETE:
                    done += 1
                    if chatty:
                        log.debug("job %s is done", _named(run), **_of(run))
                else:
                    self._over(run, said, error, refusal)
            self.tally.done += done

    def begins(self, runs: Iterable[Run]) -> None:
        """Tell of each that begins, where somebody wants to know as much."""
        if log.isEnabledFor(logging.DEBUG):
            for run in runs:
                log.debug("job %s begins, attempt %d", _named(run), run.lease.attempt, **_of(run))

    def took_over(self, run: Run) -> None:
        """Tell of a job that was taken from another owner."""
        log.info("took over job %s (%s)", _named(run), run.lease.reason, **_of(run))

    def _over(self, run: Run, said: Settlement | None, error: BaseException | None, refusal: Exception | None) -> None:
        if refusal is not None:
            self._refused(run, refusal, error)
        elif said is not None and said.outcome is Outcome.CRASH:
            self.tally.crashed += 1
            log.error("job %s goes back, and counts a reclaim: %s", _named(run), error, **_of(run))
        elif said is None:
            self.tally.settled += 1
            if error is not None:
                _say(
                    logging.WARNING,
                    run,
                    error,
                    "the handler of job %s raised after it had settled the job",
                    _named(run),
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
            log.warning("the lease of job %s was not renewed in time; others may take it", _named(run), **_of(run))
        else:
            with self._counting:
                self.tally.refused += 1
            log.warning("the lease of job %s is lost: %s", _named(run), refusal, **_of(run))

    def outran(self, run: Run, text: str) -> None:
        """Tell of a handler that has had its time."""
        log.warning("job %s: %s", _named(run), text, **_of(run))

    def outlived(self, run: Run) -> None:
        """Tell of a handler that goes on although its job is settled."""
        log.warning(
            "the handler of job %s cannot be stopped, keeps its slot, and is refused from now on",
            _named(run),
            **_of(run),
        )

    def returned(self, run: Run) -> None:
        """Tell that such a handler has ended."""
        log.info("the handler of job %s has ended, after its job went on without it", _named(run), **_of(run))

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
        _say(logging.WARNING, run, error, "job %s: what its handler said is refused: %s", _named(run), refusal)

    def _unbindable(self, run: Run, error: BaseException) -> None:
        if isinstance(error, Unready):
            log.error("job %s goes back: %s", _named(run), error, **_of(run))
        elif self._is_new(run.task.name):
            log.warning("job %s goes back, since its arguments do not fit: %s", _named(run), error, **_of(run))

    def _failed(self, run: Run, said: Settlement, error: BaseException | None) -> None:
        lease, errors = run.lease, run.lease._grant.errors + 1
        if said.retry and errors < lease.retry.max_errors:
            self.tally.retried += 1
            rest, most = said.delay_us / 1_000_000, lease.retry.max_errors
            text = "job %s failed, %d of %d; again in %.3g s"
            _say(logging.WARNING, run, error, text, _named(run), errors, most, rest)
        else:
            self.tally.failed += 1
            why = "after 1 error" if errors == 1 else f"after {errors} errors"
            why += "" if said.retry else ", since this one is final"
            _say(logging.ERROR, run, error, "job %s failed for good, %s", _named(run), why)


class _Facts(TypedDict):
    extra: dict[str, object]
    exc_info: BaseException | None


def _say(level: int, run: Run, error: BaseException | None, text: str, *args: object) -> None:
    """Log with the error. One of a process has no frames here, and brings those that it had there."""
    if isinstance(error, Raised):
        log.log(level, text + "\n%s", *args, error.told(), **_of(run))
    else:
        log.log(level, text, *args, **_of(run, error))


def _named(run: Run) -> str:
    lease = run.lease
    return repr(lease.job_id) if lease.task is None else f"{lease.job_id!r} ({lease.task})"


def _of(run: Run, error: BaseException | None = None) -> _Facts:
    """Return the facts of a run, for logs that a program reads."""
    lease = run.lease
    facts: dict[str, object] = {"job_id": lease.job_id, "task": lease.task, "epoch": lease.epoch, "owner": lease.owner}
    return {"extra": facts, "exc_info": error}
