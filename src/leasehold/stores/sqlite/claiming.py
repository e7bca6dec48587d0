"""
The programs by which jobs get owners, and by which the store takes them back and tidies up.

A claim; then the upkeep: reclaims, pruning, and the epoch counter. They are one module because a claim takes back what
is overdue first. `Upkeep` runs the programs of the latter, each in a transaction of its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...core.clock import Clock
from ...core.job import Grant
from ...core.lifecycle import (
    FINISHED,
    NOT_STARTED,
    Verb,
    after,
    judge_taken_back,
    reclaimed_in_part,
)
from ...core.ownership import RECOVERY_EVERY_US, STORE, Ownership, Process, Reason
from ...core.parking import LOCK, TASK
from ...core.retention import Retention
from ...errors import StoreUnavailable
from ...liveness import is_gone, this_process
from ...store import EVENTS_AT_ONCE, Pruned, ids_before
from ..policy import EVENTS, IDS, KEPT, PORTION, WORKERS, Pass, Place
from ..reclaimed import Reclaimed
from ..rows import REASONS, SpecRow, spec_of
from . import moving, owning, programs
from .database import Database
from .programs import Program, Session, many, one, process_number

T = TypeVar("T")

SWEPT_AT_ONCE = 1_000
PARKED_AT_ONCE = 500

Candidate = tuple[Any, ...]  # a row of the statement `candidates`
_SPEC = 7  # where its SpecRow begins
_QUEUE = _SPEC + SpecRow._fields.index("queue")
_LOCK = _SPEC + SpecRow._fields.index("lock")
_TASK = _SPEC + SpecRow._fields.index("task")

Known = frozenset["str | None"]  # the tasks of a claim that does not know all of them
Lane = tuple[str, str]  # a task, and a queue of the jobs that are parked behind it


# Claims


def claim(
    session: Session,
    now: int,
    owner: str,
    limit: int,
    queues: Sequence[str] | None,
    lease_us: int | None,
    default_lease_us: int,
    claim_id: str | None,
    process: Process | None,
    tasks: Known | None,
) -> Program[tuple[list[Grant], bool, list[Ownership]]]:
    """
    Lease due jobs, after taking back what is overdue; return the grants, and the ownerships that were ended.

    The second value is True if there may be more behind many that were parked.
    """
    sql, ended = session.sql, list[Ownership]()
    number = None if process is None else process_number(process)
    [look] = yield one(sql.look, number)
    if look[0] <= now:
        ended = yield from sweep(session, now)
        [look] = yield one(sql.look, number)
    _, first, last, known, some_paused, some_parked, last_epoch = look
    if first is None and not some_parked:
        return [], False, ended
    paused = {name for (name,) in (yield one(sql.paused))} if some_paused else set()
    lanes = (yield from lanes_of(session, queues, paused, tasks)) if some_parked else []
    if queues is None:
        queues = [first] if first == last else [queue for (queue,) in (yield one(sql.queues))]
    queues = [queue for queue in queues if queue is not None and queue not in paused]
    if not queues and not lanes:
        return [], False, ended
    taken, more = yield from _take(session, owner, limit, queues, lanes, tasks)
    if not taken:
        return [], more, ended
    if process is not None and not known:
        yield one(sql.insert_process, number, *process)
    # The lock keys are known to be free by now. An epoch drawn before that could be below an earlier holder's.
    epoch = (yield from programs.draw(session, now, len(taken), last_epoch)) - len(taken)
    first_epoch = epoch + 1
    kinds, grants = set(), []
    for row in taken:
        epoch += 1
        _, _, _, reason, attempt, errors, checkpoint = row[:_SPEC]
        spec = spec_of(row[_SPEC:])
        lasts = lease_us or spec.lease_us or default_lease_us
        until = now + lasts
        kinds.add((reason, lasts, spec.lock, spec.stall_us))
        why = REASONS[reason]
        grants.append(Grant(spec, epoch, owner, why, attempt, errors, checkpoint, claim_id, process, now, until, lasts))
        if session.trace:
            yield from session.record(now, "claimed", spec.id, epoch=epoch, owner=owner, reason=reason, attempt=attempt)
    if len(taken) > 1 and kinds == {(reason, lasts, None, None)}:
        seqs = json.dumps([row[2] for row in taken])
        yield one(sql.insert_leases, first_epoch, owner, reason, claim_id, number, now, until, lasts, now, seqs)
    else:
        leases = [_lease_row(row[2], row[3], grant, number) for row, grant in zip(taken, grants, strict=True)]
        yield many(sql.insert_lease, leases)
    return grants, more, ended


def _lease_row(seq: int, reason: str, grant: Grant, number: int | None) -> tuple[Any, ...]:
    spec, epoch, owner, _, _, _, _, claim_id, _, now, until, lasts = grant
    stall_us = spec.stall_us
    stalls = None if stall_us is None else now + stall_us
    return seq, epoch, owner, reason, claim_id, number, spec.lock, now, until, lasts, stalls, stall_us, now


def lanes_of(
    session: Session, queues: Sequence[str] | None, paused: Collection[str], tasks: Known | None
) -> Program[list[Lane]]:
    """Return the lanes of jobs that are parked behind known *tasks* in *queues* that are not paused."""
    return [
        (task, queue)
        for task, queue in (yield one(session.sql.parked_lanes))
        if queue not in paused and (queues is None or queue in queues) and (tasks is None or (task or None) in tasks)
    ]


def _take(
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
        # Those that were read are the first of their queue. If all of them go, one statement deletes them.
        if len(gone) > 1 and len(gone) == len(first) and len(queues) == 1 and not lanes:
            yield one(session.sql.delete_first_ready, queues[0], *first[-1][:3])
        else:
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
        yield from owning.wake(session, lock, queue)


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


# Upkeep


def sweep(session: Session, now: int) -> Program[list[Ownership]]:
    """Take back what expired or stalled, and make ready what has become due; a bounded number at a time."""
    sql, ended = session.sql, list[Ownership]()
    for (job_id,) in (yield one(sql.expired, now, SWEPT_AT_ONCE)):
        ended.append((yield from take_back(session, now, job_id, Reason.TIMEOUT)))
    for (job_id,) in (yield one(sql.stalled, now, SWEPT_AT_ONCE)):
        ended.append((yield from take_back(session, now, job_id, Reason.STALL)))
    yield one(sql.promote, now, SWEPT_AT_ONCE)
    yield one(sql.promoted, now, SWEPT_AT_ONCE)
    for start_by, seq, job_id, unclaimed in (yield one(sql.late, now, SWEPT_AT_ONCE)):
        if unclaimed:
            yield from moving.override(session, now, Verb.CANCEL, "cancelled", job_id, 0, STORE, NOT_STARTED)
            yield one(sql.not_started, NOT_STARTED, seq)
        yield one(sql.delete_start, start_by, seq)
    return ended


def recover(session: Session, now: int, gone: Sequence[Process]) -> Program[list[Ownership]]:
    """Take back the jobs of processes that are gone."""
    numbers = [process_number(process) for process in gone]
    ended = []
    for (job_id,) in (yield one(session.sql.leased_by_processes, json.dumps(numbers))):
        ended.append((yield from take_back(session, now, job_id, Reason.RECOVERY)))
    for number in numbers:
        yield one(session.sql.delete_process, number)
    return ended


def processes(session: Session) -> Program[list[Process]]:
    """Return the processes that have claimed jobs here."""
    return [Process(*row) for row in (yield one(session.sql.processes))]


def take_back(session: Session, now: int, job_id: str, reason: Reason) -> Program[Ownership]:
    """End a lease for the store's own reasons."""
    held = yield from programs.find(session, job_id)
    assert held is not None
    ended = held.ownership(reason.value, now, STORE, None)
    verb, reclaims, error = judge_taken_back(
        reason, ended.owner, held.reclaims, held.retry, picked_up=bool(held.picked_up)
    )
    status = after(verb, held.status, job_id)
    final = status in FINISHED
    yield from programs.archive(session, now, held, reason, by=STORE, note=error)
    epoch = yield from programs.draw(session, now, 1)
    yield from owning.end_lease(
        session,
        now,
        held,
        status=status,
        epoch=epoch,
        reason=reason.value,
        attempt=held.attempt if final else held.attempt + 1,
        reclaims=reclaims,
        last_error=error,
        run_us=held.run_us if final else min(held.run_us, now),
    )
    if final:
        yield from session.record(now, "failed", job_id, epoch=epoch, reason=reason, was=held.owner, error=error)
    else:
        yield from session.record(now, "reclaimed", job_id, epoch=epoch, reason=reason, was=held.owner)
    return replace(ended, note=error)


def advance(session: Session, now: int, above: int) -> Program[int]:
    """Raise the counter, and return an epoch that is issued to no owner."""
    if above > (yield from programs.last_epoch(session)):
        yield one(session.sql.set_last_epoch, above)
    epoch = yield from programs.draw(session, now, 1)
    yield from session.record(now, "advanced", None, epoch=epoch, above=above)
    return epoch


# Dead workers


def may_forget_workers(session: Session, before_us: int) -> Program[bool]:
    """Return whether some workers have not reported since that instant."""
    [(some,)] = yield one(session.sql.forgettable_workers, before_us)
    return bool(some)


def forget_workers(session: Session, now: int, before_us: int) -> Program[None]:
    """Forget the workers that have not reported since that instant."""
    yield one(session.sql.forget_workers, before_us)


# Pruning


def prune(session: Session, now: int, keep_us: int, keep_ids_us: int | None, limit: int) -> Program[Pruned]:
    """Remove jobs that finished longer ago than the one, their ids if longer than the other, and events that old."""
    before_us, ids_before_us = now - keep_us, ids_before(now, keep_ids_us)
    old: list[tuple[int, int]] = []
    for status in FINISHED:
        old += yield one(session.sql.prunable, status.value, before_us, limit)
    seqs = [seq for _, seq in sorted(old)[:limit]]
    yield from moving.remove(session, seqs, ids_before_us)
    events = yield one(session.sql.prune_events, before_us, EVENTS_AT_ONCE)
    ids = yield from prune_ids(session, now, ids_before_us, limit)
    return Pruned(len(seqs), len(events), ids)


def prune_ids(session: Session, now: int, before_us: int, limit: int) -> Program[int]:
    """Forget the ids of jobs that were pruned and finished before that instant, and processes that hold nothing."""
    yield one(session.sql.delete_idle_processes)
    count = 0
    for status in FINISHED:
        count += len((yield one(session.sql.prune_ids, status.value, before_us, limit)))
    return count


def forget_keys(session: Session, now: int, rows: Sequence[Sequence[Any]]) -> Program[None]:
    """Forget guarded keys, unless they were recorded again since they were read."""
    yield one(session.sql.forget_keys, json.dumps(rows))


# By policy: what is due is read without the write lock, and read again under it


def due(
    session: Session, kind: str, before_us: int, place: Place, limit: int
) -> Program[tuple[list[int], Place | None]]:
    """Return the jobs of one portion that may go, by seq, and where the next one begins; None at the end."""
    params = {"kind": kind, "before": before_us, "at": place[0], "seq": place[1], "limit": limit}
    rows = yield (session.sql.due_kept if kind == KEPT else session.sql.due), params, False
    return [seq for _, seq, stays in rows if not stays], (rows[-1][:2] if len(rows) == limit else None)


def prune_due(
    session: Session, now: int, kind: str, before_us: int, place: Place, limit: int, ids_before_us: int
) -> Program[None]:
    """Remove the jobs of one portion."""
    seqs, _ = yield from due(session, kind, before_us, place, limit)
    yield from moving.remove(session, seqs, ids_before_us)


def due_events(session: Session, before_us: int, after: int, limit: int) -> Program[tuple[list[int], Place | None]]:
    """Return the events of one portion that may go, by number, and where the next one begins; None at the end."""
    rows = yield one(session.sql.due_events, after, limit)
    old = [(number, stays) for number, at, stays in rows if at < before_us]
    return [number for number, stays in old if not stays], ((rows[-1][0], 0) if len(old) == limit else None)


def prune_due_events(session: Session, now: int, before_us: int, after: int, limit: int) -> Program[None]:
    """Remove the events of one portion."""
    numbers, _ = yield from due_events(session, before_us, after, limit)
    yield one(session.sql.prune_numbers, json.dumps(numbers))


class Upkeep:
    """Runs the programs of upkeep, and remembers what they took back and how far pruning has come."""

    def __init__(self, database: Database, session: Session, clock: Clock, write: Callable[..., Any]) -> None:
        self._database = database
        self._session = session
        self._clock = clock
        self._write = write  # a program, in a transaction of its own; claims that wait look again after it
        self._recovered_us = 0
        self._portions = Pass()
        self.reclaimed = Reclaimed()

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        ended: list[Ownership] = []
        try:
            while batch := self.sweep():
                ended += batch
            return ended + self.recover(always=True)
        except StoreUnavailable as error:
            raise reclaimed_in_part(error, len(ended)) from error.__cause__

    def sweep(self) -> list[Ownership]:
        """Take back a bounded number of what expired or does not progress."""
        return self.note(self._write(sweep))

    def recover(self, *, always: bool = False) -> list[Ownership]:
        """Take back the jobs of processes that are gone."""
        # Looking up processes costs system calls, so an idle poll looks at most once a second.
        now = self._clock.now()
        lately = 0 <= now - self._recovered_us < RECOVERY_EVERY_US  # false also for a clock that was set back
        if lately and not always:
            return []
        self._recovered_us, mine = now, this_process()
        gone = [process for process in self._read(processes) if process != mine and is_gone(process)]
        return self.note(self._write(recover, gone)) if gone else []

    def note(self, ended: list[Ownership]) -> list[Ownership]:
        """Keep what was taken back, until a worker asks for it."""
        self.reclaimed.note((held.job_id, held.epoch) for held in ended)
        return ended

    def prune(self, retention: Retention) -> bool:
        """Prune a portion by policy, if it is time for it; return whether more is due."""
        return self._portions.portion(self._clock.now(), retention, functools.partial(self._prune, retention))

    def _prune(self, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
        before_us = (now := self._clock.now()) - keep_us
        if kind == IDS:
            return place if self._write(prune_ids, before_us, PORTION) else None
        if kind == WORKERS:
            if self._read(may_forget_workers, before_us):
                self._database.write(self._session, forget_workers, before_us)
            return None
        if kind == EVENTS:
            numbers, following = self._read(due_events, before_us, place[0], PORTION)
            if numbers:
                self._write(prune_due_events, before_us, place[0], PORTION)
            return following
        seqs, following = self._read(due, kind, before_us, place, PORTION)
        if seqs:
            self._write(prune_due, kind, before_us, place, PORTION, ids_before(now, retention.keep_us(IDS)))
        return following

    def _read(self, program: Callable[..., Program[T]], *args: Any) -> T:
        return self._database.read(program(self._session, *args))
