"""Many async jobs at once, in one process, each with its lease kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import until

from leasehold import Router
from leasehold.testing import ManualClock

from .staging import PATIENCE, Most, Tampered, has_looked, working

MANY = 1000


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/jobs.db?synchronous=normal"], ids=["memory", "sqlite"])
def test_a_thousand_async_jobs_run_at_the_same_time_and_every_lease_is_renewed(url: str, tmp_path: Path) -> None:
    """Each job lasts for longer than its lease: without renewals every one of them would be taken back."""
    clock, most, renewed, ran = ManualClock(), Most(), Counter[str](), Counter[int]()

    def renew(real: Any, renewals: Any) -> Any:
        renewed.update(renewal.job_id for renewal in renewals)
        return real(renewals)

    with Router(url.format(tmp_path), clock=clock, lease_seconds=30) as router:
        store, loops, go_on = Tampered(router.store), set[asyncio.AbstractEventLoop](), asyncio.Event()
        store.tampers["renew"] = renew

        @router.task
        async def nap(number: int) -> int:
            ran[number] += 1
            loops.add(asyncio.get_running_loop())
            with most:
                await asyncio.wait_for(go_on.wait(), PATIENCE)
            return number

        router.add_many([nap.options(id=f"j{number}").job(number) for number in range(MANY)])
        with working(router, store=store, steady=clock, concurrency=MANY) as worker:
            until(lambda: most.most == MANY, "all of them to run")
            for count in range(1, 5):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(10.1)
                until(lambda: len(renewed) == MANY and min(renewed.values()) >= count, "all renewals")  # noqa: B023 (it is called at once)
                assert router.reclaim() == []
            [loop] = loops
            loop.call_soon_threadsafe(go_on.set)
            until(lambda: worker.tally.done == MANY, "all to be done")

        jobs = router.jobs()
    assert set(ran.values()) == {1}
    assert all(job.result == number for number, job in enumerate(jobs))
    assert all(job.attempt == job.reclaims == job.errors == 0 for job in jobs)
    assert renewed.keys() == {job.id for job in jobs}
