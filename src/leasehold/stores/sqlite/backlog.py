"""
Where a pending job waits: ready in its queue, scheduled for later, or parked behind a lock key or an unknown task.

Every pending job has exactly one such row, and `take` is how claims choose among the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from ...core.parking import LOCK, TASK
from ..rows import SpecRow
from .programs import Program, Session, Standing, many, one

PARKED_AT_ONCE = 500

Candidate = tuple[Any, ...]  # a row of the statement `candidates`
SPEC = 7  # where its SpecRow begins
_QUEUE = SPEC + SpecRow._fields.index("queue")
_LOCK = SPEC + SpecRow._fields.index("lock")
_TASK = SPEC + SpecRow._fields.index("task")

Known = frozenset["str | None"]  # the tasks of a claim that does not know all of them
Lane = tuple[str, str]  # a task, and a queue of the jobs that are parked behind it


def insert(session: Session, now: int, job: Standing, run_us: int) -> Program[None]:
    """Insert the row of a job that becomes pending."""
    if run_us > now:
        yield one(session.sql.insert_scheduled, run_us, job.seq, job.queue)
    else:
        yield one(session.sql.insert_ready, job.queue, -job.priority, run_us, job.seq)


def delete(session: Session, job: Standing) -> Program[None]:
    """Delete the row of a pending job, in whichever table it is."""
    ready = job.queue, -job.priority, job.run_us, job.seq
    yield one(session.sql.delete_ready, *ready)
    yield one(session.sql.delete_scheduled, job.run_us, job.seq)
    yield one(session.sql.delete_parked, TASK, job.task or "", *ready)
    if job.lock is not None:
        yield one(session.sql.delete_parked, LOCK, job.lock, *ready)


def wake(session: Session, lock: str | None, only: str | None = None) -> Program[None]:
    """
    Make ready the first job of each queue, or of the queue *only*, that is parked behind *lock*, if the key is free.

    Of each queue, since it may be that no worker claims from the queue of the very first.
    """
    if lock is None or (yield one(session.sql.lock_holder, lock)):
        return
    queues = [(only,)] if only is not None else (yield session.sql.parked_queues, {"lock": lock}, False)
    for (queue,) in queues:
        for rank, run_us, seq in (yield one(session.sql.first_parked, lock, queue)):
            yield one(session.sql.delete_parked, LOCK, lock, queue, rank, run_us, seq)
            yield one(session.sql.insert_ready, queue, rank, run_us, seq)


def lanes(
    session: Session, queues: Sequence[str] | None, paused: Collection[str], tasks: Known | None
) -> Program[list[Lane]]:
    """Return the lanes of jobs that are parked behind known *tasks* in *queues* that are not paused."""
    return [
        (task, queue)
        for task, queue in (yield one(session.sql.parked_lanes))
        if queue not in paused and (queues is None or queue in queues) and (tasks is None or (task or None) in tasks)
    ]


def take(
    session: Session, owner: str, limit: int, queues: Sequence[str], lanes: Sequence[Lane], tasks: Known | None
) -> Program[tuple[list[Candidate], bool]]:
    """
    Delete the rows of up to *limit* claimable jobs, ready or in the *lanes* behind tasks, and return the jobs.

    Those in between whose task is unknown, or whose key is held, are parked. The second value is True if so many were
    parked that there may be more to take.
    """
    taken: list[Candidate] = []
    keys: set[str] = set()
    parked = 0
    while len(taken) < limit and parked < PARKED_AT_ONCE:
        wanting = limit - len(taken)
        # Where some were passed over, more will be: a long line behind one key is not read one by one.
        count = max(wanting, 64) if parked else wanting
        aside: dict[int, str] = {}  # the tasks behind which the candidates are parked, by their seq
        if len(queues) == 1 and not lanes:
            first = yield one(session.sql.candidates, queues[0], count)
        else:
            first, aside = yield from _merge(session, queues, lanes, count)
        if not first:
            return taken, False
        unknown = [] if tasks is None else [row for row in first if row[_TASK] not in tasks]
        if unknown:
            # The jobs that they let go may come before those that would be next: look again.
            yield from _pass_over(session, owner, unknown)
            parked += len(unknown)
            continue
        free: list[Candidate] = first[:wanting]
        blocked: list[Candidate] = []
        wanted = {row[_LOCK] for row in first if row[_LOCK] is not None}
        if wanted:
            keys.update(key for (key,) in (yield one(session.sql.held_locks, json.dumps(sorted(wanted)))))
            free, blocked = _divide(first, wanting, keys)
        taken += free
        gone = free + blocked
        if aside:
            behind = [(TASK, aside[row[2]], row[_QUEUE], *row[:3]) for row in gone if row[2] in aside]
            yield many(session.sql.delete_parked, behind)
            gone = [row for row in gone if row[2] not in aside]
        yield many(session.sql.delete_ready, [(row[_QUEUE], *row[:3]) for row in gone])
        if blocked:
            rows = [(LOCK, row[_LOCK], row[_QUEUE], *row[:3], owner) for row in blocked]
            yield many(session.sql.insert_parked, rows)
            parked += len(blocked)
    return taken, parked >= PARKED_AT_ONCE


def _pass_over(session: Session, owner: str, unknown: Sequence[Candidate]) -> Program[None]:
    """Park ready candidates behind their tasks, and wake the next behind each key that one of them could have held."""
    yield many(session.sql.delete_ready, [(row[_QUEUE], *row[:3]) for row in unknown])
    rows = [(TASK, row[_TASK] or "", row[_QUEUE], *row[:3], owner) for row in unknown]
    yield many(session.sql.insert_parked, rows)
    for lock, queue in sorted({(row[_LOCK], row[_QUEUE]) for row in unknown if row[_LOCK] is not None}):
        yield from wake(session, lock, queue)


def _merge(
    session: Session, queues: Sequence[str], lanes: Sequence[Lane], count: int
) -> Program[tuple[list[Candidate], dict[int, str]]]:
    """Return the first candidates of queues and lanes, and the tasks behind which those of lanes are parked."""
    heads: list[tuple[int, int, int]] = []
    aside: dict[int, str] = {}
    for queue in queues:
        heads += yield one(session.sql.heads, queue, count)
    for task, queue in lanes:
        parked = yield one(session.sql.parked_heads, task, queue, count)
        heads += parked
        aside.update((seq, task) for _, _, seq in parked)
    heads.sort()
    return (yield one(session.sql.chosen, json.dumps([seq for _, _, seq in heads[:count]]))), aside


def _divide(candidates: Sequence[Candidate], wanting: int, keys: set[str]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates to take and those that one of the *keys* blocks; add the keys of those taken."""
    free: list[Candidate] = []
    blocked: list[Candidate] = []
    for row in candidates:
        if row[_LOCK] in keys:
            blocked.append(row)
        elif len(free) < wanting:
            free.append(row)
            if row[_LOCK] is not None:
                keys.add(row[_LOCK])
    return free, blocked
