"""What readers ask of the memory store, and the checker. The lock is held."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from ...core.backlog import LATELY_US, LOOKS_AT, Lately, Oldest
from ...core.counts import Counts
from ...core.job import Job, Status
from ...core.ownership import Event, LiveLease
from ...core.parking import LOCK, TASK
from ...core.search import Key, Looked, Order, Search
from ..searching import key_of
from .row import PENDING, READY, RUNNING, Row
from .state import State


def _rows(state: State, status: Status | None, owner: str | None = None) -> Iterable[Row]:
    """Return the rows of the jobs that could have that status and owner, in the order of their insertion."""
    if status is not RUNNING and owner is None:
        return state.jobs.values()
    running = (row for row in state.running.values() if owner in (None, row.owner))
    return sorted(running, key=lambda row: row.seq)


def jobs(state: State, first: int, status: Status | None, owner: str | None, **fields: str | None) -> Iterator[Job]:
    """Yield the jobs behind the seq *first* that fit, in the order of their insertion."""
    wanted = [(name, value) for name, value in fields.items() if value is not None]
    for row in _rows(state, status, owner):
        fits = row.seq > first and status in (None, row.status)
        if fits and all(getattr(row.spec, name) == value for name, value in wanted):
            yield row.job()


def events(state: State, job_id: str | None, kind: str | None, after: int) -> Iterator[Event]:
    """Yield what was recorded, oldest first, beginning behind the event numbered *after*."""
    first = bisect.bisect_right(state.events, after, key=lambda event: event.number)
    for event in state.events[first:]:
        if job_id in (None, event.job_id) and kind in (None, event.kind):
            yield event


def look(state: State, search: Search, key: Key | None, count: int, limit: int) -> Looked:
    """Look at the next *count* candidates for *search* behind *key*, and return up to *limit* that fit."""
    keyed = (
        (key_of(search, row, row.seq), row)
        for row in _rows(state, None if search.order is Order.ID else search.status)
        if row.id.startswith(search.id_prefix or "") and (search.order is not Order.END or row.status is search.status)
    )
    behind = (one for one in keyed if key is None or (one[0] < key if search.newest else one[0] > key))
    candidates = (heapq.nlargest if search.newest else heapq.nsmallest)(count, behind)
    found = [(at, row.job()) for at, row in candidates]
    fitting = [(at, job) for at, job in found if search.describes(job)]
    return Looked(fitting[:limit], candidates[-1][0] if len(candidates) == count else None)


def counts(state: State) -> Counts:
    """Return how many jobs stand where."""
    by_status = Counter(row.status for row in state.finished.values())
    by_status[RUNNING] = len(state.running)
    by_status[PENDING] = len(state.jobs) - len(state.running) - len(state.finished)
    unfinished = Counter(row.spec.queue for row in state.jobs.values() if row.end is None)
    running = Counter(row.spec.queue for row in state.running.values())
    queues = {name: {"pending": count - running[name], "running": running[name]} for name, count in unfinished.items()}
    parked: dict[str, Counter[str]] = {}
    for kind, task, queue, line in state.lines():
        if kind == TASK and (count := len(line.rows())):
            parked.setdefault(task, Counter())[queue] += count
    return Counts.of(by_status, queues, parked)


def oldest(state: State) -> list[Oldest]:
    """Return since when the oldest due job of each queue waits, by queue, and behind each task."""
    found: dict[tuple[str, str | None], int] = {}

    def note(queue: str, task: str | None, run_us: int) -> None:
        found[queue, task] = min(found.get((queue, task), run_us), run_us)

    for kind, name, queue, line in state.lines():
        if (first := line.first()) is not None:
            note(queue, None, first[1])
            if kind == TASK:
                note(queue, name, first[1])
    for row in _come_due(state):
        note(row.spec.queue, None, row.run_us)
    listed = [Oldest(queue, task, since) for (queue, task), since in found.items()]
    return sorted(listed, key=lambda one: (one.queue, one.task is not None, one.task))


def _come_due(state: State) -> Iterator[Row]:
    """Yield what has become due since a sweep looked last, in no order."""
    places = [0]
    while places:
        place = places.pop()
        if place < len(state.schedule) and state.schedule[place][0] <= state.now:
            at, _, row = state.schedule[place]
            if state.waits(row) and row.parked is None and at == row.run_us:
                yield row
            places += [2 * place + 1, 2 * place + 2]  # what is below it in the heap is not due before it


def lately(state: State) -> Lately:
    """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
    since_us = state.now - LATELY_US
    rows, ends = reversed(state.jobs.values()), reversed(state.finished.values())
    added = list(islice(takewhile(lambda row: row.created_us >= since_us, rows), LOOKS_AT))
    finished = list(islice(takewhile(lambda row: row.updated_us >= since_us, ends), LOOKS_AT))
    return Lately(
        state.now,
        dict(Counter(row.spec.queue for row in added)),
        since_us if len(added) < LOOKS_AT else added[-1].created_us,
        dict(Counter(row.spec.queue for row in finished)),
        since_us if len(finished) < LOOKS_AT else finished[-1].updated_us,
    )


def leases(state: State) -> list[LiveLease]:
    """Return every lease that lasts, by insertion of its job."""
    held = [(row.job(), row.lease) for row in _rows(state, RUNNING)]
    return [
        LiveLease(job.id, job.epoch, one.owner, one.granted_us, one.expires_us, job.renewed_us or 0, job.updated_us)
        for job, one in held
        if one is not None
    ]


def broken(state: State) -> list[str]:
    """Return a sentence for every broken invariant (C7)."""
    places: dict[str, list[tuple[str, str]]] = {job_id: [(RUNNING, "")] for job_id in state.running}
    waiting = [((kind, name), row) for kind, name, _, line in state.lines() for row in line.rows()]
    for place, row in waiting:
        places.setdefault(row.id, []).append(place)
    for at, _, row in state.schedule:
        if state.waits(row) and at == row.run_us:
            places.setdefault(row.id, [row.place])
    wrong = []
    for job_id, row in state.jobs.items():
        expected = [] if row.end is not None else [row.place if row.grant is None else (RUNNING, "")]
        found = places.pop(job_id, [])
        if len(found) != len(expected):
            wrong.append(f"job {job_id!r} is {row.status} but is listed {len(found)} times as due, parked or running.")
        elif found != expected or row.place not in ((READY, READY), (LOCK, row.spec.lock), (TASK, row.spec.task or "")):
            wrong.append(f"job {job_id!r} is listed under the wrong lock or task.")
        if row.epoch > state.last:
            wrong.append(f"job {job_id!r} has epoch {row.epoch}, above the last one issued, {state.last}.")
    wrong += [f"job {job_id!r} is listed as due, parked or running, but is not in the store." for job_id in places]
    held = [(row.spec.lock, row.id) for row in state.running.values() if row.spec.lock is not None]
    if sorted(held) != sorted(state.held.items()):
        wrong.append(f"held keys are {sorted(state.held.items())}, running jobs have {sorted(held)}.")
    turns = {(row.spec.lock, row.spec.queue) for (kind, _), row in waiting if kind == READY}
    free = {(key, row.spec.queue) for (kind, key), row in waiting if kind == LOCK and key not in state.held} - turns
    return wrong + [f"jobs of {queue!r} are parked behind lock {key!r}, which is free." for key, queue in sorted(free)]
