"""
What a reconciler sees: owners that renew while the work does not move, silent owners, queues without a consumer.

Observations are advice. They never move a job; only expiry and `stall_seconds` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from . import instants
from .explanation import span
from .job import Job
from .wording import counted
from .workers import WorkerStatus


class ObservationKind(StrEnum):
    """What was observed."""

    NOT_MOVING = "not-moving"  # a job is renewed, and makes no progress
    SILENT = "silent"  # an owner neither renews its job nor reports
    NO_CONSUMER = "no-consumer"  # due jobs, and no live worker that serves their queue or knows their task
    OLD_BACKLOG = "old-backlog"  # the oldest due job waits for longer than it should
    NEVER_SETTLES = "never-settles"  # every slot of a worker is held by a job that does not move


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that an operator should look at: since when, and the command to begin with."""

    kind: ObservationKind
    subject: str
    since_us: int
    sentence: str
    command: str

    @property
    def since(self) -> datetime:
        """Since when."""
        return instants.aware(self.since_us)


class Bounds(NamedTuple):
    """From when on something is worth a look."""

    quiet_us: int = 600_000_000  # a running job without progress
    silent_us: int = 5_000_000  # a lease past its deadline that was not taken over
    waiting_us: int = 300_000_000  # a due job


class Backlog(NamedTuple):
    """The due jobs of one queue."""

    queue: str
    pending: int
    oldest_us: int | None  # when its oldest job became due
    paused: bool
    parked: Mapping[str, int] = {}  # by task: jobs that workers have passed over, since they do not know it


def observe(
    now: int,
    *,
    running: Iterable[Job],
    backlogs: Iterable[Backlog],
    workers: Sequence[WorkerStatus],
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
) -> list[Observation]:
    """Return what is worth a look, by kind and subject."""
    live = {worker.name: worker for worker in workers if worker.alive}
    jobs = list(running)
    found = [one for job in jobs if (one := _job(now, job, bounds)) is not None]
    for backlog in backlogs:
        found += _backlog(now, backlog, list(live.values()), bounds)
        found += _unknown_tasks(now, backlog, list(live.values()))
    found += _workers(now, jobs, live, bounds)
    return sorted(found, key=lambda one: (one.kind, one.subject))


def _job(now: int, job: Job, bounds: Bounds) -> Observation | None:
    deadline, moved = job.expires_us or 0, job.updated_us
    show = f"leasehold show {job.id}"
    if now - deadline > bounds.silent_us:
        sentence = f"Owner {job.owner!r} of job {job.id!r} is silent: its lease expired {span(now - deadline)} ago."
        return Observation(ObservationKind.SILENT, job.id, deadline, sentence, show)
    if now - moved >= bounds.quiet_us:
        sentence = f"Job {job.id!r} at {job.owner!r} is renewed, and has made no progress for {span(now - moved)}."
        return Observation(ObservationKind.NOT_MOVING, job.id, moved, sentence, show)
    return None


def _backlog(now: int, backlog: Backlog, live: list[WorkerStatus], bounds: Bounds) -> list[Observation]:
    if backlog.paused or not backlog.pending or backlog.oldest_us is None or backlog.oldest_us > now:
        return []
    waits, name, found = now - backlog.oldest_us, backlog.queue, []
    listed = f"leasehold jobs --status pending --queue {name} --oldest"
    if not _serving(name, live):
        jobs = counted(backlog.pending, "pending job", "pending jobs")
        sentence = f"No live worker serves queue {name!r}, which has {jobs}."
        found.append(Observation(ObservationKind.NO_CONSUMER, name, backlog.oldest_us, sentence, "leasehold workers"))
    if waits >= bounds.waiting_us:
        sentence = f"The oldest due job of queue {name!r} has waited for {span(waits)}; {backlog.pending} are pending."
        found.append(Observation(ObservationKind.OLD_BACKLOG, name, backlog.oldest_us, sentence, listed))
    return found


def _unknown_tasks(now: int, backlog: Backlog, live: list[WorkerStatus]) -> list[Observation]:
    """Observe at once what no waiting helps: jobs that every worker of their queue passes over."""
    name, found = backlog.queue, []
    serving = [] if backlog.paused else _serving(name, live)
    since = now if backlog.oldest_us is None else min(backlog.oldest_us, now)
    for task, count in backlog.parked.items():
        if serving and task and not any(task in worker.tasks for worker in serving):
            jobs = counted(count, "job waits", "jobs wait")
            sentence = f"No live worker of queue {name!r} knows the task {task!r}, for which {jobs}."
            command = "leasehold workers --fields name,queues,tasks"
            found.append(Observation(ObservationKind.NO_CONSUMER, name, since, sentence, command))
    return found


def _serving(queue: str, live: list[WorkerStatus]) -> list[WorkerStatus]:
    return [worker for worker in live if worker.queues is None or queue in worker.queues]


def _workers(now: int, running: list[Job], live: Mapping[str, WorkerStatus], bounds: Bounds) -> list[Observation]:
    held: dict[str, list[Job]] = {}
    for job in running:
        if job.owner in live:
            held.setdefault(str(job.owner), []).append(job)
    found = []
    for name, jobs in held.items():
        since = max(job.updated_us for job in jobs)
        if len(jobs) >= live[name].concurrency and now - since >= bounds.quiet_us:
            slots = (
                "its only slot holds a job"
                if len(jobs) == 1
                else f"all of its {live[name].concurrency} slots hold jobs"
            )
            sentence = f"Worker {name!r} settles nothing: {slots} without progress for {span(now - since)}."
            command = f"leasehold jobs --owner {name}"
            found.append(Observation(ObservationKind.NEVER_SETTLES, name, since, sentence, command))
    return found
