"""How the jobs of the memory store move. The lock is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...core import lifecycle
from ...core.clock import FAR
from ...core.job import Added, Grant, Job, NewJob, Settlement, Status
from ...core.lifecycle import FINISHED, FREED_BY, MOVED_BY, NOT_STARTED, RECORDED_AS, Verb, after
from ...core.ownership import STORE, Ownership, Process, Reason, draw_epochs
from ...core.parking import LOCK, TASK, Parked
from ...core.workers import recipient
from ...store import Refusal
from . import fencing
from .record import COMPLETE, DONE, Record
from .state import Known, State


def add(state: State, now: int, jobs: Sequence[NewJob]) -> list[Added]:
    """Keep the jobs that are new."""
    added, rows = _new(state, now, jobs)
    state.write(now, rows, events=state.traced_as_added(now, rows))
    return added


def _new(
    state: State, now: int, jobs: Sequence[NewJob], given_back: str | None = None
) -> tuple[list[Added], list[Record]]:
    """Decide which of *jobs* are new, if the unique key *given_back* is free."""
    added, rows = [], dict[str, Record]()
    keys: dict[str | None, str | None] = {given_back: None}
    for spec in jobs:
        job_id, unique = spec.id, spec.unique
        holder = job_id if job_id in rows or job_id in state.jobs else None
        if holder is None and unique is not None:
            holder = keys.get(unique, state.unique.get(unique))
        if holder is None:
            rows[job_id], keys[unique] = state.row(spec, now), job_id
            added.append(Added(rows[job_id].job(None), True))
        else:
            made = rows.get(holder)
            added.append(Added(fencing.job(state, holder) if made is None else made.job(None), False))
    return added, list(rows.values())


def take(
    state: State, now: int, owner: str, limit: int, queues: Sequence[str] | None, known: Known | None
) -> list[Record]:
    """Take up to *limit* jobs that wait, in their order; park what the claim does not know, or finds locked."""
    taken: list[Record] = []
    take = state.taker(queues, known)
    while len(taken) < limit and (row := take()) is not None:
        spec = row.spec
        if known is not None and spec.task not in known:
            state.write(now, [row.but(parked=Parked(TASK, spec.task or "", owner))])
            if spec.lock is not None:
                take = state.taker(queues, known)  # it may have let another one in, before those that would be next
        elif spec.lock is None:
            taken.append(row)
        elif spec.lock in state.held:
            state.write(now, [row.but(parked=Parked(LOCK, spec.lock, owner))])
        else:
            state.held[spec.lock] = spec.id  # before its epoch is drawn, and so that no other job here gets it
            taken.append(row)
    return taken


def grant(
    state: State,
    now: int,
    rows: Sequence[Record],
    owner: str,
    lease_us: int | None,
    default_lease_us: int,
    claim_id: str | None,
    process: Process | None,
) -> list[Grant]:
    """Lease *rows*, which `take` has returned, to *owner*."""
    state.last = epoch = draw_epochs(state.last, len(rows), now)
    epoch -= len(rows)
    grants, leases, shortest = list[Grant](), state.leases, FAR
    for row in rows:
        spec, past = row.spec, row.past
        lasts = lease_us or spec.lease_us or default_lease_us
        epoch += 1
        fields = (
            spec,
            epoch,
            owner,
            row.reason,
            past.attempt,
            past.errors,
            past.checkpoint,
            claim_id,
            process,
            now,
            now + lasts,
            lasts,
        )
        leases[spec.id] = lease = Grant._make(fields)
        grants.append(lease)
        if lasts < shortest:
            shortest = lasts
        if spec.stall_us is not None and spec.stall_us < shortest:
            shortest = spec.stall_us
    state.expect(now + shortest, grants)
    return grants


def settle(state: State, now: int, settlements: Sequence[Settlement]) -> list[Refusal | None]:
    """End each lease as its owner says."""
    jobs, leases, unfinished, finished, trace = state.jobs, state.leases, state.unfinished, state.finished, state.trace
    reply: list[Refusal | None] = []
    done = 0
    for settlement in settlements:
        job_id, epoch, outcome, result, then, _, _, _ = settlement
        lease = leases.get(job_id)
        if lease is None or lease.epoch != epoch or outcome is not COMPLETE or then or trace:
            reply.append(_settle(state, now, settlement))
            continue
        # Nearly every settlement. Without this, batches have 0.75 of the speed: `benchmarks/core.py --only memory`.
        row, spec = jobs[job_id], lease.spec
        row.complete(lease, result, now)
        del leases[job_id]
        unfinished[spec.queue] -= 1
        finished.append(row)
        done += 1
        if spec.unique is not None or spec.lock is not None:
            state.give_back(spec, now)
        reply.append(None)
    state.ended[DONE] += done
    return reply


def _settle(state: State, now: int, settlement: Settlement) -> Refusal | None:
    job_id, epoch, outcome, result, then, error, _, delay_us = settlement
    row = state.jobs.get(job_id)
    if row is not None and epoch and row.fingerprint(epoch) == settlement.fingerprint():
        return None
    refusal = fencing.refused(state, now, job_id, epoch, outcome.value)
    if row is None or refusal is not None:
        return refusal
    lease = state.leases[job_id]
    if outcome is COMPLETE:
        done = row.but(then=then)
        done.complete(lease, result, now)
        _, made = _new(state, now, then, given_back=row.spec.unique)  # a follow-up may have the key of the job
        traced = state.traced_as_added(now, made)
        traced += state.traced(now, "completed", job_id, epoch, lease.owner)
        state.write(now, [done, *made], freed=[job_id], events=traced)
        return None
    past = row.past
    left = lifecycle.setback(settlement, past.errors, past.reclaims, past.last_error, row.spec.retry)
    verb, errors, reclaims, last_error = left
    status, note = after(verb, Status.RUNNING, job_id), None if error is None else last_error
    how = Status.FAILED if status in FINISHED else FREED_BY[verb]
    changed = row.ended(lease, how, now, lease.owner, note, settlement.fingerprint())
    changed |= {"errors": errors, "reclaims": reclaims, "last_error": last_error}
    if status in FINISHED:
        moved = row.over(status, now, past=changed, epoch=epoch, reason=lease.reason)
        event = state.event(now, "failed", job_id, epoch, lease.owner, error=note, errors=errors)
    else:
        due = now + delay_us if delay_us else None
        moved = row.back(FREED_BY[verb], now, past=changed, due=due, epoch=epoch)
        event = state.event(now, RECORDED_AS[verb], job_id, epoch, lease.owner, error=note, run_us=moved.run_us)
    state.write(now, [moved], freed=[job_id], events=[event])
    return None


def transfer(
    state: State,
    now: int,
    job_id: str,
    epoch: int,
    to: str,
    named: Sequence[str],
    by: str,
    note: str | None,
    lease_us: int | None,
    default_lease_us: int,
) -> Grant:
    """Give the job to *to* under a new epoch; *named* are the live workers of that name."""
    row, lease = fencing.seen(state, now, job_id, epoch, Verb.TRANSFER, by)
    spec, past, why = row.spec, row.past, Reason.MANUAL
    holder = job_id if spec.lock is None else state.held.get(spec.lock, job_id)
    if holder != job_id:
        raise lifecycle.lock_held(job_id, str(spec.lock), holder, state.leases[holder].epoch)
    to = recipient(job_id, to, named)
    if lease is not None:
        past = past._replace(attempt=past.attempt + 1, **row.ended(lease, why, now, by, note))
    lasts = lease_us or spec.lease_us or default_lease_us
    counted = past.attempt, past.errors, past.checkpoint
    grant = Grant(spec, state.epoch(now), to, why, *counted, None, None, now, now + lasts, lasts)
    given = replace(row, past=past, reason=why, parked=None, awaited=True).held(grant)
    event = state.event(now, "transferred", job_id, grant.epoch, to, was=lease and lease.owner, by=by, note=note)
    state.write(now, [given], [grant], events=[event])
    return grant


def override(
    state: State, now: int, verb: Verb, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
) -> Job:
    """Do what an operator asks for, under a new epoch."""
    row, lease = fencing.seen(state, now, job_id, epoch, verb.value, by)
    status, reason = after(verb, row.job(lease).status, job_id), MOVED_BY[verb]
    holder = None if row.spec.unique is None else state.unique.get(row.spec.unique)
    if verb is Verb.REPLAY and holder is not None:
        raise lifecycle.unique_taken(job_id, str(row.spec.unique), holder)
    past: dict[str, Any] = {}
    if lease is not None:
        past = row.ended(lease, reason, now, by, note)
    elif row.grant is not None:
        past = row.ended(row.grant, DONE, row.updated_us, row.grant.owner, None, row.fingerprint(row.epoch))
    if verb is Verb.FINISH:
        past["last_error"] = None
    elif verb is Verb.REPLAY:
        past |= {"errors": 0, "reclaims": 0}
    new = state.epoch(now)
    if status in FINISHED:
        moved = row.over(status, now, past=past, epoch=new, reason=reason, result=result)
    else:
        moved = row.back(reason, now, past=past, due=now if verb is Verb.REPLAY else None, epoch=new)
    event = state.event(now, _DONE_AS[verb], job_id, new, was=lease and lease.owner, by=by, note=note)
    state.write(now, [moved], freed=[job_id] if lease else [], events=[event])
    return moved.job(None)


def resolve(
    state: State, now: int, job_id: str, epoch: int, name: str, by: str, outcome: str | None, note: str | None
) -> Job:
    """Record how an effect in doubt ended."""
    row, lease = fencing.seen(state, now, job_id, epoch, "resolve", by)
    effect = row.past.effects.get(name)
    if effect is not None and effect.known:
        raise lifecycle.not_in_doubt(job_id, name)
    resolved, owner = concluded(row, name, epoch, outcome), lease and lease.owner
    event = state.event(now, "resolved", job_id, epoch, owner, name=name, by=by, note=note)
    state.write(now, [resolved], events=[event])
    return state.job(resolved)


_DONE_AS = {Verb.CANCEL: "cancelled", Verb.FINISH: "finished", Verb.REPLAY: "replayed", Verb.REQUEUE: "requeued"}


def concluded(row: Record, name: str, epoch: int, outcome: str | None) -> Record:
    """Return the row with the outcome of an effect; None for "it did not happen"."""
    effects = dict(row.past.effects)
    effect = effects.pop(name, None)
    if effect is None:
        raise lifecycle.no_effect(row.id, name)
    if outcome is None and effect.known:
        return row  # another thread under this epoch has brought it about meanwhile; what is known stays known
    if outcome is not None:
        effects[name] = effect._replace(epoch=epoch, known=True, outcome=outcome)
    return row.but({"effects": effects})


def sweep(state: State, now: int) -> list[Ownership]:
    """Take back what is overdue, let wait what has become due, and cancel what was not begun in time."""
    state.torn = True
    # As the other stores do: first those that expired, in the order of their leases' ends, and then the stalled ones.
    overdue = [
        (stalled := one.expires_us > now, state.deadline(one) if stalled else one.expires_us, state.seq(one), one)
        for one in state.overdue(now)
    ]
    ended = [
        take_back(state, now, lease, Reason.STALL if stalled else Reason.TIMEOUT)
        for stalled, _, _, lease in sorted(overdue)
    ]
    late = []
    for row in state.due(now):
        if row.start_by is None or row.start_by > now:
            state.wait(row, now)
        else:
            late.append((row.start_by, row.seq, row))
    for _, _, row in sorted(late):
        epoch, past = state.epoch(now), {"last_error": NOT_STARTED}
        over = row.over(Status.CANCELLED, now, past=past, epoch=epoch, reason=Reason.CANCELLATION)
        event = state.event(now, "cancelled", row.id, epoch, by=STORE, note=NOT_STARTED)
        state.write(now, [over], events=[event])
    state.torn = False
    return ended


def take_back(state: State, now: int, lease: Grant, reason: Reason) -> Ownership:
    """End a lease for the store's own reasons."""
    job_id, owner = lease.spec.id, lease.owner
    row = state.jobs[job_id]
    reclaims, retry, picked_up = row.past.reclaims, row.spec.retry, not row.awaits(lease)
    verb, reclaims, error = lifecycle.judge_taken_back(reason, owner, reclaims, retry, picked_up=picked_up)
    epoch, status = state.epoch(now), after(verb, Status.RUNNING, job_id)
    past = {**row.ended(lease, reason, now, STORE, error), "reclaims": reclaims, "last_error": error}
    if status in FINISHED:
        moved = row.over(status, now, past=past, epoch=epoch, reason=reason)
        event = state.event(now, "failed", job_id, epoch, reason=reason, was=owner, error=error)
    else:
        moved = row.back(reason, now, past=past, epoch=epoch)
        event = state.event(now, "reclaimed", job_id, epoch, reason=reason, was=owner)
    state.write(now, [moved], freed=[job_id], events=[event])
    state.reclaimed.note([(job_id, lease.epoch)])
    return moved.past.ended[-1][0]
