"""How many jobs a worker takes, which, and what it does when the store's answer does not come."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.support import until

from leasehold import Router, Status, StoreUnavailable
from leasehold.testing import ManualClock

from .staging import PATIENCE, Gate, Most, Tampered, ended, has_looked, made, with_status, working


@pytest.mark.parametrize("kinds", [("thread",), ("loop",), ("thread", "loop")], ids="+".join)
def test_no_more_handlers_at_a_time_than_it_was_told(any_router: Router, kinds: tuple[str, ...]) -> None:
    """Handlers that end at once make it claim ahead, and still only so many run."""
    most = Most()

    if "thread" in kinds:

        @any_router.task
        def thread() -> None:
            with most:
                time.sleep(0.0005)

    if "loop" in kinds:

        @any_router.task
        async def loop() -> None:
            with most:
                await asyncio.sleep(0.0005)

    any_router.add_many([{"id": f"j{n}", "task": kinds[n % len(kinds)]} for n in range(600)])
    with working(any_router, concurrency=4) as worker:
        until(lambda: worker.tally.done == 600, "all")

    assert most.entered == 600
    assert most.most == 4


@pytest.mark.parametrize("kind", ["thread", "loop", "mixed"])
def test_what_is_claimed_ahead_and_cannot_begin_goes_back_within_a_second(router: Router, kind: str) -> None:
    steady, gate, ran = ManualClock(), Gate(), []

    if kind == "mixed":

        @router.task(name="first")
        async def first() -> None:
            await asyncio.to_thread(gate.pass_by)

    if kind != "loop":

        @router.task(name="work")
        def on_thread(block: bool = False) -> None:
            gate.pass_by() if block else ran.append(1)

    else:

        @router.task(name="work")
        async def on_loop(block: bool = False) -> None:
            await asyncio.to_thread(gate.pass_by) if block else ran.append(1)

    with working(router, steady=steady, concurrency=1) as worker:
        worker._claimer._ahead = lambda: 5  # type: ignore[method-assign]  # as after many fast handlers
        if kind == "mixed":
            router.add("first", task="first")
        else:
            router.add("first", {"block": True}, task="work")
        gate.wait_for(1)
        router.add_many([{"id": f"j{n}", "task": "work"} for n in range(5)])
        until(lambda: router.counts().running == 6, "five to be claimed ahead")
        steady.advance(0.9)
        until(lambda: has_looked(worker, steady), "it to be noticed")
        assert router.counts().running == 6
        worker._claimer._ahead = lambda: 0  # type: ignore[method-assign]  # as after a slow one
        steady.advance(0.2)
        until(lambda: worker.tally.released >= 5, "them to go back")
        assert ran == []
        gate.open()
        jobs = ended(router, *(f"j{n}" for n in range(5)))

    assert len(ran) == 5
    assert all(job.errors == job.reclaims == 0 for job in jobs)


def test_a_job_that_was_claimed_ahead_and_then_taken_is_never_begun() -> None:
    clock, gate, ran = ManualClock(), Gate(), []
    with Router(clock=clock) as router:

        @router.task
        def work(name: str) -> None:
            gate.pass_by() if name == "first" else ran.append(name)

        with working(router, steady=clock, concurrency=1) as worker:
            worker._claimer._ahead = lambda: 5  # type: ignore[method-assign]  # as after many fast handlers
            work.options(id="first").add("first")
            gate.wait_for(1)
            work.options(id="taken", lease_seconds=0.3).add("taken")
            work.options(id="kept").add("kept")
            until(lambda: router.counts().running == 3, "both to be claimed ahead")
            until(lambda: has_looked(worker, clock), "both keepers to sleep")
            router.transfer(router.job("taken"), to="somebody", by="operator", lease_seconds=60)
            clock.advance(0.2)  # a renewal is due
            until(lambda: worker.tally.refused == 1, "it to be noticed")
            gate.open()
            ended(router, "first", "kept")

        assert ran == ["kept"]
        assert worker.tally.refused == 1
        assert router.job("taken").owner == "somebody"


def test_larger_priorities_first_and_only_its_queues(router: Router) -> None:
    ran: list[str] = []

    @router.task
    def work(name: str) -> None:
        ran.append(name)

    for name, priority in (("low", -1), ("high", 9), ("middle", 3)):
        work.options(id=name, priority=priority).add(name)
        work.options(id=f"other {name}", queue="other", priority=100).add(name)
    with working(router, concurrency=1, queues=["default"]):
        ended(router, "low", "high", "middle")

    assert ran == ["high", "middle", "low"]
    assert {router.job(f"other {name}").attempt for name in ran} == {0}
    assert router.counts().pending == 3


def test_trap_10_a_claim_whose_reply_is_lost_is_found_again_and_run_once(any_router: Router) -> None:
    """Its jobs are leased to this worker, which does not know: nobody else would begin them before the deadline."""
    store, ran = Tampered(any_router.store), []

    @any_router.task
    def work(number: int) -> None:
        ran.append(number)

    lost: list[int] = []

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        grants = real(*args, **kwargs)
        if grants and not lost:
            lost.extend(grant.epoch for grant in grants)
            raise StoreUnavailable("the reply is lost")
        return grants

    store.tampers["claim"] = claim
    for number in range(5):
        work.options(id=f"j{number}", lease_seconds=3600).add(number)
    with working(any_router, store=store, concurrency=8) as worker:
        jobs = ended(any_router, *(f"j{n}" for n in range(5)))

    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert {job.epoch for job in jobs} >= set(lost)
    assert all(job.attempt == job.reclaims == 0 for job in jobs)
    assert worker.tally.done == 5


def test_the_reply_is_lost_and_the_store_stays_away_for_a_while(router: Router) -> None:
    store, ran, asked = Tampered(router.store), [], []

    @router.task
    def work() -> None:
        ran.append(1)

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        grants = real(*args, **kwargs)
        if grants:
            raise StoreUnavailable("the reply is lost")
        return grants

    def claimed(real: Any, claim_id: str) -> Any:
        asked.append(claim_id)
        if len(asked) < 3:
            raise StoreUnavailable("still away")
        return real(claim_id)

    store.tampers.update(claim=claim, claimed=claimed)
    work.options(id="a", lease_seconds=3600).add()
    with working(router, store=store):
        ended(router, "a")

    assert ran == [1]
    assert len(set(asked)) == 1


@pytest.mark.parametrize("verb", ["claim", "settle", "counts", "everything"])
def test_the_store_is_away_for_a_while_and_nothing_is_lost(router: Router, verb: str) -> None:
    store, ran = Tampered(router.store), []
    away = threading.Event()
    away.set()
    failed = threading.Semaphore(0)

    @router.task(lease_seconds=3600)
    def work(number: int) -> None:
        ran.append(number)

    def tamper(real: Any, *args: Any, **kwargs: Any) -> Any:
        if away.is_set():
            failed.release()
            raise StoreUnavailable("away")
        return real(*args, **kwargs)

    verbs = ["claim", "settle", "renew", "claimed", "check", "reclaim", "counts"] if verb == "everything" else [verb]
    store.tampers.update(dict.fromkeys(verbs, tamper))
    for number in range(20):
        work.options(id=f"j{number}").add(number)

    def come_back() -> None:
        assert failed.acquire(timeout=PATIENCE)
        away.clear()

    coming_back = threading.Thread(target=come_back)
    coming_back.start()
    with working(router, store=store) as worker:
        jobs = ended(router, *(f"j{n}" for n in range(20))) if verb != "counts" else []
    if verb == "counts":
        assert made(router, store=store.store).run(until_empty=True).done == 20 - worker.tally.done
        jobs = ended(router, *(f"j{n}" for n in range(20)))
    coming_back.join()

    assert sorted(ran) == list(range(20))
    assert all(job.errors == job.reclaims == 0 for job in jobs)


def test_at_the_end_what_a_lost_claim_got_is_handed_back(router: Router) -> None:
    """Nobody else would begin it before its deadline, and that would count as a reclaim."""
    store = Tampered(router.store)
    lost = threading.Event()

    @router.task
    def work() -> None:
        raise AssertionError("it cannot be begun")

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        grants = real(*args, **kwargs)
        if grants:
            lost.set()
            raise StoreUnavailable("the reply is lost")
        return grants

    def claimed(real: Any, claim_id: str) -> Any:
        if not worker._claimer._stopping:
            raise StoreUnavailable("still away")
        return real(claim_id)

    store.tampers.update(claim=claim, claimed=claimed)
    work.options(id="a", lease_seconds=3600).add()
    with working(router, store=store) as worker:
        assert lost.wait(PATIENCE)

    job = router.job("a")
    assert (job.status, job.reclaims, job.errors) == (Status.PENDING, 0, 0)


def test_two_workers_share_the_jobs_and_each_runs_once(any_router: Router) -> None:
    ran: list[int] = []

    @any_router.task
    def work(number: int) -> None:
        ran.append(number)

    any_router.add_many([{"id": f"j{n}", "task": "work", "payload": {"number": n}} for n in range(200)])
    with working(any_router, concurrency=3) as one, working(any_router, concurrency=3) as other:
        assert one.owner != other.owner
        until(lambda: any_router.counts().done == 200, "all")

    assert sorted(ran) == list(range(200))


def test_the_slot_of_a_job_that_runs_is_free_for_no_other(router: Router) -> None:
    gate = Gate()

    @router.task
    def work(name: str) -> None:
        gate.pass_by(name)

    for name in "abc":
        work.options(id=name).add(name)
    with working(router, concurrency=2):
        gate.wait_for(2)
        with_status(router, "b", Status.RUNNING)
        assert router.job("c").status is Status.PENDING
        gate.open()
        ended(router, "a", "b", "c")


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("mial", ["queue 'mial' has no jobs, and no task of this router uses it: did you mean 'mail'?"]),
        ("imags", ["queue 'imags' has no jobs, and no task of this router uses it: did you mean 'images'?"]),
        ("quite another", ["queue 'quite another' has no jobs, and no task of this router uses it."]),
        ("mail", []),
        ("images", []),
        ("paused", []),
        ("default", []),
    ],
)
def test_a_queue_that_nobody_has_heard_of_is_a_warning(
    any_router: Router, queue: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a slip, and the worker would wait there for ever. Jobs, pauses and tasks make a queue known."""

    @any_router.task(queue="images")
    def resize() -> None:
        pass

    @any_router.task
    def ready() -> None:
        pass

    any_router.add("elsewhere", queue="mail", delay_seconds=3600)
    any_router.pause("paused", by="ops")
    any_router.add_many([ready.job()])  # a claim that finds nothing would wait for a second
    with working(any_router, queues=sorted({queue, "default"})) as worker:
        until(lambda: worker.health().claimed_seconds is not None, "its first claim")

    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == said


def test_a_worker_whose_queues_cannot_be_looked_at_starts_all_the_same(router: Router) -> None:
    """The store is away at that moment: its claims will tell."""
    store = Tampered(router.store)

    def counts(real: Any) -> Any:
        raise StoreUnavailable("away")

    store.tampers["counts"] = counts
    with working(router, store=store, queues=["mail"]) as worker:
        until(lambda: worker.health().claimed_seconds is not None, "its first claim")
