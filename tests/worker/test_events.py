"""`@router.on`: code hears what happens to jobs in the workers of its process, and delays none of it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import kept

from leasehold import InvalidArgument, Lease, Retry, Router, Status, StoreIncompatible
from leasehold.store import Refusal
from leasehold.testing import ManualClock
from leasehold.worker import events
from leasehold.worker.events import NAMES, Cancelled, Failed, Lost, Observers, Refused, Settled
from leasehold.worker.run import Run

from .staging import PATIENCE, Gate, Tampered, ended, has_looked, our_threads, with_status, working

ONCE = Retry(max_errors=1)


class Heard:
    """A listener for every event."""

    def __init__(self, router: Router, *names: str) -> None:
        self.events: list[Any] = []
        for name in names or NAMES.values():
            router.on(name)(self._hear)

    def _hear(self, event: Any) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return [NAMES[type(event)] for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        """Those of one kind."""
        return [event for event in self.events if type(event) is kind]


def test_a_job_that_is_done_is_claimed_started_and_settled(any_router: Router) -> None:
    heard = Heard(any_router)

    @any_router.task
    def work() -> None:
        pass

    work.options(id="a").add()
    with working(any_router):
        ended(any_router, "a")

    assert heard.names == ["claimed", "started", "settled"]
    assert {event.lease.job_id for event in heard.events} == {"a"}
    assert heard.events[-1].outcome == "done"


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_an_error_is_settled_as_retried_and_the_last_one_is_failed_too(router: Router, kind: str) -> None:
    heard = Heard(router, "settled", "failed")
    retry = Retry(max_errors=2, delay_seconds=0)

    if kind == "thread":

        @router.task(name="work", retry=retry)
        def plain() -> None:
            raise ZeroDivisionError("no")

    else:

        @router.task(name="work", retry=retry)
        async def asynchronous() -> None:
            raise ZeroDivisionError("no")

    router.add("a", task="work", retry=retry)
    with working(router):
        with_status(router, "a", Status.FAILED)

    assert [event.outcome for event in heard.of(Settled)] == ["retried", "failed"]
    assert [type(event.error) for event in heard.of(Settled)] == [ZeroDivisionError] * 2
    [failed] = heard.of(Failed)
    assert failed.job == router.job("a")
    assert failed.job.error_message == "no"


def test_started_is_when_the_handler_begins_and_not_when_it_waits_for_a_slot(router: Router) -> None:
    heard, gate = Heard(router, "claimed", "started"), Gate()

    @router.task
    def work() -> None:
        gate.pass_by()

    with working(router, concurrency=1) as worker:
        worker._claimer._ahead = lambda: 3  # type: ignore[method-assign]  # as after many fast handlers
        router.add_many([{"id": f"j{n}", "task": "work"} for n in range(3)])
        gate.wait_for()
        until(lambda: heard.names.count("claimed") == 3, "three to be claimed")
        assert heard.names.count("started") == 1
        gate.open()
        ended(router, "j0", "j1", "j2")

    assert heard.names.count("started") == 3


def test_a_handler_that_fails_its_job_itself_is_heard(router: Router) -> None:
    heard = Heard(router, "settled", "failed")

    @router.task
    def work(lease: Lease) -> None:
        lease.fail("by hand", retry=False)

    work.options(id="a").add()
    with working(router):
        with_status(router, "a", Status.FAILED)

    assert [event.outcome for event in heard.of(Settled)] == ["settled"]
    assert [event.job.error_message for event in heard.of(Failed)] == ["by hand"]


def test_a_cancelled_job_is_lost_and_cancelled() -> None:
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:
        heard = Heard(router, "lost", "refused", "cancelled", "failed")

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            router.cancel(router.job("a"), by="operator", note="not needed")
            until(lambda: has_looked(worker, clock), "both keepers to sleep")
            clock.advance(11)
            until(lambda: "cancelled" in heard.names, "the event")
            gate.open()

        assert heard.names == ["lost", "cancelled"]
        [cancelled] = heard.of(Cancelled)
        assert (cancelled.refusal.moved_by, cancelled.refusal.note) == ("operator", "not needed")


class Losing(NamedTuple):
    """A job that was cancelled while its handler runs on a thread, and what the keepers of its worker call."""

    lost: Callable[[Refusal | None], None]
    refusal: Refusal
    heard: Heard


@contextmanager
def losing() -> Iterator[Losing]:
    """Run such a job; no keeper of the worker has noticed the loss so far. At the end every event was heard."""
    clock, gate = ManualClock(), Gate()
    with Router(clock=clock) as router:
        heard = Heard(router, "lost", "cancelled")

        @router.task
        def work() -> None:
            gate.pass_by()

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            [run] = worker.runner.runs.in_flight()
            router.cancel(router.job("a"), by="operator")
            [refusal] = router.store.check([("a", run.lease.epoch)])
            assert refusal is not None
            yield Losing(partial(worker.runner.lost, run), refusal, heard)
            gate.open()


@contextmanager
def meanwhile(text: str, call: Callable[[], None]) -> Iterator[None]:
    """Make *call* on a second thread, once, while the first one writes a log line that contains *text*."""
    second = threading.Thread(target=call)

    def hold(record: logging.LogRecord) -> bool:
        if text in record.getMessage() and second.ident is None:
            second.start()
            second.join(PATIENCE)
            assert not second.is_alive(), "the second thread waits for the first"
        return True

    log = logging.getLogger("leasehold.worker")
    log.addFilter(hold)
    try:
        yield
    finally:
        log.removeFilter(hold)
    assert second.ident is not None, f"nothing was logged with {text!r}"


def test_two_refusals_at_once_are_heard_once() -> None:
    """The refusal of a renewal, and that of a progress report, come from two threads."""
    with losing() as job, meanwhile("is lost", lambda: job.lost(job.refusal)):
        job.lost(job.refusal)

    assert job.heard.names == ["lost", "cancelled"]


def test_a_deadline_is_not_heard_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch has seen a run that executes; before it reports the deadline, the renewer is refused."""
    watch = threading.get_ident()
    undecided: property = vars(Run)["is_undecided"]
    with losing() as job, monkeypatch.context() as patch:
        renewer = threading.Thread(target=job.lost, args=[job.refusal])

        def paused(run: Run) -> bool:
            found = bool(undecided.__get__(run))
            if threading.get_ident() == watch and renewer.ident is None:
                renewer.start()
                renewer.join(PATIENCE)
            return found

        patch.setattr(Run, "is_undecided", property(paused))
        job.lost(None)
        assert renewer.ident is not None

    assert [event.refusal for event in job.heard.of(Lost)] == [job.refusal]


def test_a_refusal_during_the_report_of_a_deadline_is_heard_after_it() -> None:
    """It adds the reason; a deadline after it would take the reason away."""
    with losing() as job, meanwhile("was not renewed in time", lambda: job.lost(job.refusal)):
        job.lost(None)

    assert [event.refusal for event in job.heard.of(Lost)] == [None, job.refusal]


def test_a_settlement_that_is_refused_is_heard(router: Router) -> None:
    heard, gate = Heard(router, "lost", "refused", "cancelled", "settled"), Gate()

    @router.task
    def work() -> None:
        gate.pass_by()

    work.options(id="a").add()
    with working(router) as worker:
        gate.wait_for()
        router.transfer(router.job("a"), to="agent-b", by="operator", lease_seconds=3600)
        gate.open()
        until(lambda: worker.tally.refused == 1, "the refusal")

    assert heard.names == ["refused"]
    [refused] = heard.of(Refused)
    assert refused.refusal.owner == "agent-b"


def test_a_lease_that_is_not_renewed_in_time_is_lost_without_a_refusal() -> None:
    clock, gate = ManualClock(), Gate()
    with Router() as router:
        heard = Heard(router, "lost")
        store = Tampered(router.store)

        @router.task
        def work() -> None:
            gate.pass_by()

        def renew(real: Any, *args: Any) -> Any:
            from leasehold import StoreUnavailable

            raise StoreUnavailable("away")

        store.tampers["renew"] = renew
        work.options(id="a", lease_seconds=9).add()
        with working(router, store=store, steady=clock) as worker:
            gate.wait_for()
            until(lambda: has_looked(worker, clock), "both keepers to sleep")
            clock.advance(10)
            until(lambda: heard.names, "the event")
            gate.open()
            ended(router, "a")

        assert [event.refusal for event in heard.of(Lost)] == [None]


# Listeners


def test_a_slow_listener_delays_no_job_and_an_exception_is_logged(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    gate, after = Gate(), []

    @router.on("settled")
    def slow(event: Settled) -> None:
        gate.pass_by()
        raise SystemExit("a slip")

    @router.on("settled")
    def second(event: Settled) -> None:
        after.append(event.lease.job_id)

    @router.task
    def work() -> None:
        pass

    for number in range(20):
        work.options(id=f"j{number}").add()
    with working(router) as worker:
        ended(router, *(f"j{n}" for n in range(20)))
        gate.wait_for()
        assert after == []
        gate.open()
        until(lambda: len(after) == 20, "the second listener")

    assert worker.tally.done == 20
    assert caplog.text.count("raised an error when it got a 'settled' event") == 20
    assert "SystemExit: a slip" in caplog.text


def test_without_a_listener_there_is_no_thread_for_them(router: Router) -> None:
    @router.task
    def work() -> None:
        raise ZeroDivisionError

    work.options(id="a", retry=ONCE).add()
    with working(router):
        with_status(router, "a", Status.FAILED)
        assert "leasehold-events" not in our_threads()


def test_listeners_that_fall_far_behind_lose_events_and_not_memory(
    router: Router, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "_MOST", 5)
    gate, heard = Gate(), []

    def listener(event: Any) -> None:
        gate.pass_by()
        heard.append(event)

    observers = Observers(router.store, {"lost": [listener]})
    lost = Lost(None, None)  # type: ignore[arg-type]  # whatever it is about
    observers.put(lost)
    gate.wait_for()
    for _ in range(20):
        observers.put(lost)
    gate.open()
    observers.close(PATIENCE)
    observers.put(lost)

    assert len(heard) == 6
    assert caplog.text.count("dropping events until they catch up") == 1


@pytest.mark.parametrize("name", ["finished", "Failed", "", None])
def test_an_unknown_event_is_answered_with_those_that_there_are(router: Router, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="claimed, started, settled, refused, lost, failed, cancelled"):
        router.on(name)(print)


async def _async_listener(event: Any) -> None:
    """Not called."""


@pytest.mark.parametrize("listener", [None, lambda: None, lambda one, two: None, _async_listener])
def test_what_cannot_be_a_listener_is_refused_at_once(router: Router, listener: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"@router\.on\('failed'\)"):
        router.on("failed")(listener)


# What upkeep fails


def test_what_a_claim_of_the_worker_fails_is_heard_at_most_once() -> None:
    """Its owner is silent, and its last reclaim is spent."""
    clock = ManualClock()
    with Router(clock=clock) as router:
        heard = Heard(router, "failed")
        router.add("a", retry=Retry(max_reclaims=0), queue="other")
        router.add("b", retry=Retry(max_reclaims=1), queue="other")
        assert len(router.claim_many("silent", lease_seconds=5)) == 2
        with working(router, steady=clock, queues=["default"]), working(router, steady=clock, queues=["default"]):
            clock.advance(6)
            with_status(router, "a", Status.FAILED)
            until(lambda: heard.events, "the event")

        assert [event.job.id for event in heard.events] == ["a"]
        assert router.job("b").status is Status.PENDING


def test_what_upkeep_fails_is_logged_like_a_handlers_last_error(caplog: pytest.LogCaptureFixture) -> None:
    """Also without a listener, and only what has failed for good."""
    clock = ManualClock()
    with Router(clock=clock) as router:
        router.add("a", task="send", retry=Retry(max_reclaims=0), queue="other")
        router.add("b", task="send", retry=Retry(max_reclaims=1), queue="other")
        assert len(router.claim_many("silent", lease_seconds=5)) == 2
        with working(router, steady=clock, queues=["default"]):
            clock.advance(6)
            with_status(router, "a", Status.FAILED)
        job = router.job("a")

    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage() == f"job 'a' (send) failed for good, after 1 reclaim: {job.error_message}"
    assert (vars(line)["job_id"], vars(line)["task"], vars(line)["owner"]) == ("a", "send", "silent")


def test_what_upkeep_fails_is_not_logged_where_it_cannot_be_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a role that may not read jobs: without a listener, nothing but that line is lost."""
    clock = ManualClock()
    with Router(clock=clock) as router:
        router.add("a", retry=Retry(max_reclaims=0), queue="other")
        router.claim("silent", lease_seconds=5)
        with working(router, steady=clock, queues=["default"]):
            monkeypatch.setattr(router.store, "job", lambda _: (_ for _ in ()).throw(StoreIncompatible("no right")))
            clock.advance(6)
            until(lambda: router.counts().failed == 1, "the failure")

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_was_reclaimed_here_and_failed_elsewhere_is_not_heard_here() -> None:
    clock = ManualClock()
    with Router(clock=clock) as router:
        heard = Heard(router, "failed")
        router.add("a", retry=Retry(max_reclaims=1, max_errors=1), queue="other")
        router.claim("silent", lease_seconds=5)
        clock.advance(6)
        router.reclaim()
        other = router.claim("elsewhere")
        assert other is not None
        other.fail("there")
        with working(router, steady=clock, queues=["default"]):
            pass

        assert router.job("a").status is Status.FAILED
        assert heard.events == []


class Site(NamedTuple):
    """A store that other processes can reach."""

    url: str
    schema: str


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        yield Site(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", "leasehold")
    else:
        place = Place(url_of(NEWEST))
        try:
            store = place.store()
            yield Site(store.database.url, store.database.schema)
        finally:
            place.clear()


VICTIM = """
import os, signal, sys
from leasehold import Router

router = Router(sys.argv[1], schema=sys.argv[2])

@router.task
def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

router.work(concurrency=1)
"""


def test_a_job_that_has_killed_its_workers_is_heard_once_by_the_process_that_failed_it(site: Site) -> None:
    """Two workers look after the store; one of them finds the last worker of the job dead, and only that one hears."""
    with ExitStack() as stack:
        routers = [stack.enter_context(Router(site.url, schema=site.schema)) for _ in range(2)]
        heard = [Heard(router, "failed") for router in routers]
        routers[0].add("a", task="deadly", retry=Retry(max_reclaims=1), queue="deadly")
        for _ in range(2):
            command = [sys.executable, "-c", VICTIM, site.url, site.schema]
            assert subprocess.run(command, timeout=PATIENCE_SECONDS, check=False).returncode == -9
        for router in routers:
            stack.enter_context(working(router, queues=["default"]))
        with_status(routers[0], "a", Status.FAILED)
        until(lambda: heard[0].events or heard[1].events, "the event")
    # The workers have stopped, and what they had to hear they have heard.
    [failed] = heard[0].events + heard[1].events
    assert (failed.job.id, failed.job.reclaims) == ("a", 2)
    assert "is gone" in failed.job.error_message


def test_the_crash_of_a_process_that_was_the_last_is_heard(tmp_path: Path) -> None:
    with kept(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", tmp_path):
        router = tasks.router
        heard: list[Failed] = []
        hear = heard.append
        router.on("failed")(hear)
        try:
            router.add_many([tasks.crashes.options(id="j", retry=Retry(max_reclaims=0)).job("kill", str(tmp_path))])
            with working(router, concurrency=1):
                with_status(router, "j", Status.FAILED)
                until(lambda: heard, "the event")
        finally:
            router._listeners["failed"].remove(hear)
        assert [event.job.id for event in heard] == ["j"]


def test_many_threads_emit_and_each_event_is_heard_once(router: Router) -> None:
    heard: list[Any] = []
    observers = Observers(router.store, {"lost": [heard.append]})

    def emit(number: int) -> None:
        for step in range(100):
            observers.put(Lost((number, step), None))  # type: ignore[arg-type]  # whatever it is about

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    observers.close(PATIENCE)

    assert sorted(event.lease for event in heard) == [(number, step) for number in range(4) for step in range(100)]
