"""The programs by which a job gets an owner that works on it: a claim, and a transfer that is picked up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.job import Grant
from ...core.ownership import Ownership, Process
from ..rows import REASONS, grant_of, spec_of
from . import backlog, ownership, upkeep
from .ownership import Session, Standing, process_number
from .sql import Program, many, one


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
    tasks: backlog.Known | None,
) -> Program[tuple[list[Grant], bool, list[Ownership]]]:
    """
    Lease due jobs, after taking back what is overdue; return the grants, and the ownerships that were ended.

    The second value is True if there may be more behind many that were parked.
    """
    sql, ended = session.sql, list[Ownership]()
    number = None if process is None else process_number(process)
    [look] = yield one(sql.look, number)
    if look[0] <= now:
        ended = yield from upkeep.sweep(session, now)
        [look] = yield one(sql.look, number)
    _, first, last, known, some_paused, some_parked, last_epoch = look
    if first is None and not some_parked:
        return [], False, ended
    paused = {name for (name,) in (yield one(sql.paused))} if some_paused else set()
    lanes = (yield from backlog.lanes(session, queues, paused, tasks)) if some_parked else []
    if queues is None:
        queues = [first] if first == last else [queue for (queue,) in (yield one(sql.queues))]
    queues = [queue for queue in queues if queue is not None and queue not in paused]
    if not queues and not lanes:
        return [], False, ended
    taken, more = yield from backlog.take(session, owner, limit, queues, lanes, tasks)
    if not taken:
        return [], more, ended
    if process is not None and not known:
        yield one(sql.insert_process, number, *process)
    # The lock keys are known to be free by now. An epoch drawn before that could be below an earlier holder's.
    epoch = (yield from ownership.draw(session, now, len(taken), last_epoch)) - len(taken)
    leases, grants = [], []
    for row in taken:
        epoch += 1
        _, _, seq, reason, attempt, errors, checkpoint = row[: backlog.SPEC]
        spec = spec_of(row[backlog.SPEC :])
        lasts = lease_us or spec.lease_us or default_lease_us
        until, stall_us = now + lasts, spec.stall_us
        stalls = None if stall_us is None else now + stall_us
        leases.append(
            (seq, epoch, owner, reason, claim_id, number, spec.lock, now, until, lasts, stalls, stall_us, now)
        )
        held = REASONS[reason], attempt, errors, checkpoint, claim_id, process, now, until, lasts
        grants.append(Grant(spec, epoch, owner, *held))
        if session.trace:
            yield from session.record(now, "claimed", spec.id, epoch=epoch, owner=owner, reason=reason, attempt=attempt)
    first_epoch = epoch - len(taken) + 1
    if _alike(leases):
        seqs = json.dumps([lease[0] for lease in leases])
        yield one(sql.insert_leases, first_epoch, owner, reason, claim_id, number, now, until, lasts, now, seqs)
    else:
        yield many(sql.insert_lease, leases)
    return grants, more, ended


def _alike(leases: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether they differ in job and epoch alone, and hold no key; and are more than one."""
    _, _, *rest = leases[0]
    return len(leases) > 1 and rest[4] is None and rest[8] is None and all(lease[2:] == tuple(rest) for lease in leases)


# Picking up a transfer


def transfers(session: Session, owner: str) -> Program[list[tuple[str, int]]]:
    """Return the transfers to *owner* that were not picked up."""
    return [(job_id, epoch) for job_id, epoch in (yield one(session.sql.transfers, owner))]


def pick_up(session: Session, now: int, job_id: str, epoch: int) -> Program[None]:
    """Mark the lease as picked up, if *epoch* is still its own."""
    held = yield from ownership.find(session, job_id)
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
        held = yield from ownership.find(session, job_id)
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
