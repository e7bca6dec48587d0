"""A lease that is lost: the handler is told, nothing of it counts, and the slot is honest."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import until

from leasehold import Lease, Router, StaleEpoch, Status, StoreUnavailable
from leasehold.testing import ManualClock

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, with_status, working


def transfer(router: Router) -> None:
    """An operator gives the job to somebody else."""
    router.transfer(router.job("a"), to="agent-b", by="operator", lease_seconds=600)


def cancel(router: Router) -> None:
    """An operator ends it."""
    router.cancel(router.job("a"), by="operator")


def finish(router: Router) -> None:
    """An operator completes it by hand."""
    router.complete(router.job("a"), by="operator", result="by hand")


LOSSES = [transfer, cancel, finish]


@pytest.mark.parametrize("lose", LOSSES)
def test_an_async_handler_is_cancelled_and_cleans_up(
    lose: Callable[[Router], None], caplog: pytest.LogCaptureFixture
) -> None:
    clock, begun, cleaned = ManualClock(), threading.Event(), []
    with Router(clock=clock) as router:

        @router.task
        async def work(lease: Lease) -> str:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                cleaned.append(lease.lost)
            return "never"

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            lose(router)
            after = router.job("a")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.1)
            until(lambda: cleaned, "the handler to be cancelled")
            until(lambda: worker.health().free == 16, "its slot")

        assert cleaned == [True]
        assert router.job("a") == after, "nothing of it was settled"
        assert worker.tally.refused == 1
        assert sum(getattr(worker.tally, name) for name in ("done", "retried", "failed", "released", "settled")) == 0
        [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert "'a'" in said
        if lose is transfer:
            assert "agent-b" in said
            assert "moved by '" in said
        if lose is cancel:
            assert "it was cancelled by '" in said


def test_an_async_handler_that_swallows_the_cancellation_changes_nothing() -> None:
    clock, begun, ended_too = ManualClock(), threading.Event(), threading.Event()
    with Router(clock=clock) as router:

        @router.task
        async def work() -> str:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended_too.set()
            return "never"

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            transfer(router)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.1)
            assert ended_too.wait(PATIENCE)
            until(lambda: worker.health().free == 16, "its slot")

        assert router.job("a").owner == "agent-b"
        assert worker.tally.refused == 1
        assert worker.tally.done == 0


@pytest.mark.parametrize("lose", LOSSES)
def test_a_thread_is_told_and_refused_and_keeps_its_slot_until_it_returns(
    lose: Callable[[Router], None], caplog: pytest.LogCaptureFixture
) -> None:
    clock, gate, told = ManualClock(), Gate(), []
    with Router(clock=clock) as router:

        @router.task
        def work(lease: Lease) -> str:
            gate.pass_by()
            told.append(lease.lost)
            with pytest.raises(StaleEpoch) as refused:
                lease.progress(0.5)
            told.append(refused.value.presented == lease.epoch)
            return "too late"

        @router.task
        def other() -> None:
            pass

        work.options(id="a").add()
        with working(router, steady=clock, concurrency=1) as worker:
            gate.wait_for()
            lose(router)
            after = router.job("a")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.1)
            until(lambda: worker.tally.refused == 1, "the loss to be noticed")
            other.options(id="b").add()
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            assert worker.health().free == 0
            assert "every slot" in worker.health().why
            assert router.job("b").status is Status.PENDING
            gate.open()
            ended(router, "b")

        assert told == [True, True]
        assert router.job("a") == after, "nothing of it was settled"
        assert (worker.tally.refused, worker.tally.done) == (1, 1)
        assert any("agent-b" in message for message in caplog.messages) or lose is not transfer


def test_a_thread_learns_it_at_its_next_verb_before_any_renewal(router: Router) -> None:
    gate, raised = Gate(), []

    @router.task
    def work(lease: Lease) -> None:
        gate.pass_by()
        try:
            lease.progress(0.5, checkpoint={"row": 5})
        except StaleEpoch as error:
            raised.append((error.owner, lease.lost))
            raise

    work.options(id="a").add()
    with working(router) as worker:
        gate.wait_for()
        transfer(router)
        gate.open()
        until(lambda: worker.tally.refused == 1, "its end")

    assert raised == [("agent-b", True)]
    job = router.job("a")
    assert (job.owner, job.errors) == ("agent-b", 0)


def test_a_takeover_by_time_is_told_to_the_loser() -> None:
    """The store thought this worker dead, and another has the job: the first one's end is refused."""
    clock, steady, gate = ManualClock(), ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task
        def work(lease: Lease) -> str:
            if lease.attempt == 0:
                gate.pass_by()
            return f"attempt {lease.attempt}"

        work.options(id="a").add()
        with working(router, steady=steady) as first:  # whose clock stands still: it renews nothing
            gate.wait_for()
            first._claimer.stop()
            clock.advance(31)
            with working(router, steady=clock):
                [job] = ended(router, "a")
            gate.open()
            until(lambda: first.tally.refused == 1, "the loser's end")

    assert job.result == "attempt 1"
    assert job.reclaims == 1


def test_the_slot_of_a_handler_that_cannot_be_stopped_stays_taken_while_the_store_is_away() -> None:
    """What was decided about it waits to be settled, for longer than a handler is given to stop."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:
        store, away = Tampered(router.store), threading.Event()
        away.set()

        def settle(real: Any, settlements: Any) -> Any:
            if away.is_set():
                raise StoreUnavailable("away")
            return real(settlements)

        store.tampers["settle"] = settle

        @router.task(run_seconds=5)
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, store=store, steady=clock, concurrency=1) as worker:
            gate.wait_for()
            for _ in range(8):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(3)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            assert worker.health().free == 0
            assert worker.runner.room() == 0
            away.clear()
            clock.advance(3)
            until(lambda: worker.tally.retried == 1, "it to be settled")
            assert worker.runner.room() == 0
            gate.open()
            until(lambda: worker.runner.room() == 1, "its slot")

        assert router.job("a").errors == 1


def test_the_job_is_pruned_under_its_handler(router: Router) -> None:
    """Cancelled, and forgotten altogether: the handler is told, and the worker goes on."""
    gate = Gate()

    @router.task
    def work(name: str) -> None:
        if name == "a":
            gate.pass_by()

    work.options(id="a").add("a")
    with working(router) as worker:
        gate.wait_for()
        cancel(router)
        until(lambda: router.prune(keep_seconds=0).jobs, "it to be gone")
        gate.open()
        until(lambda: worker.tally.refused == 1, "its end")
        work.options(id="b").add("b")
        with_status(router, "b", Status.DONE)
