"""How processes of handlers end: real processes, real signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import done, is_running, kept, named, now, renewed, router
from tests.worker.staging import has_looked, working

from leasehold import Retry, Status, StoreUnavailable
from leasehold.lease import worker_side
from leasehold.tasks.task import AnyTask, Unbindable
from leasehold.testing import ManualClock
from leasehold.worker.calling import Crashed, End
from leasehold.worker.executors.process import supervisor
from leasehold.worker.executors.process.pool import Processes
from leasehold.worker.executors.process.supervisor import Killed
from leasehold.worker.run import Run, Runs, State


@pytest.fixture(autouse=True)
def _store(tmp_path: Path) -> Iterator[None]:
    """A store of each test's own."""
    with kept(f"sqlite:///{tmp_path}/jobs.db", tmp_path):
        yield


def test_a_crash_counts_a_reclaim_and_the_job_is_due_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not an error, and no back-off; the log says how the process ended, and so does the job's history."""
    says = {
        "exit": "ended with exit code 3",
        "segfault": "was ended by SIGSEGV",
        "kill": "was ended by SIGKILL",
    }
    with router.worker(concurrency=1) as worker:
        for how, text in says.items():
            job = now(tasks.crashes.options(lease_seconds=600).job(f"first {how}", str(tmp_path)))
            assert (job.result, job.errors, job.reclaims, job.attempt) == ("survived", 0, 1, 1)
            assert text in caplog.text
            assert text in (router.store.ownerships(job.id)[0].note or "")
            (tmp_path / "ran").unlink()
    assert worker.tally.crashed == 3
    until(lambda: not is_running(int((tmp_path / "program").read_text())))  # what the handler had started


def test_a_poison_job_fails_when_its_budget_is_spent_and_takes_nobody_with_it(tmp_path: Path) -> None:
    """Another job runs beside it all the time, in a process of its own."""
    poison = tasks.crashes.options(id="poison", retry=Retry(max_reclaims=1)).job("exit", str(tmp_path))
    router.add_many([tasks.waits.options(id="beside").job(str(tmp_path)), poison])
    with router.worker(concurrency=2) as worker:
        done("poison")
        (tmp_path / "go").touch()
        done("beside")
    job = router.job("poison")
    assert (job.status, job.reclaims) == (Status.FAILED, 2)
    how = "the process of the handler ended with exit code 3; that was reclaim 2, and max_reclaims is 1"
    assert job.last_error == how
    assert (tmp_path / "ran").read_text() == "xx"
    assert router.job("beside").result == "went"
    assert worker.tally.crashed == 2
    assert router.store.verify() == []


def test_a_process_that_dies_before_a_handler_began_is_replaced_and_costs_nobody_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While it is idle, which is noticed at once, and when it has got a job and not looked at it yet."""
    with router.worker(concurrency=1) as worker:
        one = now(tasks.pid.job())
        os.kill(one.result, signal.SIGKILL)
        until(lambda: "an idle handler process was ended by SIGKILL" in caplog.text)
        other = now(tasks.pid.job())
        os.kill(other.result, signal.SIGSTOP)
        [added] = router.add_many([tasks.pid.job()])
        until(lambda: [run for run in worker.runner.runs.undecided() if run.handle is not None])
        os.kill(other.result, signal.SIGKILL)
        [third] = done(added.job.id)
    assert len({one.result, other.result, third.result}) == 3
    for job in (other, third):
        assert (job.reclaims, job.errors, job.attempt) == (0, 0, 0)


def test_a_process_that_was_reaped_elsewhere_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where SIGCHLD is ignored, which a supervisor may hand down, nobody learns how a process ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with router.worker(concurrency=1) as worker:
            one = now(tasks.pid.job())
            os.kill(one.result, signal.SIGKILL)
            until(lambda: "an idle handler process was ended" in caplog.text)
            assert now(tasks.pid.job()).result != one.result
            job = now(tasks.crashes.options(lease_seconds=600).job("first exit", str(tmp_path)))
            assert (job.result, job.errors, job.reclaims) == ("survived", 0, 1)
            assert worker.health().consuming
        assert multiprocessing.active_children() == []
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_place_that_fails_is_left_and_another_one_takes_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pipe is closed: what is written to it would go to whoever has opened something meanwhile."""
    with router.worker(concurrency=1) as worker:
        one = now(tasks.pid.job())
        with monkeypatch.context() as broken:
            broken.setattr(supervisor.Supervisor, "_rest", lambda place: 1 / 0)
            now(tasks.pid.job())
            until(lambda: "the thread that supervises a handler process failed" in caplog.text)
        until(lambda: not is_running(one.result))
        assert now(tasks.pid.job()).result != one.result
        assert worker.health().consuming


def test_a_handler_that_has_had_its_time_is_killed_and_its_place_is_free(tmp_path: Path) -> None:
    """An error is counted, and a new process takes the next job."""
    over, after = (added.job.id for added in router.add_many([tasks.lasts.job(str(tmp_path)), tasks.double.job(2)]))
    with router.worker(concurrency=1):
        late, next_one = done(over, after)
    assert (late.status, late.errors, late.reclaims) == (Status.FAILED, 1, 0)
    assert "run_seconds, 0.2" in (late.last_error or "")
    assert next_one.result == 4
    assert not (tmp_path / "outlived").exists()
    assert not any(map(is_running, named(tmp_path, "began")))


def test_a_handler_whose_lease_is_lost_is_killed(tmp_path: Path) -> None:
    """Somebody else has the job: nothing is settled, and nothing of the handler is left."""
    clock = ManualClock()
    router.add_many([tasks.waits.options(id="j", lease_seconds=600).job(str(tmp_path))])
    with working(router, steady=clock, concurrency=1) as worker:
        [pid] = until(lambda: named(tmp_path, "began"))
        until(lambda: has_looked(worker, clock))
        mine = router.transfer(router.job("j"), to="somebody", by="test", lease_seconds=600)
        clock.advance(201)  # a renewal is due
        until(lambda: not is_running(pid))
        until(lambda: worker.tally.refused)
        assert now(tasks.double.job(7)).result == 14
    mine.complete("mine")
    assert router.job("j").result == "mine"
    assert not (tmp_path / "outlived").exists()


def test_what_a_handler_has_started_is_killed_with_it(tmp_path: Path) -> None:
    """The worker hands the job back when its grace is over."""
    router.add_many([tasks.starts.options(id="j").job(str(tmp_path))])
    with router.worker(concurrency=1, grace_seconds=0):
        [pid] = until(lambda: named(tmp_path, "began"))
    program = int((tmp_path / "program").read_text())
    until(lambda: not is_running(program))
    assert not is_running(pid)
    assert (router.job("j").status, router.job("j").errors, router.job("j").reclaims) == (Status.PENDING, 0, 0)


def test_a_signal_for_everybody_is_left_to_the_worker(tmp_path: Path) -> None:
    """Ctrl-C at a terminal, or a service manager that tells every process: a handler may still finish."""
    router.add_many([tasks.waits.options(id="j").job(str(tmp_path))])
    with router.worker(concurrency=1):
        [pid] = until(lambda: named(tmp_path, "began"))
        assert os.getpgid(pid) == pid != os.getpgid(0)  # so Ctrl-C does not even reach it
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        (tmp_path / "go").touch()
        done("j")
    assert (router.job("j").result, router.job("j").attempt) == ("went", 0)


def test_progress_in_the_process_keeps_a_job_from_stalling(tmp_path: Path) -> None:
    """The worker hears of it, and goes on renewing."""
    clock = ManualClock()
    with working(router, steady=clock, concurrency=1) as worker:
        now(tasks.double.job(7))  # so that there is a process: its beginning counts, too
        job = tasks.stalls_no_more.options(id="j", lease_seconds=600, stall_seconds=300).job(str(tmp_path))
        router.add_many([job])
        until(lambda: named(tmp_path, "began"))
        [run] = worker.runner.runs.undecided()
        for _ in range(4):  # a second renewal would be one too many for a job that says nothing
            moves = worker_side.moves(run.lease)
            until(lambda: worker_side.moves(run.lease) > moves)  # noqa: B023 (it is called at once)
            renewed(worker, clock, "j")
        (tmp_path / "go").touch()
        done("j")
    assert (router.job("j").result, router.job("j").reclaims) == ("moved", 0)


def test_a_process_that_is_slow_to_begin_keeps_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed, and its `run_seconds` have not begun."""
    monkeypatch.setenv("LEASEHOLD_TEST_BEGIN", str(tmp_path / "begin"))
    monkeypatch.setattr(tasks.double, "run_us", 1)
    clock = ManualClock()
    router.add_many([tasks.double.options(id="j", lease_seconds=600).job(1)])
    with working(router, steady=clock, concurrency=1) as worker:
        # Not before its supervisor has it: a run that nobody has taken is handed back when the clock moves.
        [run] = until(lambda: [run for run in worker.runner.runs.undecided() if run.state is State.EXECUTING])
        renewed(worker, clock, "j")
        assert run.began_us is None
        monkeypatch.setattr(tasks.double, "run_us", None)
        (tmp_path / "begin").touch()
        done("j")
    assert (router.job("j").result, router.job("j").attempt) == (2, 0)


def open_ends() -> Counter[str]:
    """What is open here other than a file of the store, how often: pipes, sockets, handles of processes."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return Counter(what for what in found if not what.startswith("/"))


def test_processes_leave_nothing_behind(tmp_path: Path) -> None:
    """No open file, no thread, no zombie: after results, crashes and kills."""
    resource_tracker.ensure_running()  # which Python keeps
    files, threads = open_ends(), set(threading.enumerate())
    jobs = [
        tasks.double.job(1),
        tasks.crashes.options(id="c").job("first kill", str(tmp_path)),
        tasks.lasts.job(str(tmp_path)),
    ]
    ids = [added.job.id for added in router.add_many(jobs)]
    with router.worker(concurrency=3):
        done(*ids)
    until(lambda: set(threading.enumerate()) <= threads)
    assert not open_ends() - files  # what an earlier test left open may be closed meanwhile
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    lived = [*named(tmp_path, "lives"), *named(tmp_path, "began")]
    assert not {int(pid) for pid in children} & set(lived)
    assert not any(Path(f"/proc/{pid}").exists() for pid in lived if pid != os.getpid())


def test_an_idle_process_ends_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own way out, so that its lifespans are left."""
    monkeypatch.setattr(supervisor, "IDLE_SECONDS", 0.05)
    [added] = router.add_many([tasks.pid.job()])
    with router.worker(concurrency=1):
        [job] = done(added.job.id)
        until(lambda: not Path(f"/proc/{job.result}").exists())
        assert job.result in named(tmp_path, "ended")


# The executor by itself


@pytest.fixture
def ends() -> list[tuple[str, End]]:
    """What was told about the runs, by the ids of their jobs."""
    return []


@pytest.fixture
def executor(ends: list[tuple[str, End]]) -> Iterator[Processes]:
    """One place for a process."""

    def began(run: Run) -> None:
        run.began_us = 1

    made = Processes(1, began, lambda run, end: ends.append((run.lease.job_id, end)))
    yield made
    made.close()


def claimed(task: AnyTask, id: str, *args: object) -> Run:
    """A run of a job that a worker would have claimed."""
    router.add_many([task.options(id=id).job(*args)])
    lease = router.claim("worker")
    assert lease is not None
    return Run(Runs(), worker_side.grant_of(lease), lease, task, 0, 0)


def test_a_run_that_is_stopped_is_told_once(executor: Processes, ends: list[tuple[str, End]], tmp_path: Path) -> None:
    """While it runs, again, and after its end. One that the worker has handed back before it began is not begun."""
    runs = [claimed(tasks.waits, "runs", str(tmp_path)), claimed(tasks.double, "waits", 1)]
    executor.start(runs)
    until(lambda: named(tmp_path, "began"))
    assert runs[1].transition(State.WAITING, State.SETTLING)
    assert executor.stop(runs[0])
    until(lambda: ends)
    for run in runs * 2:
        assert executor.stop(run)
    after = claimed(tasks.double, "after", 4)
    executor.start([after])
    until(lambda: len(ends) == 2)
    assert [(id, type(end.error)) for id, end in ends] == [("runs", Killed), ("after", type(None))]
    assert ends[1][1].document == "8"


def test_a_handler_that_cannot_begin_counts_against_no_budget(
    executor: Processes, ends: list[tuple[str, End]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another deploy may bring what is missing, so the job goes back, as one whose arguments do not fit."""
    says = {
        "no_such_module": "No module named 'no_such_module'",
        "json": "module json has no task 'double'",
        "tests.worker.process_dies": "ended with exit code 7 before the handler began",
    }
    for nth, (module, text) in enumerate(says.items()):
        monkeypatch.setattr(tasks.double, "module", module)
        executor.start([claimed(tasks.double, module, 1)])
        until(lambda: len(ends) > nth)  # noqa: B023  # it is called here
        assert isinstance(ends[nth][1].error, Unbindable)
        assert text in str(ends[nth][1].error)


def test_a_handler_that_closes_everything_has_crashed(executor: Processes, ends: list[tuple[str, End]]) -> None:
    """Nobody could hear its result."""
    executor.start([claimed(tasks.hangs_up, "j")])
    until(lambda: ends)
    assert isinstance(ends[0][1].error, Crashed)


def test_an_error_that_cannot_be_sent_does_not_say_that_nothing_happened() -> None:
    """The store of the worker failed in a way that it does not know; leasehold's own errors are sent as they are."""

    class Local(Exception):
        """Which no other process can import."""

    sent = supervisor._sendable(Local("odd"))

    assert isinstance(sent, StoreUnavailable)
    assert (str(sent), sent.outcome_unknown) == ("Local: odd", True)
    assert supervisor._sendable(sent) is sent
