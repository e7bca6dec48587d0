"""What a handler in a process of its own can do: the same as on a thread."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until
from tests.worker import process_hooks  # noqa: F401  # gives the router a hook
from tests.worker import process_tasks as tasks
from tests.worker.processes import done, kept, named, now, router

from leasehold import Status
from leasehold.worker.worker import Worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the jobs are, and what the processes leave behind."""
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    """One worker, and one process, for all tests that do not end it."""
    with kept(f"sqlite:///{folder}/jobs.db", folder), router.worker(concurrency=1) as worker:
        yield worker


@pytest.mark.usefixtures("worker")
def test_a_handler_runs_in_another_process_which_is_used_again() -> None:
    """A process costs a fifth of a second: the second job does not pay it."""
    one, other = now(tasks.pid.job()), now(tasks.pid.job())
    assert one.result == other.result != os.getpid()


def test_results_and_errors_come_back(worker: Worker) -> None:
    """An error that cannot be pickled, too, with its place; its class is judged in the process that knows it."""
    jobs = [tasks.double.job(21), tasks.errs.job("final"), tasks.errs.job("else"), tasks.ignorant.job(1)]
    two, final, later, unkept = (added.job.id for added in router.add_many(jobs))
    done(two, final, unkept)
    until(lambda: router.job(later).errors)
    assert router.job(two).result == 42
    assert (router.job(final).status, router.job(final).errors) == (Status.FAILED, 1)
    waits = router.job(later).run_at - router.job(later).updated_at
    assert 76 <= waits.total_seconds() <= 78  # what the task's own delay says for that class
    text = router.job(later).last_error or ""
    assert text.startswith("tests.worker.process_tasks.Hopeless: of no use\n")
    assert "in errs" in text
    assert router.job(later).error_type == "tests.worker.process_tasks.Hopeless"
    assert router.job(later).error_message == "of no use"
    assert "the result of task 'ignorant'" in (router.job(unkept).last_error or "")


@pytest.mark.usefixtures("worker")
def test_only_the_exceptions_that_the_task_names_are_tried_again() -> None:
    """Their classes are known where the task is imported."""
    only, other = (added.id for added in router.add_many([tasks.picky.job("only"), tasks.picky.job("other")]))
    done(only, other)
    assert [(router.job(id).status, router.job(id).errors) for id in (only, other)] == [
        (Status.FAILED, 2),
        (Status.FAILED, 1),
    ]


def test_hooks_run_in_the_process_and_its_lifespan_is_once_for_all_its_jobs(worker: Worker, folder: Path) -> None:
    """It is a worker's process. Hooks that another module than the task's gives to the router are there, too."""
    first = now(tasks.hooks.options(id="a").job())
    second = now(tasks.hooks.options(id="b").job())
    assert first.result[0] == "lifespan"
    assert first.result[-2:] == ["before a", "elsewhere a"]
    assert second.result == [*first.result, "after a", "before b", "elsewhere b"]
    assert second.result.count("lifespan") == 1
    assert not [line for line in tasks.seen if line != "lifespan"]  # the worker's own process runs no handler
    assert now(tasks.pid.job()).result in named(folder, "lives")


def verbs_work() -> None:
    """Every verb of a lease has done what it does on a thread."""
    job = now(tasks.verbs.options(id="j").job())
    assert job.result == {
        "renewed": True,
        "child": "j/child",
        "adopted": "j",
        "same": True,
        "current": True,
        "detached": None,
        "read": "running",
    }
    assert (job.progress, job.note, job.checkpoint) == (0.5, "half", {"page": 4})
    assert router.job("j/child").payload == {"n": 1}
    assert router.job("detached").task == "double"


@pytest.mark.usefixtures("worker")
def test_every_verb_of_a_lease_works_in_the_process() -> None:
    """The worker executes them."""
    verbs_work()


def test_the_memory_store_of_the_worker_is_used_from_the_process(tmp_path: Path) -> None:
    """Which has none of its own; only transactions are not there, as ever."""
    with kept(None, tmp_path), router.worker(concurrency=1):
        verbs_work()
        assert "the memory store has none" in (now(tasks.rows.job("rows only")).last_error or "")


def test_a_process_whose_router_is_for_another_database_opens_no_transaction_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else works, since the worker does it."""
    with kept(f"sqlite:///{tmp_path}/jobs.db", tmp_path):
        monkeypatch.setenv("LEASEHOLD_TEST_URL", f"sqlite:///{tmp_path}/another.db")
        with router.worker(concurrency=1):
            verbs_work()
            assert "a transaction needs the same database" in (now(tasks.rows.job("rows only")).last_error or "")
    assert not (tmp_path / "another.db").exists()


@pytest.mark.usefixtures("worker")
def test_several_threads_of_a_handler_may_use_the_lease() -> None:
    """Each gets the reply to its own call."""
    assert now(tasks.many_threads.job()).result == [0, 1, 2, 3]


def test_a_handler_may_settle_its_job_itself(worker: Worker) -> None:
    """The worker knows, and what is returned afterwards changes nothing."""
    before = worker.tally.settled
    job = now(tasks.settles.job())
    until(lambda: worker.tally.settled > before)
    assert (job.result, worker.tally.refused) == ("by hand", 0)


WRITES = [
    ("rows only", Status.DONE, 1),
    ("with the job", Status.DONE, 1),
    ("swallowed", Status.FAILED, 0),
    ("joined", Status.DONE, 1),
    ("refused", Status.DONE, 0),  # the router's verbs are not part of the block
]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("how", "status", "written"), WRITES)
def test_a_handler_writes_its_own_rows_with_the_job(how: str, status: Status, written: int, folder: Path) -> None:
    """On a connection of the process; what was rolled back is not taken for settled."""
    job = now(tasks.rows.job(how))
    assert job.status == status, job.last_error
    if how == "swallowed":
        assert "did not commit" in (job.last_error or "")
    connection = sqlite3.connect(folder / "jobs.db")
    connection.execute("create table if not exists results (job text)")
    rows = connection.execute("select count(*) from results where job = ?", (job.id,)).fetchone()[0]
    connection.close()
    assert rows == written


def test_a_handler_writes_its_own_rows_on_postgresql(tmp_path: Path) -> None:
    """Its process has a connection of its own there, too, and the verbs in its block run in the process."""
    place = Place(url_of(NEWEST))
    try:
        store = place.store()
        with (
            place.connect(store, autocommit=True) as reader,
            kept(store.database.url, tmp_path, store.database.schema),
            router.worker(concurrency=1),
        ):
            reader.execute("create table results (job text)")
            for how, status, written in WRITES:
                job = now(tasks.rows.job(how))
                assert job.status == status, job.last_error
                assert reader.execute("select count(*) from results where job = %s", [job.id]).fetchone() == (written,)
    finally:
        place.clear()


@pytest.mark.usefixtures("worker")
def test_a_refusal_in_the_process_is_a_refusal_for_the_worker() -> None:
    """It asks the store, which knows better: the job is still its own, and has an error."""
    job = now(tasks.stale.job())
    assert (job.status, job.errors) == (Status.FAILED, 1)


@pytest.mark.usefixtures("worker")
def test_a_payload_that_does_not_fit_goes_back() -> None:
    """Another deploy may know it: no budget is touched."""
    [added] = router.add_many([{"payload": {"m": 1}, "task": "double"}])
    until(lambda: router.events(id=added.job.id, kind="released"))
    job = router.job(added.job.id)
    assert (job.status, job.errors, job.reclaims) == (Status.PENDING, 0, 0)
