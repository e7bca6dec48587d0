"""Many async jobs at once, in one process, each with its lease kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from leasehold import Router

from .staging import Most, Tampered, until, working

MANY = 1000


def test_a_thousand_jobs_that_sleep_for_a_second_run_at_the_same_time_and_every_lease_is_renewed(
    any_router: Router,
) -> None:
    """Each lease lasts for less than its job: without renewals every one of them would be taken back."""
    store, most, renewed, ran = Tampered(any_router.store), Most(), Counter[str](), Counter[int]()

    def renew(real: Any, renewals: Any) -> Any:
        renewed.update(renewal.job_id for renewal in renewals)
        return real(renewals)

    store.tampers["renew"] = renew
    together = asyncio.Event()

    @any_router.task(lease_seconds=0.6)
    async def nap(number: int) -> int:
        ran[number] += 1
        with most:
            if most.most == MANY:
                together.set()
            await asyncio.wait_for(together.wait(), 30)
            await asyncio.sleep(1)
        return number

    any_router.add_many([nap.options(id=f"j{number}").job(number) for number in range(MANY)])
    with working(any_router, store=store, concurrency=MANY) as worker:
        until(lambda: any_router.reclaim() or worker.tally.done == MANY, "all", 40)

    jobs = any_router.jobs()
    assert most.most == MANY
    assert set(ran.values()) == {1}
    assert all(job.result == number for number, job in enumerate(jobs))
    assert all(job.attempt == job.reclaims == job.errors == 0 for job in jobs)
    assert renewed.keys() == {job.id for job in jobs}
