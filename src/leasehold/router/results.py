"""`Router.result`: returns the result of a finished job, and polls until it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core import checks
from ..core.clock import patience
from ..core.job import Added, Job, Status
from ..core.lifecycle import FINISHED
from ..errors import JobFailed, NoLease, NotFinished, UnknownJob

if TYPE_CHECKING:
    from ..tasks.task import AnyTask

_KILLED = (
    "If its process is often killed, and the job is not the cause, give its task a larger budget: "
    "Retry(max_reclaims=…)."
)
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
        advice = _KILLED if job.reclaims > job.retry.max_reclaims else ""
        raise JobFailed(job.id, status=job.status, error=job.last_error, errors=job.errors, advice=advice)
    raise NotFinished(job.id, status=job.status, why="" if why is None else why(job))


def waited(error: NoLease, wait_seconds: float) -> NoLease:
    """Return *error* as that of a caller who has waited for the lease so long."""
    return NoLease(f"{error} No lease was granted within {wait_seconds:g} s.") if wait_seconds else error


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
