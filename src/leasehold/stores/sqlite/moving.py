"""The programs of operators, which move a job past its owner or hold back a queue, and of workers, which pick it up."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.job import Grant, Job
from ...core.lifecycle import (
    FINISHED,
    MOVED_BY,
    Verb,
    after,
    lock_held,
    not_in_doubt,
    not_prunable,
    only_its_id,
    unique_taken,
)
from ...core.ownership import Process, Reason
from ...core.queues import Queue
from ...core.workers import WorkerReport, is_alive, recipient
from ...errors import UnknownJob
from ...store import Refusal, ids_before
from ..rows import grant_of, job_of, spec_of, state_of
from . import owning, programs
from .programs import Program, Session, Standing, one, process_number


def transfer(
    session: Session,
    now: int,
    job_id: str,
    epoch: int,
    to: str,
    by: str,
    note: str | None,
    lease_us: int | None,
    default_lease_us: int,
) -> Program[Grant | Refusal]:
    """Give the job to another owner."""
    held = yield from programs.find_seen(session, now, job_id, epoch, Verb.TRANSFER, by)
    if not isinstance(held, Standing):
        return held
    running = held.lease_epoch is not None
    if running:
        yield from programs.archive(session, now, held, Reason.MANUAL, by=by, note=note)
        yield one(session.sql.delete_lease, held.seq)
    else:
        if held.lock is not None:
            for holder, holder_epoch, _ in (yield one(session.sql.lock_holder, held.lock)):
                raise lock_held(job_id, held.lock, holder, holder_epoch)
        yield from owning.delete_waiting(session, held)
    named = yield session.sql.named_workers, {"name": to}, False
    to = recipient(job_id, to, [name for name, seen_us in named if is_alive(seen_us, now)])
    moved = {
        "seq": held.seq,
        "attempt": held.attempt + running,
        "progress": held.progress,
        "note": held.note,
        "now": now,
    }
    yield session.sql.transferred, moved, False
    issued = yield from programs.draw(session, now, 1)
    [row] = yield one(session.sql.job, job_id)
    spec = spec_of(row)
    stall_us, lasts = spec.stall_us, lease_us or spec.lease_us or default_lease_us
    yield one(
        session.sql.insert_transfer,
        held.seq,
        issued,
        to,
        Reason.MANUAL.value,
        None,
        None,  # the process that moves a job is not the one that will run it, so its exit must prove nothing
        held.lock,
        now,
        now + lasts,
        lasts,
        None if stall_us is None else now + stall_us,
        stall_us,
        now,
    )
    yield from session.record(now, "transferred", job_id, epoch=issued, owner=to, was=held.owner, by=by, note=note)
    [row] = yield one(session.sql.grant, job_id)
    return grant_of(row)


def override(
    session: Session,
    now: int,
    verb: Verb,
    kind: str,
    job_id: str,
    epoch: int,
    by: str,
    note: str | None,
    result: str | None = None,
) -> Program[Job | Refusal]:
    """Cancel, replay, requeue or finish a job by hand."""
    held = yield from programs.find_seen(session, now, job_id, epoch, verb, by)
    if not isinstance(held, Standing):
        return held
    status = after(verb, held.status, job_id)
    final, running, pending = status in FINISHED, held.lease_epoch is not None, held.stored_status == "unfinished"
    if verb is Verb.REPLAY and held.unique is not None:
        for _, holder in (yield one(session.sql.known_unique, json.dumps([held.unique]))):
            raise unique_taken(job_id, held.unique, holder)
    if running:
        yield from programs.archive(session, now, held, MOVED_BY[verb], by=by, note=note)
        yield one(session.sql.delete_lease, held.seq)
    elif pending:
        yield from owning.delete_waiting(session, held)
    elif held.done_by is not None:
        yield from _archive_done(session, held)
    issued = yield from programs.draw(session, now, 1)
    yield from _write_override(session, now, held, verb, final, issued, result)
    yield from session.record(now, kind, job_id, epoch=issued, was=held.owner, by=by, note=note)
    [row] = yield one(session.sql.job, job_id)
    return job_of(row)


def _archive_done(session: Session, held: Standing) -> Program[None]:
    yield one(
        session.sql.insert_ownership,
        held.seq,
        held.job_epoch,
        held.done_by,
        held.job_reason,
        held.done_granted_us,
        held.done_expires_us,
        "done",
        held.finished_us,
        held.done_by,
        None,
        held.settlement,
    )


def _write_override(
    session: Session, now: int, held: Standing, verb: Verb, final: bool, issued: int, result: str | None
) -> Program[None]:
    [row] = yield one(session.sql.job, held.id)
    finish, replay = verb is Verb.FINISH, verb is Verb.REPLAY
    run_us = now if replay else held.run_us if final else min(held.run_us, now)
    values = {
        "seq": held.seq,
        "status": after(verb, held.status, held.id).value if final else "unfinished",
        "epoch": issued,
        "reason": MOVED_BY[verb].value,
        "attempt": held.attempt + (not final),
        "errors": 0 if replay else held.errors,
        "reclaims": 0 if replay else held.reclaims,
        "last_error": None if finish else held.last_error,
        "result": result if finish else None if replay else state_of(row).result,
        "run_at": run_us,
        "progress": held.progress,
        "note": held.note,
        "now": now,
        "finished_at": now if final else None,
    }
    yield session.sql.override, values, False
    if not final:
        yield from owning.insert_waiting(session, now, held, run_us)
    if held.finished_us is None:
        yield from owning.wake(session, held.lock)


def pause(session: Session, now: int, queue: str, by: str, note: str | None) -> Program[Queue]:
    """Have claims take nothing from the queue."""
    yield one(session.sql.pause, queue, now, by, note)
    yield from session.record(now, "paused", None, queue=queue, by=by, note=note)
    return Queue(queue, now, by, note)


def resume(session: Session, now: int, queue: str, by: str) -> Program[Queue]:
    """Have claims take from the queue again."""
    if (yield one(session.sql.resume, queue)):
        yield from session.record(now, "resumed", None, queue=queue, by=by)
    return Queue(queue)


def resolve(
    session: Session, now: int, job_id: str, epoch: int, name: str, by: str, outcome: str | None, note: str | None
) -> Program[Job | Refusal]:
    """Record how an effect in doubt ended."""
    standing = yield from programs.find(session, job_id)
    if standing is None:
        return UnknownJob(job_id)
    if standing.epoch != epoch:
        return (yield from programs.refuse(session, now, standing, epoch, "resolve", by))
    for _, _, known in (yield one(session.sql.effect, standing.seq, name)):
        if known is not None:
            raise not_in_doubt(job_id, name)
    yield from owning.conclude(session, standing, name, epoch, outcome)
    yield from session.record(now, "resolved", job_id, epoch=epoch, owner=standing.owner, name=name, by=by, note=note)
    [row] = yield one(session.sql.job, job_id)
    return job_of(row)


# Workers: their reports, and the transfers that they pick up


def report(session: Session, now: int, report: WorkerReport) -> Program[None]:
    """Record that the worker runs."""
    name, given_name, process, queues, tasks, concurrency, running, up_us = report
    yield one(
        session.sql.report,
        name,
        given_name,
        None if process is None else json.dumps(process),
        None if queues is None else json.dumps(queues),
        json.dumps(tasks),
        concurrency,
        running,
        now - up_us,
        now,
    )


def retire(session: Session, now: int, name: str) -> Program[None]:
    """Forget a worker, which has ended."""
    yield one(session.sql.retire, name)


def transfers(session: Session, owner: str) -> Program[list[tuple[str, int]]]:
    """Return the transfers to *owner* that were not picked up."""
    return [(job_id, epoch) for job_id, epoch in (yield one(session.sql.transfers, owner))]


def pick_up(session: Session, now: int, job_id: str, epoch: int) -> Program[None]:
    """Mark the lease as picked up, if *epoch* is still its own."""
    held = yield from programs.find(session, job_id)
    if held is not None and held.lease_epoch == epoch:
        yield one(session.sql.pick_up, held.seq)


def accept(
    session: Session,
    now: int,
    owner: str,
    transfers: Sequence[tuple[str, int]],
    claim_id: str,
    process: Process | None,
) -> Program[list[Grant]]:
    """Pick up the transfers that are still the owner's, and return their leases."""
    number = None if process is None else process_number(process)
    grants = []
    for job_id, epoch in transfers:
        held = yield from programs.find(session, job_id)
        if held is None or not _may_accept(held, epoch, owner, claim_id):
            continue
        if process is not None:
            yield one(session.sql.insert_process, number, *process)
        values = {"seq": held.seq, "claim_id": claim_id, "process": number, "now": now}
        yield session.sql.accept, values, False
        [row] = yield one(session.sql.grant, job_id)
        grants.append(grant_of(row))
    return grants


def _may_accept(held: Standing, epoch: int, owner: str, claim_id: str) -> bool:
    if (held.lease_epoch, held.owner) != (epoch, owner):
        return False
    return not held.picked_up or held.claim_id == claim_id


def prune_job(
    session: Session, now: int, job_id: str, epoch: int, by: str, note: str | None, keep_ids_us: int | None
) -> Program[Refusal | None]:
    """Remove one finished job, if *epoch* is the one that the operator *by* saw."""
    held = yield from programs.find(session, job_id)
    if held is None:
        return UnknownJob(job_id)
    if held.epoch != epoch:
        return (yield from programs.refuse(session, now, held, epoch, "prune", by))
    if held.narrow:
        raise only_its_id(job_id, "prune")
    [(parent, effect, has_open_keys)] = yield one(session.sql.kept_for, held.seq)
    if held.status not in FINISHED or parent is not None or effect is not None or has_open_keys:
        raise not_prunable(job_id, held.status, parent, effect)
    yield from remove(session, [held.seq], ids_before(now, keep_ids_us))
    yield from session.record(now, "pruned", job_id, epoch=epoch, by=by, note=note)
    return None


def remove(session: Session, seqs: Sequence[int], ids_before_us: int) -> Program[None]:
    """Remove these jobs and everything about them, except for the narrow rows."""
    if seqs:
        listed = json.dumps(seqs)
        yield one(session.sql.narrow_jobs, listed, ids_before_us)
        yield one(session.sql.prune_jobs, listed)
        yield one(session.sql.prune_ownerships, listed)
        yield one(session.sql.prune_effects, listed)
        yield one(session.sql.prune_checkpoints, listed)
        yield one(session.sql.prune_guarded, listed)
