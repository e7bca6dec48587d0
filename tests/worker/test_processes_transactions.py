"""Handlers in processes of their own that open `lease.transaction()`, and do not always come to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import done, is_running, kept, named, router
from tests.worker.staging import working

from leasehold import Router, Status, UnknownJob
from leasehold.stores.postgres import PostgresStore
from leasehold.testing import ManualClock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PostgresStore]:
    """A store on a server, with a table of the handler's beside it; the router of the tasks uses it."""
    place = Place(url_of(NEWEST))
    try:
        made = place.store()
        with place.connect(made, autocommit=True) as connection:
            connection.execute("create table results (job text primary key)")
        with kept(made.database.url, tmp_path, made.database.schema):
            yield made
    finally:
        place.clear()


def begun(folder: Path) -> int:
    """Add the job, and return the process that is inside its block, once it is."""
    router.add_many([tasks.holds_a_block.options(id="j", lease_seconds=600).job(str(folder))])
    [pid] = until(lambda: named(folder, "began"))
    assert isinstance(pid, int)
    return pid


def has_child() -> bool:
    """Whether the job's child is there."""
    try:
        router.job("j/child")
    except UnknownJob:
        return False
    return True


def count(store: PostgresStore) -> int:
    """How many rows of the handler's are committed."""
    with psycopg.connect(store.database.url) as connection:
        [(found,)] = connection.execute("select count(*) from results").fetchall()
    return int(found)


def test_rows_child_report_and_completion_of_a_process_are_one_commit(store: PostgresStore, tmp_path: Path) -> None:
    """Before the COMMIT nothing of it is seen, and after it all of it."""
    with router.worker(concurrency=1):
        begun(tmp_path)
        assert (count(store), has_child(), router.job("j").progress) == (0, False, None)
        (tmp_path / "go").touch()
        [job] = done("j")
    assert (job.status, job.result, job.progress, job.checkpoint) == (Status.DONE, "in the block", 0.5, {"rows": 1})
    assert (count(store), has_child()) == (1, True)


@pytest.mark.parametrize("ended", [False, True], ids=["at its COMMIT", "by the end of its session"])
def test_a_transfer_refuses_the_block_of_a_process(store: PostgresStore, tmp_path: Path, ended: bool) -> None:
    """The process is told, nothing of its block is there, and the next owner finds the job as it was before."""
    with (
        working(router, steady=ManualClock(), concurrency=1) as worker,
        Router(store.database.url, schema=store.database.schema) as operator,
    ):
        pid = begun(tmp_path)
        if not ended:
            assert isinstance(operator.store, PostgresStore)
            assert isinstance(router.store, PostgresStore)
            for one in (operator.store, router.store):
                one.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # as one that dies right after
        mine = operator.transfer(operator.job("j"), to="somebody", by="test", lease_seconds=600)
        (tmp_path / "go").touch()
        until(lambda: (tmp_path / "refused").exists())
        until(lambda: worker.tally.refused)
        assert is_running(pid)  # it has not been killed for that, and may take the next job
        assert "moved by 'test'" in (tmp_path / "refused").read_text()
        assert (count(store), has_child()) == (0, False)
        job = router.job("j")
        assert (job.status, job.owner, job.checkpoint) == (Status.RUNNING, "somebody", None)
        mine.complete("mine")
    assert store.verify() == []


def test_a_process_that_is_killed_inside_its_block_leaves_nothing(store: PostgresStore, tmp_path: Path) -> None:
    """Neither rows nor locks: the server rolls back at once, and the job counts a crash."""
    with router.worker(concurrency=1) as worker:
        pid = begun(tmp_path)
        os.kill(pid, signal.SIGKILL)
        [job] = done("j")
    assert worker.tally.crashed == 1  # counted by the end of the worker, and maybe after the job can be read
    assert (job.status, job.reclaims) == (Status.FAILED, 1)
    assert "SIGKILL" in (job.last_error or "")
    assert (job.result, job.progress, job.checkpoint, has_child()) == (None, None, None, False)
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        # It would wait for the transaction of the process if that were still open.
        connection.execute("set lock_timeout = '60s'")
        connection.execute("insert into results values ('j')")
    assert count(store) == 1
    assert store.verify() == []
