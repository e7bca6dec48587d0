"""A lease to call a handler with, and a takeover of it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..core.clock import Clock
from ..lease import Lease, worker_side
from ..router import Router
from ..tasks.task import AnyTask

P = ParamSpec("P")
T = TypeVar("T")


def lease(
    payload: object = None,
    *,
    task: str | AnyTask | None = None,
    owner: str = "test",
    checkpoint: object = None,
    clock: Clock | None = None,
    lease_seconds: float = 30,
) -> Lease:
    """
    Return a real lease on a job in a fresh store in memory, to call a task's function with.

    With a *checkpoint*, an earlier owner has left it and released the job, so this is the second attempt.
    """
    router = Router(clock=clock, lease_seconds=lease_seconds)
    router.add("test", payload, task=task.name if task is not None and not isinstance(task, str) else task)
    if checkpoint is not None:
        earlier = _claimed(router, "earlier")
        earlier.progress(checkpoint=checkpoint)
        earlier.release()
    return _claimed(router, owner)


def _claimed(router: Router, owner: str) -> Lease:
    found = router.claim(owner)
    assert found is not None
    return found


def elsewhere(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *call* as another process would, and return its value: outside of the transactions that are open here.

    A test that moves a job while its owner is inside `lease.transaction()` needs it: in the owner's own context, verbs
    of other leases and of the router are refused there.
    """
    return contextvars.Context().run(call, *args, **kwargs)


def take_over(lease: Lease, *, owner: str = "successor") -> Lease:
    """
    Give the job of *lease* to *owner*, and return the successor's lease: from now on *lease* is stale.

    The lease itself is not changed: as for a paused owner, its next write raises `StaleEpoch`. The reason is `manual`.
    """
    grant = lease.store.transfer(
        lease.job_id,
        lease.epoch,
        to=owner,
        by="leasehold.testing",
        default_lease_us=worker_side.grant_of(lease).lease_us,
    )
    return Lease(lease.store, grant)
