"""
The rows of a job and of a lease that both SQL stores select, by name, and the values that they stand for.

A row of a job is `SpecRow` followed by `StateRow`, a row of a lease is `SpecRow` followed by `LeaseRow`. PostgreSQL's
views `seen` and `granted` have these columns in this order, which a test compares; SQLite's statements are made from
`SpecRow`. A column that a later release appends is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.job import Grant, Job, NewJob, Status
from ..core.lifecycle import cause_text
from ..core.options import decode
from ..core.ownership import Process, Reason
from ..core.parking import Parked
from ..core.workers import WorkerStatus

REASONS: dict[str, Reason] = {reason.value: reason for reason in Reason}


class SpecRow(NamedTuple):
    """What the producer asked for."""

    id: str
    payload: str
    task: str | None
    queue: str
    priority: int
    lock: str | None
    unique_key: str | None
    lease_us: int | None
    stall_us: int | None
    start_within_us: int | None
    parent: str | None
    max_errors: int
    max_reclaims: int
    options: str | None
    meta: str | None


class StateRow(NamedTuple):
    """What has become of the job."""

    status: str
    epoch: int
    owner: str | None
    reason: str
    attempt: int
    errors: int
    reclaims: int
    run_at: int
    granted_at: int | None
    expires_at: int | None
    progress: float | None
    note: str | None
    checkpoint: str | None
    result: str | None
    last_error: str | None
    created_at: int
    updated_at: int
    finished_at: int | None
    seq: int
    parked: str | None  # as JSON: kind, behind, by
    renewed_at: int | None
    cause: str | None  # as JSON, of which `cause_text` makes the last error; None: that is a text already


class LeaseRow(NamedTuple):
    """A live lease, and the process that claimed it."""

    epoch: int
    owner: str
    reason: str
    attempt: int
    errors: int
    checkpoint: str | None
    claim_id: str | None
    granted_at: int
    expires_at: int
    lasts_us: int
    host: str | None
    boot: str | None
    namespace: str | None
    pid: int | None
    started: int | None


_SPEC = len(SpecRow._fields)
_STATE = _SPEC + len(StateRow._fields)
_LEASE = _SPEC + len(LeaseRow._fields)


def spec_of(row: Sequence[Any]) -> NewJob:
    """Return what the producer asked for, from a row that begins with `SpecRow`."""
    # Not by way of a SpecRow, nor with stars: a claim does this for each of its jobs, in half the time.
    (
        job_id,
        payload,
        task,
        queue,
        priority,
        lock,
        unique,
        lease_us,
        stall_us,
        within_us,
        parent,
        max_errors,
        max_reclaims,
        document,
        meta,
    ) = row[:_SPEC]
    options = decode(document, max_errors, max_reclaims)
    return NewJob(
        job_id,
        payload,
        task,
        queue,
        priority,
        None,
        0,
        lock,
        unique,
        lease_us,
        stall_us,
        within_us,
        parent,
        options,
        meta,
    )


def state_of(row: Sequence[Any]) -> StateRow:
    """Return the columns behind `SpecRow` of a row of a job."""
    return StateRow._make(row[_SPEC:_STATE])


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row."""
    state = state_of(row)
    return Job(
        spec_of(row),
        Status(state.status),
        state.epoch,
        state.owner,
        REASONS[state.reason] if state.epoch else None,
        state.attempt,
        state.errors,
        state.reclaims,
        state.run_at,
        state.granted_at,
        state.expires_at,
        state.progress,
        state.note,
        state.checkpoint,
        state.result,
        caused(state.cause, state.last_error),
        state.created_at,
        state.updated_at,
        state.finished_at,
        None if state.parked is None else Parked(*json.loads(state.parked)),
        state.renewed_at,
    )


def caused(cause: str | None, text: str | None) -> str | None:
    """Return the last error, or the note of an ownership: *text* as it stands, unless the store keeps its *cause*."""
    return text if cause is None else cause_text(json.loads(cause), text)


def grant_of(row: Sequence[Any]) -> Grant:
    """Return the grant of a row of a lease."""
    lease = LeaseRow._make(row[_SPEC:_LEASE])
    process: tuple[Any, ...] = lease[-len(Process._fields) :]
    return Grant(
        spec_of(row),
        lease.epoch,
        lease.owner,
        REASONS[lease.reason],
        lease.attempt,
        lease.errors,
        lease.checkpoint,
        lease.claim_id,
        None if lease.host is None else Process(*process),
        lease.granted_at,
        lease.expires_at,
        lease.lasts_us,
    )


def worker_of(row: Sequence[Any], alive: bool) -> WorkerStatus:
    """Return the worker of a row of the table `workers`."""
    name, given_name, process, queues, tasks, concurrency, running, started_us, seen_us = row
    return WorkerStatus(
        name,
        given_name,
        None if process is None else Process(*json.loads(process)),
        None if queues is None else tuple(json.loads(queues)),
        tuple(json.loads(tasks)),
        concurrency,
        running,
        started_us,
        seen_us,
        alive,
    )
