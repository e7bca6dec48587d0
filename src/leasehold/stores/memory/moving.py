"""How the jobs of the memory store move: each function decides, and then writes. The lock is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...core import lifecycle
from ...core.job import Added, Grant, Job, NewJob, Outcome, Progress, Settlement, Status
from ...core.lifecycle import FINISHED, FREED_BY, MOVED_BY, NOT_STARTED, RECORDED_AS, Verb, after
from ...core.ownership import STORE, Event, Ownership, Reason
from ...core.parking import LOCK, TASK, Parked
from ...core.workers import recipient
from ...errors import StaleEpoch, UnknownJob
from ...store import Refusal, Renewal
from .row import DONE, RUNNING, Row
from .state import Known, State

Item = TypeVar("Item")
Done = TypeVar("Done")

COMPLETE = Outcome.COMPLETE  # see row.py
_DONE_AS = {Verb.CANCEL: "cancelled", Verb.FINISH: "finished", Verb.REPLAY: "replayed", Verb.REQUEUE: "requeued"}


def add(state: State, jobs: Sequence[NewJob]) -> list[Added]:
    """Keep the jobs that are new."""
    added, made = _new(state, jobs)
    state.write(made, _traced(state, made))
    return added


def _traced(state: State, made: Sequence[Row]) -> list[Event]:
    return [event for row in made for event in state.traced("added", row, queue=row.spec.queue)]


def _new(state: State, jobs: Sequence[NewJob], given_back: str | None = None) -> tuple[list[Added], list[Row]]:
    """Decide which of *jobs* are new, if the unique key *given_back* is free."""
    added: list[Added] = []
    made: dict[str, Row] = {}
    keys: dict[str | None, str | None] = {given_back: None}
    for spec in jobs:
        job_id, unique = spec.id, spec.unique
        holder = job_id if job_id in made or job_id in state.jobs or job_id in state.pruned else None
        if holder is None and unique is not None:
            holder = keys.get(unique, state.unique.get(unique))
        if holder is None:
            row = Row(spec.stored(), next(state.seqs), spec.chosen, state.now, spec.due(state.now), state.now)
            made[job_id], keys[unique] = row, job_id
        else:
            row = made.get(holder) or state.find(holder)
        added.append(Added(row.job(), holder is None))
    return added, list(made.values())


def take(state: State, owner: str, limit: int, queues: Sequence[str] | None, known: Known | None) -> list[Row]:
    """Take up to *limit* jobs that wait, in their order; park what the claim does not know, or finds locked."""
    taken: list[Row] = []
    following = state.taker(queues, known)
    while len(taken) < limit and (row := following()) is not None:
        lock = row.spec.lock
        if known is not None and row.spec.task not in known:
            state.write([replace(row, parked=Parked(TASK, row.spec.task or "", owner))])
            if lock is not None:
                following = state.taker(queues, known)  # it may have let another one in, before those that were next
        elif lock is not None and lock in state.held:
            state.write([replace(row, parked=Parked(LOCK, lock, owner))])
        else:
            if lock is not None:
                state.held[lock] = row.id  # before its epoch is drawn, and so that no other job here gets it
            taken.append(row)
    return taken


def each(do: Callable[[State, Item], Done], state: State, items: Iterable[Item]) -> list[Done | Refusal]:
    """Return what *do* returns for each item; a refusal stands where its item stood, and the other items are done."""
    reply: list[Done | Refusal] = []
    for item in items:
        try:
            reply.append(do(state, item))
        except (StaleEpoch, UnknownJob) as refusal:
            reply.append(refusal.with_traceback(None))  # whose frames have the reply
    return reply


def check(state: State, holder: tuple[str, int]) -> None:
    """Raise the refusal that a write would meet, if any."""
    state.admit(*holder, "check")


def renew(state: State, renewal: Renewal) -> int:
    """Move the deadline of a lease; return the new one."""
    job_id, epoch, lease_us = renewal
    row, lease = state.admit(job_id, epoch, "renew")
    until = state.now + (lease_us or lease.lease_us)
    renewed = replace(row, grant=lease._replace(expires_us=until), awaited=False, renewed_us=state.now)
    state.write([renewed], state.traced("renewed", renewed))
    return until


def progress(state: State, report: Progress) -> None:
    """Record that the work moves."""
    job_id, epoch, fraction, note, checkpoint = report
    row, lease = state.admit(job_id, epoch, "progress")
    given = {"progress": fraction, "note": note, "checkpoint": checkpoint}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if checkpoint is not None:
        changed["grant"] = lease._replace(checkpoint=checkpoint)
    moved = replace(row, updated_us=state.now, stalls_us=row.stalls_after(state.now), **changed)
    state.write([moved], state.traced("progressed", moved, progress=fraction, note=note))


def settle(state: State, settlement: Settlement) -> None:
    """End a lease as its owner says, or raise the refusal."""
    job_id, epoch, outcome, result, then, error, _, delay_us = settlement
    row = state.running.get(job_id)
    if row is not None and row.epoch == epoch and outcome is COMPLETE and not then and not state.trace:
        # Nearly every settlement, in place: a copy of the row each, as below, leaves batches a sixth of their speed.
        state.stop(row)
        row.complete(result, state.now)
        state.finished[job_id] = row
        return
    known = state.jobs.get(job_id)
    if known is not None and epoch and known.fingerprint(epoch) == settlement.fingerprint():
        return
    row, lease = state.admit(job_id, epoch, outcome.value)
    now, spec, owner, reason = state.now, row.spec, lease.owner, lease.reason
    if outcome is COMPLETE:
        done = replace(row, then=then)
        done.complete(result, now)
        _, made = _new(state, then, given_back=spec.unique)  # a follow-up may have the key of the job
        state.write([done, *made], _traced(state, made) + state.traced("completed", row))
        return
    left = lifecycle.setback(settlement, row.errors, row.reclaims, row.last_error, spec.retry)
    verb, errors, reclaims, last_error = left
    status, note = after(verb, RUNNING, job_id), None if error is None else last_error
    how: str = Status.FAILED
    if status not in FINISHED:
        how = reason = FREED_BY[verb]
    past = row.closed(how, now, owner, note, settlement.fingerprint())
    counted = {"errors": errors, "reclaims": reclaims, "last_error": last_error, "past": past}
    moved = row.moved(status, now, epoch, reason, now + delay_us if delay_us else None, **counted)
    if status in FINISHED:
        event = state.event("failed", job_id, epoch, owner, error=note, errors=errors)
    else:
        event = state.event(RECORDED_AS[verb], job_id, epoch, owner, error=note, run_us=moved.run_us)
    state.write([moved], [event])


def transfer(
    state: State,
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
    row, why = state.seen(job_id, epoch, Verb.TRANSFER, by), Reason.MANUAL
    spec, past, attempt = row.spec, row.past, row.attempt
    holder = job_id if spec.lock is None else state.held.get(spec.lock, job_id)
    if holder != job_id:
        raise lifecycle.lock_held(job_id, str(spec.lock), holder, state.running[holder].epoch)
    to = recipient(job_id, to, named)
    if row.lease is not None:
        past, attempt = row.closed(why, state.now, by, note), attempt + 1
    issued = state.draw()
    given = replace(row, reason=why, past=past, attempt=attempt, parked=None, awaited=True)
    lease = given.lease_to(to, issued, state.now, lease_us or spec.lease_us or default_lease_us, None, None)
    state.write([given], [state.event("transferred", job_id, issued, to, was=row.owner, by=by, note=note)])
    return lease


def override(
    state: State, verb: Verb, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
) -> Job:
    """Do what an operator asks for, under a new epoch."""
    row = state.seen(job_id, epoch, verb, by)
    status, reason, now, unique = after(verb, row.status, job_id), MOVED_BY[verb], state.now, row.spec.unique
    holder = None if unique is None else state.unique.get(unique)
    if verb is Verb.REPLAY and holder is not None:
        raise lifecycle.unique_taken(job_id, str(unique), holder)
    past = row.past
    if row.lease is not None:
        past = row.closed(reason, now, by, note)
    elif row.completed is not None:
        past = row.closed(DONE, row.updated_us, row.completed.owner, None, row.fingerprint(row.epoch))
    errors, reclaims = (0, 0) if verb is Verb.REPLAY else (row.errors, row.reclaims)
    counted = {"errors": errors, "reclaims": reclaims, "last_error": None if verb is Verb.FINISH else row.last_error}
    due = now if verb is Verb.REPLAY else None
    issued = state.draw()
    moved = row.moved(status, now, issued, reason, due, past=past, result=result, **counted)
    state.write([moved], [state.event(_DONE_AS[verb], job_id, issued, was=row.owner, by=by, note=note)])
    return moved.job()


def concluded(row: Row, name: str, epoch: int, outcome: str | None) -> Row:
    """Return the row with the outcome of an effect; None for "it did not happen"."""
    effect = row.effect(name)
    if effect is None:
        raise lifecycle.no_effect(row.id, name)
    if outcome is None and effect.known:
        return row  # another thread under this epoch has brought it about meanwhile; what is known stays known
    known = None if outcome is None else effect._replace(epoch=epoch, known=True, outcome=outcome)
    return row.with_effect(name, known)


def sweep(state: State) -> list[Ownership]:
    """Take back what is overdue, let wait what has become due, and cancel what was not begun in time."""
    state.torn = True
    overdue = state.overdue()
    ended = [take_back(state, row, Reason.TIMEOUT if row.expires_us <= state.now else Reason.STALL) for row in overdue]
    for row in state.let_wait():
        epoch, why = state.draw(), Reason.CANCELLATION
        cancelled = row.moved(Status.CANCELLED, state.now, epoch, why, last_error=NOT_STARTED)
        state.write([cancelled], [state.event("cancelled", row.id, epoch, by=STORE, note=NOT_STARTED)])
    state.torn = False
    return ended


def take_back(state: State, row: Row, reason: Reason) -> Ownership:
    """End a lease for the store's own reasons."""
    job_id, now, owner, retry = row.id, state.now, str(row.owner), row.spec.retry
    verb, reclaims, error = lifecycle.judge_taken_back(reason, owner, row.reclaims, retry, picked_up=not row.awaited)
    epoch, status = state.draw(), after(verb, RUNNING, job_id)
    past = row.closed(reason, now, STORE, error)
    kind, shown = ("failed", error) if status in FINISHED else ("reclaimed", None)
    moved = row.moved(status, now, epoch, reason, reclaims=reclaims, last_error=error, past=past)
    state.write([moved], [state.event(kind, job_id, epoch, reason=reason, was=owner, error=shown)])
    state.reclaimed.note([(job_id, row.epoch)])
    return past[-1][0]
