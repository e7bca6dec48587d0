"""A worker is listed while it is there, and gets what is transferred to it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import until

from leasehold import Conflict, Job, Lease, Reason, Retry, Router, Status, StoreUnavailable, WorkerStatus
from leasehold.liveness import this_process
from leasehold.testing import ManualClock
from leasehold.worker.worker import Worker

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, made, with_status, working


def listed(router: Router, count: int = 1) -> list[WorkerStatus]:
    """Wait until so many workers have reported, and return them."""
    until(lambda: len(router.workers()) == count, f"{count} workers to report")
    return router.workers()


def handed(router: Router, to: str, job_id: str = "a", **options: Any) -> Job:
    """Transfer a job that is not due yet, so that nobody has claimed it, and return it."""
    router.add(job_id, {}, delay_seconds=3600, **{"task": "work", **options})
    router.transfer(router.job(job_id), to=to, by="ops")
    return router.job(job_id)


def looks(store: Tampered, more: int = 2) -> None:
    """Wait until the worker has looked for transfers again."""
    before = len(store.asked["transfers"])
    until(lambda: len(store.asked["transfers"]) >= before + more, "the worker to look for transfers")


# Reports


def test_a_worker_is_listed_from_its_start_to_its_stop(any_router: Router) -> None:
    """With what it was given, its process, its tasks, and how many handlers run."""
    gate = Gate()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    any_router.task(name="another")(lambda: None)
    assert any_router.workers() == []
    with working(any_router, name="shop", queues=["mail", "default"], concurrency=3) as worker:
        [one] = listed(any_router)
        assert (one.name, one.given_name, one.alive) == (worker.owner, "shop", True)
        assert (one.queues, one.tasks, one.concurrency) == (("mail", "default"), ("another", "work"), 3)
        assert one.process == this_process()
        assert one.started_at <= one.seen_at
        gate.open()
    assert any_router.workers() == []


def test_a_worker_without_a_name_has_that_of_its_host(router: Router) -> None:
    """And all queues."""
    with working(router) as worker:
        [one] = listed(router)
    assert (one.name, one.given_name, one.queues) == (worker.owner, worker.owner.partition(":")[0], None)


def test_an_idle_worker_reports_every_ten_seconds(router: Router) -> None:
    """Whether or not it has anything to do."""
    clock, store, gate = ManualClock(), Tampered(router.store), Gate()

    @router.task
    def work() -> None:
        gate.pass_by()

    with working(router, store=store, steady=clock):
        until(lambda: len(store.asked["report"]) == 1, "the first report")
        clock.advance(9.9)
        looks(store)
        assert len(store.asked["report"]) == 1
        work.add()
        gate.wait_for()
        clock.advance(0.1)
        until(lambda: len(store.asked["report"]) == 2, "the second report")
        assert store.asked["report"][1][0].running == 1
        gate.open()


def test_a_worker_whose_handlers_keep_every_slot_reports_it(router: Router) -> None:
    """They have lost their jobs, and a thread cannot be stopped. Ten seconds later that is expected to last."""
    clock, gate = ManualClock(), Gate()

    @router.task
    def work() -> None:
        gate.pass_by()

    with working(router, steady=clock, concurrency=1) as worker:
        listed(router)
        job = work.add()
        gate.wait_for()
        router.requeue(router.job(job.id), by="ops")
        clock.advance(10)  # and the worker renews
        until(lambda: worker.runner.runs.count_without_job == 1, "the handler to lose its job")
        until(lambda: router.workers()[0].running == 1, "the second report")
        assert router.workers()[0].concurrency == 1
        clock.advance(10)
        until(lambda: router.workers()[0].concurrency == 0, "the third report")

        [found] = [one for one in router.observations() if one.kind == "lost-slots"]
        assert (found.subject, found.command) == (worker.owner, "leasehold workers")
        assert found.sentence.startswith(f"Worker {worker.owner!r} has 1 of 1 slots taken by handlers that have lost")
        assert f"restart its process (pid {os.getpid()} on " in found.sentence
        assert "held by handlers that have lost their jobs" in router.explain(job.id)
        gate.open()
        ended(router, job.id)
        clock.advance(10)
        until(lambda: router.workers()[0].concurrency == 1, "the fourth report")
        assert [one for one in router.observations() if one.kind == "lost-slots"] == []


def test_a_store_that_takes_no_report_delays_nothing(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs are done and transfers picked up meanwhile; the worker tries again, and says so once."""
    clock, store = ManualClock(), Tampered(router.store)
    router.task(name="work")(lambda: None)

    def unavailable(real: Callable[..., Any], *args: Any) -> None:
        raise StoreUnavailable("no.")

    store.tampers["report"] = unavailable
    with caplog.at_level(logging.WARNING, "leasehold"), working(router, store=store, steady=clock) as worker:
        for number in range(3):
            router.add(f"job-{number}", {}, task="work")
            ended(router, f"job-{number}")
            clock.advance(1)
            until(lambda n=number: len(store.asked["report"]) > n + 1, "another try")  # type: ignore[misc]  # called at once
        handed(router, worker.owner)
        ended(router, "a")
        del store.tampers["report"]
        clock.advance(1)
        listed(router)
    assert [record.message for record in caplog.records] == [
        "could not send this worker's report or check for transfers; retrying until the store answers: no."
    ]


def test_a_store_that_lets_no_worker_retire_stops_none(router: Router) -> None:
    """The row then goes by its age."""
    store, release = Tampered(router.store), threading.Event()
    store.tampers["retire"] = lambda real, name: (release.wait(PATIENCE), real(name))
    with working(router, store=store) as worker:
        listed(router)
    assert [one.name for one in router.workers()] == [worker.owner]
    release.set()
    worker._presence.join(PATIENCE)


# Transfers


@pytest.mark.parametrize("by", ["its own name", "its given name"])
def test_an_idle_worker_runs_what_is_transferred_to_it(any_router: Router, by: str) -> None:
    """Under the transfer's epoch and its own name, without a reclaim; also from a queue that it does not claim from."""
    leases: list[tuple[str, int]] = []

    @any_router.task
    def work(lease: Lease) -> None:
        leases.append((lease.owner, lease.epoch))

    with working(any_router, name="shop", queues=["other"]) as worker:
        listed(any_router)
        job = handed(any_router, worker.owner if by == "its own name" else "shop")
        ended(any_router, "a")

    assert leases == [(worker.owner, job.epoch)]
    [held] = any_router.ownerships("a")
    assert (held.owner, held.began) == (worker.owner, Reason.MANUAL)
    assert (any_router.job("a").reclaims, any_router.job("a").attempt) == (0, 0)


def test_a_running_job_moves_from_one_worker_to_the_other(any_router: Router) -> None:
    """The first is refused; the second has it at once and not after a lease."""
    gate, ran = Gate(), list[str]()

    @any_router.task
    def work(lease: Lease) -> str:
        ran.append(lease.owner)
        if len(ran) == 1:
            gate.pass_by()
        return lease.owner

    work.options(id="a").add()
    with working(any_router, name="first") as first:
        gate.wait_for()
        with working(any_router, name="second") as second:
            listed(any_router, 2)
            any_router.transfer(any_router.job("a"), to="second", by="ops")
            ended(any_router, "a")
            gate.open()
    assert ran == [first.owner, second.owner]
    assert any_router.job("a").result == second.owner
    assert any_router.job("a").reclaims == 0


def test_a_name_of_two_workers_is_refused_with_theirs(any_router: Router) -> None:
    """And each is reached by its own."""
    any_router.task(name="work")(lambda: None)
    with working(any_router, name="shop") as first, working(any_router, name="shop") as second:
        listed(any_router, 2)
        any_router.add("a", {}, task="work", delay_seconds=3600)

        with pytest.raises(Conflict) as refused:
            any_router.transfer(any_router.job("a"), to="shop", by="ops")

        assert repr(first.owner) in str(refused.value)
        assert repr(second.owner) in str(refused.value)
        any_router.transfer(any_router.job("a"), to=second.owner, by="ops")
        ended(any_router, "a")
    assert any_router.ownerships("a")[-1].owner == second.owner


def test_a_full_worker_keeps_what_is_transferred_to_it_until_a_slot_is_free(router: Router) -> None:
    """However long that takes: it is renewed, does not stall, and is not handed back as what was claimed ahead is."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:

        @router.task
        def first() -> None:
            gate.pass_by()

        @router.task
        def work(lease: Lease) -> int:
            return lease.epoch

        first.options(id="first", lease_seconds=3600).add()
        store = Tampered(router.store)
        with working(router, store=store, steady=clock, concurrency=1) as worker:
            gate.wait_for()
            job = handed(router, worker.owner, stall_seconds=20)
            until(lambda: worker.runner.waiting_transfers(), "the transfer to be picked up")
            for _ in range(9):
                until(lambda: has_looked(worker, clock), "the keepers to sleep")
                expires = router.job("a").expires_us
                moves = len(store.asked["progress"])
                clock.advance(10.5)  # a third of its lease, and half of its stall_seconds
                until(lambda: router.job("a").expires_us != expires, "a renewal")  # noqa: B023  # called at once
                until(lambda: len(store.asked["progress"]) > moves, "a report")  # noqa: B023  # the same
                assert router.reclaim() == []
            assert [run.lease.job_id for run in worker.runner.waiting_transfers()] == ["a"]
            gate.open()
            [job_then] = ended(router, "a")
    assert (job_then.result, job_then.reclaims) == (job.epoch, 0)


def test_what_waits_for_a_slot_and_is_taken_away_does_not_begin(router: Router) -> None:
    """Its worker learns it by its next renewal."""
    clock, gate, ran = ManualClock(), Gate(), list[str]()
    with Router(clock=clock) as router:

        @router.task
        def first() -> None:
            gate.pass_by()

        @router.task
        def work(lease: Lease) -> None:
            ran.append(lease.job_id)

        first.options(id="first", lease_seconds=3600).add()
        with working(router, steady=clock, concurrency=1) as worker:
            gate.wait_for()
            handed(router, worker.owner)
            until(lambda: worker.runner.waiting_transfers(), "the transfer to be picked up")
            router.transfer(router.job("a"), to="agent", by="ops", lease_seconds=3600)
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(10.5)
            until(lambda: not worker.runner.waiting_transfers(), "the worker to learn it")
            gate.open()
            ended(router, "first")
        assert ran == []
        assert router.job("a").owner == "agent"


def test_what_waits_for_a_slot_and_cannot_be_renewed_goes_back(router: Router) -> None:
    """At its deadline on the worker's clock, as a lease that is lost."""
    clock, gate, ran = ManualClock(), Gate(), list[str]()

    @router.task
    def first() -> None:
        gate.pass_by()

    @router.task
    def work(lease: Lease) -> None:
        ran.append(lease.job_id)

    def unavailable(real: Callable[..., Any], *args: Any) -> None:
        raise StoreUnavailable("no.")

    first.options(id="first", lease_seconds=36_000).add()
    store = Tampered(router.store)
    with working(router, store=store, steady=clock, concurrency=1) as worker:
        gate.wait_for()
        handed(router, worker.owner)
        until(lambda: worker.runner.waiting_transfers(), "the transfer to be picked up")
        store.tampers["renew"] = unavailable
        for _ in range(8):
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(5)
        job = with_status(router, "a", Status.PENDING)
        assert (job.reason, job.reclaims) == (Reason.RELEASE, 0)
        router.cancel(job, by="ops")
        del store.tampers["renew"]
        gate.open()
        ended(router, "first")
    assert ran == []


def test_a_worker_that_does_not_know_the_task_hands_it_back(any_router: Router) -> None:
    """It costs nothing, and whoever knows the task may claim it."""
    with working(any_router, name="shop"):
        listed(any_router)
        handed(any_router, "shop", task="unheard", retry=Retry(max_reclaims=0, max_errors=1))
        until(lambda: any_router.events("a", kind="released"), "it to be handed back")
        job = any_router.job("a")
    assert (job.status, job.reclaims, job.errors) == (Status.PENDING, 0, 0)


def test_a_worker_that_is_stopping_hands_it_back(any_router: Router) -> None:
    """At once, and not after its handlers have ended."""
    gate = Gate()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    work.options(id="first").add()
    worker = made(any_router, name="shop", concurrency=4)
    worker.start()
    gate.wait_for()
    listed(any_router)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: worker.runner.closing, "it to stop")

    handed(any_router, "shop")

    job = with_status(any_router, "a", Status.PENDING)
    assert (job.reason, job.reclaims, job.errors) == (Reason.RELEASE, 0, 0)
    assert stopping.is_alive()
    gate.open()
    stopping.join(PATIENCE)
    assert gate.came == [None]


def test_what_waits_for_a_slot_goes_back_when_its_worker_stops(any_router: Router) -> None:
    """As what was claimed ahead does."""
    gate = Gate()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    work.options(id="first").add()
    worker = made(any_router, concurrency=1)
    worker.start()
    gate.wait_for()
    handed(any_router, worker.owner)
    until(lambda: worker.runner.waiting_transfers(), "the transfer to be picked up")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    job = with_status(any_router, "a", Status.PENDING)
    assert (job.reason, job.reclaims) == (Reason.RELEASE, 0)
    gate.open()
    stopping.join(PATIENCE)


def test_the_last_look_finds_a_transfer_that_came_before_the_retirement(any_router: Router) -> None:
    """The handlers have ended by then: it goes back."""
    any_router.task(name="work")(lambda: None)
    store, worker = Tampered(any_router.store), list[Worker]()

    def retire(real: Callable[..., Any], name: str) -> None:
        handed(any_router, name)
        real(name)

    store.tampers["retire"] = retire
    with working(any_router, store=store) as made_worker:
        worker.append(made_worker)
        listed(any_router)

    job = any_router.job("a")
    assert (job.status, job.reason, job.reclaims) == (Status.PENDING, Reason.RELEASE, 0)


def test_an_accept_whose_reply_was_lost_is_asked_again(any_router: Router) -> None:
    """With the same id, so the job is run, and once."""
    ran, asked = list[int](), list[str]()

    @any_router.task
    def work(lease: Lease) -> None:
        ran.append(lease.epoch)

    def lost(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        asked.append(options["claim_id"])
        answer = real(*args, **options)
        if len(asked) == 1:
            raise StoreUnavailable("the reply was lost.", outcome_unknown=True)
        return answer

    store = Tampered(any_router.store)
    store.tampers["accept"] = lost
    with working(any_router, store=store) as worker:
        job = handed(any_router, worker.owner)
        ended(any_router, "a")
        looks(store)
    assert asked == [asked[0]] * 2
    assert ran == [job.epoch]


def test_a_transfer_that_moves_on_before_it_is_accepted_is_not_run(router: Router) -> None:
    """The worker has seen it, and is too late."""
    ran = list[str]()

    @router.task
    def work(lease: Lease) -> None:
        ran.append(lease.job_id)

    def late(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        router.transfer(router.job("a"), to="agent", by="ops")
        return real(*args, **options)

    store = Tampered(router.store)
    store.tampers["accept"] = late
    with working(router, store=store) as worker:
        handed(router, worker.owner)
        until(lambda: router.job("a").owner == "agent", "the second transfer")
        looks(store)
    assert ran == []
    assert len(store.asked["accept"]) == 1


def test_the_process_of_the_worker_is_recorded_at_the_pick_up(router: Router) -> None:
    """So that its death can be proved."""
    gate = Gate()

    @router.task
    def work(lease: Lease) -> None:
        gate.pass_by(lease._grant.process)

    with working(router) as worker:
        handed(router, worker.owner)
        gate.wait_for()
        assert router.store.lease("a", worker.owner).process == this_process()
        gate.open()
    assert gate.came == [this_process()]


async def _nothing() -> None:
    return None


def test_an_async_handler_gets_its_transfers_too(router: Router) -> None:
    """Kinds of handlers share the slots."""
    router.task(name="work")(_nothing)
    with working(router) as worker:
        handed(router, worker.owner)
        ended(router, "a")


def test_a_transfer_that_comes_as_the_last_handler_has_ended_is_handed_back(router: Router) -> None:
    """It is not begun by a worker that waits for handlers no more, and whose leases nobody renews from now on."""
    accepted, go_on, gate = threading.Event(), threading.Event(), Gate()
    store = Tampered(router.store)

    @router.task
    def work() -> None:
        gate.pass_by()

    worker = made(router, store=store.store)
    begin = worker.runner.begin

    def begins_late(*args: Any, **options: Any) -> None:
        if options.get("transferred"):
            accepted.set()
            assert go_on.wait(PATIENCE)
        begin(*args, **options)

    worker.runner.begin = begins_late  # type: ignore[method-assign]  # where its thread stands still
    wait_for_handlers = worker.runner.wait_for_handlers

    def waits_no_more(until: int) -> bool:
        none = wait_for_handlers(until)
        go_on.set()
        return none

    worker.runner.wait_for_handlers = waits_no_more  # type: ignore[method-assign]  # from here on, nobody waits for handlers
    worker.start()
    listed(router)
    handed(router, worker.owner)
    assert accepted.wait(PATIENCE)
    worker.stop()
    job = router.job("a")
    gate.open()

    assert gate.came == []
    assert (job.status, worker.unsettled) == (Status.PENDING, 0)
