"""A deployment under way: an old and a new worker, two programs, on one queue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until

from leasehold import Router, Status

HERE = Path(__file__).parent
JOBS = 100


class Deployment(NamedTuple):
    """A store that several processes share, and a router on it."""

    url: str
    schema: str
    router: Router

    @contextmanager
    def worker(self, release: str) -> Iterator[None]:
        """Run the worker of a release, from when it is up."""
        command = [sys.executable, str(HERE / "deployed.py"), self.url, self.schema, release]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield
            process.communicate()
        assert process.returncode == 0


@pytest.fixture(params=["sqlite", "postgres"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """On a file, and on a server."""
    if request.param == "sqlite":
        url, schema = f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", "leasehold"
        with Router(url) as router:
            yield Deployment(url, schema, router)
        return
    place = Place(url_of(NEWEST))
    try:
        database = place.store().database
        with Router(database.url, schema=database.schema) as router:
            yield Deployment(database.url, database.schema, router)
    finally:
        place.clear()


def test_jobs_that_only_the_new_worker_knows_all_run_and_spend_nothing(deployment: Deployment) -> None:
    """Whichever of the two meets them first; jobs that both know run beside them."""
    shared = deployment.router
    with deployment.worker("old"), deployment.worker("new"):
        for number in range(JOBS):
            shared.add(f"new-{number}", task="added_later")
            shared.add(f"common-{number}", task="common")
        until(lambda: shared.counts().done == 2 * JOBS, "all to be done")

    jobs = [shared.job(f"new-{number}") for number in range(JOBS)]
    assert {(job.attempt, job.errors, job.reclaims, job.result) for job in jobs} == {(0, 0, 0, "new")}
    assert shared.store.verify() == []


def test_jobs_wait_behind_their_task_until_a_worker_that_knows_it_comes(deployment: Deployment) -> None:
    """The old worker alone parks all of them, once, and goes on with its own; the new one finds them there."""
    shared = deployment.router
    with deployment.worker("old"):
        shared.add_many([{"id": f"new-{number}", "task": "added_later", "priority": 1} for number in range(JOBS)])
        shared.add("common", task="common")
        until(lambda: shared.job("common").status is Status.DONE, "its own job to be done")
        parked = [shared.job(f"new-{number}").parked for number in range(JOBS)]
        assert {(one.kind, one.behind, one.by.partition(":")[0]) for one in parked if one} == {
            ("task", "added_later", "old")
        }
        assert None not in parked
        assert shared.counts().parked == {"added_later": {"default": JOBS}}
        with deployment.worker("new"):
            until(lambda: shared.counts().done == JOBS + 1, "all to be done")

    jobs = [shared.job(f"new-{number}") for number in range(JOBS)]
    assert {(job.attempt, job.errors, job.reclaims, job.parked) for job in jobs} == {(0, 0, 0, None)}
