"""Which run gets a slot that has become free, and that no slot is lost or used twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.support import until

from leasehold import Router, Status
from leasehold.lease import worker_side
from leasehold.tasks.task import Kind
from leasehold.testing import ManualClock
from leasehold.worker.dispatching import Dispatcher
from leasehold.worker.run import Run, Runs, State

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, with_status, working


class Noted:
    """An executor that only notes what it is to begin."""

    def __init__(self, began: list[str]) -> None:
        self._began = began
        self.fails = False

    def start(self, runs: Sequence[Run]) -> None:
        """Note the runs."""
        if self.fails:
            raise RuntimeError("the event loop is closed")
        self._began.extend(run.lease.job_id for run in runs)

    def stop(self, run: Run) -> bool:
        """Not asked for."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class Stage:
    """A dispatcher with two kinds of executors, and runs for it."""

    def __init__(self, router: Router, slots: int) -> None:
        self._router = router
        self.began: list[str] = []
        self.threads, self.loop = Noted(self.began), Noted(self.began)
        self.dispatcher = Dispatcher(slots, {Kind.THREAD: self.threads, Kind.LOOP: self.loop}, threading.Lock())
        self.runs: dict[str, Run] = {}

        @router.task
        def t() -> None:
            raise NotImplementedError

        @router.task
        async def l() -> None:  # noqa: E743  # t and l: a thread's and a loop's
            raise NotImplementedError

    def claim(self, *names: str, at: int) -> None:
        """Let one claim get these jobs; a name's first letter is its task."""
        runs = []
        for name in names:
            self._router.add(name, task=name[0])
            lease = self._router.claim("worker")
            assert lease is not None
            runs.append(Run(Runs(), worker_side.grant_of(lease), lease, self._router.tasks[name[0]], at, at))
        self.runs.update(zip(names, runs, strict=True))
        self.dispatcher.start(runs)

    def end(self, name: str) -> None:
        """Let a run that has begun come to its end."""
        self.runs[name].transition(State.WAITING, State.SETTLING)
        self.dispatcher.free(self.runs[name])


def test_free_slots_are_taken_in_the_order_of_the_claim(router: Router) -> None:
    stage = Stage(router, 3)

    stage.claim("l1", "t1", "l2", "t2", at=1)

    assert sorted(stage.began) == ["l1", "l2", "t1"]


def test_within_a_claim_a_slot_stays_with_its_kind(router: Router) -> None:
    stage = Stage(router, 1)
    stage.claim("t1", "l1", "t2", "l2", "t3", at=1)

    for name in ("t1", "t2", "t3", "l1", "l2"):
        stage.end(name)

    assert stage.began == ["t1", "t2", "t3", "l1", "l2"]


def test_an_older_claim_goes_first_so_no_kind_starves(router: Router) -> None:
    stage = Stage(router, 1)
    stage.claim("t1", "l1", at=1)
    stage.claim("t2", "l2", at=2)
    stage.claim("t3", at=3)

    for name in ("t1", "l1", "l2", "t2", "t3"):
        stage.end(name)

    assert stage.began == ["t1", "l1", "l2", "t2", "t3"]


def test_an_executor_gets_the_next_run_of_its_kind_and_others_are_begun_elsewhere(router: Router) -> None:
    """So that a thread goes on with the next job without a switch to another thread."""
    stage = Stage(router, 1)
    stage.claim("t1", "l1", "t2", at=1)

    assert stage.dispatcher.replace(stage.runs["t1"]) is stage.runs["t2"]
    assert stage.began == ["t1"], "the executor of t1 begins t2"
    assert stage.dispatcher.replace(stage.runs["t2"]) is None
    assert stage.began == ["t1", "l1"], "the loop was given l1"
    assert stage.dispatcher.replace(stage.runs["l1"]) is None


def test_a_run_that_was_handed_back_while_it_waited_is_passed_over(router: Router) -> None:
    stage = Stage(router, 1)
    stage.claim("t1", "t2", "t3", at=1)

    stage.end("t2")  # it had no slot
    assert stage.began == ["t1"]
    stage.end("t1")

    assert stage.began == ["t1", "t3"]


def test_the_slot_of_a_run_that_never_begins_is_free_again_and_only_once(router: Router) -> None:
    """As when the event loop is blocked and does not get to it."""
    stage = Stage(router, 1)
    stage.claim("l1", "t1", "t2", at=1)

    stage.end("l1")
    stage.end("l1")

    assert stage.began == ["l1", "t1"]


def test_a_loop_that_is_closed_does_not_end_the_thread_that_frees_a_slot(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(router, 1)
    stage.claim("t1", "l1", "t2", at=1)
    stage.claim("t3", at=2)
    stage.end("t1")
    stage.loop.fails = True

    stage.end("t2")

    assert "could not start the handler of job 'l" in caplog.text
    assert stage.runs["l1"].waits
    stage.end("l1")  # the worker hands it back before long
    assert stage.began == ["t1", "t2", "t3"]


# In a worker


def test_an_async_task_beside_plain_ones_does_not_end_claiming_ahead(router: Router) -> None:
    """It did, and each short job waited for a round trip to the store."""
    store, gate = Tampered(router.store), Gate()

    @router.task
    def plain() -> None:
        gate.pass_by()

    @router.task
    async def asynchronous() -> None:
        await asyncio.to_thread(gate.pass_by)

    with working(router, store=store, concurrency=2) as worker:
        worker._claimer._pace = 400.0  # jobs a second, as after many fast handlers
        assert worker.runner.claims_ahead()
        worker._claimer._ahead = lambda: 10  # type: ignore[method-assign]  # at that pace
        router.add_many([{"id": f"j{n}", "task": ["plain", "asynchronous"][n % 2]} for n in range(12)])
        gate.wait_for(2)
        until(lambda: router.counts().running == 12, "ten to be claimed ahead")
        assert len(gate.came) == 2
        gate.open()
        ended(router, *(f"j{n}" for n in range(12)))


@pytest.mark.parametrize("first", ["plain", "asynchronous"])
def test_a_slot_is_used_by_the_other_kind_after_it_was_free(router: Router, first: str) -> None:
    gates = {"first": Gate(), "others": Gate()}

    @router.task
    def plain(gate: str) -> None:
        gates[gate].pass_by()

    @router.task
    async def asynchronous(gate: str) -> None:
        await asyncio.to_thread(gates[gate].pass_by)

    other = {"plain": "asynchronous", "asynchronous": "plain"}[first]
    with working(router, concurrency=2) as worker:
        worker._claimer._ahead = lambda: 4  # type: ignore[method-assign]  # as after many fast handlers
        router.add_many([{"id": f"first {n}", "task": first, "payload": {"gate": "first"}} for n in range(2)])
        gates["first"].wait_for(2)
        router.add_many([{"id": f"j{n}", "task": other, "payload": {"gate": "others"}} for n in range(4)])
        until(lambda: router.counts().running == 6, "four to be claimed ahead")
        gates["first"].open()
        gates["others"].wait_for(2)
        gates["others"].open()
        ended(router, *(f"j{n}" for n in range(4)))

    assert worker.tally.done == 6


def test_a_blocked_loop_gives_its_slots_to_threads(router: Router) -> None:
    """What was handed to it and has not begun within a second goes back, and so does its slot."""
    steady, blocking, go_on, ran = ManualClock(), threading.Event(), threading.Event(), []

    @router.task
    async def block() -> None:
        blocking.set()
        assert go_on.wait(PATIENCE)

    @router.task
    async def asynchronous() -> None:
        ran.append("asynchronous")

    @router.task
    def plain() -> None:
        ran.append("plain")

    with working(router, steady=steady, concurrency=2) as worker:
        worker._claimer._ahead = lambda: 1  # type: ignore[method-assign]  # as after many fast handlers
        router.add("block", task="block")
        assert blocking.wait(PATIENCE)
        router.add("a", task="asynchronous")
        with_status(router, "a", Status.RUNNING)
        steady.advance(0.9)
        router.add("p", task="plain")
        with_status(router, "p", Status.RUNNING)
        until(lambda: has_looked(worker, steady), "both keepers to sleep")
        assert ran == []
        steady.advance(0.2)
        ended(router, "p")
        go_on.set()
        ended(router, "block", "a")

    assert ran == ["plain", "asynchronous"]
    assert router.job("a").reclaims == router.job("a").errors == 0


def test_a_run_that_was_handed_back_before_it_came_here_takes_no_slot(router: Router) -> None:
    """As when a worker stood still between what it had noted of a claim and the hand-over of its runs to this."""
    stage = Stage(router, 1)
    router.add("t0", task="t")
    lease = router.claim("worker")
    assert lease is not None
    late = Run(Runs(), worker_side.grant_of(lease), lease, router.tasks["t"], 0, 0)
    assert late.transition(State.WAITING, State.SETTLING)  # a keeper hands it back
    stage.dispatcher.free(late)

    stage.dispatcher.start([late])
    stage.claim("t1", at=1)

    assert stage.began == ["t1"]


def test_a_worker_that_stood_still_while_it_began_a_claim_loses_no_slot(router: Router) -> None:
    """Its keepers look before the claim goes on, and hand back what has waited for too long; later jobs are done."""
    clock = ManualClock()

    @router.task
    def work() -> None:
        """Nothing to do."""

    with working(router, steady=clock, concurrency=1) as worker:
        began, stood_still = worker.runner.dispatcher.start, threading.Event()

        def start(runs: Sequence[Run]) -> None:
            if not stood_still.is_set():
                stood_still.set()
                clock.advance(2)  # the process was stopped for that long; the watch wakes first
                until(lambda: not any(run.waits for run in runs), "the run to be handed back")
                until(lambda: not worker.runner.runs.count_undecided, "the watch to be done with it")
            began(runs)

        worker.runner.dispatcher.start = start  # type: ignore[method-assign]  # where the process stands still
        work.options(id="a").add()
        assert stood_still.wait(PATIENCE)
        ended(router, "a")
