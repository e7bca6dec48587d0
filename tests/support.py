"""What tests of every folder share: patience with other threads and processes, and leases to begin with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tests.patience import PATIENCE_SECONDS

from leasehold import Lease, Router
from leasehold.core.clock import patience
from leasehold.testing import ManualClock

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str = "the condition", seconds: float = PATIENCE_SECONDS) -> T:
    """Return what *look* returns once it is something; fail if that takes too long."""
    left, pause = patience(seconds), threading.Event()
    while not (found := look()):
        assert left() > 0, f"waited {seconds:g} s in vain for {what}"
        pause.wait(0.005)
    return found


def claimed(router: Router, owner: str = "worker-0", **options: Any) -> Lease:
    """Claim the next job, which must be there."""
    lease = router.claim(owner, **options)
    assert lease is not None
    return lease


def lease_of(router: Router, job_id: str = "a") -> Lease:
    """Return a lease on a new job."""
    router.add(job_id)
    return claimed(router, "worker")


def overtaken(router: Router, clock: ManualClock, owner: str = "worker-1") -> Lease:
    """Let every lease of half a minute or less run out, and claim the job anew."""
    clock.advance(31)
    return claimed(router, owner)
