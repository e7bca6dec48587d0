"""What people complain about in other job systems, each as a test that this one does otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support import until

from leasehold import Lease, Reason, Retry, Router, StaleEpoch, Status, StoreUnavailable
from leasehold.testing import ManualClock

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, with_status, working

HERE = Path(__file__).parent


@contextmanager
def quitter(router: Router, how: str) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """A worker in another process that has begun a job: the process, and what it said of its lease."""
    assert router.url is not None
    top = HERE.parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top / "src"), str(top)])}
    command = [sys.executable, str(HERE / "quitter.py"), router.url, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().decode().split()
        finally:
            process.kill()


def test_a_job_longer_than_its_lease_runs_once_and_a_far_date_is_no_matter() -> None:
    """Complaint: a visibility timeout caps how long a job may run, or how far ahead it may be planned."""
    clock, gate, ran = ManualClock(), Gate(), []
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task
        def work(name: str) -> None:
            ran.append(name)
            gate.pass_by()

        work.options(id="long").add("long")
        work.options(id="far", run_at=clock.time + timedelta(days=30)).add("far")
        with working(router, steady=clock) as worker, working(router, steady=clock) as other:
            gate.wait_for(1)
            for _ in range(20):
                until(lambda: has_looked(worker, clock) and has_looked(other, clock), "the keepers to sleep")
                clock.advance(15)
            gate.open()
            ended(router, "long")
            assert ran == ["long"]
            clock.advance(30 * 86_400)
            ended(router, "far")

    assert ran == ["long", "far"]


def test_renewals_come_three_times_in_a_lease() -> None:
    """Complaint: leases are renewed only as often as they last, so one late renewal is a false death."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:
        store = Tampered(router.store)

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for()
            for _ in range(40):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(2)
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                expires_at = router.job("a").expires_at
                assert expires_at is not None
                assert expires_at - clock.time >= timedelta(seconds=18), "less than two renewals are left"
            gate.open()

    assert len(store.asked["renew"]) >= 7


def test_a_handler_that_blocks_the_loop_or_holds_every_thread_is_no_dead_worker() -> None:
    """Complaint: the heartbeat shares the event loop, or the threads, with user code, and starves."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=30) as router:

        @router.task
        def on_thread() -> None:
            gate.pass_by()

        @router.task
        async def on_loop() -> None:
            gate.pass_by()  # blocking, on purpose

        store = Tampered(router.store)
        on_loop.options(id="l").add()
        for number in range(3):
            on_thread.options(id=f"t{number}").add()
        with working(router, store=store, steady=clock, concurrency=4) as worker:
            gate.wait_for(4)
            for count in range(1, 6):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                clock.advance(10.1)
                until(lambda: len(store.asked["renew"]) >= count, "a renewal")  # noqa: B023 (it is called at once)
                assert router.reclaim() == []
            gate.open()
            jobs = ended(router, "l", "t0", "t1", "t2")

    assert all(job.attempt == job.reclaims == 0 for job in jobs)


def test_a_killed_workers_jobs_come_back_at_once_without_anybody_asking(sqlite_router: Router) -> None:
    """Complaint: the jobs of a crashed worker stay running for ever, or for hours; recovery is a thing to set up."""

    @sqlite_router.task
    def work(lease: Lease) -> str:
        return lease.reason

    work.options(id="a", retry=Retry(max_reclaims=1)).add()
    with quitter(sqlite_router, "wait") as (process, said):
        assert said[0] == "a"
        process.send_signal(signal.SIGKILL)
        process.wait()
    job = sqlite_router.job("a")
    assert job.expires_at is not None
    assert job.expires_at > datetime.now(UTC) + timedelta(minutes=50), "its lease would last for long"

    with working(sqlite_router):
        [job] = ended(sqlite_router, "a")

    assert job.result == Reason.RECOVERY
    assert (job.attempt, job.reclaims, job.errors) == (1, 1, 0)


def test_a_worker_that_is_full_takes_back_for_the_others() -> None:
    """Complaint: recovery needs an idle worker, or traffic; and whoever recovers can die of it."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="mine", lease_seconds=3600).add()
        with working(router, steady=clock, concurrency=1):
            gate.wait_for()
            router.add("theirs", queue="other")
            lost = router.claim("somebody who dies", queues=["other"], process=None, lease_seconds=5)
            assert lost is not None
            clock.advance(6)
            with_status(router, "theirs", Status.PENDING)
            gate.open()


def test_a_job_that_was_done_stays_done() -> None:
    """Complaint: a job that succeeded is declared abandoned afterwards, or failed, by whoever cleans up."""
    clock, committed, go_on = ManualClock(), threading.Event(), threading.Event()
    with Router(clock=clock, lease_seconds=30) as router:
        store, first = Tampered(router.store), iter([True])

        @router.task
        def work() -> str:
            return "done"

        def settle(real: Any, settlements: Any) -> Any:
            replies = real(settlements)
            if next(first, False):
                committed.set()
                assert go_on.wait(PATIENCE)
                raise StoreUnavailable("the reply is lost")
            return replies

        store.tampers["settle"] = settle
        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            assert committed.wait(PATIENCE)
            clock.advance(600)
            router.reclaim()
            go_on.set()
            until(lambda: worker.runner.settler._pause._waiters, "it to rest")  # type: ignore[attr-defined]  # who waits
            clock.advance(5)
            until(lambda: worker.tally.done == 1, "its end")

        job = router.job("a")
        assert (job.status, job.result, job.reclaims) == (Status.DONE, "done", 0)


def test_a_stale_worker_cannot_settle_renew_or_add_even_under_its_successors_name(router: Router) -> None:
    """Complaint: guards compare a status or a worker's name, and a stale worker passes both."""
    gate, refused = Gate(), []

    @router.task
    def work(lease: Lease) -> str:
        if lease.attempt == 0:
            gate.pass_by(lease)
            for verb in (lease.renew, lambda: lease.add("child"), lambda: lease.complete("stale"), lease.release):
                try:
                    verb()
                except StaleEpoch as error:
                    refused.append(error)
        return f"attempt {lease.attempt}"

    work.options(id="a").add()
    with working(router) as worker:
        gate.wait_for()
        [stale] = gate.came
        theirs = router.transfer(router.job("a"), to=stale.owner, by="operator")
        assert theirs.owner == stale.owner
        gate.open()
        until(lambda: worker.tally.refused == 1, "the stale one's end")
        assert router.job("a").status is Status.RUNNING
        theirs.complete("the successor's")

    assert len(refused) == 4
    assert router.job("a").result == "the successor's"
    assert [job.id for job in router.jobs()] == ["a"]


def test_work_whose_lease_is_lost_ends() -> None:
    """Complaint: the lease is lost, and the work goes on and on."""
    clock, begun, stopped = ManualClock(), threading.Event(), threading.Event()
    with Router(clock=clock) as router:

        @router.task
        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.set()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            assert begun.wait(PATIENCE)
            router.cancel(router.job("a"), by="operator")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(11)
            assert stopped.wait(PATIENCE)


def test_a_takeover_neither_leaks_a_slot_nor_frees_one_twice() -> None:
    """Complaint: concurrency is counted down twice when a job is taken over, or never."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:

        @router.task
        def work(lease: Lease) -> None:
            gate.pass_by()

        for number in range(4):
            work.options(id=f"j{number}").add()
        with working(router, steady=clock, concurrency=4) as worker:
            gate.wait_for(4)
            for number in range(4):
                router.cancel(router.job(f"j{number}"), by="operator")
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(11)
            until(lambda: worker.tally.refused == 4, "all losses")
            assert worker.runner.room() == 0
            gate.open()
            until(lambda: worker.runner.room() == 4, "all slots")


def test_a_job_that_kills_its_worker_is_given_up(sqlite_router: Router) -> None:
    """Complaint: a poison job kills one worker after the other, since a crash does not count."""

    @sqlite_router.task
    def work() -> None:
        raise AssertionError("it has been given up")

    work.options(id="a", retry=Retry(max_errors=1, max_reclaims=1)).add()
    for _ in range(2):
        with quitter(sqlite_router, "die") as (process, said):
            assert said[0] == "a"
            process.wait()
    with working(sqlite_router):
        job = with_status(sqlite_router, "a", Status.FAILED)

    assert (job.reclaims, job.errors, job.attempt) == (2, 0, 1)


def test_a_key_is_free_again_when_its_holder_is_killed(sqlite_router: Router) -> None:
    """Complaint: locks of dead workers stay for ever, and flushing them at a start takes those of the living."""

    @sqlite_router.task
    def work(lease: Lease) -> int:
        return lease.attempt

    work.options(id="a", lock="customer:7").add()
    with quitter(sqlite_router, "wait") as (process, _):
        work.options(id="b", lock="customer:7").add()
        with working(sqlite_router) as worker:
            work.options(id="c").add()
            ended(sqlite_router, "c")
            assert sqlite_router.job("b").attempt == 0, "its key is held by somebody who lives"
            assert worker.tally.done == 1
            process.send_signal(signal.SIGKILL)
            process.wait()
            ended(sqlite_router, "a", "b")


def test_two_workers_of_the_same_name_are_two_owners(sqlite_router: Router) -> None:
    """Complaint: a pod's name is used again, and a starting worker takes the jobs of the one that still runs."""

    @sqlite_router.task
    def work() -> None:
        pass

    work.options(id="a").add()
    with quitter(sqlite_router, "wait") as (process, said):
        owner = said[2]
        assert owner.startswith("same-name:")
        with working(sqlite_router, name="same-name") as worker:
            assert worker.owner != owner
            work.options(id="b").add()
            ended(sqlite_router, "b")
            sqlite_router.reclaim()
            assert sqlite_router.job("a").owner == owner
            assert process.poll() is None


def test_two_that_recover_at_once_start_a_job_once(sqlite_router: Router) -> None:
    """Complaint: two workers find the same lost job, and both start it."""
    ran: list[str] = []

    @sqlite_router.task
    def work(lease: Lease) -> None:
        ran.append(lease.job_id)

    sqlite_router.add_many([{"id": f"j{n}", "task": "work"} for n in range(50)])
    lost = sqlite_router.claim_many("somebody who dies", process=None, lease_seconds=0.001)
    assert len(lost) == 50
    with working(sqlite_router), working(sqlite_router), working(sqlite_router):
        jobs = ended(sqlite_router, *(f"j{n}" for n in range(50)))

    assert sorted(ran) == sorted(job.id for job in jobs)
    assert {job.reclaims for job in jobs} == {1}


def test_a_worker_that_does_not_consume_says_so_and_why() -> None:
    """Complaint: a worker is alive and consumes nothing, for hours, and no probe sees it."""
    clock, steady, gate = ManualClock(), ManualClock(), Gate()
    with Router(clock=clock) as router:
        store, away = Tampered(router.store), threading.Event()

        def tamper(real: Any, *args: Any, **kwargs: Any) -> Any:
            if away.is_set():
                raise StoreUnavailable("away")
            return real(*args, **kwargs)

        store.tampers.update(claim=tamper, claimed=tamper)

        @router.task
        def hello() -> None:
            pass

        @router.task
        def work() -> None:
            gate.pass_by()

        with working(router, store=store, steady=steady, concurrency=1) as worker:
            hello.add()
            until(lambda: worker.health().claimed_seconds is not None, "an answer")
            assert worker.health().consuming
            away.set()
            router.store.wake()
            until(lambda: worker._claimer._failures, "a failed claim")
            steady.advance(60)
            health = worker.health()
            assert not health.consuming
            assert "does not answer" in health.why
            assert (health.running, health.free) == (0, 1)
            away.clear()
            work.options(id="a").add()
            worker._claimer.freed()
            gate.wait_for()
            steady.advance(60)
            assert worker.health().consuming, "its slot is busy"
            gate.open()
            until(lambda: worker.tally.done == 2, "its end")


def test_a_store_that_can_only_be_read_does_not_make_a_worker_look_alive(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """Complaint: as above. A full disk, or a standby: questions are answered, and no claim ever is."""
    steady, store = ManualClock(), Tampered(router.store)

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("no space left on the device")

    store.tampers["claim"] = claim
    with working(router, store=store, steady=steady) as worker:
        for count in range(1, 4):
            until(lambda: worker._claimer._failures >= count, "a failed claim")  # noqa: B023 (it is called at once)
            steady.advance(6)
            worker._claimer.freed()
        assert not worker.health().consuming
        assert worker.health().claimed_seconds is None

    assert caplog.text.count("claim failed") == 1


def test_a_worker_that_stops_gives_its_jobs_to_the_others(router: Router) -> None:
    """Complaint: a job is lost, or counted as failed, when its worker is shut down."""
    begun, done = threading.Event(), []

    @router.task(retry=Retry(max_errors=1, max_reclaims=0))
    async def work(lease: Lease) -> None:
        if lease.attempt == 0:
            begun.set()
            await asyncio.sleep(3600)
        done.append(lease.attempt)

    work.options(id="a").add()
    with router.worker(grace_seconds=0):
        assert begun.wait(PATIENCE)
    with working(router):
        [job] = ended(router, "a")

    assert done == [1]
    assert (job.errors, job.reclaims) == (0, 0)


def test_a_handlers_rows_and_its_jobs_commit_together_or_not_at_all(sqlite_router: Router) -> None:
    """Complaint: a job is added although the rows that it is about were rolled back, or the other way round."""
    assert sqlite_router.url is not None
    path = sqlite_router.url.removeprefix("sqlite:///").partition("?")[0]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table orders (job_id text)")
        connection.commit()

        @sqlite_router.task
        def ship(order: str) -> None:
            pass

        @sqlite_router.task(retry=Retry(max_errors=2, delay_seconds=0))
        def order(lease: Lease) -> None:
            with lease.transaction() as inside:
                inside.execute("insert into orders values (?)", [lease.job_id])
                ship.options(connection=inside).add(lease.job_id)
                lease.complete(connection=inside)
                if lease.attempt == 0:
                    raise ValueError("rolled back")

        order.options(id="a").add()
        with working(sqlite_router):
            ended(sqlite_router, "a")
            until(lambda: sqlite_router.counts().done == 2, "the other job")

        assert connection.execute("select job_id from orders").fetchall() == [("a",)]
    assert len(sqlite_router.jobs()) == 2
