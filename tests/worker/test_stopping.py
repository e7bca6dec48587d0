"""From start to stop: what is waited for, what is handed back, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support import until

from leasehold import (
    Conflict,
    Lease,
    Reason,
    Retry,
    Router,
    StaleEpoch,
    Status,
    StoreIncompatible,
    StoreUnavailable,
)
from leasehold.testing import ManualClock
from leasehold.worker.settling import Ending
from leasehold.worker.until_empty import UntilEmpty

from .staging import (
    PATIENCE,
    Gate,
    Tampered,
    assert_nothing_left,
    ended,
    has_looked,
    made,
    our_threads,
    with_status,
    working,
)


def test_at_the_end_of_the_block_handlers_are_waited_for(any_router: Router) -> None:
    gate = Gate()

    @any_router.task
    def work(name: str) -> None:
        gate.pass_by(name)

    for name in "abc":
        work.options(id=name).add(name)
    worker = made(any_router, concurrency=2)
    with worker:
        gate.wait_for(2)

        def open_later() -> None:
            until(lambda: not worker._claimer.is_alive(), "it to stop claiming")
            gate.open()

        opening = threading.Thread(target=open_later)
        opening.start()
    opening.join()

    assert {any_router.job(name).status for name in "ab"} == {Status.DONE}
    assert any_router.job("c").attempt == 0, "no job was begun any more"
    assert any_router.job("c").status is Status.PENDING
    assert worker.tally.done == 2
    assert_nothing_left()


def test_trap_21_what_is_not_done_in_time_is_handed_back_and_costs_nothing(any_router: Router) -> None:
    gate, begun, cleaned, refused = Gate(), threading.Event(), [], []

    @any_router.task
    def on_thread(lease: Lease) -> None:
        gate.pass_by()
        try:
            lease.check()
        except StaleEpoch:
            refused.append(lease.job_id)

    @any_router.task
    async def on_loop() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(1)

    on_thread.options(id="t").add()
    on_loop.options(id="l").add()
    worker = made(any_router)
    worker.start()
    gate.wait_for()
    assert begun.wait(PATIENCE)
    worker.stop(grace_seconds=0)

    assert cleaned == [1]
    for name in "tl":
        job = any_router.job(name)
        assert (job.status, job.errors, job.reclaims) == (Status.PENDING, 0, 0)
        assert job.run_at <= job.updated_at, "it is due at once"
    assert worker.tally.released == 2
    assert our_threads() == ["leasehold-handler-0"], "which cannot be stopped"
    claimed = any_router.claim_many("next")
    assert [lease.reason for lease in claimed] == [Reason.RELEASE] * 2
    assert [lease.attempt for lease in claimed] == [1, 1]
    gate.open()
    until(lambda: refused == ["t"], "it to be refused")


def test_what_a_handler_is_about_to_say_is_settled(router: Router) -> None:
    """Its run is no longer executing, so nobody waits for it, and its end has not been said yet."""
    gate = Gate()

    @router.task
    def work() -> None:
        pass

    worker = made(router)
    worker.start()
    put = worker.runner.settler.put

    def put_late(ending: Ending) -> None:
        gate.pass_by()
        put(ending)

    worker.runner.settler.put = put_late  # type: ignore[method-assign]
    work.options(id="a").add()
    gate.wait_for()

    def open_later() -> None:
        until(lambda: worker.runner.settler._ending and not worker.runner.settler._waits.is_set(), "the end to be near")
        gate.open()

    opening = threading.Thread(target=open_later)
    opening.start()
    worker.stop()
    opening.join()

    assert router.job("a").status is Status.DONE
    assert worker.unsettled == 0


def test_a_delay_function_belongs_to_the_handler_that_is_waited_for(router: Router) -> None:
    gate = Gate()

    def delay(_: int, __: Exception) -> float:
        gate.pass_by()
        return 0

    @router.task(delay=delay)
    def work() -> None:
        raise ValueError

    work.options(id="a").add()
    worker = made(router)
    worker.start()
    gate.wait_for()

    def open_later() -> None:
        until(lambda: not worker._claimer.is_alive(), "it to stop claiming")
        assert worker.health().running == 1
        gate.open()

    opening = threading.Thread(target=open_later)
    opening.start()
    worker.stop()
    opening.join()

    assert router.job("a").errors == 1


def test_a_hurry_hands_back_at_once(router: Router) -> None:
    clock, begun = ManualClock(), threading.Event()

    @router.task
    async def work() -> None:
        begun.set()
        await asyncio.sleep(3600)

    work.options(id="a").add()
    worker = made(router, steady=clock)  # whose grace never passes by itself
    worker.start()
    assert begun.wait(PATIENCE)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: not worker._claimer.is_alive(), "it to stop claiming")
    assert stopping.is_alive()
    assert router.job("a").status is Status.RUNNING
    worker.hurry()
    stopping.join(PATIENCE)

    assert not stopping.is_alive()
    assert router.job("a").status is Status.PENDING


def test_the_lease_is_kept_during_the_grace() -> None:
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock, lease_seconds=3) as router:
        store = Tampered(router.store)

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        worker = made(router, steady=clock, store=store.store)
        worker.start()
        gate.wait_for()
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        until(lambda: not worker._claimer.is_alive(), "it to stop claiming")
        for count in range(1, 6):
            until(lambda: has_looked(worker, clock), "the keepers to sleep")
            clock.advance(1.1)
            until(lambda: len(store.asked["renew"]) >= count, "a renewal")  # noqa: B023 (it is called at once)
            assert router.reclaim() == []
        gate.open()
        stopping.join(PATIENCE)

        assert router.job("a").status is Status.DONE
        assert router.job("a").reclaims == 0


class Expected(Exception):
    """Of the block."""


@pytest.mark.parametrize("error", [Expected, SystemExit])
def test_an_exception_in_the_block_stops_it_in_order(router: Router, error: type[BaseException]) -> None:
    gate = Gate()

    @router.task
    def work() -> None:
        gate.pass_by()

    def block() -> None:
        with router.worker():
            gate.wait_for()
            gate.open()
            raise error

    work.options(id="a").add()
    with pytest.raises(error):
        block()

    assert router.job("a").status is Status.DONE
    assert_nothing_left()


def test_ctrl_c_in_the_block_hands_back_at_once(router: Router) -> None:
    begun = threading.Event()

    @router.task
    async def work() -> None:
        begun.set()
        await asyncio.sleep(3600)

    worker = made(router, steady=ManualClock())  # whose grace never passes by itself

    def block() -> None:
        with worker:
            assert begun.wait(PATIENCE)
            raise KeyboardInterrupt

    work.options(id="a").add()
    with ThreadPoolExecutor(1) as pool:
        blocking = pool.submit(block)
        try:
            assert isinstance(blocking.exception(PATIENCE), KeyboardInterrupt)
        finally:
            worker.hurry()

    job = router.job("a")
    assert (job.status, job.errors) == (Status.PENDING, 0)
    assert_nothing_left()


def test_it_may_be_stopped_twice_before_it_is_started_and_by_many_at_once(router: Router) -> None:
    @router.task
    async def work() -> None:
        pass

    worker = made(router)
    worker.stop()
    assert "not been started" in worker.health().why
    worker.start()
    work.options(id="a").add()
    ended(router, "a")
    with ThreadPoolExecutor(8) as pool:
        for stopping in [pool.submit(worker.stop) for _ in range(8)]:
            stopping.result(PATIENCE)
    worker.stop()
    assert worker.tally.done == 1
    assert worker.health().why == "it has stopped"


def test_whoever_stops_it_too_returns_when_it_has_stopped(router: Router) -> None:
    leaving, go_on = threading.Event(), threading.Event()

    @router.lifespan
    def slow() -> Iterator[None]:
        yield
        leaving.set()
        assert go_on.wait(PATIENCE)

    worker = made(router)
    worker.start()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(worker.stop)
        assert leaving.wait(PATIENCE)
        second = pool.submit(worker.stop)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        go_on.set()
        first.result(PATIENCE)
        second.result(PATIENCE)


def test_it_is_started_once(router: Router) -> None:
    with router.worker() as worker, pytest.raises(Conflict, match="make another one"):
        worker.start()
    with pytest.raises(Conflict, match="make another one"):
        worker.start()


def test_run_returns_when_it_is_stopped_elsewhere(router: Router) -> None:
    @router.task
    async def work() -> None:
        pass

    work.options(id="a").add()
    worker = made(router)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run)
        ended(router, "a")
        worker.stop()
        assert running.result(PATIENCE).done == 1


def test_a_signal_that_another_thread_gets_is_noticed(tmp_path: Path) -> None:
    """The system gives a signal to any thread, above all after SIGSTOP and SIGCONT: the main one waits on."""
    program = f"""
import signal, threading, time
from leasehold import Router

router = Router("sqlite:///{tmp_path}/jobs.db")

@router.task
def hello():
    print("ready", flush=True)

hello.add()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # which will get the signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
router.work()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["work", "with", "stop"])
def test_a_store_that_cannot_be_used_is_told(router: Router, how: str) -> None:
    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        raise StoreIncompatible("of another version")

    store = Tampered(router.store)
    store.tampers["claim"] = claim
    worker = made(router, store=store.store)

    def fail() -> None:
        if how == "work":
            worker.run()
        elif how == "with":
            with worker:
                until(lambda: not worker.health().consuming, "it to fail")
        else:
            worker.start()
            until(lambda: worker._failure, "it to fail")
            assert "another version" in worker.health().why
            worker.stop()

    with pytest.raises(StoreIncompatible, match="another version"):
        fail()
    assert_nothing_left()


def test_the_store_is_away_at_the_end_and_nobody_waits_for_it_for_ever(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.worker.runner._LAST_SECONDS", 0.1)
    store, settling = Tampered(router.store), threading.Event()

    @router.task
    def work() -> None:
        pass

    def settle(real: Any, settlements: Any) -> Any:
        settling.set()
        raise StoreUnavailable("away")

    store.tampers["settle"] = settle
    work.options(id="a").add()
    worker = made(router, store=store.store)
    worker.start()
    assert settling.wait(PATIENCE)
    worker.stop()

    assert worker.unsettled == 1
    until(lambda: our_threads() == [], "its threads to end")
    assert router.job("a").status is Status.RUNNING, "it waits to be reclaimed"


def test_until_empty_waits_for_delayed_retries_and_for_what_runs_elsewhere(any_router: Router) -> None:
    ran, store = [], Tampered(any_router.store)

    @any_router.task(retry=Retry(delay_seconds=0.3, jitter=False))
    def flaky(lease: Lease) -> None:
        ran.append(lease.attempt)
        if lease.attempt == 0:
            raise ValueError

    flaky.options(id="a").add()
    any_router.add("other queue", queue="other")
    any_router.add("elsewhere", priority=9)
    elsewhere = any_router.claim("another program")
    assert elsewhere is not None
    with ThreadPoolExecutor(1) as pool:
        worker = made(any_router, store=store.store, queues=["default"])
        running = pool.submit(worker.run, until_empty=True)
        ended(any_router, "a")
        until(lambda: worker.runner.is_empty(), "nothing to be left here")
        asked = len(store.asked["claim"])
        until(lambda: running.done() or len(store.asked["claim"]) > asked + 2, "more claims")
        assert not running.done()
        elsewhere.complete()
        tally = running.result(PATIENCE)

    assert ran == [0, 1]
    assert (tally.done, tally.retried) == (1, 1)
    assert any_router.job("other queue").attempt == 0


def test_until_empty_ends_beside_a_paused_queue(any_router: Router, caplog: pytest.LogCaptureFixture) -> None:
    """Its jobs stay; the log and the tally say how many."""

    @any_router.task
    def work() -> None:
        pass

    work.options(id="a").add()
    any_router.add_many([work.options(id=f"paused-{n}", queue="mail").job() for n in range(3)])
    any_router.add("later", task="work", queue="mail", delay_seconds=3_600)
    any_router.pause("mail", by="ops")
    with caplog.at_level(logging.INFO, "leasehold"):
        tally = any_router.work(until_empty=True)

    assert (tally.done, tally.left) == (1, 4)
    assert str(tally) == "1 done, 4 left pending"
    assert "nothing left for this worker; 4 jobs are still pending: 4 in 'mail', which is paused" in caplog.messages
    any_router.resume("mail", by="ops")
    any_router.cancel(any_router.job("later"), by="ops")
    assert (any_router.work(until_empty=True).done, any_router.counts().pending) == (3, 0)


def test_until_empty_waits_for_what_runs_in_a_paused_queue(router: Router) -> None:
    """It may add jobs to other queues; what it leaves in its own stays there."""
    router.add("running", queue="mail", task="unknown")
    lease = router.claim("elsewhere", lease_seconds=3_600)
    assert lease is not None
    router.pause("mail", by="ops")
    waiting = UntilEmpty(router.store, None, ManualClock(), lambda task: True)

    assert not waiting.nothing_left()
    lease.release()
    assert waiting.nothing_left()
    assert waiting.left == 1


def test_until_empty_ends_where_only_unknown_tasks_are_left(
    any_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker may know them; this one would wait for ever."""

    @any_router.task
    def work() -> None:
        pass

    work.options(id="a").add()
    any_router.add("strange", task="poster")
    any_router.add("bare")
    any_router.add_many([{"id": f"paused-{n}", "queue": "mail"} for n in range(3)])
    any_router.pause("mail", by="ops")
    with caplog.at_level(logging.INFO, "leasehold"):
        tally = any_router.work(until_empty=True)

    assert (tally.done, tally.left) == (1, 5)
    said = (
        "5 jobs are still pending: 3 in 'mail', which is paused, "
        "2 of tasks that this worker does not know ('poster', no task)"
    )
    assert f"nothing left for this worker; {said}" in caplog.messages


def test_until_empty_waits_for_its_own_handlers_and_their_children(router: Router) -> None:
    @router.task
    def child(depth: int) -> None:
        if depth:
            child.add(depth - 1)

    child.add(5)
    tally = router.work(until_empty=True)
    assert tally.done == 6


def test_a_worker_is_healthy_from_its_start(router: Router) -> None:
    """A probe that looks at once must not end it: no claim can have been answered yet."""
    store, go_on = Tampered(router.store), threading.Event()

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        assert go_on.wait(PATIENCE)
        return real(*args, **kwargs)

    store.tampers["claim"] = claim
    router.add("something to claim", task="unknown")
    with working(router, store=store) as worker:
        assert worker.health().consuming
        assert worker.health().claimed_seconds is None
        go_on.set()
        until(lambda: worker.health().claimed_seconds is not None, "an answer")


def test_the_last_claim_is_handed_back(router: Router) -> None:
    """It was under way when the worker was told to stop."""
    store, claiming, go_on = Tampered(router.store), threading.Event(), threading.Event()

    @router.task
    def work() -> None:
        raise AssertionError("it is not begun any more")

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        claiming.set()
        assert go_on.wait(PATIENCE)
        return real(*args, **kwargs)

    store.tampers["claim"] = claim
    work.options(id="a").add()
    worker = made(router, store=store.store)
    worker.start()
    assert claiming.wait(PATIENCE)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: worker._claimer._stopping, "it to stop")
    go_on.set()
    stopping.join(PATIENCE)

    job = with_status(router, "a", Status.PENDING)
    assert (job.errors, job.reclaims) == (0, 0)
