"""The programs of readers. Only `observe` writes: what upkeep has seen."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ...core import documents
from ...core.backlog import LATELY_US, LOOKS_AT, SAMPLE, Lately, Oldest
from ...core.counts import Counts
from ...core.effects import Effect
from ...core.invariants import violation
from ...core.job import Grant, Job, Status
from ...core.lifecycle import FINISHED, no_lease
from ...core.observations import Noted, Observation, Observed, changes
from ...core.ownership import Event, LiveLease, Ownership, Reason
from ...core.parking import TASK
from ...core.queues import Queue
from ...core.search import LOOKS_AT as OVERDUE
from ...core.search import Key, Looked, Order, Search
from ...core.workers import WorkerStatus, is_alive
from ...errors import UnknownJob
from ...store import OpenKey, OpenKeys
from ..rows import grant_of, job_of, state_of, worker_of
from ..searching import Candidates, bound, by_column, during, key_of, ordered, prefix_end, within
from . import programs
from .claiming import Known, lanes_of
from .programs import Program, Session, many, one

_JOBS = "main.{}_jobs AS j"
_WITH_LEASES = "main.{}_leases AS l JOIN main.{}_jobs AS j ON j.seq = l.seq"
_CONDITIONS = {
    "queue": "j.queue = :queue",
    "owner": "l.owner = :owner",
    "task": "j.task = :task",
    "parent": "j.parent = :parent",
}


def job(session: Session, job_id: str) -> Program[Job]:
    """Return the job."""
    rows = yield one(session.sql.job, job_id)
    if not rows:
        raise UnknownJob(job_id)
    return job_of(rows[0])


def jobs(
    session: Session, status: Status | None, after: str | None, limit: int | None, fits: dict[str, str | None]
) -> Program[list[Job]]:
    """Return the jobs that fit."""
    params: dict[str, Any] = {name: value for name, value in fits.items() if value is not None}
    where = ["j.seq > :after", "j.narrow = 0"] + [_CONDITIONS[name] for name in params]
    params["after"] = (yield from _seq(session, after)) if after is not None else 0
    params["limit"] = -1 if limit is None else limit
    if status is not None:
        where.append(_status_condition(status, params))
    select = session.sql.job.partition(" WHERE j.id")[0]
    if status is Status.RUNNING or fits["owner"] is not None:
        # Begin with the leases, which are few, and not with the jobs.
        select = select.replace(" LEFT JOIN ", " JOIN ")
    sql = f"{select} WHERE {' AND '.join(where)} ORDER BY j.seq LIMIT :limit"
    return [job_of(row) for row in (yield sql, params, False)]


def _seq(session: Session, job_id: str) -> Program[int]:
    """Return the number of the job in the order of insertion."""
    rows = yield one(session.sql.seq, job_id)
    if not rows:
        raise UnknownJob(job_id)
    return int(rows[0][0])


def waiting(session: Session, queues: Sequence[str] | None, tasks: Known | None = None) -> Program[tuple[bool, int]]:
    """Return whether something waits for a claim in *queues*, and when to look again even if nothing is written."""
    paused = {name for (name,) in (yield one(session.sql.paused))}
    due = {queue for (queue,) in (yield one(session.sql.queues))} - paused
    lanes = yield from lanes_of(session, queues, paused, tasks)
    [(next_us, *_)] = yield one(session.sql.look, None)
    return bool(lanes or (due if queues is None else due.intersection(queues))), next_us


def claimed(session: Session, claim_id: str) -> Program[list[Grant]]:
    """Return the live leases of a claim."""
    rows = yield one(session.sql.grants, claim_id)
    return [grant_of(row) for row in rows]


def lease(session: Session, job_id: str, owner: str) -> Program[tuple[Grant, bool]]:
    """Return the live lease of *owner* on the job, and whether it was picked up."""
    held = yield from programs.find(session, job_id)
    if held is None:
        raise UnknownJob(job_id)
    if held.owner != owner:
        raise no_lease(job_id, held.status, held.owner, held.epoch, owner)
    [row] = yield one(session.sql.grant, job_id)
    return grant_of(row), bool(held.picked_up)


def ownerships(session: Session, job_id: str) -> Program[list[Ownership]]:
    """Return every ownership of the job."""
    rows = yield one(session.sql.current_ownership, job_id)
    if not rows:
        raise UnknownJob(job_id)
    epoch, owner, began, granted, expires, seq, *done = rows[0]
    found = [
        Ownership(job_id, row[0], row[1], Reason(row[2]), *row[3:]) for row in (yield one(session.sql.ownerships, seq))
    ]
    if epoch is not None:
        found.append(Ownership(job_id, epoch, owner, Reason(began), granted, expires))
    elif done[1] is not None:
        epoch, owner, began, granted, expires, finished = done
        found.append(
            Ownership(job_id, epoch, owner, Reason(began), granted, expires, Status.DONE.value, finished, owner)
        )
    return found


def effects(session: Session, job_id: str) -> Program[list[Effect]]:
    """Return the named effects of the job."""
    yield from _seq(session, job_id)
    return [
        Effect(job_id, name, key, epoch, outcome is not None, outcome)
        for name, key, epoch, outcome in (yield one(session.sql.effects, job_id))
    ]


def events(
    session: Session, job_id: str | None, kind: str | None, after: int, limit: int | None
) -> Program[list[Event]]:
    """Return what was recorded."""
    params = {"job_id": job_id, "kind": kind, "after": after, "limit": -1 if limit is None else limit}
    rows = yield (session.sql.events if job_id is None else session.sql.events_of), params, False
    return [
        Event(number, at, of, job, epoch, owner, json.loads(facts)) for number, at, of, job, epoch, owner, facts in rows
    ]


def open_keys(
    session: Session, guards: Collection[str], after: int, limit: int
) -> Program[tuple[OpenKeys, list[tuple[Any, ...]]]]:
    """Return the open keys of the next jobs, and the rows of those that need no seal."""
    [(last, count)] = yield one(session.sql.guarded_portion, after, limit)
    rows = (yield one(session.sql.guarded, after, last)) if count else []
    own = [row for *row, _, status, ended in rows if status == Status.DONE and row[-1] == ended]
    keys = [
        OpenKey(job_id, ended, guard, key)
        for _, guard, key, epoch, job_id, status, ended in rows
        if status != "unfinished" and guard in guards and not (status == Status.DONE and epoch == ended)
    ]
    return OpenKeys(keys, last if count == limit else None), own


def identity(session: Session) -> Program[str]:
    """Return the id of the store."""
    [(store_id,)] = yield one(session.sql.store_id)
    return str(store_id)


def queues(session: Session) -> Program[list[Queue]]:
    """Return the queues that are paused."""
    return [Queue(*row) for row in (yield one(session.sql.configured))]


def workers(session: Session, now: int) -> Program[list[WorkerStatus]]:
    """Return the workers that have reported."""
    return [worker_of(row, is_alive(row[-1], now)) for row in (yield one(session.sql.workers))]


def counts(session: Session) -> Program[Counts]:
    """Return how many jobs stand where."""
    total = dict.fromkeys(Status, 0)
    for status, count in (yield one(session.sql.count_finished)):
        total[Status(status)] = count
    queues: dict[str, dict[str, int]] = {}
    for status, rows in (
        (Status.PENDING, (yield one(session.sql.count_waiting))),
        (Status.RUNNING, (yield one(session.sql.count_running))),
    ):
        for queue, count in rows:
            total[status] += count
            queues.setdefault(queue, {"pending": 0, "running": 0})[status.value] = count
    parked: dict[str, dict[str, int]] = {}
    for task, queue, count in (yield one(session.sql.count_parked)):
        parked.setdefault(task, {})[queue] = count
    return Counts.of(total, queues, parked)


def verify(session: Session) -> Program[list[str]]:
    """Return a sentence for every broken invariant."""
    sql = session.sql
    wrong = []
    for kind, statement in (
        ("places", sql.verify_places),
        ("stray", sql.verify_strays),
        ("free lock", sql.verify_parked),
        ("lock", sql.verify_locks),
        ("wrong place", sql.verify_ready),
        ("epoch", sql.verify_epochs),
        ("earlier epoch", sql.verify_ownerships),
        ("pruned", sql.verify_narrow),
    ):
        wrong += [violation(kind, *facts) for facts in (yield one(statement))]
    return wrong


# What operators and upkeep look at: the oldest due jobs, what came and went lately, observations, live leases


def oldest(session: Session, now: int) -> Program[list[Oldest]]:
    """Return since when the oldest due job of each queue waits, by one seek for each place that jobs wait in."""
    queues: dict[str, int] = {}
    tasks: dict[tuple[str, str], int] = {}

    def found(queue: str, run_us: int) -> None:
        queues[queue] = min(queues.get(queue, run_us), run_us)

    lane = "", 0
    while rows := (yield one(session.sql.next_lane, *lane, *lane[:1])):
        [(queue, rank, run_us)] = rows
        lane = queue, rank
        found(queue, run_us)
    place = "", "", "", 0
    while rows := (yield one(session.sql.next_parked, *place, *place[:3], *place[:2], *place[:1])):
        [(kind, behind, queue, rank, run_us)] = rows
        place = kind, behind, queue, rank
        found(queue, run_us)
        if kind == TASK:
            tasks[queue, behind] = min(tasks.get((queue, behind), run_us), run_us)
    for queue, run_us in (yield one(session.sql.overdue, now, OVERDUE)):
        found(queue, run_us)
    rows = [Oldest(queue, None, since) for queue, since in queues.items()]
    rows += [Oldest(queue, task, since) for (queue, task), since in tasks.items()]
    return sorted(rows, key=lambda row: (row.queue, row.task is not None, row.task))


def lately(session: Session, now: int) -> Program[Lately]:
    """Return how many jobs of each queue were added and have finished lately."""
    since_us = now - LATELY_US
    [(first, last)] = yield one(session.sql.first_and_last)
    added: dict[str, float] = {}
    if last is not None:
        # Jobs are numbered as they are added: where the window begins is found by halving.
        low, high = first, last
        while low <= high:
            middle = (low + high) // 2
            [(created_us,)] = yield one(session.sql.created, middle)
            low, high = (middle + 1, high) if created_us < since_us else (low, middle - 1)
        added = yield from _by_queue(session, range(low, last + 1))
    rows = yield one(session.sql.finished_lately, *[since_us, LOOKS_AT] * 3, LOOKS_AT)
    finished = yield from _by_queue(session, [seq for seq, _ in rows])
    finished_since_us = since_us if len(rows) < LOOKS_AT else rows[-1][1]
    return Lately(now, added, since_us, finished, finished_since_us)


def _by_queue(session: Session, seqs: Sequence[int]) -> Program[dict[str, float]]:
    """Return how many of these jobs are of each queue; of many, as a sample says."""
    sample = seqs if len(seqs) <= SAMPLE else random.sample(seqs, SAMPLE)
    rows = yield one(session.sql.queues_of, json.dumps(list(sample)))
    return {queue: count * len(seqs) / len(sample) for queue, count in Counter(queue for (queue,) in rows).items()}


def observed(session: Session, now: int) -> Program[Observed]:
    """Return what is recorded as observed."""
    [(round, looked_us)] = (yield one(session.sql.round)) or [(0, 0)]
    rows = yield one(session.sql.observations)
    return Observed(now, round, looked_us, [Noted(*row[:4]) for row in rows])


def observe(session: Session, now: int, round: int, found: Sequence[Observation]) -> Program[bool]:
    """Record what has begun and what has ended since *round*, unless another look has been recorded since."""
    [(last, _)] = (yield one(session.sql.round)) or [(0, 0)]
    if last != round:
        return False
    yield one(session.sql.set_round, round + 1, now)
    before = {
        (kind, subject, task): (*held, json.loads(facts))
        for kind, subject, task, _, *held, facts in (yield one(session.sql.observations))
    }
    after = {one.key: (*(one.held or (None, None, None)), one.facts()) for one in found}
    come = [(*key, now, *after[key][:3], json.dumps(after[key][3])) for key in sorted(after.keys() - before.keys())]
    yield many(session.sql.delete_observation, sorted(before.keys() - after.keys()))
    yield many(session.sql.insert_observation, come)
    for kind, (job_id, epoch, owner, facts) in changes(before, after):
        yield from session.record(now, kind, job_id, epoch=epoch, owner=owner, **facts)
    return True


def leases(session: Session) -> Program[list[LiveLease]]:
    """Return every lease that lasts."""
    return [LiveLease(*row) for row in (yield one(session.sql.live_leases))]


# Conditions


def _status_condition(status: Status, params: dict[str, Any]) -> str:
    if status in FINISHED:
        params["status"] = status.value
        return "j.status = :status"
    return f"j.status = 'unfinished' AND l.seq IS {'NOT ' if status is Status.RUNNING else ''}NULL"


# Search: looks at candidates in the order of an index


def look(session: Session, schema: str, search: Search, key: Key | None, count: int, limit: int) -> Program[Looked]:
    """Look at the next *count* candidates behind *key*, and return up to *limit* that fit."""
    params: dict[str, Any] = {"candidates": count - 1}
    candidates = _candidates(search, schema, params)
    rows = yield bound(candidates, search, key, _mark, params), params, False
    last = tuple(rows[0]) if rows else None
    params = {"limit": limit}
    candidates = _candidates(search, schema, params)
    conditions = within(candidates, search, key, last, _mark, params) + _fitting(search, params)
    select = session.sql.job.partition(" WHERE j.id")[0]
    if search.status is Status.RUNNING:
        # The leases are few: begin with them, and not with the jobs.
        select = select.replace(" LEFT JOIN ", " JOIN ")
    sql = f"{select} WHERE {' AND '.join(conditions) or 'true'} ORDER BY {ordered(candidates, search)} LIMIT :limit"
    found = [(job_of(row), state_of(row).seq) for row in (yield sql, params, False)]
    return Looked([(key_of(search, job, seq), job) for job, seq in found], last)


def _mark(name: str) -> str:
    return f":{name}"


def _candidates(search: Search, schema: str, params: dict[str, Any]) -> Candidates:
    jobs = _JOBS.format(schema)
    if search.order is Order.ID:
        where = ["j.narrow = 0", "j.id >= :prefix"]
        params["prefix"] = search.id_prefix
        if (end := prefix_end(search.id_prefix or "")) is not None:
            where.append("j.id < :prefix_end")
            params["prefix_end"] = end
        return Candidates(jobs, tuple(where), ("j.id",))
    if search.order is Order.END:
        assert search.status is not None
        params["status"] = search.status.value
        where = ["j.narrow = 0", "j.status = :status", "j.finished_at IS NOT NULL"]
        where += during("j.finished_at", search, _mark, params)
        return Candidates(jobs, tuple(where), ("j.finished_at", "j.seq"))
    if search.status is Status.RUNNING:
        return Candidates(_WITH_LEASES.format(schema, schema), (), ("l.seq",))
    return Candidates(jobs, ("j.narrow = 0",), ("j.seq",))


def _fitting(search: Search, params: dict[str, Any]) -> list[str]:
    """Return the conditions that no index knows."""
    conditions = by_column(search, _mark, params)
    if search.status is Status.PENDING:
        conditions.append("j.status = 'unfinished' AND l.seq IS NULL")
    elif search.order is Order.ID and search.status is not None:
        params["status"] = search.status.value
        is_leased = "j.status = 'unfinished' AND l.seq IS NOT NULL"
        conditions.append(is_leased if search.status is Status.RUNNING else "j.status = :status")
    if search.owner is not None:
        params["owner"] = search.owner
        conditions.append("l.owner = :owner")
    if search.error_type is not None:
        params["error_type"] = search.error_type
        conditions.append("instr(j.last_error, :error_type) > 0")  # `Search.fits` compares exactly
    for number, (name, value) in enumerate(search.meta.items()):
        path = f":path{number}"
        params[path[1:]] = f'$."{name}"'
        if value is None or isinstance(value, bool):
            conditions.append(f"json_type(j.meta, {path}) = '{documents.encode(value, 'meta')}'")
            continue
        params[f"value{number}"] = value
        types = "('text')" if isinstance(value, str) else "('integer', 'real')"
        conditions.append(f"json_type(j.meta, {path}) IN {types} AND json_extract(j.meta, {path}) = :value{number}")
    return conditions
