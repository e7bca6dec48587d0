"""Who may write to a job of the memory store, and how others are refused. The lock is held."""

from __future__ import annotations

from typing import Any

from ...core import lifecycle
from ...core.job import Grant, Job
from ...core.lifecycle import Verb
from ...core.ownership import Reason
from ...errors import Conflict, Settled, StaleEpoch, UnknownJob
from ...logs import log
from ...store import Refusal
from .record import Record
from .state import State


def inside(verb: str) -> Conflict:
    """Return the refusal of a verb that was called while another one was under way."""
    return Conflict(
        f"{verb}() was called while another verb of this store was under way, for instance from a signal handler, so "
        f"it would see a change that is only half made. Set a flag in the signal handler, and call {verb}() after it "
        "has returned."
    )


def find(state: State, job_id: str) -> tuple[Record, Grant | None]:
    """Return the row and the lease of a job, or raise `UnknownJob`."""
    row = state.jobs.get(job_id)
    if row is None:
        raise UnknownJob(job_id)
    return row, state.leases.get(job_id)


def job(state: State, job_id: str) -> Job:
    """Return the job, or raise `UnknownJob`."""
    return state.job(find(state, job_id)[0])


def refused(state: State, now: int, job_id: str, epoch: int, verb: str) -> Refusal | None:
    """Return None if *epoch* is current, else the refusal."""
    lease = state.leases.get(job_id)
    if lease is not None and lease.epoch == epoch:
        return None
    row = state.jobs.get(job_id)
    return UnknownJob(job_id) if row is None else _refuse(state, now, row, epoch, verb)


def admit(state: State, now: int, job_id: str, epoch: int, verb: str) -> tuple[Record, Grant]:
    """Return the row, as the owner finds it, and the lease, if *epoch* is current; raise the refusal otherwise."""
    refusal = refused(state, now, job_id, epoch, verb)
    if refusal is not None:
        raise refusal
    lease = state.leases[job_id]
    return state.jobs[job_id].held(lease), lease


def seen(state: State, now: int, job_id: str, epoch: int, verb: str, by: str) -> tuple[Record, Grant | None]:
    """Return the row and the lease if *epoch* is the one that the operator *by* saw; raise the refusal otherwise."""
    row, lease = find(state, job_id)
    if row.job(lease).epoch != epoch:
        raise _refuse(state, now, row, epoch, verb, by)
    if verb in lifecycle.MOVED_BY:
        lifecycle.after(Verb(verb), row.job(lease).status, job_id)
        if row.narrow:
            raise lifecycle.only_its_id(job_id, verb)
    return row if lease is None else row.held(lease), lease


def _refuse(state: State, now: int, row: Record, presented: int, verb: str, actor: str | None = None) -> StaleEpoch:
    job = row.job(state.leases.get(row.id))
    kind, reason, by = StaleEpoch, job.reason, None
    if job.epoch == presented and (row.narrow or row.grant is not None):
        kind, reason, by = Settled, None, row.grant and row.grant.owner
    for held, fingerprint in row.past.ended:
        if held.epoch == presented:
            by = held.owner
            kind, reason = (Settled, None) if fingerprint is not None else (StaleEpoch, Reason(str(held.ended)))
    facts: dict[str, Any] = {"presented": presented, "current": job.epoch, "verb": verb, "reason": reason}
    refusal = kind.of_job(row.id, owner=job.owner, ending=row.how_it_ended(presented), **facts)
    facts["by"] = actor or by
    if presented > state.last:
        state.note(now, "alarm", row.id, job.epoch, job.owner, **facts)
        log.error("%s", refusal)
    if verb != "check" or kind is not Settled:
        state.note(now, "refused", row.id, job.epoch, job.owner, **facts)
    return refusal
