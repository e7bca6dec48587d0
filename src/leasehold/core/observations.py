"""
What a reconciler sees: owners that renew while the work does not move, silent owners, queues that stand still.

Observations are advice. They never move a job; only expiry and `stall_seconds` do. Upkeep records them: one event when
an observation begins and one when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from . import instants
from .backlog import Oldest
from .explanation import last_reclaim, span
from .job import Job
from .ownership import LiveLease
from .queues import Queue
from .wording import counted
from .workers import WorkerStatus, is_alive

OBSERVE_EVERY_US = 10_000_000  # over all processes
_OFTEN = 3  # reclaims after which the job itself is suspected
MOST_NOTED = 1_000  # observations that are recorded at a time; an incident that is larger is seen from these

Key = tuple[str, str, str]  # kind, subject and task


class ObservationKind(StrEnum):
    """What was observed."""

    NOT_MOVING = "not-moving"  # a job makes no progress
    SILENT = "silent"  # a lease has expired, or its worker neither renews it nor reports
    NO_CONSUMER = "no-consumer"  # due jobs, and no live worker that serves their queue or knows their task
    PAUSED = "paused"  # due jobs wait in a paused queue
    OLD_BACKLOG = "old-backlog"  # the oldest due job waits for longer than it should
    POISON = "poison"  # a running job has lost owner after owner
    LOST_SLOTS = "lost-slots"  # every slot of a worker is held by a handler that has lost its job
    NEVER_SETTLES = "never-settles"  # every slot of a worker is held by a job that does not move


@dataclass(frozen=True, slots=True)
class Observation:
    """
    Something that an operator should look at: since when, and the command to begin with.

    *subject* is the id of a job, or the name of a queue or worker. *noted_us* is when upkeep recorded that it began,
    None if it has not.
    """

    kind: ObservationKind
    subject: str
    since_us: int
    sentence: str
    command: str
    task: str = ""  # that no worker of the queue knows
    held: tuple[str, int, str] | None = None  # of a job: its id, epoch and owner
    noted_us: int | None = None

    @property
    def key(self) -> Key:
        """What tells it from every other observation at the time."""
        return self.kind.value, self.subject, self.task

    @property
    def since(self) -> datetime:
        """Since when."""
        return instants.aware(self.since_us)

    @property
    def noted_at(self) -> datetime | None:
        """When upkeep recorded that it began, or None if it has not."""
        return instants.as_datetime(self.noted_us)

    def facts(self) -> dict[str, Any]:
        """Return what the event says when it begins."""
        task = {"task": self.task} if self.task else {}
        found = {"observation": self.kind.value, "subject": self.subject, **task, "since": self.since.isoformat()}
        return {**found, "sentence": self.sentence}


class Noted(NamedTuple):
    """An observation that upkeep has recorded, and that has not ended."""

    kind: str
    subject: str
    task: str
    noted_us: int

    @property
    def key(self) -> Key:
        """That of the observation."""
        return self.kind, self.subject, self.task


class Observed(NamedTuple):
    """What is recorded as observed; *round* rises with each time that upkeep has looked."""

    now_us: int
    round: int
    looked_us: int  # when it looked last; 0: never
    noted: list[Noted]


def ended(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the event that ends an observation, from those of the event that began it."""
    return {name: value for name, value in facts.items() if name != "sentence"}


def changes(
    before: Mapping[Key, tuple[Any, ...]], after: Mapping[Key, tuple[Any, ...]]
) -> list[tuple[str, tuple[Any, ...]]]:
    """
    Return the events that record what has come and gone since the last look: "cleared" or "observed", and the rest.

    A value has the job's id, epoch and owner, None where there is none, and the `facts` of the observation.
    """
    gone = [(*before[key][:3], ended(before[key][3])) for key in sorted(before.keys() - after.keys())]
    come = [after[key] for key in sorted(after.keys() - before.keys())]
    return [("cleared", one) for one in gone] + [("observed", one) for one in come]


def noted_first(found: Sequence[Observation], noted: Iterable[Noted]) -> list[Observation]:
    """Return those that may be recorded: no more than `MOST_NOTED`, and what is recorded already before others."""
    known = {one.key for one in noted}
    return sorted(found, key=lambda one: (one.key not in known, one.key))[:MOST_NOTED]


class Bounds(NamedTuple):
    """From when on something is worth a look."""

    quiet_us: int = 600_000_000  # a running job without progress
    silent_us: int = 5_000_000  # a lease past its deadline that was not taken over
    waiting_us: int = 300_000_000  # a due job
    unserved_us: int = 0  # a due job that no live worker would take, or in a paused queue


def observe(
    now: int,
    *,
    leases: Iterable[LiveLease],
    oldest: Iterable[Oldest],
    queues: Iterable[Queue] = (),
    workers: Sequence[WorkerStatus],
    running: Iterable[Job] = (),
    hides_errors: bool = False,
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
) -> list[Observation]:
    """Return what is worth a look, by kind and subject; *running* are the jobs to look at for lost owners."""
    by_name = {worker.name: worker for worker in workers}
    live = [worker for worker in workers if worker.alive]
    held = list(leases)
    kept = _kept_by_silent(now, held, by_name)
    found = [_silent_worker(now, by_name[name], jobs) for name, jobs in kept.items()]
    kept_epochs = {lease.epoch for jobs in kept.values() for lease in jobs}
    moving = [lease for lease in held if lease.epoch not in kept_epochs]
    found += [one for lease in moving if (one := _lease(now, lease, bounds)) is not None]
    paused = {queue.name: queue for queue in queues if queue.paused}
    for row in oldest:
        if row.queue in paused:
            found += _paused(now, row, paused[row.queue], bounds)
        else:
            found += _backlog(now, row, live, bounds) if row.task is None else _unknown_task(now, row, live, bounds)
    found += [_poison(job, hides_errors) for job in running if job.reclaims >= _OFTEN and job.granted_us is not None]
    found += [_lost_slots(worker) for worker in live if not worker.concurrency]
    found += _workers(now, held, {worker.name: worker for worker in live}, bounds)
    return sorted({one.key: one for one in found}.values(), key=lambda one: one.key)


def _kept_by_silent(
    now: int, leases: Iterable[LiveLease], workers: Mapping[str, WorkerStatus]
) -> dict[str, list[LiveLease]]:
    """Return the leases that last and whose worker neither reports nor renews, by worker."""
    kept: dict[str, list[LiveLease]] = {}
    for lease in leases:
        worker = workers.get(lease.owner)
        dead = worker is not None and not worker.alive
        if dead and lease.expires_us > now and not _is_recent(lease.renewed_us, now):
            kept.setdefault(lease.owner, []).append(lease)
    return kept


def _lease(now: int, lease: LiveLease, bounds: Bounds) -> Observation | None:
    deadline, moved = lease.expires_us, lease.progressed_us
    show = f"leasehold show {lease.job_id}"
    if now - deadline > bounds.silent_us:
        sentence = (
            f"Owner {lease.owner!r} of job {lease.job_id!r} is silent: its lease expired {span(now - deadline)} ago."
        )
        return Observation(ObservationKind.SILENT, lease.job_id, deadline, sentence, show, held=lease[:3])
    if now - moved >= bounds.quiet_us:
        quiet = f"has made no progress for {span(now - moved)}"
        if lease.renewed_us > lease.granted_us and _is_recent(lease.renewed_us, now):
            sentence = f"Job {lease.job_id!r} at {lease.owner!r} is still renewed, but {quiet}."
        else:
            sentence = f"Job {lease.job_id!r} at {lease.owner!r} {quiet}; {_lasts(now, lease)}."
        return Observation(ObservationKind.NOT_MOVING, lease.job_id, moved, sentence, show, held=lease[:3])
    return None


def _is_recent(renewed_us: int, now: int) -> bool:
    """Return whether a renewal shows that its owner is alive, as a worker's report of that age does."""
    return is_alive(renewed_us, now)


def _lasts(now: int, lease: LiveLease) -> str:
    began = "granted" if lease.renewed_us <= lease.granted_us else "last renewed"
    if lease.expires_us <= now:
        return f"its lease has expired, and was {began} {span(now - lease.renewed_us)} ago"
    return f"its lease was {began} {span(now - lease.renewed_us)} ago and lasts another {span(lease.expires_us - now)}"


def _silent_worker(now: int, worker: WorkerStatus, leases: Sequence[LiveLease]) -> Observation:
    """Observe, before their deadlines, what long leases of a dead worker keep from others."""
    lasts = f"another {span(max(lease.expires_us for lease in leases) - now)}"
    lasts = f"its lease lasts {lasts}" if len(leases) == 1 else f"the last of their leases lasts {lasts}"
    holds = counted(len(leases), "job", "jobs")
    sentence = f"Worker {worker.name!r} has not reported for {span(now - worker.seen_us)} and holds {holds}; {lasts}."
    command = f"leasehold requeue --owner {worker.name} --status running"
    return Observation(ObservationKind.SILENT, worker.name, worker.seen_us, sentence, command)


def _poison(job: Job, hides_errors: bool) -> Observation:
    lost = f"lost its owner {counted(job.reclaims, 'time', 'times')}{last_reclaim(job, hides_errors)}"
    sentence = f"Job {job.id!r} {lost}; max_reclaims is {job.retry.max_reclaims}."
    return Observation(ObservationKind.POISON, job.id, job.granted_us or 0, sentence, f"leasehold history {job.id}")


def _lost_slots(worker: WorkerStatus) -> Observation:
    """Observe what the worker itself reports: its leases alone do not tell a lost slot from a free one."""
    pid = "" if worker.process is None else f" (pid {worker.process.pid} on {worker.process.host})"
    sentence = (
        f"Worker {worker.name!r} has {worker.running} of {worker.running} slots taken by handlers that have lost their "
        f"jobs and cannot be stopped: restart its process{pid}."
    )
    return Observation(ObservationKind.LOST_SLOTS, worker.name, worker.seen_us, sentence, "leasehold workers")


def _backlog(now: int, oldest: Oldest, live: list[WorkerStatus], bounds: Bounds) -> list[Observation]:
    name, since, found = oldest.queue, oldest.since_us, []
    if not _serving(name, live) and now - since >= bounds.unserved_us:
        sentence = f"No live worker serves queue {name!r}, which has due jobs."
        found.append(Observation(ObservationKind.NO_CONSUMER, name, since, sentence, "leasehold workers"))
    if now - since >= bounds.waiting_us:
        sentence = f"The oldest due job of queue {name!r} has waited for {span(now - since)}."
        listed = f"leasehold jobs --status pending --queue {name} --oldest"
        found.append(Observation(ObservationKind.OLD_BACKLOG, name, since, sentence, listed))
    return found


def _paused(now: int, oldest: Oldest, queue: Queue, bounds: Bounds) -> list[Observation]:
    """Observe a pause that keeps jobs waiting. It is meant, and may be forgotten."""
    if oldest.task is not None or now - oldest.since_us < bounds.unserved_us:
        return []
    note = f' ("{queue.paused_note}")' if queue.paused_note else ""
    sentence = (
        f"Queue {queue.name!r} was paused {span(now - (queue.paused_us or now))} ago by {queue.paused_by!r}{note}, and "
        f"its oldest due job has waited for {span(now - oldest.since_us)}."
    )
    command = f"leasehold queues resume {queue.name}"
    return [Observation(ObservationKind.PAUSED, queue.name, oldest.since_us, sentence, command)]


def _unknown_task(now: int, oldest: Oldest, live: list[WorkerStatus], bounds: Bounds) -> list[Observation]:
    """Observe jobs that every worker of their queue passes over."""
    name, task = oldest.queue, oldest.task
    serving = _serving(name, live)
    is_known = any(task in worker.tasks for worker in serving)
    if not task or not serving or is_known or now - oldest.since_us < bounds.unserved_us:
        return []
    sentence = f"No live worker of queue {name!r} knows the task {task!r}, which has waiting jobs."
    command = "leasehold workers --fields name,queues,tasks"
    return [Observation(ObservationKind.NO_CONSUMER, name, oldest.since_us, sentence, command, task)]


def _serving(queue: str, live: list[WorkerStatus]) -> list[WorkerStatus]:
    return [worker for worker in live if worker.queues is None or queue in worker.queues]


def _workers(now: int, leases: list[LiveLease], live: Mapping[str, WorkerStatus], bounds: Bounds) -> list[Observation]:
    held: dict[str, list[LiveLease]] = {}
    for lease in leases:
        if lease.owner in live:
            held.setdefault(lease.owner, []).append(lease)
    found = []
    for name, jobs in held.items():
        since = max(lease.progressed_us for lease in jobs)
        if len(jobs) >= live[name].concurrency > 0 and now - since >= bounds.quiet_us:
            slots = (
                "its only slot holds a job"
                if len(jobs) == 1
                else f"all of its {live[name].concurrency} slots hold jobs"
            )
            sentence = f"Worker {name!r} is not settling any job: {slots} without progress for {span(now - since)}."
            command = f"leasehold jobs --owner {name}"
            found.append(Observation(ObservationKind.NEVER_SETTLES, name, since, sentence, command))
    return found
