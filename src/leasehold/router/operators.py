"""The verbs of operators. Each takes the epoch that the operator saw, or a `Job` just read, and who acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..aio import alone
from ..core import checks, documents, inputs
from ..core.job import Job
from ..lease import Lease
from .guards import sealed
from .operator_log import moved

if TYPE_CHECKING:  # which has these functions as its methods
    from .front import Router


def transfer(
    router: Router,
    job: Job | str,
    *,
    to: str,
    by: str,
    epoch: int | None = None,
    note: str | None = None,
    lease_seconds: float | None = None,
) -> Lease:
    """
    Give the job to *to* under a new epoch, and return the new owner's lease. The owner before is refused from then on.

    If *to* is the name of a live worker, or the given name (`--name`) of exactly one, that worker picks the job up
    within a second and runs it as soon as a slot is free; the lease's owner is the worker's own name. Any other name is
    an owner's, which gets the job from `router.lease`. A lease that expires before it was picked up counts no reclaim.

    Raises `StaleEpoch` if the job has moved since *epoch* or the `Job` was read, `UnknownJob`, and `Conflict` if it
    is finished, if another job holds its lock, or if several live workers were given that name.
    """
    job_id, seen = inputs.seen(job, epoch)
    grant = alone(router.store).transfer(
        job_id,
        seen,
        to=checks.name(to, "to="),
        by=checks.name(by, "by="),
        note=inputs.note(note),
        lease_us=None if lease_seconds is None else checks.microseconds(lease_seconds, "lease_seconds"),
        default_lease_us=router._lease_us,
    )
    moved(router, "transferred", grant, by=by, note=note)
    return Lease(router.store, grant)


def cancel(router: Router, job: Job | str, *, by: str, epoch: int | None = None, note: str | None = None) -> Job:
    """
    End the job as cancelled. Its owner is refused from then on, at the guarded keys of the job too.

    `unsealed` of the returned job names the keys that could not be reached; `router.seal` tries them again. Raises as
    `transfer` does.
    """
    ended = alone(router.store).cancel(*inputs.seen(job, epoch), by=checks.name(by, "by="), note=inputs.note(note))
    moved(router, "cancelled", ended, by=by, note=note)
    return sealed(router, ended, by)


def replay(router: Router, job: Job | str, *, by: str, epoch: int | None = None, note: str | None = None) -> Job:
    """
    Put a finished job back to be claimed, due now, its budgets new.

    Raises as `transfer` does; `Conflict` if it is not finished, or an unfinished job has its unique key.
    """
    after = alone(router.store).replay(*inputs.seen(job, epoch), by=checks.name(by, "by="), note=inputs.note(note))
    moved(router, "replayed", after, by=by, note=note)
    return after


def requeue(router: Router, job: Job | str, *, by: str, epoch: int | None = None, note: str | None = None) -> Job:
    """
    Take a running job from its owner and put it back to be claimed, due now; its budgets stay as they are.

    The owner is refused with `StaleEpoch`, which names *by* and *note*. Raises as `transfer` does; `Conflict` if the
    job is not running.
    """
    after = alone(router.store).requeue(*inputs.seen(job, epoch), by=checks.name(by, "by="), note=inputs.note(note))
    moved(router, "requeued", after, by=by, note=note)
    return after


def complete(
    router: Router, job: Job | str, *, by: str, result: object = None, epoch: int | None = None, note: str | None = None
) -> Job:
    """Complete the job by hand. Its owner is refused from then on, as after `cancel`. Raises as `transfer` does."""
    document = documents.encode(result, "result")
    ended = alone(router.store).finish(
        *inputs.seen(job, epoch), by=checks.name(by, "by="), note=inputs.note(note), result=document
    )
    moved(router, "finished", ended, by=by, note=note)
    return sealed(router, ended, by)


def resolve(
    router: Router,
    job: Job | str,
    name: str,
    *,
    by: str,
    outcome: object = None,
    happened: bool = True,
    epoch: int | None = None,
    note: str | None = None,
) -> Job:
    """
    Record how the effect *name*, which is in doubt, ended: with *outcome*, or not at all (`happened=False`).

    The next owner's `once` returns the outcome without calling, or begins anew. Raises as `transfer` does;
    `Conflict` if the effect is not in doubt.
    """
    after = alone(router.store).resolve(
        *inputs.seen(job, epoch),
        checks.name(name, "the name of an effect"),
        by=checks.name(by, "by="),
        outcome=documents.encode(outcome, "outcome") if happened else None,
        note=inputs.note(note),
    )
    moved(router, "resolved", after, name=name, by=by, note=note)
    return after
