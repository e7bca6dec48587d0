"""The group commit: what many handlers say is settled together, and each of it once."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.support import until

from leasehold import Lease, Retry, Router, Settled, StaleEpoch, Status, StoreUnavailable
from leasehold.core.job import Outcome
from leasehold.testing import ManualClock

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, with_status, working


def has_length(things: list[Any], least: int) -> bool:
    """Return whether there are that many, or more."""
    return len(things) >= least


def test_what_many_handlers_say_is_one_call(any_router: Router) -> None:
    store, gate, batches = Tampered(any_router.store), Gate(), []
    may_settle = threading.Event()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    def settle(real: Any, settlements: Any) -> Any:
        assert may_settle.wait(PATIENCE)
        batches.append(len(settlements))
        return real(settlements)

    store.tampers["settle"] = settle
    for number in range(20):
        work.options(id=f"j{number}").add()
    with working(any_router, store=store, concurrency=20) as worker:
        gate.wait_for(20)
        gate.open()
        until(lambda: worker.health().running == 0, "all handlers to end")
        assert any_router.counts().done == 0
        assert worker.tally.done == 0, "nothing is done before it is committed"
        may_settle.set()
        ended(any_router, *(f"j{n}" for n in range(20)))
        until(lambda: worker.tally.done == 20, "all to be counted")

    assert sum(batches) == 20
    assert len(batches) <= 2, "the first to end, and all that ended meanwhile"


def test_the_end_of_an_outage_is_said_once_of_claims_and_once_of_settlements(
    any_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store, gate, down = Tampered(any_router.store), Gate(), threading.Event()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    def unless_down(real: Any, *args: Any, **settings: Any) -> Any:
        if down.is_set():
            raise StoreUnavailable("nobody there")
        return real(*args, **settings)

    store.tampers.update(settle=unless_down, claim=unless_down)
    work.options(id="a").add()
    with working(any_router, store=store, concurrency=9):
        gate.wait_for(1)
        down.set()
        work.options(id="b").add()  # which ends a claim that waits already
        until(lambda: "claim failed" in caplog.text, "a claim to fail")
        gate.open()
        until(lambda: "could not settle" in caplog.text, "one to wait")
        down.clear()
        ended(any_router, "a", "b")
        until(lambda: "the store answers again" in caplog.text, "claims to go on")

    assert caplog.text.count("the store answers again") == 1
    assert caplog.text.count("settling again") == 1


def test_one_that_cannot_be_stored_does_not_keep_the_others(
    any_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    store, gate = Tampered(any_router.store), Gate()

    @any_router.task
    def work() -> None:
        gate.pass_by()

    def settle(real: Any, settlements: Any) -> Any:
        if any(each.job_id == "j3" for each in settlements):
            raise ValueError("a document that this store cannot keep")
        return real(settlements)

    store.tampers["settle"] = settle
    for number in range(10):
        work.options(id=f"j{number}").add()
    with working(any_router, store=store, concurrency=10) as worker:
        gate.wait_for(10)
        gate.open()
        ended(any_router, *(f"j{n}" for n in range(10) if n != 3))
        until(lambda: not worker.runner.runs.count_in_flight, "the other to be given up")
        work.options(id="later").add()
        ended(any_router, "later")

    assert any_router.job("j3").status is Status.RUNNING, "it waits for its deadline"
    assert "could not settle" in caplog.text


def test_one_that_the_store_cannot_take_now_does_not_keep_the_others(router: Router) -> None:
    """A row that somebody else's open transaction has locked: the others are not made to wait for that."""
    store, gate = Tampered(router.store), Gate()
    locked = threading.Event()
    locked.set()

    @router.task
    def work() -> None:
        gate.pass_by()

    def settle(real: Any, settlements: Any) -> Any:
        replies = [reply for each in settlements if each.job_id != "j3" for reply in real([each])]
        if len(replies) < len(settlements):
            if locked.is_set():
                raise StoreUnavailable("somebody has the row of j3 locked; the others are settled")
            return real(settlements)
        return replies

    store.tampers["settle"] = settle
    for number in range(5):
        work.options(id=f"j{number}").add()
    with working(router, store=store, concurrency=5) as worker:
        gate.wait_for(5)
        gate.open()
        until(lambda: worker.tally.done == 4, "the others to be over")
        work.options(id="later").add()
        ended(router, "later")
        locked.clear()
        ended(router, "j3")


def test_what_had_to_wait_is_settled_also_if_there_is_always_something_new(router: Router) -> None:
    """A batch that is tried one by one must not wait for a moment in which nothing else is said."""
    store, gate = Tampered(router.store), Gate()
    spoiled: list[int] = []

    @router.task
    def work() -> None:
        gate.pass_by()

    @router.task
    def busy() -> None:
        pass

    def settle(real: Any, settlements: Any) -> Any:
        if len(settlements) > 1 and any(each.job_id.startswith("j") for each in settlements) and not spoiled:
            spoiled.append(1)
            raise ValueError("one of these")
        if spoiled and router.counts().done < 500 and not router.job("j3").finished_us:
            # There is something new each time that the settler looks.
            said = len(worker.runner.settler._endings)
            busy.add()
            until(lambda: len(worker.runner.settler._endings) > said, "something new")
        return real(settlements)

    store.tampers["settle"] = settle
    for number in range(5):
        work.options(id=f"j{number}").add()
    with working(router, store=store, concurrency=10) as worker:
        gate.wait_for(5)
        gate.open()
        ended(router, *(f"j{number}" for number in range(5)))
        assert router.counts().done < 100


def test_what_the_store_did_not_answer_is_said_again_in_the_same_words(any_router: Router) -> None:
    store, steady = Tampered(any_router.store), ManualClock()
    said: list[Any] = []

    @any_router.task(retry=Retry(max_errors=2, delay_seconds=600))
    def work() -> None:
        raise ValueError("no")

    def settle(real: Any, settlements: Any) -> Any:
        said.append(list(settlements))
        replies = real(settlements)
        if len(said) < 3:
            raise StoreUnavailable("committed, and the reply is lost")
        return replies

    store.tampers["settle"] = settle
    work.options(id="a").add()
    with working(any_router, store=store, steady=steady) as worker:
        until(lambda: said, "the first try")
        for count in (2, 3):
            until(lambda: worker.runner.settler._pause._waiters, "it to rest")  # type: ignore[attr-defined]  # who waits
            steady.advance(5)
            until(partial(has_length, said, count), "the next try")
        until(lambda: worker.tally.retried == 1, "the last to be taken")

    assert len(said) == 3
    assert said[0] == said[1] == said[2]
    job = any_router.job("a")
    assert (job.errors, job.status) == (1, Status.PENDING)


def test_trap_19_a_job_that_waits_for_its_settlement_is_renewed() -> None:
    """It is no longer executing, and still leased: without a renewal somebody else would begin it."""
    clock, released = ManualClock(), threading.Event()
    with Router(clock=clock, lease_seconds=30) as router:
        store, waits = Tampered(router.store), threading.Event()

        @router.task
        def work() -> str:
            return "result"

        def settle(real: Any, settlements: Any) -> Any:
            waits.set()
            assert released.wait(PATIENCE)
            return real(settlements)

        store.tampers["settle"] = settle
        work.options(id="a").add()
        with working(router, store=store, steady=clock) as worker:
            assert waits.wait(PATIENCE)
            for _ in range(4):
                renewed = len(store.asked["renew"])
                clock.advance(11)
                until(partial(has_length, store.asked["renew"], renewed + 1), "a renewal")
                assert router.reclaim() == []
            assert worker.tally.done == 0
            released.set()
            [job] = ended(router, "a")

    assert (job.result, job.reclaims) == ("result", 0)


def test_an_end_is_over_only_when_it_is_committed(router: Router) -> None:
    """`stop` waits for the settlement, and a worker that runs until nothing is left does too."""
    store, waits, released = Tampered(router.store), threading.Event(), threading.Event()

    @router.task
    def work() -> None:
        pass

    def settle(real: Any, settlements: Any) -> Any:
        waits.set()
        assert released.wait(PATIENCE)
        return real(settlements)

    store.tampers["settle"] = settle
    work.options(id="a").add()
    with working(router, store=store) as worker:
        assert waits.wait(PATIENCE)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        until(lambda: not worker._claimer.is_alive(), "it to stop claiming")
        assert stopping.is_alive()
        assert worker.tally.done == 0
        released.set()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        assert worker.tally.done == 1
        assert router.job("a").status is Status.DONE


@pytest.fixture
def broken_logs() -> Iterator[list[str]]:
    """A filter of the application's own logging that raises; what was to be logged."""
    said: list[str] = []

    def broken(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        raise ValueError("the disk for logs is full")

    logger = logging.getLogger("leasehold.worker")
    logger.addFilter(broken)
    yield said
    logger.removeFilter(broken)


def test_logs_that_fail_do_not_stop_the_settling(router: Router, broken_logs: list[str]) -> None:
    """A filter or handler of the application's own logging that raises must not keep jobs running for ever."""

    @router.task(retry=Retry(max_errors=1))
    def fails() -> None:
        raise ValueError("no")

    @router.task
    def work() -> None:
        pass

    with working(router, concurrency=4) as worker:
        for number in range(4):
            fails.options(id=f"f{number}").add()
        for number in range(4):
            with_status(router, f"f{number}", Status.FAILED)
        work.options(id="later").add()
        ended(router, "later")
        until(lambda: not worker.runner.runs.count_in_flight, "all to be over")
        assert worker.tally.failed == 4
    assert broken_logs


def test_logs_that_fail_do_not_stop_the_worker_while_the_store_is_away(router: Router, broken_logs: list[str]) -> None:
    """What is said then is said by the threads that claim and settle, in the middle of it."""

    @router.task
    def work() -> None:
        pass

    def away_once(verb: str) -> Callable[..., Any]:
        def tamper(*_: Any, **__: Any) -> Any:
            del tampered.tampers[verb]
            raise StoreUnavailable("it is away")

        return tamper

    tampered = Tampered(router.store)
    tampered.tampers = {verb: away_once(verb) for verb in ("claim", "settle")}
    for number in range(4):
        work.options(id=f"a{number}").add()
    with working(router, store=tampered) as worker:
        ended(router, *(f"a{number}" for number in range(4)))
        until(lambda: not worker.runner.runs.count_in_flight, "all to be over")
        assert worker.health().consuming
    texts = "\n".join(broken_logs)
    assert "claim failed; retrying" in texts
    assert "could not settle" in texts


@pytest.mark.parametrize("name", ["settler", "renewer", "watch"])
def test_a_worker_whose_thread_has_ended_does_not_look_alive(router: Router, name: str) -> None:
    with working(router) as worker:
        assert worker.health().consuming
        thread = getattr(worker.runner, name)
        if name == "settler":
            thread.close(PATIENCE)
        else:
            thread.end()
        assert worker.health().why == f"its thread {thread.name} has ended"


def test_logs_name_the_line_that_says_it(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "leasehold.worker"), working(router):
        pass
    assert {record.filename for record in caplog.records} == {"worker.py"}


def test_a_handler_that_has_settled_its_job_is_believed_after_a_look(any_router: Router) -> None:
    @any_router.task
    def work(lease: Lease) -> str:
        lease.complete("my own")
        return "ignored"

    work.options(id="a").add()
    with working(any_router) as worker:
        until(lambda: worker.tally.settled == 1, "it")

    assert any_router.job("a").result == "my own"
    assert worker.tally.done == worker.tally.refused == 0


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
def test_a_handler_may_go_on_after_it_has_settled_its_job(
    router: Router, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """That its lease can be renewed no more is no loss: nobody took the job from it."""
    steady, settled, ran_on = ManualClock(), threading.Event(), []
    store = Tampered(router.store)
    go_on = threading.Event()

    @router.task(queue="q", lease_seconds=30)
    async def work(lease: Lease) -> None:
        if how == "complete":
            lease.complete()
        elif how == "fail":
            lease.fail("no", retry=False)
        else:
            lease.release(delay_seconds=3600)
        settled.set()
        assert await asyncio.to_thread(go_on.wait, PATIENCE)
        ran_on.append(1)

    work.options(id="a").add()
    with working(router, store=store, steady=steady) as worker:
        assert settled.wait(PATIENCE)
        until(lambda: has_looked(worker, steady), "both keepers to sleep")
        steady.advance(11)
        until(lambda: store.asked["renew"], "a renewal")
        until(lambda: has_looked(worker, steady), "both keepers to sleep")
        steady.advance(50)
        until(lambda: has_looked(worker, steady), "both keepers to have looked")
        go_on.set()
        until(lambda: worker.tally.settled == 1, "its end")

    assert ran_on == [1]
    assert worker.tally.refused == 0
    assert "is lost" not in caplog.text


def test_a_refusal_that_is_not_about_the_lease_is_an_error_like_any_other(router: Router) -> None:
    """A guard refuses an epoch that is still current, because a younger job has written there: that is what is kept."""

    @router.task(retry=Retry(max_errors=1))
    def work(lease: Lease) -> None:
        raise StaleEpoch.of_job(lease.job_id, presented=lease.epoch, current=lease.epoch + 1, owner="younger")

    work.options(id="a").add()
    with working(router):
        job = with_status(router, "a", Status.FAILED)

    assert job.last_error is not None
    assert job.last_error.startswith("leasehold.errors.StaleEpoch: ")
    assert "younger" in job.last_error


def test_a_settlement_by_hand_then_an_error_is_settled_and_logged(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    @router.task
    def work(lease: Lease) -> None:
        lease.complete("kept")
        raise ValueError("too late")

    work.options(id="a").add()
    with working(router) as worker:
        until(lambda: worker.tally.settled == 1, "it")

    job = router.job("a")
    assert (job.status, job.result, job.errors) == (Status.DONE, "kept", 0)
    assert "too late" in caplog.text


def test_trap_18_a_completion_in_a_transaction_that_was_rolled_back_is_none(sqlite_router: Router) -> None:
    """The handler swallows the error and returns: the worker asks the store, not the handler."""

    @sqlite_router.task(retry=Retry(max_errors=2, delay_seconds=0))
    def work(lease: Lease) -> str:
        if lease.attempt == 0:
            try:
                with lease.transaction() as connection:
                    lease.complete("rolled back", connection=connection)
                    raise ValueError("something else")
            except ValueError:
                pass
            return "believed"
        return "second"

    work.options(id="a").add()
    with working(sqlite_router) as worker:
        [job] = ended(sqlite_router, "a")
        until(lambda: worker.tally.done == 1, "its end")

    assert job.result == "second"
    assert job.errors == 1
    assert worker.tally.retried == 1


def test_a_completion_in_a_transaction_of_its_own_is_exactly_once(sqlite_router: Router) -> None:
    with _rows(sqlite_router) as rows:

        @sqlite_router.task
        def work(lease: Lease) -> None:
            with lease.transaction() as connection:
                connection.execute("insert into effects values (?)", [lease.job_id])
                lease.complete("with its row", connection=connection)

        for number in range(10):
            work.options(id=f"j{number}").add()
        with working(sqlite_router) as worker:
            until(lambda: worker.tally.settled == 10, "all")

        assert sorted(rows()) == sorted(f"j{number}" for number in range(10))


@contextmanager
def _rows(router: Router) -> Iterator[Callable[[], list[str]]]:
    """A table of effects beside the jobs, and a function that reads it."""
    assert router.url is not None
    connection = sqlite3.connect(router.url.removeprefix("sqlite:///").partition("?")[0])
    try:
        connection.execute("create table effects (job_id text)")
        connection.commit()
        yield lambda: [job_id for (job_id,) in connection.execute("select job_id from effects")]
    finally:
        connection.close()


def test_settled_is_no_refusal_for_who_says_the_same_again(router: Router) -> None:
    """The outcome of the handler's own verb was unknown, and it raised: the store says that it had happened."""
    store = Tampered(router.store)
    first = iter([True])

    @router.task(retry=Retry(max_errors=1))
    def work(lease: Lease) -> None:
        lease.complete("happened")

    def settle(real: Any, settlements: Any) -> Any:
        replies = real(settlements)
        if next(first, False):
            assert settlements[0].outcome is Outcome.COMPLETE
            raise StoreUnavailable("committed, and the reply is lost")
        assert isinstance(replies[0], Settled)
        return replies

    store.tampers["settle"] = settle
    work.options(id="a").add()
    with working(router, store=store) as worker:
        until(lambda: worker.tally.settled == 1, "it")

    assert router.job("a").result == "happened"
    assert worker.tally.refused == worker.tally.failed == 0
