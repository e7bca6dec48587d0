"""Reports of progress: a worker writes the newest of each job once a second; a checkpoint is written at once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres.fixtures import Place
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import kept

from leasehold import Event, Lease, Router, StaleEpoch, Status, StoreUnavailable
from leasehold.core.job import Progress
from leasehold.testing import ManualClock
from leasehold.worker.worker import Worker

from .staging import PATIENCE, Gate, Tampered, ended, with_status, working


class Stage:
    """One handler that does what the test tells it, step by step, in a worker whose time the test moves."""

    def __init__(self, router: Router, clock: ManualClock, **options: Any) -> None:
        self.router = router
        self.clock = clock
        self.store = Tampered(router.store)
        self._steps: list[Callable[[Lease], object]] = []
        self._turn = threading.Semaphore(0)
        self._over = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._options = options

        @router.task
        def work(lease: Lease) -> None:
            while True:
                assert self._turn.acquire(timeout=PATIENCE)
                step = self._steps.pop(0) if self._steps else None
                if step is None:
                    return
                try:
                    step(lease)
                except BaseException as error:
                    self._failure = error
                self._over.release()

        self._work = work

    def begin(self) -> None:
        """Add the job."""
        self._work.options(id="a", **self._options).add()

    def do(self, step: Callable[[Lease], object]) -> None:
        """Have the handler take a step, and raise what it raised."""
        self._steps.append(step)
        self._turn.release()
        assert self._over.acquire(timeout=PATIENCE)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def end(self) -> None:
        """Have the handler return."""
        self._turn.release()

    @property
    def written(self) -> list[list[tuple[float | None, str | None]]]:
        """What was sent to the store, call by call."""
        return [[(report.fraction, report.note) for report in call[0]] for call in self.store.asked["progress"]]


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    url = None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with Router(url, clock=clock) as router:
        yield Stage(router, clock)


def rested(worker: Worker, clock: ManualClock) -> bool:
    """Return whether the writer has looked at what the clock shows now, and sleeps."""
    writer = worker.runner.progress
    return bool(writer._woken._waiters) and clock.now() < writer._until  # type: ignore[attr-defined]  # who waits


def refused_reports(router: Router) -> list[Event]:
    """Return what was refused, but for the question whether the handler has settled its job."""
    return [event for event in router.events(kind="refused") if event.facts["verb"] != "check"]


def test_a_worker_writes_the_newest_report_of_a_job_once_a_second(stage: Stage) -> None:
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        stage.begin()
        stage.do(lambda lease: lease.progress(0.1, note="first"))
        for step in range(2, 60):
            stage.do(lambda lease: lease.progress(step / 100))  # noqa: B023 (it is called at once)
        until(lambda: rested(worker, stage.clock), "the writer to sleep")
        stage.clock.advance(0.9)
        until(lambda: rested(worker, stage.clock), "the writer to look")
        assert stage.written == []

        stage.clock.advance(0.2)
        until(lambda: stage.written, "a report")
        until(lambda: stage.router.job("a").progress == 0.59, "the newest")
        assert stage.router.job("a").note == "first", "what a newer report leaves open stays"

        stage.do(lambda lease: lease.progress(0.7))
        stage.do(lambda lease: lease.progress(0.8))
        until(lambda: rested(worker, stage.clock), "the writer to sleep")
        stage.clock.advance(1.1)
        until(lambda: stage.router.job("a").progress == 0.8, "the second")
        assert stage.written == [[(0.59, "first")], [(0.8, None)]]
        stage.end()
        ended(stage.router, "a")

    assert len(stage.written) == 2


def test_what_waits_is_written_before_the_job_is_settled(stage: Stage) -> None:
    with working(stage.router, store=stage.store, steady=stage.clock):
        stage.begin()
        stage.do(lambda lease: lease.progress(0.5, note="half"))
        stage.end()
        [job] = ended(stage.router, "a")

    assert (job.progress, job.note) == (0.5, "half")
    assert stage.written == [[(0.5, "half")]]
    assert refused_reports(stage.router) == []


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
def test_and_before_the_handler_settles_it(stage: Stage, how: str) -> None:
    settle: dict[str, Callable[[Lease], None]] = {
        "complete": lambda lease: lease.complete("mine"),
        "fail": lambda lease: lease.fail("no", retry=False),
        "release": lambda lease: lease.release(delay_seconds=3600),
    }
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        stage.begin()
        stage.do(lambda lease: lease.progress(0.5))
        stage.do(settle[how])
        assert stage.router.job("a").progress == 0.5
        stage.end()
        until(lambda: worker.tally.settled == 1, "its end")

    assert stage.written == [[(0.5, None)]]
    assert refused_reports(stage.router) == []


def test_a_checkpoint_is_durable_on_return_and_takes_along_what_waits(stage: Stage) -> None:
    with working(stage.router, store=stage.store, steady=stage.clock):
        stage.begin()
        stage.do(lambda lease: lease.progress(0.4, note="far"))
        stage.do(lambda lease: lease.progress(checkpoint={"row": 4}))
        job = stage.router.job("a")
        assert (job.progress, job.note, job.checkpoint) == (0.4, "far", {"row": 4})
        stage.end()
        ended(stage.router, "a")

    assert stage.written == [[(0.4, "far")]], "one transaction, and the older report does not come after it"


def test_a_checkpoint_waits_for_an_older_report_that_is_being_written(stage: Stage) -> None:
    """Else the older one might be committed after it, and be what readers see."""
    gate = Gate()

    def slow(real: Any, reports: list[Progress]) -> Any:
        if reports[0].checkpoint is None:
            gate.pass_by()
        return real(reports)

    stage.store.tampers["progress"] = slow
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        stage.begin()
        stage.do(lambda lease: lease.progress(0.1))
        until(lambda: rested(worker, stage.clock), "the writer to sleep")
        stage.clock.advance(1.1)
        gate.wait_for()
        doing = threading.Thread(target=lambda: stage.do(lambda lease: lease.progress(0.9, checkpoint=1)))
        doing.start()
        until(lambda: worker.runner.progress._changed._waiters, "the handler to wait")  # type: ignore[attr-defined]  # who waits
        gate.open()
        doing.join()
        assert stage.router.job("a").progress == 0.9
        stage.end()
        ended(stage.router, "a")


def test_a_refused_report_is_told_by_the_lease_and_by_its_next_verb(stage: Stage) -> None:
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        stage.begin()
        stage.do(lambda lease: lease.progress(0.5))
        stage.router.transfer(stage.router.job("a"), to="agent-b", by="operator", lease_seconds=3600)
        stage.do(lambda lease: lease.progress(0.6))  # nobody has asked the store yet
        until(lambda: rested(worker, stage.clock), "the writer to sleep")
        stage.clock.advance(1.1)
        until(lambda: worker.tally.refused == 1, "it to be noticed")

        lost: list[bool] = []
        stage.do(lambda lease: lost.append(lease.lost))
        assert lost == [True]
        with pytest.raises(StaleEpoch, match="agent-b"):
            stage.do(lambda lease: lease.progress(0.7))
        stage.end()

    job = stage.router.job("a")
    assert (job.owner, job.progress) == ("agent-b", None)


def test_the_store_is_away_and_the_newest_report_is_written_later(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    away.set()

    def tamper(real: Any, reports: list[Progress]) -> Any:
        if away.is_set():
            raise StoreUnavailable("away")
        return real(reports)

    stage.store.tampers["progress"] = tamper
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        stage.begin()
        stage.do(lambda lease: lease.progress(0.1, note="kept"))
        for _ in range(3):
            sent = len(stage.written)
            until(lambda: rested(worker, stage.clock), "the writer to sleep")
            stage.clock.advance(1.1)
            until(lambda: len(stage.written) > sent, "another try")  # noqa: B023 (it is called at once)
        stage.do(lambda lease: lease.progress(0.2))
        away.clear()
        until(lambda: rested(worker, stage.clock), "the writer to sleep")
        stage.clock.advance(1.1)
        until(lambda: stage.router.job("a").progress == 0.2, "the newest")
        stage.end()
        [job] = ended(stage.router, "a")

    assert job.note == "kept"
    assert [text for text in caplog.messages if "could not write 1 progress report; retrying" in text] != []


def test_the_store_is_away_when_the_handler_ends_and_nothing_is_lost(stage: Stage) -> None:
    fails = [StoreUnavailable("away")] * 2

    def tamper(real: Any, reports: list[Progress]) -> Any:
        if fails:
            raise fails.pop()
        return real(reports)

    stage.store.tampers["progress"] = tamper
    with working(stage.router, store=stage.store):
        stage.begin()
        stage.do(lambda lease: lease.progress(0.5))
        stage.end()
        [job] = ended(stage.router, "a")

    assert job.progress == 0.5
    assert job.errors == job.reclaims == 0


def test_a_report_that_cannot_be_written_does_not_keep_its_job_from_being_settled(stage: Stage) -> None:
    def tamper(real: Any, reports: list[Progress]) -> Any:
        raise RuntimeError("a defect")

    stage.store.tampers["progress"] = tamper
    with working(stage.router, store=stage.store, steady=stage.clock):
        stage.begin()
        stage.do(lambda lease: lease.progress(0.5))
        stage.end()
        ended(stage.router, "a")


@pytest.mark.parametrize(("stall_seconds", "within"), [(0.9, 0.3), (2.4, 0.8), (600, 1.1)])
def test_a_report_is_written_within_a_third_of_its_stall_seconds(stall_seconds: float, within: float) -> None:
    clock = ManualClock()
    with Router(clock=clock) as router:
        stage = Stage(router, clock, stall_seconds=stall_seconds)
        with working(router, store=stage.store, steady=clock) as worker:
            stage.begin()
            for _ in range(6):  # twice as long as it may be silent
                stage.do(lambda lease: lease.progress())
                sent = len(stage.written)
                until(lambda: rested(worker, clock), "the writer to sleep")
                clock.advance(within)
                until(lambda: len(stage.written) > sent, "the report")  # noqa: B023 (it is called at once)
                router.reclaim()
            stage.end()
            [job] = ended(router, "a")
        assert job.reclaims == 0


def test_where_a_job_may_hardly_be_silent_each_report_is_written_at_once() -> None:
    clock = ManualClock()
    with Router(clock=clock) as router:
        stage = Stage(router, clock, stall_seconds=0.1)
        with working(router, store=stage.store, steady=clock):
            stage.begin()
            for step in range(3):
                stage.do(lambda lease: lease.progress(step / 10))  # noqa: B023 (it is called at once)
            assert len(stage.written) == 3
            stage.end()
            ended(router, "a")


def test_by_hand_each_report_is_written_at_once(any_router: Router) -> None:
    any_router.add("a")
    lease = any_router.claim("by hand")
    assert lease is not None
    for step in (1, 2, 3):
        lease.progress(step / 10)
        assert any_router.job("a").progress == step / 10


def test_an_async_handler_has_its_reports_written_together(router: Router) -> None:
    store = Tampered(router.store)

    @router.task
    async def work(lease: Lease) -> None:
        for step in range(1, 11):
            await lease.aio.progress(step / 10)

    work.options(id="a").add()
    with working(router, store=store, steady=ManualClock()):
        [job] = ended(router, "a")

    assert job.progress == 1.0
    assert len(store.asked["progress"]) == 1


def test_many_jobs_are_one_transaction(router: Router) -> None:
    clock, store, gate = ManualClock(), Tampered(router.store), Gate()

    @router.task
    def work(lease: Lease) -> None:
        lease.progress(0.5)
        gate.pass_by()

    for number in range(8):
        work.options(id=f"j{number}").add()
    with working(router, store=store, steady=clock, concurrency=8) as worker:
        gate.wait_for(8)
        until(lambda: rested(worker, clock), "the writer to sleep")
        clock.advance(1.1)
        until(lambda: store.asked["progress"], "the reports")
        assert [len(call[0]) for call in store.asked["progress"]] == [8]
        gate.open()
        ended(router, *(f"j{n}" for n in range(8)))


def test_a_handler_that_had_its_time_is_refused_at_its_next_report() -> None:
    clock, gate, raised = ManualClock(), Gate(), []
    with Router(clock=clock) as router:

        @router.task(run_seconds=10)
        def work(lease: Lease) -> None:
            gate.pass_by()
            try:
                lease.progress(0.5)
            except StaleEpoch as error:
                raised.append(error)
                raise

        work.options(id="a").add()
        with working(router, steady=clock) as worker:
            gate.wait_for()
            until(lambda: worker.runner.watch._woken._waiters, "the watch to sleep")  # type: ignore[attr-defined]  # who waits
            clock.advance(11)
            with_status(router, "a", Status.PENDING)
            gate.open()
            until(lambda: raised, "the refusal")


# In transactions


def test_what_waits_is_written_before_a_transaction_and_what_is_inside_is_part_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with Router(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", clock=clock) as router:
        stage = Stage(router, clock)

        def rolled_back(lease: Lease) -> None:
            with lease.transaction():
                lease.progress(0.9)
                raise ZeroDivisionError

        def committed(lease: Lease) -> None:
            with lease.transaction():
                lease.progress(0.7, note="inside")

        with working(router, store=stage.store, steady=clock):
            stage.begin()
            stage.do(lambda lease: lease.progress(0.2))
            with pytest.raises(ZeroDivisionError):
                stage.do(rolled_back)
            assert router.job("a").progress == 0.2
            stage.do(lambda lease: lease.progress(0.3))
            stage.do(committed)
            assert (router.job("a").progress, router.job("a").note) == (0.7, "inside")
            stage.end()
            [job] = ended(router, "a")

        assert job.progress == 0.7
        assert refused_reports(router) == []


@pytest.mark.parametrize("settles", [False, True])
def test_with_a_connection_what_waits_is_part_of_the_callers_transaction(tmp_path: Path, settles: bool) -> None:
    """On SQLite, a separate write would wait for the caller's own transaction."""
    clock, path = ManualClock(), tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}?synchronous=normal&busy_seconds=1", clock=clock) as router:
        stage = Stage(router, clock)

        def joined(lease: Lease) -> None:
            connection = sqlite3.connect(path)
            try:
                connection.execute("create table if not exists rows (id)")
                connection.execute("insert into rows values (1)")
                if settles:
                    lease.complete(connection=connection)
                else:
                    lease.progress(checkpoint={"row": 1}, connection=connection)
                connection.commit()
            finally:
                connection.close()

        with working(router, store=stage.store, steady=clock):
            stage.begin()
            stage.do(lambda lease: lease.progress(0.2, note="waits"))
            stage.do(joined)
            job = router.job("a")
            assert (job.progress, job.note) == (0.2, "waits")
            stage.end()
            [job] = ended(router, "a")

        assert stage.written == []
        assert job.checkpoint == (None if settles else {"row": 1})
        assert refused_reports(router) == []


@pytest.mark.parametrize("how", ["progress", "complete", "block"])
def test_on_postgresql_what_waits_is_part_of_the_callers_transaction(place: Place, how: str) -> None:
    store, clock = place.store(), ManualClock()
    with Router(store.database.url, schema=store.database.schema, lease_seconds=3600) as router:
        stage = Stage(router, clock)

        def joined(lease: Lease) -> None:
            if how == "block":
                with lease.transaction():
                    lease.complete()
                return
            with place.connect(store) as connection:
                if how == "complete":
                    lease.complete(connection=connection)
                else:
                    lease.progress(checkpoint={"row": 1}, connection=connection)

        with working(router, store=stage.store, steady=clock):
            stage.begin()
            stage.do(lambda lease: lease.progress(0.2, note="waits"))
            stage.do(joined)
            job = router.job("a")
            assert (job.progress, job.note) == (0.2, "waits")
            stage.end()
            [job] = ended(router, "a")

        assert len(stage.written) == (1 if how == "block" else 0)
        assert job.checkpoint == ({"row": 1} if how == "progress" else None)
        assert refused_reports(router) == []


# In a process


def test_reports_of_a_process_are_written_together_and_before_it_is_settled(tmp_path: Path) -> None:
    with kept(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", tmp_path):
        router = tasks.router
        store = Tampered(router.store)
        router.add_many([tasks.reports_often.options(id="j").job(200)])
        with working(router, store=store, steady=ManualClock(), concurrency=1):
            [job] = ended(router, "j")
        assert (job.result, job.progress, job.note) == ("reported", 1.0, "step 200")
        reports = [report for call in store.asked["progress"] for report in call[0]]
        assert [(report.fraction, report.checkpoint) for report in reports] == [(0.5, '{"step":100}'), (1.0, None)]


def test_a_process_that_settles_its_job_has_its_report_written_first(tmp_path: Path) -> None:
    with kept(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", tmp_path):
        router = tasks.router
        router.add_many([tasks.reports_and_settles.options(id=how).job(how) for how in ("complete", "transaction")])
        with working(router, steady=ManualClock(), concurrency=1) as worker:
            until(lambda: worker.tally.settled == 2, "both")
        jobs = ended(router, "complete", "transaction")
        assert [(job.progress, job.result) for job in jobs] == [(0.5, "mine"), (0.5, "mine")]
        assert refused_reports(router) == [], "what it reports after that is refused at once, and is not sent"
