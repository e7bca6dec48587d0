"""The upkeep of the memory store: recovery from dead processes, and pruning. The lock is held."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ...core.job import PRUNED, NewJob
from ...core.ownership import RECOVERY_EVERY_US, Ownership, Reason
from ...core.retention import Retention
from ...liveness import is_gone
from ...store import EVENTS_AT_ONCE, Pruned, ids_before
from ..policy import EVENTS, IDS, KEPT, PORTION, WORKERS, Place
from .record import ORDER, Record

if TYPE_CHECKING:
    from .state import State


def recover(state: State, now: int, *, always: bool = False) -> list[Ownership]:
    """Take back the jobs of processes that are gone."""
    # Looking up processes costs system calls.
    lately = 0 <= now - state._recovered_us < RECOVERY_EVERY_US  # false also for a clock that was set back
    if not state._processes or (lately and not always):
        return []
    state._recovered_us = now
    gone = {process for process in state._processes if is_gone(process)}
    state._processes -= gone
    if not gone:
        return []
    lost = [record for record in state._running() if record.grant and record.grant.process in gone]
    return [state._take_back(record, Reason.RECOVERY, now) for record in sorted(lost, key=lambda r: r.seq)]


def prune(state: State, before_us: int, ids_before_us: int, limit: int) -> Pruned:
    """Remove what finished before the one instant, its id if before the other, and events as old as the jobs."""
    removed: set[str] = set()
    kept = []
    while state._finished and len(removed) < limit:
        record = state._finished[0]
        if not record.left and (record.finished_us is None or record.finished_us >= before_us):
            break
        state._finished.popleft()
        if record.left:  # replayed since; if it has finished again, that entry is further behind
            record.left -= 1
        elif record.spec.parent in removed or has_parent(state, record):
            kept.append(record)
        else:
            remove(state, record, ids_before_us)
            removed.add(record.spec.id)
    state._finished.extendleft(reversed(kept))
    recorded = islice(state._events, EVENTS_AT_ONCE)
    old = next((i for i, event in enumerate(recorded) if event.at_us >= before_us), None)
    old = min(len(state._events), EVENTS_AT_ONCE) if old is None else old
    del state._events[:old]
    state._events_dropped += old
    return Pruned(len(removed), old, prune_ids(state, ids_before_us, limit))


def has_parent(state: State, record: Record) -> bool:
    """Return whether the parent of the job can still be replayed: it would ask for this child again."""
    parent = state._jobs.get(record.spec.parent) if record.spec.parent is not None else None
    return parent is not None and not parent.narrow


def remove(state: State, record: Record, ids_before_us: int) -> None:
    """Remove a finished job; of one whose id the caller chose, a narrow row stays in its place."""
    assert record.finished_us is not None
    job_id = record.spec.id
    record.tally[ORDER[record.status]] -= 1
    if not record.chosen or record.finished_us < ids_before_us:
        del state._jobs[job_id]
        return
    narrow = Record(NewJob(job_id, PRUNED, queue=""), record.seq, record.finished_us, [])
    narrow.status, narrow.epoch, narrow.reason = record.status, record.epoch, record.reason
    narrow.finished_us = record.finished_us
    state._jobs[job_id] = narrow
    heapq.heappush(state._narrow, (narrow.finished_us, narrow.seq, job_id))


def prune_ids(state: State, before_us: int, limit: int) -> int:
    """Forget the ids of jobs that were pruned and finished before that instant."""
    count = 0
    while state._narrow and state._narrow[0][0] < before_us and count < limit:
        *_, job_id = heapq.heappop(state._narrow)
        del state._jobs[job_id]
        count += 1
    return count


def narrow_rows(state: State) -> list[tuple[int, int, str]]:
    """Return the heap of the narrow rows, made anew."""
    return sorted((r.finished_us or 0, r.seq, r.spec.id) for r in state._jobs.values() if r.narrow)


def prune_due(state: State, now: int, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
    """Prune one portion by policy (see `policy.Pass`)."""
    before_us, ids_us = now - keep_us, ids_before(now, retention.keep_us(IDS))
    if kind == IDS:
        return place if prune_ids(state, before_us, PORTION) else None
    if kind == EVENTS:
        _prune_events(state, before_us)
        return None
    if kind == WORKERS:
        state._workers = {name: one for name, one in state._workers.items() if one.seen_us > before_us}
        return None
    horizon = now if kind == KEPT else before_us
    # An entry that a replay has left behind says nothing about those after it.
    old = takewhile(lambda record: record.left or (record.finished_us or 0) < horizon, state._finished)
    due = {record.spec.id: record for record in old if _is_due(state, record, kind, before_us, now)}
    portion = list(islice(due.values(), PORTION))
    for record in portion:
        remove(state, record, ids_us)
    if portion:
        gone = set(map(id, portion))
        state._finished = deque(record for record in state._finished if id(record) not in gone)
    return place if len(due) > PORTION else None


def _is_due(state: State, record: Record, kind: str, before_us: int, now: int) -> bool:
    own_us, ended_us = record.spec.options.keep_us, record.finished_us
    if ended_us is None:  # replayed since
        return False
    old = (
        own_us is not None and ended_us + own_us < now
        if kind == KEPT
        else own_us is None and record.status == kind and ended_us < before_us
    )
    return old and not has_parent(state, record) and all(effect.known for effect in (record.effects or {}).values())


def _prune_events(state: State, before_us: int) -> None:
    unfinished = {r.spec.id for r in state._jobs.values() if r.finished_us is None}
    kept = [e for e in state._events if e.at_us >= before_us or e.job_id in unfinished]
    state._events_dropped += len(state._events) - len(kept)
    state._events = kept
