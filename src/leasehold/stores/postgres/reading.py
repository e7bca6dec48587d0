"""What readers and upkeep ask: jobs, `search`, which looks at candidates in the order of an index, and observations."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...core import documents
from ...core.backlog import LATELY_US, LOOKS_AT, SAMPLE, Lately, Oldest
from ...core.effects import Effect
from ...core.job import Job, Status
from ...core.observations import Noted, Observation, Observed
from ...core.ownership import Ownership
from ...core.search import LOOKS_AT as OVERDUE
from ...core.search import Key, Looked, Order, Search
from ...errors import UnknownJob
from ...store import OpenKey, OpenKeys
from ..rows import job_of, state_of
from ..searching import Candidates, bound, by_column, during, key_of, ordered, prefix_end, within
from .claiming import UPKEEP_PATIENCE_MS
from .database import Database
from .owning import PATIENCE_MS
from .rows import as_json, ownership_of
from .schema import Statements, in_schema

Read = Callable[..., list[Any]]  # a statement, and its parameters by name

_TEXT = ("prefix", "prefix_end", "status", "queue", "task", "parent", "lock", "owner", "error_type", "meta")


def job(read: Read, statements: Statements, job_id: str) -> Job:
    """Return the job."""
    rows = read(statements.job, id=job_id)
    if not rows:
        raise UnknownJob(job_id)
    return job_of(rows[0])


def ownerships(read: Read, statements: Statements, job_id: str) -> list[Ownership]:
    """Return every ownership of the job, oldest first."""
    rows = read(statements.ownerships, id=job_id)
    if not rows:
        raise UnknownJob(job_id)
    return [ownership_of(job_id, row) for row in rows[1:]]


def effects(read: Read, statements: Statements, job_id: str) -> list[Effect]:
    """Return the named effects of the job."""
    rows = read(statements.effects, id=job_id)
    if not rows:
        raise UnknownJob(job_id)
    return [
        Effect(job_id, name, key, epoch, outcome is not None, outcome)
        for name, key, epoch, outcome in rows
        if name is not None
    ]


def jobs(
    read: Read,
    statements: Statements,
    status: Status | None,
    after: str | None,
    conditions: dict[str, Any],
) -> list[Job]:
    """Return the jobs that fit, in the order of their insertion, beginning behind the job *after*."""
    first = 0
    if after is not None:
        rows = read(statements.seq, id=after)
        if not rows:
            raise UnknownJob(after)
        first = rows[0][0]
    of_leases = conditions["owner"] is not None or status is Status.RUNNING
    statement = statements.running_jobs if of_leases else statements.jobs
    rows = read(statement, status=None if status is None else status.value, after=first, **conditions)
    return [job_of(row) for row in rows]


def look(read: Read, schema: str, search: Search, key: Key | None, count: int, limit: int) -> Looked:
    """Look at the next *count* candidates behind *key*, and return up to *limit* that fit."""
    if search.order is Order.END:
        return _look_at_ended(read, schema, search, key, count, limit)
    params: dict[str, Any] = {"candidates": count - 1}
    candidates = _candidates(search, params)
    rows = read(in_schema(bound(candidates, search, key, _mark, params), schema, escaped=True), **params)
    last = tuple(rows[0]) if rows else None
    params = {"limit": limit}
    candidates = _candidates(search, params)
    conditions = within(candidates, search, key, last, _mark, params) + _fitting(search, params)
    sql = (
        f"SELECT j.* FROM {_with_jobs(search, candidates)} WHERE {' AND '.join(conditions) or 'true'} "
        f"ORDER BY {ordered(candidates, search)} LIMIT %(limit)s"
    )
    found = [(job_of(row), state_of(row).seq) for row in read(in_schema(sql, schema, escaped=True), **params)]
    return Looked([(key_of(search, job, seq), job) for job, seq in found], last)


def _look_at_ended(read: Read, schema: str, search: Search, key: Key | None, count: int, limit: int) -> Looked:
    """
    Look at finished jobs, whose order is in a table of its own.

    First the numbers of the candidates, then those of them that fit, by the key of `jobs`, and only then whole jobs: in
    one join, PostgreSQL may begin with all the jobs there are.
    """
    params: dict[str, Any] = {"limit": limit, "candidates": count}
    candidates = _candidates(search, params)
    conditions = " AND ".join(within(candidates, search, key, None, _mark, params))
    fits = " AND ".join([f"j.status = {_mark('status')}", *_fitting(search, params)])
    onward, back = ("DESC", "ASC") if search.newest else ("ASC", "DESC")
    sql = (
        f"WITH looked AS MATERIALIZED (SELECT f.finished_at, u.seq FROM {candidates.source} WHERE {conditions} "
        f"ORDER BY {ordered(candidates, search)} LIMIT %(candidates)s), "
        "fit AS MATERIALIZED (SELECT j.seq FROM leasehold.jobs AS j "
        f"WHERE j.seq = ANY (ARRAY(SELECT seq FROM looked)) AND {fits}), "
        "page AS MATERIALIZED (SELECT k.finished_at, k.seq FROM looked AS k JOIN fit ON fit.seq = k.seq "
        f"ORDER BY k.finished_at {onward}, k.seq {onward} LIMIT %(limit)s) "
        "SELECT NULL::pg_catalog.int8, NULL::pg_catalog.int8, s.* FROM page "
        "CROSS JOIN LATERAL (SELECT o.* FROM leasehold.seen AS o WHERE o.seq = page.seq OFFSET 0) AS s "
        "UNION ALL "  # where the candidates end
        "SELECT k.finished_at, k.seq, s.* FROM "
        f"(SELECT * FROM looked ORDER BY finished_at {back}, seq {back} LIMIT 1) AS k "
        "LEFT JOIN leasehold.seen AS s ON false WHERE (SELECT pg_catalog.count(*) FROM looked) = %(candidates)s"
    )
    rows = read(in_schema(sql, schema, escaped=True), **params)
    last = next((tuple(row[:2]) for row in rows if row[0] is not None), None)
    found = [(job_of(row[2:]), state_of(row[2:]).seq) for row in rows if row[0] is None]
    keyed = [(key_of(search, job, seq), job) for job, seq in found]
    return Looked(sorted(keyed, key=lambda one: one[0], reverse=search.newest), last)


def _mark(name: str) -> str:
    return f"%({name})s::pg_catalog.text" if name in _TEXT else f"%({name})s"


def _candidates(search: Search, params: dict[str, Any]) -> Candidates:
    jobs = "leasehold.jobs AS j"
    if search.order is Order.ID:
        where = ["j.payload <> ''", f"j.id >= {_mark('prefix')}"]
        params["prefix"] = search.id_prefix
        if (end := prefix_end(search.id_prefix or "")) is not None:
            where.append(f"j.id < {_mark('prefix_end')}")
            params["prefix_end"] = end
        return Candidates(jobs, tuple(where), ("j.id",))
    if search.order is Order.END:
        assert search.status is not None
        params["status"] = search.status.value
        ended = "leasehold.finished AS f CROSS JOIN pg_catalog.unnest(f.seqs) AS u(seq)"
        where = [f"f.status = {_mark('status')}", *during("f.finished_at", search, _mark, params)]
        return Candidates(ended, tuple(where), ("f.finished_at", "u.seq"))
    if search.status is Status.RUNNING:
        return Candidates("leasehold.leases AS l", (), ("l.seq",))
    return Candidates(jobs, ("j.payload <> ''",), ("j.seq",))


def _with_jobs(search: Search, candidates: Candidates) -> str:
    """Return the candidates joined with whole jobs."""
    if search.order is Order.SEQ and search.status is Status.RUNNING:
        # A lease that is not above its job has been ended by a transaction that could not remove it.
        return f"{candidates.source} JOIN leasehold.seen AS j ON j.seq = l.seq AND j.epoch = l.epoch"
    return "leasehold.seen AS j"


def _fitting(search: Search, params: dict[str, Any]) -> list[str]:
    """Return the conditions that no index knows."""
    conditions = by_column(search, _mark, params)
    if search.status is not None and search.order is not Order.END:
        params["status"] = search.status.value
        conditions.append(f"j.status = {_mark('status')}")
    if search.owner is not None:
        params["owner"] = search.owner
        # A finished job has none; its row names who completed it.
        conditions.append("false" if search.order is Order.END else f"j.owner = {_mark('owner')}")
    if search.error_type is not None:
        params["error_type"] = search.error_type
        # `Search.fits` compares exactly.
        conditions.append(f"pg_catalog.strpos(j.last_error, {_mark('error_type')}) > 0")
    if search.meta:
        params["meta"] = documents.encode(dict(search.meta), "meta")
        conditions.append(
            f"j.meta IS NOT NULL AND j.meta::pg_catalog.jsonb OPERATOR(pg_catalog.@>) {_mark('meta')}::pg_catalog.jsonb"
        )
    return conditions


# What operators and upkeep look at: the oldest due jobs, what came and went lately, observations, live leases


def open_keys(database: Database, now: int | None, guards: Collection[str], after: int, limit: int) -> OpenKeys:
    """Return keys of *guards* whose job has ended without a successor that would seal them."""
    rows = database.call("open_keys", json.dumps(sorted(guards)), after, limit, PATIENCE_MS, now, again=True)
    following = rows.pop()[-1] if rows and rows[-1][0] is None else None
    return OpenKeys([OpenKey(*row[:-1]) for row in rows], following)


def oldest(database: Database, now: int | None) -> list[Oldest]:
    """Return since when the oldest due job of each queue waits, by queue."""
    return [Oldest(*row) for row in database.call("oldest_due", OVERDUE, now, again=True)]


def lately(database: Database, now: int | None) -> Lately:
    """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
    [(*_, now_us), *rows] = database.call("lately", LATELY_US, LOOKS_AT, SAMPLE, now, again=True)
    counts: dict[str, dict[str, float]] = {"in": {}, "out": {}}
    since = dict.fromkeys(counts, now_us - LATELY_US)
    for way, queue, count, since_us in rows:
        counts[way][queue], since[way] = count, since_us
    return Lately(now_us, counts["in"], since["in"], counts["out"], since["out"])


def observed(database: Database, now: int | None) -> Observed:
    """Return the round in which upkeep has looked last, when that was, and what was observed then."""
    rows = database.call("observed", now, again=True)
    now_us, round, looked_us = rows[0][:3]
    return Observed(now_us, round, looked_us, [Noted(*row[3:]) for row in rows if row[3] is not None])


def observe(database: Database, now: int | None, round: int, found: Sequence[Observation]) -> bool:
    """Record what has begun and what has ended since *round*, unless another look has been recorded since."""
    items = [
        {
            **dict(zip(("kind", "subject", "task"), one.key, strict=True)),
            **dict(zip(("job_id", "epoch", "owner"), one.held or (None, None, None), strict=True)),
            "facts": json.dumps(one.facts()),
        }
        for one in found
    ]
    [(counts,)] = database.call("observe", round, as_json(items), UPKEEP_PATIENCE_MS, now, again=True)
    return bool(counts)
