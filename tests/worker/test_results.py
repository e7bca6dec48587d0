"""A result is waited for without a busy loop or a thread, typed as its task says, and an end without one is told."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import InvalidArgument, JobFailed, NotFinished, Retry, Router, Status, UnknownJob
from leasehold.router import results
from leasehold.testing import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Router]:
    """A store of each kind that needs no server."""
    with Router(None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db") as router:
        yield router


def completed(router: Router, result: object = None) -> None:
    """Complete the next job."""
    lease = router.claim("worker-0")
    assert lease is not None
    lease.complete(result)


def test_the_result_of_a_job_that_is_done_is_there_at_once(router: Router) -> None:
    """As JSON has it, for a job of no task."""
    router.add("a")
    completed(router, {"sent": [1, 2]})

    assert router.result("a") == {"sent": [1, 2]}
    assert router.result("a", wait_seconds=PATIENCE_SECONDS) == {"sent": [1, 2]}


def test_a_done_job_without_a_result_has_none(router: Router) -> None:
    """None is a result."""
    router.add("a")
    completed(router)

    assert router.result("a") is None


def test_a_result_is_what_the_task_returned(router: Router) -> None:
    """By its return annotation; another router, which does not know the task, gets what JSON has."""

    @router.task
    def due(days: int) -> date:
        return date(2030, 1, days)

    id = due.add(3).job.id
    router.drain()

    assert router.result(id) == date(2030, 1, 3)
    assert router.job(id).result == "2030-01-03"
    del router._registry.tasks["due"]
    assert router.result(id) == "2030-01-03"


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING])
def test_a_job_that_may_still_be_done_is_not_finished(router: Router, status: Status) -> None:
    """The error is a TimeoutError, and has the facts."""
    router.add("a")
    if status is Status.RUNNING:
        router.claim("worker-0")

    with pytest.raises(NotFinished, match=f"job 'a' has no result yet: it is {status.value}") as caught:
        router.result("a", wait_seconds=0.02)

    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.job_id, caught.value.status) == ("a", status)


def test_a_pending_job_says_what_it_waits_for(router: Router) -> None:
    """As far as the store knows: a task that a worker does not know, a lock, a paused queue, a time to come."""
    router.add("slip", task="imprt", queue="imports")
    router.add("bare", queue="imports")
    router.store.claim("mailer-7", limit=10, queues=["imports"], tasks=["import"])
    router.add("first", lock="k", queue="locks")
    router.add("second", lock="k", queue="locks")
    assert len(router.claim_many("worker-0", queues=["locks"])) == 1
    router.add("mail", queue="mail")
    router.pause("mail", by="ann", note="the relay is down")
    later = router.add("later", delay_seconds=3600).job.run_at
    router.add("ready")

    def why(job_id: str) -> str:
        with pytest.raises(NotFinished) as caught:
            router.result(job_id)
        return str(caught.value).rpartition("needs a worker.")[2]

    assert why("slip") == " Worker 'mailer-7' does not know the task 'imprt', and has passed the job over."
    assert why("bare") == " It names no task, and workers such as 'mailer-7' do not take such jobs."
    assert why("second") == " It waits for its lock 'k', which another job holds."
    assert re.fullmatch(r" Its queue 'mail' has been paused by 'ann' since \S+: \"the relay is down\"\.", why("mail"))
    assert why("later").startswith(f" It is due at {later.isoformat(timespec='seconds')}, in ")
    assert why("ready") == why("first") == ""


def test_a_pruned_job_says_so_while_its_id_is_kept(router: Router) -> None:
    """An id that leasehold made goes with its job."""
    router.add("a")
    completed(router)
    at = router.job("a").finished_at
    assert at is not None
    router.prune(keep_seconds=0)

    with pytest.raises(UnknownJob, match=r"^job 'a' was pruned, .* it was done at (\S+)\. Keep") as caught:
        router.result("a")

    assert at.isoformat(timespec="seconds") in str(caught.value)


def test_a_failed_job_says_why(router: Router) -> None:
    """With its last error, and how many there were."""
    router.add("a", retry=Retry(max_errors=2, delay_seconds=0))
    for why in ("no paper", "no ink"):
        lease = router.claim("worker-0")
        assert lease is not None
        lease.fail(why)

    with pytest.raises(JobFailed) as caught:
        router.result("a", wait_seconds=PATIENCE_SECONDS)

    failure = caught.value
    assert (failure.job_id, failure.status, failure.error, failure.errors) == ("a", Status.FAILED, "no ink", 2)
    assert str(failure).startswith("job 'a' has no result: it is failed after 2 errors. ")
    assert str(failure).endswith("Its last error: no ink")
    assert "max_reclaims" not in str(failure)


def test_a_job_that_lost_too_many_owners_names_the_budget() -> None:
    """Both ways out: a replay, and a larger budget for a task that is killed often."""
    router = Router(clock=(clock := ManualClock()))
    router.add("a", retry=Retry(max_reclaims=0))
    assert router.claim("worker-0") is not None
    clock.advance(31)
    router.reclaim()

    with pytest.raises(
        JobFailed, match=r"`leasehold replay 'a'` puts it back.*Retry\(max_reclaims=…\).* max_reclaims is 0$"
    ):
        router.result("a")


def test_a_cancelled_job_says_so(router: Router) -> None:
    """It has no error to show."""
    router.cancel(router.add("a").job, by="ops")

    with pytest.raises(JobFailed, match="job 'a' has no result: it is cancelled") as caught:
        router.result("a")

    assert (caught.value.status, caught.value.error, caught.value.errors) == (Status.CANCELLED, None, 0)
    assert "error" not in str(caught.value)


def test_a_job_that_is_not_there_is_not_waited_for(router: Router) -> None:
    """It was never added, or is pruned."""
    with pytest.raises(UnknownJob):
        router.result("a", wait_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("wait_seconds", [-1, float("inf"), "3"])
def test_a_wait_that_is_none_is_refused(router: Router, wait_seconds: float) -> None:
    """Before anything is asked."""
    with pytest.raises(InvalidArgument, match="wait_seconds"):
        router.result("a", wait_seconds=wait_seconds)


def test_a_result_that_comes_while_it_is_waited_for_is_returned(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged: the job is completed once somebody has looked in vain."""
    router.add("a")
    looked = threading.Event()
    job = router.store.job

    def look(job_id: str) -> object:
        found = job(job_id)
        looked.set()
        return found

    monkeypatch.setattr(router.store, "job", look)

    def complete() -> None:
        assert looked.wait(PATIENCE_SECONDS)
        completed(router, "late")

    thread = threading.Thread(target=complete)
    thread.start()
    try:
        assert router.result("a", wait_seconds=PATIENCE_SECONDS) == "late"
    finally:
        thread.join()


def test_what_was_added_or_read_names_its_job(router: Router) -> None:
    """As well as the id itself does."""
    added = router.add("a")
    completed(router, 7)

    assert router.result(added) == router.result(added.job) == router.result("a", wait_seconds=None) == 7
    assert asyncio.run(router.aio.result(added, wait_seconds=None)) == 7


def test_pauses_grow_and_end() -> None:
    """From 5 ms to a quarter of a second; none is longer than what is left, and no wait needs none."""
    drawn = results.pauses(3600)

    first = [next(drawn) for _ in range(9)]

    assert first == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]
    assert list(results.pauses(0)) == []
    endless = results.pauses(None)
    assert [next(endless) for _ in range(9)] == first
    assert next(results.pauses(0.001)) <= 0.001


def test_the_async_form_waits_on_the_loop(router: Router) -> None:
    """A hundred callers wait, and not even the few threads of the loop's pool are theirs meanwhile."""
    router.add("a")

    async def body() -> None:
        waiting = [asyncio.create_task(router.aio.result("a", wait_seconds=PATIENCE_SECONDS)) for _ in range(100)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE_SECONDS):
            lease = await router.aio.claim("worker-0")
            assert lease is not None
            await lease.aio.complete("done")
            assert await asyncio.gather(*waiting) == ["done"] * 100

    asyncio.run(body())


def test_the_async_form_raises_the_same(router: Router) -> None:
    """Not finished, failed, unknown."""
    router.add("a")
    router.cancel(router.add("b").job, by="ops")

    async def body() -> None:
        with pytest.raises(NotFinished):
            await router.aio.result("a", wait_seconds=0.02)
        with pytest.raises(JobFailed):
            await router.aio.result("b")
        with pytest.raises(UnknownJob):
            await router.aio.result("c")

    asyncio.run(body())


def test_the_async_form_holds_no_thread_between_two_looks(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a call of its own on the pool, with nothing to wait for there. The third one finds the end."""
    router.add("a")
    waits: list[float] = []
    result, once = Router.result, Router._result

    def look(self: Router, id: str, *, wait_seconds: float = 0) -> object:
        waits.append(wait_seconds)
        return result(self, id, wait_seconds=wait_seconds)

    def look_once(self: Router, id: str) -> object:
        waits.append(0)
        if len(waits) == 3:
            completed(router, "here")
        return once(self, id)

    monkeypatch.setattr(Router, "result", look)
    monkeypatch.setattr(Router, "_result", look_once)

    assert asyncio.run(router.aio.result("a", wait_seconds=PATIENCE_SECONDS)) == "here"
    assert waits == [0, 0, 0]
