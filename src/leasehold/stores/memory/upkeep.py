"""Removes finished jobs, their ids and old events from the memory store. The lock is held."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import takewhile

from ...core import lifecycle
from ...core.job import PRUNED, NewJob
from ...core.ownership import Event, NoteKind
from ...store import EVENTS_AT_ONCE, Pruned
from ..policy import EVENTS, IDS, KEPT, PORTION
from . import fencing
from .guarded import GuardedKeys
from .record import Record
from .state import State


def prune(state: State, guarded: GuardedKeys, before_us: int, ids_before_us: int, limit: int) -> Pruned:
    """Remove what finished before the one instant, its id if before the other, and events as old as the jobs."""
    state.torn = True
    removed: set[str] = set()
    kept = []
    while state.finished and len(removed) < limit:
        row = state.finished[0]
        if state.jobs.get(row.id) is row and row.updated_us >= before_us:
            break
        state.finished.popleft()
        if state.jobs.get(row.id) is not row:  # it moved since
            continue
        if row.spec.parent in removed or _has_parent(state, row) or guarded.has_open(row):
            kept.append(row)
        else:
            _remove(state, guarded, row, ids_before_us)
            removed.add(row.id)
    state.finished.extendleft(reversed(kept))
    for queue in [queue for queue, count in state.unfinished.items() if not count]:
        del state.unfinished[queue]
    state.torn = False
    return Pruned(len(removed), _prune_events(state, guarded, before_us), _prune_ids(state, ids_before_us, limit))


def prune_job(
    state: State,
    guarded: GuardedKeys,
    now: int,
    job_id: str,
    epoch: int,
    by: str,
    note: str | None,
    ids_before_us: int,
) -> None:
    """Remove one finished job, if *epoch* is the one that the operator *by* saw."""
    row, lease = fencing.seen(state, now, job_id, epoch, "prune", by)
    if row.narrow:
        raise lifecycle.only_its_id(job_id, "prune")
    status = row.job(lease).status
    parent = row.spec.parent if _has_parent(state, row) else None
    doubted = min((name for name, effect in row.past.effects.items() if not effect.known), default=None)
    if status not in lifecycle.FINISHED or parent is not None or doubted is not None or guarded.has_open(row):
        raise lifecycle.not_prunable(job_id, status, parent, doubted)
    state.note(now, "pruned", job_id, epoch, by=by, note=note)  # first: no interruption removes a job without a trace
    state.torn = True
    _remove(state, guarded, row, ids_before_us)
    state.forget_void()  # its entry of `finished`
    state.torn = False


def _prune_events(state: State, guarded: GuardedKeys, before_us: int) -> int:
    kept, gone = list[Event](), 0
    for event in takewhile(lambda event: event.at_us < before_us, state.events):
        if _names_keys(state, guarded, event):
            kept.append(event)
        elif (gone := gone + 1) == EVENTS_AT_ONCE:
            break
    state.events[: len(kept) + gone] = kept
    return gone


def _is_of_unfinished(state: State, event: Event) -> bool:
    job = state.jobs.get(event.job_id or "")
    return job is not None and job.finished_us is None


def _names_keys(state: State, guarded: GuardedKeys, event: Event) -> bool:
    """Return whether it has the keys of a job that has not ended or whose keys are open: they are to be sealed."""
    job = state.jobs.get(event.job_id or "") if event.kind == NoteKind.GUARDED else None
    return job is not None and (job.finished_us is None or guarded.has(job))


def prune_due(state: State, guarded: GuardedKeys, kind: str, now: int, keep_us: int, ids_before_us: int) -> bool:
    """Prune one portion by policy (see `policy.Pass`); return whether there is more."""
    before_us = now - keep_us
    if kind == IDS:
        return bool(_prune_ids(state, before_us, PORTION))
    if kind == EVENTS:
        state.events = [
            one
            for one in state.events
            if one.at_us >= before_us or _is_of_unfinished(state, one) or _names_keys(state, guarded, one)
        ]
        return False
    horizon = now if kind == KEPT else before_us
    old = takewhile(lambda row: row.updated_us < horizon, state.finished)
    due = [row for row in old if state.jobs.get(row.id) is row and _is_due(state, guarded, row, kind, before_us, now)]
    state.torn = True
    for row in due[:PORTION]:
        _remove(state, guarded, row, ids_before_us)
    if due:
        state.finished = deque(row for row in state.finished if state.jobs.get(row.id) is row)
    state.torn = False
    return len(due) > PORTION


def _has_parent(state: State, record: Record) -> bool:
    """Return whether the parent of the job can still be replayed: it would ask for this child again."""
    parent = state.jobs.get(record.spec.parent) if record.spec.parent is not None else None
    return parent is not None and not parent.narrow


def _is_due(state: State, guarded: GuardedKeys, record: Record, kind: str, before_us: int, now: int) -> bool:
    own_us, ended_us = record.spec.options.keep_us, record.updated_us
    if kind == KEPT:
        old = own_us is not None and ended_us + own_us < now
    else:
        old = own_us is None and record.status == kind and ended_us < before_us
    if not old or _has_parent(state, record) or guarded.has_open(record):
        return False
    return all(effect.known for effect in record.past.effects.values())


def _remove(state: State, guarded: GuardedKeys, record: Record, ids_before_us: int) -> None:
    """Remove a finished job; of one whose id the caller chose, a narrow row stays in its place."""
    guarded.drop(record)
    state.ended[record.status] -= 1
    state.renewed.pop(record.id, None)
    if not record.chosen or record.updated_us < ids_before_us:
        del state.jobs[record.id]
        return
    ended_us = record.updated_us
    spec = NewJob(record.id, PRUNED, queue="")
    state.jobs[record.id] = Record(
        spec, record.seq, True, ended_us, ended_us, record.status, record.epoch, record.reason, ended_us
    )
    heappush(state.narrow, (ended_us, record.id))


def _prune_ids(state: State, before_us: int, limit: int) -> int:
    """Forget the ids of jobs that were pruned and finished before that instant."""
    count = 0
    while state.narrow and state.narrow[0][0] < before_us and count < limit:
        del state.jobs[state.narrow[0][1]]
        heappop(state.narrow)
        count += 1
    return count
