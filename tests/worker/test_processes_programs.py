"""Whole programs with handlers in processes: who holds the interpreter's lock, who gets a signal, who is killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import done, is_running, kept, named, renewed, router
from tests.worker.staging import working

from leasehold import Reason, Router, Status, StoreUnavailable
from leasehold.testing import ManualClock

HERE = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path) -> Iterator[None]:
    """A store of each test's own."""
    with kept(f"sqlite:///{tmp_path}/jobs.db", tmp_path):
        yield


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """What a handler reads from while it holds the lock."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def let_go(fifo: Path) -> None:
    """Make the handler that reads go on."""
    with fifo.open("wb", buffering=0) as file:
        file.write(b"!")


def is_held(fifo: Path) -> bool:
    """Whether the handler has come so far."""
    return Path(f"{fifo}.held").exists()


def is_done(job_id: str) -> bool:
    """Whether the job is done."""
    return router.job(job_id).status is Status.DONE


@contextmanager
def program(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs by itself, in a process group of its own."""
    path = folder / "program.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{text}")
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen([sys.executable, str(path)], stderr=stderr, text=True, start_new_session=True) as running,
    ):
        try:
            yield running
        finally:
            running.kill()


def test_a_handler_that_holds_the_interpreters_lock_in_a_process_is_never_taken_over(fifo: Path) -> None:
    """The worker renews for it, whatever it does."""
    clock = ManualClock()
    router.add_many([tasks.holds.options(id="j", lease_seconds=600).job(str(fifo))])
    with working(router, steady=clock, concurrency=1) as worker:
        until(lambda: is_held(fifo))
        renewed(worker, clock, "j", times=4)
        let_go(fifo)
        done("j")
    assert (router.job("j").result, router.job("j").attempt) == ("held", 0)


def test_a_handler_that_holds_it_on_a_thread_is_taken_over_and_its_late_result_is_refused(
    fifo: Path, tmp_path: Path
) -> None:
    """Nothing is renewed meanwhile: the whole worker stands still. It does no harm."""
    text = "from tests.worker.process_tasks import router\nrouter.work(concurrency=1, name='late')\n"
    with program(tmp_path, text) as worker, Router(f"sqlite:///{tmp_path}/jobs.db?busy_seconds=2") as successor:
        for number in itertools.count():
            job_id = f"j{number}"
            router.add_many([tasks.holds_thread.options(id=job_id, lease_seconds=0.5).job(str(fifo))])
            until(lambda: is_held(fifo))
            try:
                mine = successor.claim("other", wait_seconds=PATIENCE_SECONDS, lease_seconds=600)
                break
            except StoreUnavailable:
                # Another thread of the worker stands still inside a write. Let it go on, and hold the lock again. The
                # lease has expired meanwhile, so its own worker may take the job back and run it once more.
                while not is_done(job_id):
                    Path(f"{fifo}.held").unlink()
                    let_go(fifo)
                    until(lambda: is_done(job_id) or is_held(fifo))  # noqa: B023  # called at once
        assert mine is not None
        assert mine.reason == Reason.TIMEOUT
        let_go(fifo)
        until(lambda: router.events(id=job_id, kind="refused"))
        mine.complete("mine")
        worker.terminate()
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert router.job(job_id).result == "mine"


MAIN = """
import os
from pathlib import Path

from leasehold import Router
from tests.worker.process_tasks import told

router = Router(os.environ["LEASEHOLD_TEST_URL"])


@router.task(process=True)
def main_waits(folder: str) -> str:
    from tests.worker.process_tasks import waits
    return waits(folder) + " in " + __name__


if __name__ == "__main__":
    router.work(concurrency=1)
"""


def test_a_task_of_the_main_module_outlives_ctrl_c_until_the_worker_has_let_it_end(tmp_path: Path) -> None:
    """The terminal's signal reaches the worker alone, which waits for its handlers."""
    router.add("j", {"folder": str(tmp_path)}, task="main_waits")
    with program(tmp_path, MAIN) as worker:
        [pid] = until(lambda: named(tmp_path, "began"))
        os.killpg(worker.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert router.job("j").result == "went in __mp_main__"
    assert not is_running(pid)


def test_processes_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    """With what their handlers have started. The job is free at once, since its owner is known to be gone."""
    router.add_many([tasks.starts.options(id="j").job(str(tmp_path))])
    text = "from tests.worker.process_tasks import router\nif __name__ == '__main__':\n    router.work(concurrency=1)\n"
    with program(tmp_path, text) as worker:
        [pid] = until(lambda: named(tmp_path, "began"))
        worker.kill()
        until(lambda: not is_running(pid))
        started = int((tmp_path / "program").read_text())
        until(lambda: not is_running(started))
        worker.wait(PATIENCE_SECONDS)
        router.reclaim()
        mine = router.claim("other", wait_seconds=PATIENCE_SECONDS)
    assert mine is not None
    assert mine.reason == Reason.RECOVERY


@pytest.mark.parametrize("before", ["", "main_waits.add('nowhere')", "main_waits.options(id='k').add('nowhere')"])
def test_a_program_that_does_not_guard_its_main_module_ends_with_one_sentence(tmp_path: Path, before: str) -> None:
    """A process imports it, and must not become a second worker, nor add its jobs again; no job is harmed."""
    router.add("j", {"folder": str(tmp_path)}, task="main_waits")
    text = MAIN.replace('if __name__ == "__main__":', f"{before}\nif True:")
    with program(tmp_path, text) as worker:
        assert worker.wait(PATIENCE_SECONDS) == 1
    said = (tmp_path / "stderr").read_text()
    assert said.count("Traceback") == 1
    last = said.splitlines()[-1]
    assert "Unsupported: no process can start for task 'main_waits'" in last
    assert 'put the code that starts the program under `if __name__ == "__main__":`' in last
    assert "arguments do not fit" not in said
    jobs = router.jobs()
    assert len(jobs) == 1 + bool(before)
    assert {(job.status, job.errors, job.reclaims) for job in jobs} == {(Status.PENDING, 0, 0)}


def test_a_worker_in_the_background_stops_claiming_and_says_why_if_the_main_module_is_not_guarded(
    tmp_path: Path,
) -> None:
    """Its `with` block ends with the error."""
    router.add("j", {"folder": str(tmp_path)}, task="main_waits")
    text = MAIN.replace('if __name__ == "__main__":', "if True:").replace(
        "router.work(concurrency=1)",
        "import time\n    with router.worker(concurrency=1) as worker:\n"
        "        while worker.health().consuming: time.sleep(0.01)\n",
    )
    with program(tmp_path, text) as worker:
        assert worker.wait(PATIENCE_SECONDS) == 1
    assert "Unsupported: no process can start" in (tmp_path / "stderr").read_text().splitlines()[-1]


def test_a_program_that_forgets_to_stop_its_worker_ends_all_the_same(tmp_path: Path) -> None:
    """Python waits for processes at its exit; these are killed before."""
    router.add_many([tasks.waits.options(id="j").job(str(tmp_path))])
    text = (
        "import glob, time\nfrom tests.worker.process_tasks import router\n"
        "if __name__ == '__main__':\n    router.worker(concurrency=1).start()\n"
        f"    while not glob.glob({str(tmp_path / 'began-*')!r}): time.sleep(0.01)\n"
    )
    with program(tmp_path, text) as worker:
        assert worker.wait(PATIENCE_SECONDS) == 0
    [pid] = named(tmp_path, "began")
    assert not is_running(pid)
