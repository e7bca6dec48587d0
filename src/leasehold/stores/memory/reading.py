"""What readers ask of the memory store. The lock is held."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from ...core.backlog import LATELY_US, LOOKS_AT, Lately, Oldest
from ...core.counts import Counts
from ...core.job import Grant, Job, Status
from ...core.ownership import Event, LiveLease, Ownership
from ...core.parking import LOCK, TASK
from ...core.search import Key, Looked, Order, Search
from ..searching import key_of
from .record import DONE, PENDING, Record, ownership
from .state import State


def rows(state: State, status: Status | None, owner: str | None = None) -> Iterable[Record]:
    """Return the rows of the jobs that could have that status and owner, in the order of their insertion."""
    if status is not Status.RUNNING and owner is None:
        return state.jobs.values()
    leases = [lease for lease in state.leases.values() if owner in (None, lease.owner)]
    return sorted((state.jobs[lease.spec.id] for lease in leases), key=lambda row: row.seq)


def jobs(state: State, first: int, status: Status | None, owner: str | None, **fields: str | None) -> Iterator[Job]:
    """Yield the jobs behind the seq *first* that fit, in the order of their insertion."""
    wanted = [(name, value) for name, value in fields.items() if value is not None]
    for row in rows(state, status, owner):
        if row.seq > first and not row.narrow and all(getattr(row.spec, name) == value for name, value in wanted):
            lease = state.leases.get(row.id)
            if status is None or status is (row.status if lease is None else Status.RUNNING):
                yield state.job(row)


def transfers(state: State, owner: str) -> list[tuple[str, int]]:
    """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
    mine = [lease for lease in state.leases.values() if lease.owner == owner]
    awaited = [lease for lease in mine if state.jobs[lease.spec.id].awaits(lease)]
    return [(lease.spec.id, lease.epoch) for lease in sorted(awaited, key=lambda lease: lease.epoch)]


def ownerships(row: Record, lease: Grant | None) -> list[Ownership]:
    """Return every ownership of the job, oldest first."""
    held = [] if lease is None else [ownership(lease)]
    if row.grant is not None:
        held = [ownership(row.grant, DONE.value, row.updated_us, row.grant.owner)]
    return [one for one, _ in row.past.ended] + held


def events(state: State, job_id: str | None, kind: str | None, after: int) -> Iterator[Event]:
    """Yield what was recorded, oldest first, beginning behind the event numbered *after*."""
    first = bisect.bisect_right(state.events, after, key=lambda event: event.number)
    for event in state.events[first:]:
        if job_id in (None, event.job_id) and kind in (None, event.kind):
            yield event


def look(state: State, search: Search, key: Key | None, count: int, limit: int) -> Looked:
    """Look at the next *count* candidates for *search* behind *key*, and return up to *limit* that fit."""
    by_id = search.order is Order.ID
    keyed = (
        (key_of(search, row, row.seq), row)
        for row in rows(state, None if by_id else search.status)
        if not row.narrow
        and row.id.startswith(search.id_prefix or "")
        and (search.order is not Order.END or row.status is search.status)
    )
    behind = (one for one in keyed if key is None or (one[0] < key if search.newest else one[0] > key))
    candidates = (heapq.nlargest if search.newest else heapq.nsmallest)(count, behind)
    found = [(at, state.job(row)) for at, row in candidates]
    fitting = [(at, job) for at, job in found if search.describes(job)]
    return Looked(fitting[:limit], candidates[-1][0] if len(candidates) == count else None)


def counts(state: State) -> Counts:
    """Return how many jobs stand where, without looking at those that are pending or finished."""
    running = Counter(lease.spec.queue for lease in state.leases.values())
    pending = {queue: count - running[queue] for queue, count in state.unfinished.items()}
    total = {**state.ended, PENDING: sum(pending.values()), Status.RUNNING: len(state.leases)}
    queues = {
        queue: {"pending": pending[queue], "running": running[queue]}
        for queue, count in state.unfinished.items()
        if count
    }
    parked: dict[str, dict[str, int]] = {}
    for task, lines in state.behind_task.items():
        for (queue, _), line in lines.items():
            if count := len(line.rows()):
                counted = parked.setdefault(task, {})
                counted[queue] = counted.get(queue, 0) + count
    return Counts.of(total, queues, parked)


def oldest(state: State, now: int) -> list[Oldest]:
    """Return since when the oldest due job of each queue waits, by queue, and behind each task."""
    found: dict[tuple[str, str | None], int] = {}

    def note(queue: str, task: str | None, run_us: int) -> None:
        found[queue, task] = min(found.get((queue, task), run_us), run_us)

    for (queue, _), line in [*state.ready.items(), *state.halted.items()]:
        if (first := line.first()) is not None:
            note(queue, None, first[1])
    for task, lines in state.behind_task.items():
        for (queue, _), line in lines.items():
            if (first := line.first()) is not None:
                note(queue, None, first[1])
                note(queue, task, first[1])
    for row in [row for behind in state.behind_lock.values() for line in behind.values() for row in line.rows()]:
        note(row.spec.queue, None, row.run_us)
    for row in _come_due(state, now):
        note(row.spec.queue, None, row.run_us)
    listed = [Oldest(queue, task, since) for (queue, task), since in found.items()]
    return sorted(listed, key=lambda one: (one.queue, one.task is not None, one.task))


def _come_due(state: State, now: int) -> Iterator[Record]:
    """Yield what has become due since a sweep looked last, in no order."""
    places = [0]
    while places:
        place = places.pop()
        if place < len(state.schedule) and state.schedule[place][0] <= now:
            at, _, row = state.schedule[place]
            if state.jobs.get(row.id) is row and row.parked is None and at == row.run_us and row.id not in state.leases:
                yield row
            places += [2 * place + 1, 2 * place + 2]  # what is below it in the heap is not due before it


def lately(state: State, now: int) -> Lately:
    """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
    since_us = now - LATELY_US
    rows = reversed(state.jobs.values())
    added = list(islice(takewhile(lambda row: row.created_us >= since_us, rows), LOOKS_AT))
    ends = islice(takewhile(lambda row: row.updated_us >= since_us, reversed(state.finished)), LOOKS_AT)
    finished = [row for row in ends if state.jobs.get(row.id) is row]
    return Lately(
        now,
        dict(Counter(row.spec.queue for row in added if not row.narrow)),
        since_us if len(added) < LOOKS_AT else added[-1].created_us,
        dict(Counter(row.spec.queue for row in finished)),
        since_us if len(finished) < LOOKS_AT else finished[-1].updated_us,
    )


def leases(state: State) -> list[LiveLease]:
    """Return every lease that lasts, by insertion of its job."""
    listed = []
    for lease in sorted(state.leases.values(), key=state.seq):
        job = state.job(state.jobs[lease.spec.id])
        renewed_us = job.renewed_us or lease.granted_us
        seen = lease.granted_us, lease.expires_us, renewed_us, job.updated_us
        listed.append(LiveLease(job.id, lease.epoch, lease.owner, *seen))
    return listed


def broken(state: State) -> list[str]:
    """Return a sentence for every broken invariant (C7)."""
    jobs, leases = state.jobs, state.leases
    due = [row for lines in (state.ready, state.halted) for line in lines.values() for row in line.rows()]
    parked = [
        ((kind, name), row)
        for kind, behind in ((LOCK, state.behind_lock), (TASK, state.behind_task))
        for name, lines in behind.items()
        for line in lines.values()
        for row in line.rows()
    ]
    later = [row for at, _, row in state.schedule if jobs.get(row.id) is row and at == row.run_us]
    places = Counter([*leases, *(row.id for row in due), *(row.id for _, row in parked)])
    places.update({row.id for row in later} - places.keys())
    wrong = []
    for job_id, row in jobs.items():
        expected = 1 if row.status is PENDING else 0
        if (found := places.pop(job_id, 0)) != expected:
            wrong.append(f"job {job_id!r} is {row.status} but is listed {found} times as due, parked or running.")
    wrong += [f"job {job_id!r} is listed as due, parked or running, but is not in the store." for job_id in places]
    keys = Counter(lease.spec.lock for lease in leases.values() if lease.spec.lock is not None)
    wrong += [f"lock {key!r} is held by {count} running jobs." for key, count in keys.items() if count > 1]
    if set(keys) != set(state.held):
        wrong.append(f"held keys are {sorted(state.held)}, running jobs have {sorted(keys)}.")
    turns = {(row.spec.lock, row.spec.queue) for row in due}
    free = {(key, row.spec.queue) for (kind, key), row in parked if kind == LOCK and key not in state.held} - turns
    wrong += [f"jobs of {queue!r} are parked behind lock {key!r}, which is free." for key, queue in sorted(free)]
    wrong += [
        f"job {row.id!r} is listed under the wrong lock or task."
        for (kind, name), row in [*parked, *((("", ""), row) for row in due)]
        if (row.parked[:2] if row.parked else ("", "")) != (kind, name)
        or (kind and name != (row.spec.lock if kind == LOCK else row.spec.task or ""))
    ]
    issued = [(row.id, row.epoch) for row in jobs.values()] + [(one.spec.id, one.epoch) for one in leases.values()]
    wrong += [
        f"job {job_id!r} has epoch {epoch}, above the last one issued, {state.last}."
        for job_id, epoch in issued
        if epoch > state.last
    ]
    return wrong
