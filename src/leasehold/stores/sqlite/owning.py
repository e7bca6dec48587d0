"""
The programs of producers and owners: add, renew, progress, settle. A claim is in claiming.py.

A pending job has exactly one row that says where it waits: ready in its queue, scheduled for later, or parked behind a
lock key or an unknown task.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from ...connections import Statement
from ...core.effects import Effect, effect_key
from ...core.job import Added, NewJob, Outcome, Progress, Settlement, Status, new_state
from ...core.lifecycle import FINISHED, FREED_BY, RECORDED_AS, after, no_effect, setback
from ...core.options import encode
from ...core.ownership import Note, NoteKind
from ...core.parking import LOCK, TASK
from ...errors import UnknownJob
from ...store import Begun, Refusal, Renewal
from ..rows import job_of
from . import programs
from .programs import Program, Session, Standing, many, one


def add(session: Session, now: int, jobs: Sequence[NewJob]) -> Program[list[Added]]:
    """Insert each job that is new; return for each whether it was."""
    if not jobs:
        return []
    known: dict[str, str] = {}  # ids, and unique keys behind a NUL, to the id of the job that has them
    for (job_id,) in (yield one(session.sql.known_ids, json.dumps([job.id for job in jobs]))):
        known[job_id] = job_id
    keys = [job.unique for job in jobs if job.unique is not None]
    if keys:
        for key, job_id in (yield one(session.sql.known_unique, json.dumps(keys))):
            known["\0" + key] = job_id
    [(seq,)] = yield one(session.sql.last_seq)
    added: list[Added] = []
    found: list[tuple[int, str]] = []  # where in the reply which job is to be, that was there already
    rows, ready, scheduled, starts = [], [], [], []
    for job in jobs:
        existing = known.get(job.id) or (job.unique is not None and known.get("\0" + job.unique))
        if existing:
            found.append((len(added) + len(found), existing))
            continue
        seq += 1
        run_us = job.due(now)
        rows.append(_job_row(seq, job, run_us, now))
        if job.start_within_us is not None:
            starts.append((run_us + job.start_within_us, seq))
        if run_us > now:
            scheduled.append((run_us, seq, job.queue))
        else:
            ready.append((job.queue, -job.priority, run_us, seq))
        known[job.id] = job.id
        if job.unique is not None:
            known["\0" + job.unique] = job.id
        added.append(Added(new_state(job, now), True))
    yield many(session.sql.insert_job, rows)
    if ready:
        yield many(session.sql.insert_ready, ready)
    if scheduled:
        yield many(session.sql.insert_scheduled, scheduled)
    if starts:
        yield many(session.sql.insert_start, starts)
    if session.trace:
        for made, _ in added:
            yield from session.record(now, "added", made.id, epoch=0, queue=made.queue)
    for place, existing in found:
        [row] = yield one(session.sql.job, existing)
        added.insert(place, Added(job_of(row), False))
    return added


# Holding


def _holders(session: Session, job_ids: Sequence[str]) -> Statement:
    """The statement that selects the lease of each job that exists."""
    if len(job_ids) == 1:
        return one(session.sql.holder, job_ids[0])
    return one(session.sql.holders, json.dumps(job_ids))


def check(session: Session, now: int, holders: Sequence[tuple[str, int]]) -> Program[list[Refusal | None]]:
    """Return for each epoch None if it is current, else the refusal."""
    held = {row[0]: row for row in (yield _holders(session, [job_id for job_id, _ in holders]))}
    reply: list[Refusal | None] = []
    for job_id, epoch in holders:
        row = held.get(job_id)
        current = row is not None and row[2] == epoch
        reply.append(None if current else (yield from programs.refuse_by_id(session, now, job_id, epoch, "check")))
    return reply


def renew(session: Session, now: int, renewals: Sequence[Renewal]) -> Program[list[int | Refusal]]:
    """Move each lease's deadline."""
    held = {row[0]: row for row in (yield _holders(session, [renewal.job_id for renewal in renewals]))}
    reply: list[int | Refusal] = []
    moved = []
    for job_id, epoch, lease_us in renewals:
        row = held.get(job_id)
        if row is None or row[2] != epoch:
            reply.append((yield from programs.refuse_by_id(session, now, job_id, epoch, "renew")))
            continue
        expires = now + (lease_us or row[5])
        moved.append((expires, now, row[1]))
        reply.append(expires)
        if session.trace:
            yield from session.record(now, "renewed", job_id, epoch=epoch, owner=row[3])
    yield many(session.sql.renew, moved)
    return reply


def progress(session: Session, now: int, reports: Sequence[Progress]) -> Program[list[Refusal | None]]:
    """Record that the work moves."""
    held = {row[0]: row for row in (yield _holders(session, [report.job_id for report in reports]))}
    reply: list[Refusal | None] = []
    for job_id, epoch, fraction, note, checkpoint in reports:
        row = held.get(job_id)
        if row is None or row[2] != epoch:
            reply.append((yield from programs.refuse_by_id(session, now, job_id, epoch, "progress")))
            continue
        stalls = None if row[6] is None else now + row[6]
        yield one(session.sql.progress, fraction, note, now, stalls, row[1])
        if checkpoint is not None:
            yield one(session.sql.put_checkpoint, row[1], checkpoint)
        if session.trace:
            yield from session.record(
                now, "progressed", job_id, epoch=epoch, owner=row[3], progress=fraction, note=note
            )
        reply.append(None)
    return reply


def fence(session: Session, now: int, job_id: str, epoch: int) -> Program[Refusal | None]:
    """Return the refusal unless *epoch* is current; the write lock keeps the answer true until the commit."""
    standing = yield from programs.find_held(session, now, job_id, epoch, "fence")
    return None if isinstance(standing, Standing) else standing


def add_children(
    session: Session, now: int, job_id: str, epoch: int, jobs: Sequence[NewJob]
) -> Program[list[Added] | Refusal]:
    """Add children, if *epoch* is current."""
    standing = yield from programs.find_held(session, now, job_id, epoch, "add")
    return (yield from add(session, now, jobs)) if isinstance(standing, Standing) else standing


# Settling


def settle(session: Session, now: int, settlements: Sequence[Settlement]) -> Program[list[Refusal | None]]:
    """End each lease with its owner's settlement."""
    held = {row[0]: row for row in (yield _holders(session, [settlement.job_id for settlement in settlements]))}
    reply: list[Refusal | None] = []
    completed: list[tuple[Settlement, tuple[Any, ...]]] = []
    for settlement in settlements:
        row = held.get(settlement.job_id)
        if row is None or row[2] != settlement.epoch:
            # Maybe an earlier item of this very batch has settled it, or added it.
            completed = yield from _complete(session, now, completed)
            reply.append((yield from _settle_again(session, now, settlement)))
        else:
            del held[settlement.job_id]
            if settlement.outcome is Outcome.COMPLETE:
                completed.append((settlement, row))
                if settlement.then:  # while the later items are unfinished, and hold their unique keys
                    completed = yield from _complete(session, now, completed)
            else:
                yield from _put_back(session, now, settlement)
            reply.append(None)
    yield from _complete(session, now, completed)
    return reply


def _complete(
    session: Session, now: int, completed: list[tuple[Settlement, tuple[Any, ...]]]
) -> Program[list[tuple[Settlement, tuple[Any, ...]]]]:
    if completed:
        rows = [(settlement.result, settlement.fingerprint(), now, now, row[1]) for settlement, row in completed]
        if len(rows) == 1:
            yield one(session.sql.complete, *rows[0])
            yield one(session.sql.delete_lease, rows[0][-1])
        else:
            seqs = json.dumps([row[-1] for row in rows])
            # Equal settlements are one statement: without it, 0.75 times as many jobs per second are claimed and
            # completed (python benchmarks/core.py --only "sqlite: claim + complete, batches").
            if len({row[:2] for row in rows}) == 1:
                yield one(session.sql.complete_alike, *rows[0][:4], seqs)
            else:
                yield many(session.sql.complete, rows)
            yield one(session.sql.delete_leases, seqs)
    for settlement, row in completed:
        if settlement.then:
            yield from add(session, now, settlement.then)
        if row[4] is not None:
            yield from wake(session, row[4])
        if session.trace:
            yield from session.record(now, "completed", settlement.job_id, epoch=settlement.epoch, owner=row[3])
    return []


def _settle_again(session: Session, now: int, settlement: Settlement) -> Program[Refusal | None]:
    standing = yield from programs.find(session, settlement.job_id)
    if standing is None:
        return UnknownJob(settlement.job_id)
    before = standing.settlement if standing.epoch == settlement.epoch else None
    for _, _, earlier, *_ in (yield one(session.sql.ownership, standing.seq, settlement.epoch)):
        before = earlier
    if before is not None and before == settlement.fingerprint():
        return None
    return (yield from programs.refuse(session, now, standing, settlement.epoch, settlement.outcome.value))


def _put_back(session: Session, now: int, settlement: Settlement) -> Program[None]:
    held = yield from programs.find(session, settlement.job_id)
    assert held is not None
    assert held.owner is not None
    verb, errors, reclaims, last_error = setback(settlement, held.errors, held.reclaims, held.last_error, held.retry)
    error = last_error if settlement.error is not None else None
    status = after(verb, held.status, held.id)
    final = status in FINISHED
    how = Status.FAILED.value if final else FREED_BY[verb].value
    yield from programs.archive(session, now, held, how, by=held.owner, note=error, settlement=settlement.fingerprint())
    # Without a delay it is due at once, even if it was transferred before its time had come.
    due = now + settlement.delay_us if settlement.delay_us else min(held.run_us, now)
    run_us = held.run_us if final else due
    yield from end_lease(
        session,
        now,
        held,
        status=status,
        epoch=settlement.epoch,
        reason=held.lease_reason if final else how,
        attempt=held.attempt if final else held.attempt + 1,
        errors=errors,
        reclaims=reclaims,
        last_error=last_error,
        run_us=run_us,
    )
    facts: dict[str, Any] = {"error": error, "errors": errors} if final else {"error": error, "run_us": run_us}
    kind = "failed" if final else RECORDED_AS[verb]
    yield from session.record(now, kind, held.id, epoch=settlement.epoch, owner=held.owner, **facts)


def end_lease(
    session: Session,
    now: int,
    held: Standing,
    *,
    status: Status,
    epoch: int,
    reason: str | None,
    attempt: int,
    last_error: str | None,
    run_us: int,
    errors: int | None = None,
    reclaims: int | None = None,
) -> Program[None]:
    """Delete the lease of a job that becomes pending again, or has failed."""
    final = status in FINISHED
    yield one(session.sql.delete_lease, held.seq)
    row = {
        "seq": held.seq,
        "status": status.value if final else "unfinished",
        "epoch": epoch,
        "reason": reason,
        "attempt": attempt,
        "errors": held.errors if errors is None else errors,
        "reclaims": held.reclaims if reclaims is None else reclaims,
        "last_error": last_error,
        "run_at": run_us,
        "progress": held.progress,
        "note": held.note,
        "now": now,
        "finished_at": now if final else None,
    }
    yield session.sql.back, row, False
    if not final:
        yield from insert_waiting(session, now, held, run_us)
    yield from wake(session, held.lock)


# Where a pending job waits


def insert_waiting(session: Session, now: int, job: Standing, run_us: int) -> Program[None]:
    """Insert the row of a job that becomes pending."""
    if run_us > now:
        yield one(session.sql.insert_scheduled, run_us, job.seq, job.queue)
    else:
        yield one(session.sql.insert_ready, job.queue, -job.priority, run_us, job.seq)


def delete_waiting(session: Session, job: Standing) -> Program[None]:
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


# Effects


def begin_effect(
    session: Session, now: int, job_id: str, epoch: int, name: str, again: bool
) -> Program[Begun | Refusal]:
    """Record an intent, if *epoch* is current."""
    standing = yield from programs.find_held(session, now, job_id, epoch, "once")
    if not isinstance(standing, Standing):
        return standing
    rows = yield one(session.sql.effect, standing.seq, name)
    if rows and (rows[0][2] is not None or not again):
        return Begun(_effect(job_id, name, rows[0]), False)
    if rows:
        key = rows[0][0]
    else:
        [(store_id,)] = yield one(session.sql.store_id)
        key = effect_key(uuid.UUID(store_id), job_id, name)
    yield one(session.sql.begin_effect, standing.seq, name, key, epoch)
    return Begun(Effect(job_id, name, key, epoch, False, None), True)


def end_effect(
    session: Session, now: int, job_id: str, epoch: int, name: str, outcome: str | None
) -> Program[Refusal | None]:
    """Record an outcome, if *epoch* is current."""
    standing = yield from programs.find_held(session, now, job_id, epoch, "once")
    if not isinstance(standing, Standing):
        return standing
    yield from conclude(session, standing, name, epoch, outcome)
    return None


def record(session: Session, now: int, note: Note) -> Program[Refusal | None]:
    """Insert a note about a guarded resource; the keys of an owner only if its epoch is current."""
    if note.kind is NoteKind.GUARDED:
        standing = yield from programs.find_held(session, now, str(note.job_id), note.epoch, "seal")
        if not isinstance(standing, Standing):
            return standing
        keys = json.dumps(note.facts["keys"])
        yield session.sql.insert_guarded, {"seq": standing.seq, "epoch": note.epoch, "keys": keys}, False
    elif note.kind is NoteKind.SEALED:
        keys = json.dumps(note.facts["keys"])
        yield session.sql.seal_guarded, {"id": note.job_id, "epoch": note.epoch, "keys": keys}, False
    yield from session.record(now, note.kind.value, note.job_id, epoch=note.epoch, owner=note.owner, **note.facts)
    return None


def conclude(session: Session, standing: Standing, name: str, epoch: int, outcome: str | None) -> Program[None]:
    """Record how an effect that was begun has ended."""
    rows = yield one(session.sql.effect, standing.seq, name)
    if not rows:
        raise no_effect(standing.id, name)
    if outcome is None and rows[0][2] is not None:
        return  # another thread under this epoch has recorded an outcome meanwhile; what is known stays known
    if outcome is None:
        yield one(session.sql.clear_effect, standing.seq, name)
    else:
        yield one(session.sql.end_effect, epoch, outcome, standing.seq, name)


def _effect(job_id: str, name: str, row: tuple[Any, ...]) -> Effect:
    key, epoch, outcome = row
    return Effect(job_id, name, key, epoch, outcome is not None, outcome)


def _job_row(seq: int, job: NewJob, run_us: int, now: int) -> tuple[Any, ...]:
    options = job.options
    return (
        seq,
        job.id,
        job.chosen,
        job.task,
        job.queue,
        job.priority,
        run_us,
        job.lock,
        job.unique,
        job.lease_us,
        job.stall_us,
        job.start_within_us,
        job.parent,
        options.retry.max_errors,
        options.retry.max_reclaims,
        encode(options),
        job.meta,
        job.document,
        now,
        now,
    )
