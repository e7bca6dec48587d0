"""`Router.result`: returns the result of a finished job, and polls until it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core import checks
from ..core.clock import patience
from ..core.job import Added, Job, Status
from ..core.lifecycle import FINISHED
from ..core.queues import Queue
from ..errors import JobFailed, NoLease, NotFinished, UnknownJob

if TYPE_CHECKING:
    from ..tasks.task import AnyTask

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.005, 0.25


def result_of(job: Job, tasks: Mapping[str, AnyTask], why: Callable[[Job], str] | None = None) -> Any:
    """
    Return the job's result, as its task's return annotation has it if the task is known; raise if there is none.

    *why* is asked what an unfinished job waits for.
    """
    if job.pruned:
        at = "" if job.finished_at is None else f" at {job.finished_at.isoformat(timespec='seconds')}"
        raise UnknownJob(job.id, pruned=f"{job.status.value}{at}")
    if job.status is Status.DONE:
        task = tasks.get(job.task or "")
        return job.result if task is None else task.decode_result(job.result_document)
    if job.status in FINISHED:
        raise JobFailed(job.id, status=job.status, error=job.last_error, errors=job.errors)
    raise NotFinished(job.id, status=job.status, why="" if why is None else why(job))


def waits_for(job: Job, queues: Iterable[Queue], now: int) -> str:
    """Return why no worker has begun a pending job, in sentences; "" if the store does not know."""
    if job.status is not Status.PENDING:
        return ""
    facts = []
    if job.parked is not None and job.parked.kind == "lock":
        facts.append(f"It waits for its lock {job.parked.behind!r}, which another job holds.")
    elif job.parked is not None and not job.parked.behind:
        facts.append(f"It names no task, and workers such as {job.parked.by!r} do not take such jobs.")
    elif job.parked is not None:
        facts.append(f"Worker {job.parked.by!r} has passed it over, since it does not know the task {job.task!r}.")
    for queue in queues:
        if queue.paused and queue.name == job.queue:
            note = f": {queue.paused_note!r}" if queue.paused_note else ""
            facts.append(f"Its queue {queue.name!r} is paused by {queue.paused_by!r}{note}.")
    if job.run_us > now:
        facts.append(f"It is due at {job.run_at.isoformat(timespec='seconds')}.")
    return " ".join(facts)


def waited(error: NoLease, wait_seconds: float) -> NoLease:
    """Return *error* as that of a caller who has waited for the lease so long."""
    return NoLease(f"{error} It was waited for {wait_seconds:g} s.") if wait_seconds else error


def id_of(job: str | Added | Job) -> str:
    """Return the id of what was added or read, or is an id already."""
    return job.id if isinstance(job, Added | Job) else job


def pauses(wait_seconds: float | None) -> Iterator[float]:
    """Yield the pauses between two looks, each longer than the one before, until *wait_seconds* are over, or ever."""
    left: Callable[[], float] = lambda: math.inf  # noqa: E731  # `patience` returns a lambda too
    if wait_seconds is not None:
        left = patience(checks.microseconds(wait_seconds, "wait_seconds", zero=True) / 1_000_000)
    pause = _SHORTEST_SECONDS
    while (rest := left()) > 0:
        yield min(pause, rest)
        pause = min(2 * pause, _LONGEST_SECONDS)
