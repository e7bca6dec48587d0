"""Leases are kept while their handlers work, whatever those do, and for as long as the work moves."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support import until

from leasehold import Lease, Reason, Router, StoreUnavailable
from leasehold.testing import ManualClock
from leasehold.worker.worker import Worker

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, working


def renewed_over_two_leases(router: Router, worker: Worker, store: Tampered, clock: ManualClock) -> None:
    """Let two leases of 30 s pass, with a renewal in each third of them, while others look for what has expired."""
    for count in range(1, 7):
        until(lambda: has_looked(worker, clock), "the keepers to sleep")
        clock.advance(10.1)
        until(lambda: len(store.asked["renew"]) >= count, "a renewal")  # noqa: B023 (it is called at once)
        assert router.reclaim() == []


def test_a_job_runs_for_many_times_its_lease_and_runs_once() -> None:
    clock, gate, ran = ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        @router.task
        def work() -> None:
            ran.append(1)
            gate.pass_by()

        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for()
            for count in range(1, 13):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(10.1)
                until(lambda: len(store.asked["renew"]) >= count, "a renewal")  # noqa: B023 (it is called at once)
                assert router.reclaim() == []
            gate.open()
            [job] = ended(router, "a")

    assert ran == [1]
    assert (job.attempt, job.reclaims) == (0, 0)


def test_a_renewal_of_the_worker_is_not_shorter_than_the_handlers_own() -> None:
    """Who asked for ten minutes, to be paused in, has ten minutes at any time."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        @router.task
        def work(lease: Lease) -> None:
            lease.renew(600)
            gate.pass_by()

        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for()
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            store.asked["renew"].clear()
            clock.advance(10.1)
            until(lambda: store.asked["renew"], "a renewal")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            expires_at = router.job("a").expires_at
            assert expires_at is not None
            assert (expires_at - clock.time).total_seconds() == 600
            gate.open()


def test_all_leases_are_renewed_in_one_batch() -> None:
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:
        store = Tampered(router.store)

        @router.task
        def work() -> None:
            gate.pass_by()

        for number in range(12):
            work.options(id=f"j{number}", lease_seconds=30 + number / 10).add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for(12)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.2)
            until(lambda: store.asked["renew"], "a renewal")
            gate.open()

    [(renewals,)] = store.asked["renew"][:1]
    assert len(renewals) == 12, "those that are due a little later go along"


def test_a_job_that_comes_while_others_are_renewed_is_renewed_in_its_own_time() -> None:
    """The renewer waits for the store just then, and must not sleep on until the others are due again."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:
        store, renewing, go_on = Tampered(router.store), threading.Event(), threading.Event()
        renewed: list[str] = []

        def renew(real: Any, renewals: Any) -> Any:
            renewed.extend(each.job_id for each in renewals)
            renewing.set()
            assert go_on.wait(PATIENCE)
            return real(renewals)

        store.tampers["renew"] = renew

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="long", lease_seconds=300).add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for(1)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(101)
            assert renewing.wait(PATIENCE)
            work.options(id="short", lease_seconds=6).add()
            gate.wait_for(2)
            until(lambda: worker.runner.runs.count_in_flight == 2, "it to be known")
            go_on.set()
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            assert worker.runner.renewer._until <= clock.now() + 2_000_000, "it sleeps for as long as the others last"
            clock.advance(2.1)
            until(lambda: "short" in renewed, "its own renewal")
            assert router.reclaim() == []
            gate.open()
            ended(router, "long", "short")


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease() -> None:
    """It sleeps for several leases, on the very loop that all async handlers share; others look for expired jobs."""
    clock, blocked, go_on = ManualClock(), threading.Event(), threading.Event()
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        @router.task
        async def block() -> str:
            blocked.set()
            assert go_on.wait(PATIENCE)  # as time.sleep would, it lets nobody else onto the loop
            return "kept"

        block.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            assert blocked.wait(PATIENCE)
            renewed_over_two_leases(router, worker, store, clock)
            go_on.set()
            [job] = ended(router, "a")

    assert (job.result, job.attempt, job.reclaims) == ("kept", 0, 0)


def test_a_renewal_that_fails_is_unknown_and_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    clock, gate, lost = ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)
        away = threading.Event()
        away.set()

        def renew(real: Any, renewals: Any) -> Any:
            if away.is_set():
                raise StoreUnavailable("away")
            return real(renewals)

        store.tampers["renew"] = renew

        @router.task
        async def work(lease: Lease) -> None:
            await asyncio.to_thread(gate.pass_by)
            lost.append(lease.lost)

        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for()
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.1)
            until(lambda: store.asked["renew"], "the first try")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            away.clear()
            clock.advance(3.4)
            until(lambda: len(store.asked["renew"]) >= 2, "the second")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(20)  # past the deadline of the claim, not of the renewal
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            gate.open()
            ended(router, "a")

    assert lost == [False]
    assert caplog.messages.count("could not renew 1 lease (outcome unknown; retrying): away") == 1


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_trap_19_nobody_acknowledges_until_the_deadline_and_the_handler_is_told(kind: str) -> None:
    """The deadline runs from the sending of the last renewal that was acknowledged, on the worker's own clock."""
    clock, steady, gate, told = ManualClock(), ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)
        slow, go_on, away = threading.Event(), threading.Event(), threading.Event()

        def renew(real: Any, renewals: Any) -> Any:
            if away.is_set():
                raise StoreUnavailable("away")
            slow.set()
            assert go_on.wait(PATIENCE)
            return real(renewals)

        store.tampers["renew"] = renew

        @router.task(name="work")
        def on_thread(lease: Lease) -> None:
            gate.pass_by()
            told.append(lease.lost)

        async def on_loop(lease: Lease) -> None:
            try:
                await asyncio.to_thread(gate.pass_by)
            except asyncio.CancelledError:
                told.append(lease.lost)
                raise

        if kind == "loop":
            router.task(name="async work")(on_loop)
        router.add("a", task="work" if kind == "thread" else "async work")
        with working(router, store=store, steady=steady) as worker:
            gate.wait_for()
            until(lambda: has_looked(worker, steady), "the keepers to sleep")
            steady.advance(10.1)
            assert slow.wait(PATIENCE)
            steady.advance(15)  # the renewal is on its way for so long: it counts from when it was sent
            away.set()
            go_on.set()
            until(lambda: has_looked(worker, steady), "the renewal to be acknowledged")
            [run] = worker.runner.runs.in_flight()
            assert run.deadline_us == steady.now() - 15_000_000 + 40_000_000
            steady.advance(24.8)
            until(lambda: has_looked(worker, steady), "the keepers to sleep")
            assert not run.lease.lost
            steady.advance(0.4)
            until(lambda: run.lease.lost, "it to be told")
            if kind == "loop":
                until(lambda: told, "it to be cancelled")
            away.clear()
            gate.open()
            if kind == "thread":
                # Nobody took the job: time alone refuses nothing, and what has ended well is not run again.
                ended(router, "a")
                assert (len(told), router.job("a").attempt) == (1, 0)
            else:
                until(lambda: worker.tally.released == 1, "it to be handed back")

        assert told[0] is True
        assert router.job("a").errors == router.job("a").reclaims == 0


def test_the_deadline_of_a_slow_claim_runs_from_its_sending() -> None:
    """The store may have granted the lease as soon as the claim was sent: half of it is over when the reply comes."""
    clock, steady, gate = ManualClock(), ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        def claim(real: Any, *args: Any, **options: Any) -> Any:
            grants = real(*args, **options)
            steady.advance(15 if grants else 0)
            return grants

        def renew(real: Any, renewals: Any) -> Any:
            raise StoreUnavailable("away")

        store.tampers.update(claim=claim, renew=renew)

        @router.task(name="work")
        def work(lease: Lease) -> None:
            gate.pass_by()

        router.add("a", task="work")
        with working(router, store=store, steady=steady) as worker:
            gate.wait_for()
            [run] = worker.runner.runs.in_flight()
            until(lambda: has_looked(worker, steady), "the keepers to sleep")
            deadline_us, now = run.deadline_us, steady.now()
            steady.advance(14.9)
            until(lambda: has_looked(worker, steady), "the keepers to sleep")
            early = run.lease.lost
            steady.advance(0.2)
            until(lambda: has_looked(worker, steady), "the keepers to sleep")
            late = run.lease.lost
            gate.open()
            ended(router, "a")

    assert deadline_us == now + 15_000_000
    assert (early, late) == (False, True)


def test_a_job_that_does_not_move_is_renewed_no_more_and_reclaimed_as_stalled() -> None:
    clock, gate, told = ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task(stall_seconds=60)
        async def work(lease: Lease) -> None:
            if lease.attempt:
                return
            try:
                await asyncio.to_thread(gate.pass_by)
            except asyncio.CancelledError:
                told.append(lease.lost)
                raise

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            for _ in range(14):
                until(lambda: has_looked(worker, clock) or told, "the keepers to sleep")
                clock.advance(5)
            until(lambda: told, "it to be told")
            [job] = ended(router, "a")
            gate.open()

        assert told == [True]
        assert job.reclaims == 1  # it may also have been handed back: the clock moves on before the slot is free
        assert router.ownerships("a")[0].ended == Reason.STALL


def test_a_worker_that_claims_no_more_lets_a_stalled_job_go_too() -> None:
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task(stall_seconds=60)
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            worker._claimer.stop()
            for _ in range(7):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(10)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            router.reclaim()  # which upkeep does too, in its own time
            clock.advance(1)
            until(lambda: worker.tally.refused == 1, "its refusal")
            gate.open()

        assert router.ownerships("a")[0].ended == Reason.STALL


def test_progress_keeps_it() -> None:
    clock, begun = ManualClock(), threading.Event()
    beat, beaten = threading.Semaphore(0), threading.Semaphore(0)
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task(stall_seconds=60)
        def work(lease: Lease) -> None:
            begun.set()
            for step in range(6):
                assert beat.acquire(timeout=PATIENCE)
                lease.progress(step / 6)
                beaten.release()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            for _ in range(6):
                for _ in range(5):
                    until(lambda: has_looked(worker, clock), "the keepers to sleep")
                    clock.advance(9.9)
                beat.release()
                assert beaten.acquire(timeout=PATIENCE)
            [job] = ended(router, "a")

    assert (job.attempt, job.reclaims) == (0, 0)


def test_one_lease_that_the_store_cannot_renew_now_does_not_cost_the_others() -> None:
    """Its row is locked by somebody: the store renews the others, and says only that it could not renew them all."""
    clock, gate, cancelled = ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        def renew(real: Any, renewals: Any) -> Any:
            replies = real([each for each in renewals if each.job_id != "locked"])
            if len(replies) < len(renewals):
                raise StoreUnavailable("one row is locked; the others are renewed")
            return replies

        store.tampers["renew"] = renew

        @router.task
        async def work(name: str) -> None:
            try:
                await asyncio.to_thread(gate.pass_by)
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        for name in ("a", "b", "c", "locked"):
            work.options(id=name).add(name)
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for(4)
            for _ in range(25):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(2)
            until(lambda: cancelled, "the locked one to be cancelled")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            gate.open()

    assert cancelled == ["locked"]


def test_handlers_that_never_pause_do_not_cost_a_lease(tmp_path: Path) -> None:
    """Forty of them on as many threads, four of which spin: whoever renews must still get the interpreter's lock."""
    clock, free, ran = ManualClock(), threading.Event(), []
    with Router(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        @router.task
        def work(number: int) -> None:
            ran.append(number)
            while number < 4 and not free.is_set():
                pass
            assert free.wait(PATIENCE)

        router.add_many([{"id": f"j{n}", "task": "work", "payload": {"number": n}} for n in range(40)])
        try:
            with working(router, store=store, steady=clock, concurrency=40) as worker:
                until(lambda: len(ran) == 40, "all of them to run")
                renewed_over_two_leases(router, worker, store, clock)
                free.set()
                until(lambda: worker.tally.done == 40, "all to be done")
        finally:
            free.set()

        assert sorted(ran) == list(range(40))
        assert all(job.reclaims == 0 for job in router.jobs())
