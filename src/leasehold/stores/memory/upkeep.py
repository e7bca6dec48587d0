"""What the memory store keeps of jobs that have ended: open keys, rows, ids and events. The lock is held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from itertools import islice, takewhile

from ...core import lifecycle
from ...core.job import PRUNED, NewJob
from ...core.ownership import Event, Note, NoteKind
from ...core.retention import Retention
from ...store import EVENTS_AT_ONCE, OpenKey, OpenKeys, Pruned, ids_before
from ..policy import EVENTS, IDS, KEPT, PORTION, WORKERS, Place
from .row import DONE, Row
from .state import State

# Guarded keys


def note_keys(state: State, job_id: str, note: Note) -> None:
    """Keep the keys that an owner is about to write to, and forget those that were sealed above its epoch."""
    if note.kind not in (NoteKind.GUARDED, NoteKind.SEALED):
        return
    known, pairs = state.keys.get(job_id, {}), [(guard, key) for guard, key in note.facts["keys"]]
    if note.kind is NoteKind.GUARDED:
        _keep_keys(state, job_id, known | dict.fromkeys(pairs, note.epoch))
    else:
        sealed = {pair for pair in pairs if known.get(pair, note.epoch) < note.epoch}
        _keep_keys(state, job_id, {pair: epoch for pair, epoch in known.items() if pair not in sealed})


def _keep_keys(state: State, job_id: str, kept: dict[tuple[str, str], int]) -> None:
    if kept:
        state.keys[job_id] = kept
    else:
        state.keys.pop(job_id, None)


def _open(state: State, row: Row) -> dict[tuple[str, str], int]:
    """Return the keys of a finished job that are not sealed: what an owner recorded who completed it needs no seal."""
    own = row.epoch if row.end is DONE else None
    return {pair: epoch for pair, epoch in state.keys.get(row.id, {}).items() if epoch != own}


def open_keys(state: State, guards: Collection[str], after: int, limit: int) -> OpenKeys:
    """Return the open keys of the next jobs behind *after*; forget what needs no seal."""
    found, seen = [], 0
    rows = sorted((state.jobs[job_id] for job_id in state.keys), key=lambda row: row.seq)
    rows = [row for row in rows if row.seq > after]
    for row in rows:
        seen += len(state.keys[row.id])
        _keep_keys(state, row.id, _open(state, row))
        if row.end is not None:
            ours = sorted(pair for pair in _open(state, row) if pair[0] in guards)
            found += [OpenKey(row.id, row.epoch, guard, key) for guard, key in ours]
        if seen >= limit and row is not rows[-1]:
            return OpenKeys(found, row.seq)
    return OpenKeys(found, None)


# Jobs


def _parent(state: State, row: Row) -> str | None:
    """Return the parent of the job if it can still be replayed: it would ask for this child again."""
    return row.spec.parent if row.spec.parent in state.jobs else None


def prunable(state: State, row: Row) -> Row:
    """Return the row if an operator may prune the job; raise `Conflict` otherwise."""
    parent = _parent(state, row)
    doubted = min((effect.name for effect in row.effects if not effect.known), default=None)
    if row.end is None or parent is not None or doubted is not None or _open(state, row):
        raise lifecycle.not_prunable(row.id, row.status, parent, doubted)
    return row


def remove(state: State, rows: Sequence[Row], ids_before_us: int) -> None:
    """Remove finished jobs; of one whose id the caller chose, a narrow row stays."""
    state.torn = True
    for row in rows:
        job_id, ended_us = row.id, row.updated_us
        state.keys.pop(job_id, None)
        if row.chosen and ended_us >= ids_before_us:
            kept = row.seq, True, ended_us, ended_us, ended_us, row.epoch, row.reason
            state.pruned[job_id] = Row(NewJob(job_id, PRUNED, queue=""), *kept, end=row.end)
            heappush(state.ids, (ended_us, job_id))
        del state.jobs[job_id], state.finished[job_id]
    state.torn = False


def _oldest(state: State, before_us: int, goes: Callable[[Row], bool], limit: int) -> list[Row]:
    """Return up to *limit* jobs that finished before that instant and may go, oldest first."""
    old = takewhile(lambda row: row.updated_us < before_us, state.finished.values())
    return list(islice((row for row in old if goes(row) and not _parent(state, row) and not _open(state, row)), limit))


def prune(state: State, before_us: int, ids_before_us: int, limit: int) -> Pruned:
    """Remove what finished before the one instant, its id if before the other, and events as old as the jobs."""
    rows = _oldest(state, before_us, lambda row: True, limit)
    remove(state, rows, ids_before_us)
    return Pruned(len(rows), _prune_events(state, before_us), _prune_ids(state, ids_before_us, limit))


def prune_due(state: State, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
    """Prune one portion by policy (see `policy.Pass`); return *place* if there is more."""
    before_us = state.now - keep_us
    if kind == WORKERS:
        state.workers = {name: one for name, one in state.workers.items() if one.seen_us > before_us}
        return None
    if kind == IDS:
        return place if _prune_ids(state, before_us, PORTION) else None
    if kind == EVENTS:
        state.events = [
            one
            for one in state.events
            if one.at_us >= before_us or _is_of_unfinished(state, one) or _names_keys(state, one)
        ]
        return None

    def goes(row: Row) -> bool:
        own_us = row.spec.options.keep_us
        old = own_us is None and row.end == kind
        if kind == KEPT:
            old = own_us is not None and row.updated_us + own_us < state.now
        return old and all(effect.known for effect in row.effects)

    due = _oldest(state, state.now if kind == KEPT else before_us, goes, PORTION + 1)
    remove(state, due[:PORTION], ids_before(state.now, retention.keep_us(IDS)))
    return place if len(due) > PORTION else None


# Ids and events


def _prune_ids(state: State, before_us: int, limit: int) -> int:
    """Forget the ids of jobs that were pruned and finished before that instant, oldest first."""
    count = 0
    while state.ids and state.ids[0][0] < before_us and count < limit:
        state.pruned.pop(state.ids[0][1], None)
        heappop(state.ids)
        count += 1
    return count


def _prune_events(state: State, before_us: int) -> int:
    kept, gone = [], 0
    for event in takewhile(lambda event: event.at_us < before_us, state.events):
        if _names_keys(state, event):
            kept.append(event)
        elif (gone := gone + 1) == EVENTS_AT_ONCE:
            break
    state.events[: len(kept) + gone] = kept
    return gone


def _is_of_unfinished(state: State, event: Event) -> bool:
    row = state.jobs.get(event.job_id or "")
    return row is not None and row.end is None


def _names_keys(state: State, event: Event) -> bool:
    """Return whether it has the keys of a job that has not ended or whose keys are open: they are to be sealed."""
    return event.kind == NoteKind.GUARDED and (_is_of_unfinished(state, event) or event.job_id in state.keys)
