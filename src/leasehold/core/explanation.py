"""Why a job is not running, or not moving: one sentence, made of what a store shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from . import instants
from .job import Job, Status
from .lifecycle import reclaim_cause
from .parking import LOCK
from .queues import Queue
from .redaction import HIDDEN
from .wording import counted
from .workers import WorkerStatus

_QUIET_US = 60_000_000  # without progress for so long, a running job is shown as one that does not move


def explain(
    job: Job,
    now: int,
    *,
    queues: Iterable[Queue] = (),
    workers: Sequence[WorkerStatus] | None = None,
    holder: Job | None = None,
    hides_errors: bool = False,
) -> str:
    """
    Return one sentence on *job*; *workers* are None if they are not known, *holder* has the lock that it waits for.

    The most decisive reason comes first: a paused queue before a missing worker, and both before the order of claims.
    """
    if job.status is Status.PENDING:
        waits = waits_for(job, now, queues=queues, workers=workers, holder=holder, hides_errors=hides_errors)
        return waits or _due(_serving(job, workers or ()))
    return _running(job, now, hides_errors) if job.status is Status.RUNNING else _finished(job, hides_errors)


def waits_for(
    job: Job,
    now: int,
    *,
    queues: Iterable[Queue] = (),
    workers: Sequence[WorkerStatus] | None = None,
    holder: Job | None = None,
    hides_errors: bool = False,
) -> str:
    """Return why no worker has begun a pending job; "" if nothing that is known is in its way."""
    for queue in queues:
        if queue.paused and queue.name == job.queue:
            note = f': "{queue.paused_note}"' if queue.paused_note else ""
            return (
                f"Its queue {queue.name!r} has been paused by {queue.paused_by!r} since {_at(queue.paused_us)}{note}."
            )
    if job.run_us > now:
        after, message = "", _message(job, hides_errors)
        if job.errors:
            after = f", after error {job.errors} of {job.retry.max_errors}" + (f" ({message[:80]})" if message else "")
        elif message:  # its arguments do not fit the handler, or its keys could not be sealed
            after = f"; its last error was: {message.rstrip('.')[:200]}"
        return f"It is due at {_at(job.run_us)}, in {span(job.run_us - now)}{after}."
    if job.parked is not None and job.parked.kind == LOCK:
        held = "which another job holds"
        if holder is not None:
            held = f"which job {holder.id!r} holds: owner {holder.owner!r}, since {_at(holder.granted_us)}"
        return f"It waits for its lock {job.parked.behind!r}, {held}."
    if workers is not None and (missing := _no_worker(job, workers)):
        return missing
    if job.parked is not None:
        if not job.parked.behind:
            return f"It names no task, and workers such as {job.parked.by!r} do not take such jobs."
        return f"Worker {job.parked.by!r} does not know the task {job.task!r}, and has passed the job over."
    return ""


def _no_worker(job: Job, workers: Sequence[WorkerStatus]) -> str:
    live = [worker for worker in workers if worker.alive]
    serving = _serving(job, live)
    if not serving:
        others = (
            f"{counted(len(live), 'live worker serves', 'live workers serve')} other queues"
            if live
            else "no worker is alive"
        )
        return f"No live worker serves its queue {job.queue!r}: {others}."
    if job.task is not None and not any(job.task in worker.tasks for worker in serving):
        return f"No live worker of queue {job.queue!r} knows the task {job.task!r} ({_live(serving)})."
    return ""


def _due(serving: Sequence[WorkerStatus]) -> str:
    live = [worker for worker in serving if worker.alive]
    slots = sum(worker.concurrency or worker.running for worker in live)
    if live and not any(worker.concurrency for worker in live):
        held = "are held by handlers that have lost their jobs and cannot be stopped"
        return f"It is due, and waits for a free slot: all {slots} of {_live(live)} of its queue {held}."
    if live and sum(worker.running for worker in live) >= slots:
        taken = f"all {slots} of {_live(live)} of its queue were taken at the last report"
        return f"It is due, and waits for a free slot: {taken}."
    return "It is due, and waits to be claimed" + (f" by one of {_live(live)}." if live else ".")


def _serving(job: Job, workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    return [worker for worker in workers if worker.queues is None or job.queue in worker.queues]


def _live(workers: Sequence[WorkerStatus] | None) -> str:
    return counted(sum(worker.alive for worker in workers or ()), "live worker", "live workers")


def _running(job: Job, now: int, hides_errors: bool) -> str:
    lease = (
        f"its lease lasts another {span((job.expires_us or 0) - now)}"
        if (job.expires_us or 0) > now
        else f"its lease expired {span(now - (job.expires_us or 0))} ago, and the job has not been taken over"
    )
    if job.renewed_us is not None and job.renewed_us != job.granted_us:
        lease = f"renewed {span(now - job.renewed_us)} ago, {lease}"
    quiet = now - job.updated_us
    moved = "" if job.updated_us == job.granted_us else "progress"
    pace = f"no {'further ' if moved else ''}progress for {span(quiet)}" if quiet >= _QUIET_US else ""
    if not pace:
        pace = f"last progress {span(quiet)} ago" if moved else f"began {span(quiet)} ago"
    done = "" if job.progress is None else f" at {job.progress:.0%}"
    note = f' ("{job.note}")' if job.note else ""
    runs = f"It has been running at {job.owner!r} since {_at(job.granted_us)} under epoch {job.epoch}"
    lost = ""
    if job.reclaims:
        lost = f"; reclaimed {counted(job.reclaims, 'time', 'times')}{last_reclaim(job, hides_errors)}"
    return f"{runs}: {lease}; {pace}{done}{note}{lost}."


def last_reclaim(job: Job, hides_errors: bool) -> str:
    """Return why *job* was reclaimed last, to end a sentence with; "" if its last error came after that."""
    why = reclaim_cause(job.error_message)
    return "" if why is None else f", last: {HIDDEN if hides_errors else why[:200]}"


def _message(job: Job, hides_errors: bool) -> str:
    """Return the class and the message of the job's last error, "" if there is none."""
    message = HIDDEN if job.error_message and hides_errors else job.error_message
    return ": ".join(part for part in (job.error_type, message) if part)


def _finished(job: Job, hides_errors: bool) -> str:
    message = _message(job, hides_errors)
    why = f": {message[:200]}" if message and job.status is not Status.DONE else ""
    ended = {Status.DONE: "was completed", Status.CANCELLED: "was cancelled"}.get(job.status, job.status.value)
    return f"It {ended} at {_at(job.finished_us)}{why}."


def _at(micros: int | None) -> str:
    return "?" if micros is None else instants.aware(micros).isoformat(timespec="seconds")


def span(micros: int) -> str:
    """Return a duration in its two largest units, as a person would say it."""
    seconds = max(micros, 0) // 1_000_000
    if seconds < 60:
        return f"{seconds} s"
    whole = timedelta(seconds=seconds)
    hours, minutes = whole.seconds // 3600, whole.seconds // 60 % 60
    if whole.days:
        return f"{whole.days} d {hours} h" if hours else f"{whole.days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {whole.seconds % 60} s" if minutes < 10 and whole.seconds % 60 else f"{minutes} min"
