"""The verbs by which an owner gets a lease: claim, claim_many, lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..aio import alone
from ..core import checks, inputs
from ..core.clock import Countdown
from ..core.ids import new_claim_id
from ..core.job import Grant
from ..core.ownership import Process
from ..errors import NoLease, StoreUnavailable
from ..lease import Lease
from ..liveness import SELF, this_process
from .results import waited

if TYPE_CHECKING:  # which has these functions as its methods
    from .front import Router

_CLAIM_LIMIT = 10_000


def claim(
    router: Router,
    owner: str,
    *,
    queues: Sequence[str] | None = None,
    lease_seconds: float | None = None,
    wait_seconds: float = 0,
    process: Process | None = SELF,
) -> Lease | None:
    """
    Lease the next due job to *owner*, or return None if there is none within *wait_seconds*.

    The calling process is recorded, so that its death frees the job at once; pass `process=None` when claiming
    for an owner in another process. Raises `StoreUnavailable` if the store does not answer, or is closed meanwhile.
    """
    grants = _claim(router, owner, 1, queues, lease_seconds, wait_seconds, process)
    return Lease(router._adder.store, grants[0]) if grants else None


def claim_many(
    router: Router,
    owner: str,
    *,
    limit: int = 100,
    queues: Sequence[str] | None = None,
    lease_seconds: float | None = None,
    wait_seconds: float = 0,
    process: Process | None = SELF,
) -> list[Lease]:
    """Lease up to *limit* due jobs to *owner*, in one transaction. Raises as `claim` does."""
    checks.whole(limit, "limit", least=1, most=_CLAIM_LIMIT)
    grants = _claim(router, owner, limit, queues, lease_seconds, wait_seconds, process)
    return [Lease(router._adder.store, grant) for grant in grants]


def _claim(
    router: Router,
    owner: str,
    limit: int,
    queues: Sequence[str] | None,
    lease_seconds: float | None,
    wait_seconds: float,
    process: Process | None,
) -> list[Grant]:
    claim_id, process = new_claim_id(), this_process() if process is SELF else process
    queues = None if queues is None else inputs.queues(queues)
    lease_us = None if lease_seconds is None else checks.microseconds(lease_seconds, "lease_seconds")
    wait_us = 0 if wait_seconds == 0 else checks.microseconds(wait_seconds, "wait_seconds", zero=True)
    countdown = Countdown(router._clock, wait_us) if wait_us else None
    store = alone(router._adder.store)
    checks.name(owner, "owner")
    try:
        while True:
            grants = store.claim(
                owner,
                limit=limit,
                queues=queues,
                lease_us=lease_us,
                default_lease_us=router._lease_us,
                claim_id=claim_id,
                process=process,
                wait_us=wait_us,
            )
            # A worker that stops wakes every waiting claim of its store, including this one.
            if grants or countdown is None or (wait_us := countdown.left()) <= 0:
                return grants
    except StoreUnavailable as failure:
        # The reply was lost, and the claim may have been granted: its jobs would wait for their deadline. They are
        # found by the id of the claim, since another owner may have the same name.
        return _found(router, claim_id, failure)


def _found(router: Router, claim_id: str, failure: StoreUnavailable) -> list[Grant]:
    try:
        grants = router._adder.store.claimed(claim_id)
    except StoreUnavailable:
        raise failure from None
    if not grants:
        raise failure
    return grants


def lease(router: Router, job_id: str, *, owner: str, wait_seconds: float = 0) -> Lease:
    """
    Return the live lease of *owner* on the job, in whatever process, waiting for it up to *wait_seconds*.

    This picks up a job that was transferred to *owner*: from here on, its expiry counts a reclaim.

    Raises `NoLease`, which says who holds it instead, and `UnknownJob`.
    """
    try:
        return find_lease(router, job_id, owner=owner, wait_seconds=wait_seconds)
    except NoLease as error:
        raise waited(error, wait_seconds) from None


def find_lease(router: Router, job_id: str, *, owner: str, wait_seconds: float) -> Lease:
    """Do what `lease` does, except that its `NoLease` does not name the wait."""
    wait_us = checks.microseconds(wait_seconds, "wait_seconds", zero=True)
    store = alone(router._adder.store) if wait_us else router._adder.store
    return Lease(store, store.lease(checks.name(job_id, "a job's id"), checks.name(owner, "owner"), wait_us=wait_us))
