"""
The one table of legal transitions.

Stores look a transition up here before they move a job. Where SQL repeats a rule in a WHERE clause, the contract suite
walks this table against the store, so that the two stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from ..errors import Conflict, NoLease, StoreUnavailable
from .instants import as_datetime
from .job import Outcome, Settlement, Status
from .ownership import Ending, Reason
from .retry import Retry
from .wording import counted


class Verb(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"  # for good
    RETRY = "retry"  # failed, and goes back
    RELEASE = "release"
    RECLAIM = "reclaim"  # taken back, and goes back
    EXHAUST = "exhaust"  # taken back once too often
    TRANSFER = "transfer"
    CANCEL = "cancel"
    REPLAY = "replay"
    REQUEUE = "requeue"  # taken from its owner by an operator, and goes back
    FINISH = "finish"  # completed by hand


_PENDING, _RUNNING, _DONE, _FAILED, _CANCELLED = Status

TRANSITIONS: dict[Verb, dict[Status, Status]] = {
    Verb.CLAIM: {_PENDING: _RUNNING},
    Verb.COMPLETE: {_RUNNING: _DONE},
    Verb.FAIL: {_RUNNING: _FAILED},
    Verb.RETRY: {_RUNNING: _PENDING},
    Verb.RELEASE: {_RUNNING: _PENDING},
    Verb.RECLAIM: {_RUNNING: _PENDING},
    Verb.EXHAUST: {_RUNNING: _FAILED},
    Verb.TRANSFER: {_PENDING: _RUNNING, _RUNNING: _RUNNING},
    Verb.CANCEL: {_PENDING: _CANCELLED, _RUNNING: _CANCELLED},
    Verb.REPLAY: {_DONE: _PENDING, _FAILED: _PENDING, _CANCELLED: _PENDING},
    Verb.REQUEUE: {_RUNNING: _PENDING},
    Verb.FINISH: {_PENDING: _DONE, _RUNNING: _DONE, _FAILED: _DONE},
}

FINISHED = frozenset({_DONE, _FAILED, _CANCELLED})

# Why the next claim finds the job free, by what made it so.
FREED_BY: dict[Verb, Reason] = {
    Verb.RETRY: Reason.RETRY,
    Verb.RELEASE: Reason.RELEASE,
    Verb.RECLAIM: Reason.RECOVERY,  # by the owner itself, of a crash
    Verb.REPLAY: Reason.MANUAL,
    Verb.REQUEUE: Reason.MANUAL,
}

# The event that records what an owner did to a job that goes back.
RECORDED_AS = {Verb.RETRY: "retried", Verb.RELEASE: "released", Verb.RECLAIM: "crashed"}

# Why the ownership ended, for the verbs of operators.
MOVED_BY: dict[Verb, Reason] = {
    Verb.TRANSFER: Reason.MANUAL,
    Verb.CANCEL: Reason.CANCELLATION,
    Verb.REPLAY: Reason.MANUAL,
    Verb.REQUEUE: Reason.MANUAL,
    Verb.FINISH: Reason.MANUAL,
}

_REFUSED = {
    Verb.TRANSFER: "cannot be transferred: replay it first",
    Verb.CANCEL: "cannot be cancelled: it is finished already",
    Verb.REPLAY: "cannot be replayed: cancel it first, or let it finish",
    Verb.REQUEUE: "cannot be requeued: only a running job can",
    Verb.FINISH: "cannot be completed by hand: replay it first",
}


NOT_STARTED = "it was not claimed within its start_within_seconds"  # the note of such a cancellation
CRASH, LATE = "crash", "late"  # beside reasons, what a cause can be: see `cause_text`

_TAKEN_BACK: dict[str, str] = {
    Reason.TIMEOUT: "the lease of {} expired",
    Reason.STALL: "{} made no progress in time",
    Reason.RECOVERY: "the process of {} is gone",
}


_AGAIN = "; reclaimed"


def after(verb: Verb, status: Status, job_id: str) -> Status:
    """Return the status that *verb* leads to from *status*. Raises `Conflict` for what the table does not list."""
    try:
        return TRANSITIONS[verb][status]
    except KeyError:
        raise Conflict(f"job {job_id!r} is {status} and {_REFUSED.get(verb, f'does not allow {verb}')}.") from None


def judge_error(errors: int, retry: Retry, *, again: bool) -> Verb:
    """Return what becomes of a job after its *errors*-th error: RETRY, or FAIL for good."""
    return Verb.RETRY if again and errors < retry.max_errors else Verb.FAIL


def judge_reclaim(reclaims: int, retry: Retry) -> Verb:
    """Return what becomes of a job after its *reclaims*-th reclaim: RECLAIM, or EXHAUST for good."""
    return Verb.RECLAIM if reclaims <= retry.max_reclaims else Verb.EXHAUST


class Reclaim(NamedTuple):
    """What a reclaim leaves of the job's budget, the verb that it amounts to, and the job's last error."""

    verb: Verb
    reclaims: int
    error: str


def judge_taken_back(reason: Reason, owner: str, reclaims: int, retry: Retry, *, picked_up: bool) -> Reclaim:
    """Judge a lease that the store takes back, from the budget as it was. A transfer not picked up costs nothing."""
    if not picked_up:
        return Reclaim(Verb.RECLAIM, reclaims, _taken_back(reason, owner, None, retry.max_reclaims))
    spent = reclaims + 1
    return Reclaim(judge_reclaim(spent, retry), spent, _taken_back(reason, owner, spent, retry.max_reclaims))


def _taken_back(reason: str, owner: str, reclaims: int | None, max_reclaims: int) -> str:
    what = _TAKEN_BACK[reason].format(repr(owner))
    return f"{what}; it was never picked up" if reclaims is None else _reclaimed(what, reclaims, max_reclaims)


def _reclaimed(what: str, reclaims: int, max_reclaims: int) -> str:
    if reclaims > max_reclaims:
        return f"{what}; that was reclaim {reclaims}, and max_reclaims is {max_reclaims}"
    return f"{what}{_AGAIN}"


def reclaim_cause(error: str | None) -> str | None:
    """Return why a job was reclaimed if *error*, its last one, is that of a reclaim which left it budget."""
    return error.removesuffix(_AGAIN) if error is not None and error.endswith(_AGAIN) else None


def cause_text(cause: Mapping[str, Any], error: str | None = None) -> str:
    """
    Return the last error of a job, or the note of its ownership, from the facts that a store keeps instead of it.

    `why` is a `Reason` for which the store took the job back from `owner`, `CRASH` of an owner that reported *error*,
    or `LATE`. `reclaims` counts this one, and is None if the job was never picked up.
    """
    if cause["why"] == LATE:
        return NOT_STARTED
    if cause["why"] == CRASH:
        return _reclaimed(str(error), cause["reclaims"], cause["max_reclaims"])
    return _taken_back(cause["why"], cause["owner"], cause.get("reclaims"), cause["max_reclaims"])


class Setback(NamedTuple):
    """What a failure, crash or release leaves of the job's budgets, and the verb that it amounts to."""

    verb: Verb
    errors: int
    reclaims: int
    last_error: str | None


def setback(settlement: Settlement, errors: int, reclaims: int, last_error: str | None, retry: Retry) -> Setback:
    """Judge a failure, a crash or a release, from the budgets as they were."""
    error = settlement.error
    if settlement.outcome is Outcome.FAIL:
        return Setback(judge_error(errors + 1, retry, again=settlement.retry), errors + 1, reclaims, error)
    if settlement.outcome is Outcome.CRASH:
        verb = judge_reclaim(reclaims + 1, retry)
        return Setback(verb, errors, reclaims + 1, _reclaimed(str(error), reclaims + 1, retry.max_reclaims))
    return Setback(Verb.RELEASE, errors, reclaims, last_error if error is None else error)


def ending(
    status: Status,
    reason: str | None,
    finished_us: int | None,
    done_by: str | None,
    *,
    moved: tuple[str | None, str | None] = (None, None),
    last: tuple[str, int | None, str | None] | None = None,
) -> Ending:
    """
    Return how a refused ownership and its job ended, from the record.

    *reason* and *done_by* are the job's: why its epoch was issued, and the owner that completed it. *moved* is by whom
    the refused ownership was ended, and the note; *last* is how, when and by whom the job's newest ownership was.
    """
    if status not in FINISHED:
        return Ending(*moved)
    finished_by = done_by
    if done_by is None and last is not None:
        how, at, by = last
        # An operator may have finished the job long after its last ownership ended, which no ownership records.
        if at == finished_us and (how == "failed" or how == reason):
            finished_by = by
    return Ending(*moved, status, finished_by, as_datetime(finished_us))


def no_lease(job_id: str, status: str, holder: str | None, epoch: int, owner: str) -> NoLease:
    """Return the refusal of a lease that *owner* does not have."""
    if holder is None:
        return NoLease(f"job {job_id!r} is {status}: no owner holds a lease on it.")
    return NoLease(f"job {job_id!r} is leased to {holder!r} (epoch {epoch}), not to {owner!r}.")


def no_effect(job_id: str, name: str) -> Conflict:
    """Return the refusal of an outcome for an effect that is not on record."""
    return Conflict(
        f"job {job_id!r} has no record of an effect named {name!r}: it was never begun, an operator resolved it as not "
        "happened, or a restored backup has lost it. Nothing was changed."
    )


def not_in_doubt(job_id: str, name: str) -> Conflict:
    """Return the refusal of an operator's outcome for an effect whose outcome is recorded."""
    return Conflict(f"effect {name!r} of job {job_id!r} is not in doubt: its outcome is recorded.")


def reclaimed_in_part(error: StoreUnavailable, count: int) -> StoreUnavailable:
    """Return *error* as that of a sweep which has reclaimed *count* jobs before: something was changed."""
    if not count:
        return error
    done = counted(count, "job has", "jobs have")
    return StoreUnavailable(f"{done} been reclaimed before this call failed: {error}", outcome_unknown=True)


def lock_held(job_id: str, key: str, holder: str, epoch: int) -> Conflict:
    """Return the refusal of a transfer to a job whose lock key another job holds."""
    return Conflict(
        f"job {job_id!r} cannot run now: its lock {key!r} is held by job {holder!r} (epoch {epoch}). Cancel or finish "
        f"job {holder!r} first."
    )


def only_its_id(job_id: str, verb: str) -> Conflict:
    """Return the refusal of a verb that needs more than the narrow row of a pruned job."""
    return Conflict(
        f"job {job_id!r} was pruned: only its id, status, epoch and end are kept, so {verb} is not possible. "
        "Add the work again under another id."
    )


def not_prunable(job_id: str, status: Status, parent: str | None, effect: str | None) -> Conflict:
    """
    Return why a job is not pruned: it is not finished, or its *parent* is kept, or its *effect* is in doubt.

    If it is finished and both are None, it has guarded keys that are not sealed.
    """
    if status not in FINISHED:
        return Conflict(f"job {job_id!r} is {status} and cannot be pruned: only a finished job can.")
    if parent is not None:
        why = f"its parent {parent!r} is kept, and replaying that would add this job again. Prune the parent first"
    elif effect is not None:
        why = f"its effect {effect!r} is in doubt. Resolve it first: leasehold resolve {job_id} {effect}"
    else:
        why = f"its guarded keys are not sealed yet. Seal them first: leasehold guard seal {job_id} --app app:router"
    return Conflict(f"job {job_id!r} cannot be pruned: {why}.")


def unique_taken(job_id: str, key: str, holder: str) -> Conflict:
    """Return the refusal of a replay whose unique key an unfinished job has."""
    return Conflict(
        f"job {job_id!r} cannot be replayed: its unique key {key!r} belongs to job {holder!r}, which is unfinished. "
        "Cancel that job first, or let it finish."
    )
