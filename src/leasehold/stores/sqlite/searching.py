"""The program of `search`: looks at candidates in the order of an index, and returns those that fit."""

from __future__ import annotations

from typing import Any

from ...core import documents
from ...core.job import Status
from ...core.search import Key, Looked, Order, Search
from ..rows import job_of, state_of
from ..searching import Candidates, bound, by_column, key_of, ordered, prefix_end, within
from .ownership import Session
from .sql import Program

_JOBS = "main.{}_jobs AS j"
_WITH_LEASES = "main.{}_leases AS l JOIN main.{}_jobs AS j ON j.seq = l.seq"


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
