"""The verbs that only read: jobs, who held them, their effects, and what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import checks, inputs
from ..core.counts import Counts
from ..core.effects import Effect
from ..core.job import Job, Status
from ..core.ownership import Event, Ownership

if TYPE_CHECKING:  # which has these functions as its methods
    from .front import Router


def job(router: Router, id: str) -> Job:
    """Return the job as it is now. Raises `UnknownJob`."""
    return router.store.job(checks.name(id, "a job's id"))


def jobs(
    router: Router,
    *,
    status: Status | str | None = None,
    queue: str | None = None,
    owner: str | None = None,
    task: str | None = None,
    parent: str | None = None,
    after: str | None = None,
    limit: int | None = 1000,
) -> list[Job]:
    """Return the jobs that fit, in the order of their insertion; *after* is the id of the last one already seen."""
    return router.store.jobs(
        status=None if status is None else inputs.status(status),
        queue=queue,
        owner=owner,
        task=task,
        parent=parent,
        after=after,
        limit=inputs.limit(limit),
    )


def snapshot(router: Router) -> dict[str, Job]:
    """Return every job by its id."""
    return {job.id: job for job in router.store.jobs()}


def ownerships(router: Router, id: str) -> list[Ownership]:
    """Return who held the job, oldest first: from when to when, how it began and ended. Raises `UnknownJob`."""
    return router.store.ownerships(checks.name(id, "a job's id"))


def effects(router: Router, id: str) -> list[Effect]:
    """Return the named effects of the job, known and in doubt. Raises `UnknownJob`."""
    return router.store.effects(checks.name(id, "a job's id"))


def events(
    router: Router, id: str | None = None, *, kind: str | None = None, after: int = 0, limit: int | None = 1000
) -> list[Event]:
    """Return what was recorded, oldest first; *after* is the number of the last one already seen."""
    seen = checks.whole(after, "after", least=0, most=2**53)
    return router.store.events(job_id=id, kind=kind, after=seen, limit=inputs.limit(limit))


def counts(router: Router) -> Counts:
    """Return how many jobs stand where."""
    return router.store.counts()
