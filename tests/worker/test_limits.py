"""`run_seconds`: how long a handler may run in all."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support import until

from leasehold import Lease, Retry, Router, StaleEpoch, Status
from leasehold.testing import ManualClock
from leasehold.worker.calling import released
from leasehold.worker.run import State, Stop
from leasehold.worker.worker import Worker

from .staging import PATIENCE, Gate, ended, has_looked, with_status, working


def pass_time(worker: Worker, clock: ManualClock, seconds: float) -> None:
    """Let that much time pass, noticed by everybody."""
    until(lambda: has_looked(worker, clock), "the keepers to sleep")
    clock.advance(seconds)
    until(lambda: has_looked(worker, clock), "the keepers to sleep")


def test_an_async_handler_is_cancelled_and_its_job_failed_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, begun, cleaned = ManualClock(), threading.Event(), []
    with Router(clock=clock) as router:

        @router.task(run_seconds=5, retry=Retry(delay_seconds=600, jitter=False))
        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                cleaned.append(1)

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            pass_time(worker, clock, 4.9)
            assert cleaned == []
            pass_time(worker, clock, 0.2)
            until(lambda: worker.tally.retried == 1, "its end")
            pass_time(worker, clock, 20)
            assert worker.runner.room() == 16

        job = router.job("a")
        assert cleaned == [1]
        assert (job.errors, job.reclaims, job.status) == (1, 0, Status.PENDING)
        assert job.last_error is not None
        assert "run_seconds, 5" in job.last_error
        assert job.error_type == "TimeoutError"
        assert job.error_message == "the handler ran for longer than its run_seconds, 5"
        assert f"job 'a' (work): {job.error_message}" in caplog.text


@pytest.mark.parametrize(("tasks", "jobs"), [(None, 5), (60, 5), (2, 5)])
def test_a_jobs_own_limit_beats_its_tasks(tasks: float | None, jobs: float) -> None:
    """It may be shorter or longer, and the error names it."""
    clock, begun = ManualClock(), threading.Event()
    with Router(clock=clock) as router:

        @router.task(run_seconds=tasks, retry=Retry(max_errors=1))
        async def work() -> None:
            begun.set()
            await asyncio.sleep(3600)

        work.options(id="a", run_seconds=jobs).add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            pass_time(worker, clock, 4.9)
            assert worker.tally.failed == 0
            pass_time(worker, clock, 0.2)
            until(lambda: worker.tally.failed == 1, "its end")

        job = router.job("a")
        assert (job.status, job.run_seconds) == (Status.FAILED, jobs)
        assert "run_seconds, 5" in (job.last_error or "")


def test_a_thread_is_fenced_at_once_and_keeps_its_slot_until_it_returns() -> None:
    clock, gate, told = ManualClock(), Gate(), []
    with Router(clock=clock) as router:

        @router.task(run_seconds=5, retry=Retry(max_errors=1))
        def work(lease: Lease) -> str:
            gate.pass_by()
            with pytest.raises(StaleEpoch):
                lease.progress(0.5)
            told.append(lease.lost)
            return "too late"

        @router.task
        async def other() -> None:
            pass

        work.options(id="a").add()
        with working(router, steady=clock, concurrency=1) as worker:
            gate.wait_for()
            pass_time(worker, clock, 5.1)
            job = with_status(router, "a", Status.FAILED)
            other.options(id="b").add()
            pass_time(worker, clock, 20)
            assert router.job("b").status is Status.PENDING, "the slot is taken"
            gate.open()
            ended(router, "b")

        assert told == [True]
        assert router.job("a") == job
        assert (worker.tally.failed, worker.tally.done, worker.tally.refused) == (1, 1, 0)


def test_an_async_handler_that_does_not_stop_is_left_after_five_seconds() -> None:
    clock, begun, free = ManualClock(), threading.Event(), threading.Event()
    with Router(clock=clock) as router:

        @router.task(run_seconds=5, retry=Retry(max_errors=1))
        async def work() -> None:
            begun.set()
            while not free.is_set():
                try:
                    await asyncio.sleep(0.005)
                except asyncio.CancelledError:
                    continue

        work.options(id="a").add()
        with working(router, steady=clock, concurrency=1) as worker:
            assert begun.wait(PATIENCE)
            pass_time(worker, clock, 5.1)
            assert router.job("a").status is Status.RUNNING
            pass_time(worker, clock, 4.8)
            assert router.job("a").status is Status.RUNNING
            pass_time(worker, clock, 0.4)
            with_status(router, "a", Status.FAILED)
            assert worker.runner.room() == 0
            free.set()
            until(lambda: worker.runner.room() == 1, "its slot")

        assert (worker.tally.failed, worker.tally.done) == (1, 0)


def test_a_handler_within_its_time_is_left_alone() -> None:
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:

        @router.task(run_seconds=100)
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            for _ in range(9):
                pass_time(worker, clock, 10)
            gate.open()
            ended(router, "a")

        assert router.job("a").errors == 0


def test_a_slot_is_kept_although_two_notice_at_once_that_the_handler_goes_on(router: Router) -> None:
    """Its time is over, and its lease is lost: two threads find out."""
    gate = Gate()

    @router.task(retry=Retry(delay_seconds=600, jitter=False))
    def work() -> None:
        gate.pass_by()

    work.options(id="a").add()
    with working(router, concurrency=1) as worker:
        gate.wait_for()
        [run] = worker.runner.runs.undecided()
        assert run.transition(State.EXECUTING, State.STOPPING, Stop(0, released(run.grant, 600)))
        noticing = [threading.Thread(target=worker.runner.outlived, args=[run]) for _ in range(2)]
        for thread in noticing:
            thread.start()
        for thread in noticing:
            thread.join(PATIENCE)

        assert worker.runner.room() == 0
        until(lambda: run.state is State.LINGERING, "the settlement")
        assert worker.runner.room() == 0
        gate.open()
        until(lambda: worker.runner.room() == 1, "the slot to be free")
        assert run.state is State.OVER
