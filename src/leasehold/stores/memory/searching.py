"""Looks at candidates for a search, and returns those that fit (C65, C66)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ...core.job import Job, Status
from ...core.search import Key, Looked, Order, Search, has_meta
from .record import Record


def look(records: Iterable[Record], search: Search, key: Key | None, count: int, limit: int) -> Looked:
    """Look at the next *count* candidates behind *key*, and return up to *limit* that fit."""
    keyed = ((_key(search, record), record) for record in records if _is_candidate(search, record))
    behind = (one for one in keyed if key is None or (one[0] < key if search.newest else one[0] > key))
    pick = heapq.nlargest if search.newest else heapq.nsmallest
    candidates = pick(count, behind, key=lambda one: one[0])
    fitting = ((at, record.job()) for at, record in candidates)
    found = [(at, job) for at, job in fitting if _fits(search, job)][:limit]
    return Looked(found, candidates[-1][0] if len(candidates) == count else None)


def _is_candidate(search: Search, record: Record) -> bool:
    if record.narrow:
        return False
    if search.order is Order.ID:
        return record.spec.id.startswith(search.id_prefix or "")
    return search.status is None or search.status is Status.PENDING or record.status is search.status


def _key(search: Search, record: Record) -> Key:
    if search.order is Order.ID:
        return (record.spec.id,)
    return (record.finished_us or 0, record.seq) if search.order is Order.END else (record.seq,)


def _fits(search: Search, job: Job) -> bool:
    at = job.finished_us if search.order is Order.END else job.created_us
    return (
        (search.status is None or job.status is search.status)
        and all(
            value is None or value == getattr(job, name)
            for name, value in (
                ("queue", search.queue),
                ("task", search.task),
                ("parent", search.parent),
                ("lock", search.lock),
                ("owner", search.owner),
            )
        )
        and (search.since_us is None or (at or 0) >= search.since_us)
        and (search.until_us is None or (at or 0) < search.until_us)
        and has_meta(job, search.meta)
    )
