"""Turns what happens to runs into counts, log lines and events."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..core import failure
from ..core.job import Grant, Outcome, Settlement
from ..core.ownership import Reason
from ..core.redaction import HIDDEN
from ..core.wording import printable
from ..errors import Settled, StaleEpoch
from ..lease import Lease, worker_side
from ..store import Refusal
from ..tasks.task import Unbindable, Unready
from . import events
from .calling import Raised
from .events import Observers
from .log import log
from .run import Run
from .settling import Ending

TAKEN = frozenset({Reason.TIMEOUT, Reason.STALL, Reason.RECOVERY})  # from an owner, who is refused
_COMPLETE = Outcome.COMPLETE  # in Python 3.11 an enum's member is found through its metaclass, ten times slower


@dataclass(slots=True)
class Tally:
    """How many runs of a worker ended how."""

    done: int = 0
    retried: int = 0  # an error, and the job goes back
    failed: int = 0  # an error, and it was the last
    released: int = 0  # handed back
    refused: int = 0  # another owner has the job
    settled: int = 0  # by the handler itself, with lease.complete(), fail() or release()
    crashed: int = 0  # with the process of the handler, and the job was reclaimed
    left: int = 0  # pending at the end of `until_empty`: in paused queues, or of tasks that are unknown here

    def count(self, event: events.Event) -> None:
        """Count an event: the first listener."""
        if isinstance(event, events.Settled):
            setattr(self, event.outcome, getattr(self, event.outcome) + 1)
        elif isinstance(event, events.Refused) and isinstance(event.refusal, Settled):
            self.settled += 1
        elif isinstance(event, events.Refused) or (isinstance(event, events.Lost) and event.refusal is not None):
            self.refused += 1

    def __str__(self) -> str:
        names = ("done", "settled", "retried", "failed", "released", "refused", "crashed", "left")
        words = {"settled": "settled by their handlers", "left": "left pending"}
        counted = [(words.get(name, name), getattr(self, name)) for name in names]
        return ", ".join(f"{count} {name}" for name, count in counted if count) or "nothing done"


class Reporter:
    """Turns what happens to runs into events: for the tally and the log, in place, and for the observers."""

    def __init__(self, observers: Observers | None = None, hides_errors: bool = False) -> None:
        self.tally = Tally()
        self._hides_errors = hides_errors
        self._observers = observers
        self._counting = threading.Lock()  # a claim, a renewal and a settlement may report at the same time
        self._losses: deque[tuple[Run, Exception | None]] = deque()
        self._reporting_losses = threading.Lock()
        self._strange: set[str | None] = set()  # tasks whose jobs go back, each logged once

    def emit(self, event: events.Event) -> None:
        """Pass *event* to the tally, the log and the observers."""
        with self._counting:
            self.tally.count(event)
        _write(event, self._hides_errors)
        if self._observers is not None:
            self._observers.put(event)

    def wants(self, event: type[events.Event]) -> bool:
        """Return whether a listener or the log is interested in each *event*."""
        return log.isEnabledFor(logging.DEBUG) or (self._observers is not None and self._observers.want(event))

    def over(self, batch: list[Ending], refusals: list[Refusal | Exception | None]) -> None:
        """Report runs that are over."""
        done, each = 0, self.wants(events.Settled)
        for (run, settlement, error), refusal in zip(batch, refusals, strict=True):
            if refusal is None and settlement is not None and settlement.outcome is _COMPLETE and not each:
                done += 1  # nearly all of them: counted together
            else:
                self._over(run, settlement, error, refusal)
        with self._counting:
            self.tally.done += done

    def _over(
        self, run: Run, settlement: Settlement | None, error: BaseException | None, refusal: Exception | None
    ) -> None:
        lease = run.lease
        if refusal is None:
            outcome = _outcome(run.grant, settlement)
            if outcome == "released" and isinstance(error, Unbindable):
                self._unbindable(lease, error)
            self.emit(events.Settled(lease, outcome, error, settlement))
            if outcome in ("failed", "crashed", "settled"):
                self._ended(lease)
            return
        if isinstance(refusal, Settled):
            self._ended(lease)
        else:
            worker_side.note_lost(lease)
        self.emit(events.Refused(lease, refusal, error))
        self._cancelled(lease, refusal)

    def _ended(self, lease: Lease) -> None:
        """Have the observers see whether the job has failed: only the store knows what a handler or a crash came to."""
        if self._observers is not None:
            self._observers.ended(lease.job_id, lease.epoch)

    def _cancelled(self, lease: Lease, refusal: Exception) -> None:
        if isinstance(refusal, StaleEpoch) and refusal.reason is Reason.CANCELLATION:
            self.emit(events.Cancelled(lease, refusal))

    def claimed(self, leases: Iterable[Lease]) -> None:
        """Report jobs that were claimed."""
        if self.wants(events.Claimed):
            for lease in leases:
                self.emit(events.Claimed(lease))

    def began(self, run: Run) -> None:
        """Report a handler that begins; the caller asks before whether a listener or the log wants to know."""
        self.emit(events.Started(run.lease))

    def took_over(self, run: Run) -> None:
        """Report a job that was taken from another owner."""
        facts = _of(run.lease, "ownership", began=str(run.lease.reason))
        log.info("took over job %s (%s)", _named(run.lease), run.lease.reason, extra=facts)

    def unhandled(self, lease: Lease, tasks: Iterable[str]) -> None:
        """Report a job that goes back because its task is unknown here."""
        if self._is_new(lease.task):
            what = (
                "has no task"
                if lease.task is None
                else f"is for the task {lease.task!r}, which this worker does not know"
            )
            known = ", ".join(sorted(tasks)) or "none"
            log.warning(
                "job %r %s, so it is released for other workers; the tasks of this worker: %s",
                lease.job_id,
                what,
                known,
                extra=_of(lease, "released"),
            )

    def lost(self, run: Run, refusal: Exception | None) -> None:
        """Report a lease that was lost while its handler worked: once, and again only if that adds the reason."""
        # The deadline and a refusal may come from two threads. One of them reports both, in the order in which they
        # came. A lock around the report would block the other thread for as long as a handler of the log takes.
        self._losses.append((run, refusal))
        while self._losses and self._reporting_losses.acquire(blocking=False):
            try:
                while self._losses:
                    self._report_loss(*self._losses.popleft())
            finally:
                self._reporting_losses.release()

    def _report_loss(self, run: Run, refusal: Exception | None) -> None:
        news = 1 if refusal is None else 2
        if run.loss_reported >= news:
            return
        run.loss_reported = news
        self.emit(events.Lost(run.lease, refusal))
        if refusal is not None:
            self._cancelled(run.lease, refusal)

    def outran(self, run: Run, text: str) -> None:
        """Report a handler that has had its time."""
        log.warning("job %s: %s", _named(run.lease), text, extra=_of(run.lease))

    def outlived(self, run: Run) -> None:
        """Report a handler that goes on although its job is settled."""
        log.warning(
            "the handler of job %s cannot be stopped; it keeps its slot, and what it writes is refused from now on",
            _named(run.lease),
            extra=_of(run.lease),
        )

    def returned(self, run: Run) -> None:
        """Report that such a handler has ended."""
        log.info(
            "the handler of job %s, which could not be stopped, has now ended; its result is ignored, since the worker "
            "had already decided the job's outcome or lost its lease",
            _named(run.lease),
            extra=_of(run.lease),
        )

    def _is_new(self, task: str | None) -> bool:
        new = task not in self._strange
        self._strange.add(task)
        return new

    def _unbindable(self, lease: Lease, error: BaseException) -> None:
        why = HIDDEN if self._hides_errors else error
        facts = _of(lease, "released", error=str(why))
        if isinstance(error, Unready):
            log.error("job %s was released: %s", _named(lease), why, extra=facts)
        elif self._is_new(lease.task):
            log.warning(
                "job %s was released, since its arguments do not fit its task: %s", _named(lease), why, extra=facts
            )


def _outcome(grant: Grant, settlement: Settlement | None) -> events.Outcome:
    """Return what a settlement that the store has accepted came to."""
    if settlement is None:
        return "settled"
    if settlement.outcome is _COMPLETE:
        return "done"
    if settlement.outcome is Outcome.CRASH:
        return "crashed"
    if settlement.outcome is Outcome.RELEASE:
        return "released"
    return "retried" if settlement.retry and grant.errors + 1 < grant.spec.retry.max_errors else "failed"


def _write(event: events.Event, hides_errors: bool) -> None:
    """Log an event: the second listener."""
    match event:
        case events.Settled(lease, outcome, error, settlement):
            _write_settled(lease, outcome, error, settlement, hides_errors)
        case events.Refused(lease, refusal, error):
            text = "job %s: its result was refused: %s"
            _log(logging.WARNING, _of(lease, "refused"), error, hides_errors, text, _named(lease), refusal)
        case events.Lost(lease, None):
            text = "the lease of job %s was not renewed in time; another worker may take the job"
            log.warning(text, _named(lease), extra=_of(lease, "lost"))
        case events.Lost(lease, refusal):
            log.warning("the lease of job %s is lost: %s", _named(lease), refusal, extra=_of(lease, "lost"))
        case events.Started(lease):
            log.debug("job %s started, attempt %d", _named(lease), lease.attempt, extra=_of(lease, "started"))


def _write_settled(
    lease: Lease,
    outcome: events.Outcome,
    error: BaseException | None,
    settlement: Settlement | None,
    hides_errors: bool,
) -> None:
    errors = worker_side.grant_of(lease).errors + 1
    if outcome == "done":
        log.debug("job %s is done", _named(lease), extra=_of(lease, "done"))
    elif outcome == "crashed":
        facts = _of(lease, "reclaimed", error=str(error))
        log.error("the handler of job %s crashed, which counts as a reclaim: %s", _named(lease), error, extra=facts)
    elif outcome == "settled" and error is not None:
        text = "the handler of job %s raised after it had settled the job"
        _log(logging.WARNING, _of(lease), error, hides_errors, text, _named(lease))
    elif outcome == "retried" and settlement is not None:
        text, most, delay = (
            "job %s failed (error %d of %d); retrying in %.3g s",
            lease.retry.max_errors,
            settlement.delay_us / 1e6,
        )
        facts = _of(lease, "retried", errors=errors, delay_seconds=delay)
        _log(logging.WARNING, facts, error, hides_errors, text, _named(lease), errors, most, delay)
    elif outcome == "failed" and settlement is not None:
        why = "after 1 error" if errors == 1 else f"after {errors} errors"
        why += "" if settlement.retry else ", since this one is final"
        facts = _of(lease, "failed", errors=errors)
        _log(logging.ERROR, facts, error, hides_errors, "job %s failed for good, %s", _named(lease), why)


def _log(
    level: int, facts: dict[str, object], error: BaseException | None, hides_errors: bool, text: str, *args: object
) -> None:
    """Log with the error. One of a process has no frames here, and brings those that it had there."""
    if error is None:
        log.log(level, text, *args, extra=facts)
        return
    kind, message = _class_and_message(error)
    facts |= {"error": HIDDEN if hides_errors else message, "error_type": kind}
    if hides_errors:
        log.log(level, text + ": %s: %s", *args, kind or "an error", HIDDEN, extra=facts)
    elif isinstance(error, Raised):
        log.log(level, text + "\n%s", *args, error.traceback(), extra=facts)
    else:
        log.log(level, text, *args, extra=facts, exc_info=error)


def _class_and_message(error: BaseException) -> failure.Failure:
    """Return the class and the message of an error, as the job keeps them."""
    if isinstance(error, Raised):
        return failure.read(str(error.args[0]))
    try:
        return failure.Failure(_class(error), str(error))
    except BaseException:  # what its `__str__` raises would end the thread that settles for the whole worker
        return failure.Failure(_class(error), "<exception str() failed>")


def _class(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _named(lease: Lease) -> str:
    return repr(lease.job_id) if lease.task is None else f"{lease.job_id!r} ({printable(lease.task)})"


def _of(lease: Lease, kind: str | None = None, **more: object) -> dict[str, object]:
    """Return the facts of a lease, for logs that a program reads; *kind* is that of the event."""
    named = {"kind": kind} if kind is not None else {}
    spec = worker_side.grant_of(lease).spec
    facts = {
        "job_id": lease.job_id,
        "task": lease.task,
        "queue": spec.queue,
        "epoch": lease.epoch,
        "owner": lease.owner,
    }
    return {**named, **facts, "attempt": lease.attempt, **more}
