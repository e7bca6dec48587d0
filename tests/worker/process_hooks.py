"""A hook that stands in another module than the tasks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.worker.process_tasks import router, seen

from leasehold import Lease


@router.around
def elsewhere(lease: Lease) -> Iterator[None]:
    """Write down each run of the task that is about hooks."""
    if lease.task == "hooks":
        seen.append(f"elsewhere {lease.job_id}")
    yield
