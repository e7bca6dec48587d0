"""Transfers to workers in processes of their own, on each store that processes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until

from leasehold import Conflict, Reason, Router, Status, WorkerStatus

from .staging import ended, with_status

HERE = Path(__file__).parent


class Scene(NamedTuple):
    """A store, the processes that work on it, and the folder in which their handlers wait."""

    router: Router
    schema: str
    folder: Path
    processes: ExitStack

    def start(self, name: str, task: str = "gated") -> WorkerStatus:
        """Start a worker, and return how it has reported itself."""
        top = HERE.parents[1]
        assert self.router.url is not None
        command = [
            sys.executable,
            str(HERE / "recipient.py"),
            self.router.url,
            self.schema,
            name,
            str(self.folder),
            task,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top / "src"), str(top)])}
        before = {worker.name for worker in self.router.workers()}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        self.processes.callback(process.wait, PATIENCE_SECONDS)
        self.processes.callback(process.kill)
        until(lambda: {worker.name for worker in self.router.workers()} - before, "the worker to report")
        [started] = [worker for worker in self.router.workers() if worker.name not in before]
        assert started.process is None or started.process.pid == process.pid
        return started

    def hand(self, to: str, job_id: str = "a") -> int:
        """Transfer a new job that is not due, and return the epoch."""
        self.router.add(job_id, {}, task="gated", delay_seconds=3600)
        return self.router.transfer(self.router.job(job_id), to=to, by="ops").epoch

    def begun(self, job_id: str, worker: WorkerStatus) -> None:
        """Wait until the job has begun there."""
        until((self.folder / f"begun-{job_id}-{worker.name}").exists, f"{job_id} to begin")

    def open(self) -> None:
        """Let all handlers end."""
        (self.folder / "open").touch()


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A store of each kind."""
    with ExitStack() as end:
        if request.param == "sqlite":
            url, schema = f"sqlite:///{tmp_path}/jobs.db", "leasehold"
        else:
            place = Place(url_of(NEWEST))
            end.callback(place.clear)
            database = place.store().database
            url, schema = database.url, database.schema
        router = end.enter_context(Router(url, schema=schema, lease_seconds=3600))
        processes = end.enter_context(ExitStack())
        yield Scene(router, schema, tmp_path, processes)
        assert router.verify() == []


def test_a_transfer_to_an_idle_worker(scene: Scene) -> None:
    """It has the job long before a lease has passed, under the transfer's epoch and at the price of nothing."""
    worker = scene.start("shop")
    scene.open()

    epoch = scene.hand("shop")

    [job] = ended(scene.router, "a")
    assert (job.result, job.epoch, job.reclaims, job.attempt) == (worker.name, epoch, 0, 0)


def test_a_transfer_to_a_full_worker(scene: Scene) -> None:
    """It is picked up at once, and begins when the slot is free."""
    worker = scene.start("shop")
    scene.hand("shop", "first")
    scene.begun("first", worker)

    epoch = scene.hand(worker.name)

    until(lambda: not scene.router.store.transfers(worker.name), "the transfer to be picked up")
    assert scene.router.job("a").epoch == epoch
    scene.open()
    [job] = ended(scene.router, "a")
    assert (job.result, job.epoch, job.reclaims) == (worker.name, epoch, 0)


def test_a_running_job_moves_to_another_process(scene: Scene) -> None:
    """While its first owner, which is full, has it."""
    first, second = scene.start("first"), scene.start("second")
    scene.hand("first")
    scene.begun("a", first)

    scene.router.transfer(scene.router.job("a"), to="second", by="ops")

    scene.begun("a", second)
    scene.open()
    [job] = ended(scene.router, "a")
    assert (job.result, job.reclaims) == (second.name, 0)


def test_a_transfer_to_a_worker_that_does_not_know_the_task(scene: Scene) -> None:
    """It goes back at the price of nothing."""
    scene.start("shop", task="another")

    scene.hand("shop")

    until(lambda: scene.router.events("a", kind="released"), "it to be handed back")
    job = scene.router.job("a")
    assert (job.status, job.reclaims, job.errors) == (Status.PENDING, 0, 0)


def test_a_transfer_to_a_worker_that_is_stopping(scene: Scene) -> None:
    """It goes back at once, and the worker is gone from the list once it has ended."""
    worker = scene.start("shop")
    scene.hand("shop", "first")
    scene.begun("first", worker)
    pid = int(worker.name.split(":")[-2])
    os.kill(pid, signal.SIGTERM)
    # Which it says nowhere: what is pending, its claims leave alone; the slot is held by the first job.
    scene.hand(worker.name)
    job = with_status(scene.router, "a", Status.PENDING)

    assert (job.reason, job.reclaims, job.errors) == (Reason.RELEASE, 0, 0)
    scene.open()
    ended(scene.router, "first")
    until(lambda: not scene.router.workers(), "the worker to retire")


def test_a_transfer_to_a_name_that_two_workers_have(scene: Scene) -> None:
    """It is refused with the names to choose from, and each of them works."""
    first, second = scene.start("shop"), scene.start("shop")
    scene.router.add("a", {}, task="gated", delay_seconds=3600)

    with pytest.raises(Conflict) as refused:
        scene.router.transfer(scene.router.job("a"), to="shop", by="ops")

    assert all(repr(worker.name) in str(refused.value) for worker in (first, second))
    scene.open()
    scene.router.transfer(scene.router.job("a"), to=second.name, by="ops")
    assert ended(scene.router, "a")[0].result == second.name


def test_a_worker_that_dies_with_a_transfer_is_noticed_at_once(scene: Scene) -> None:
    """Its process was recorded at the pick-up, so nobody waits for the deadline; that counts a reclaim."""
    worker = scene.start("shop")
    scene.hand("shop")
    scene.begun("a", worker)

    os.kill(int(worker.name.split(":")[-2]), signal.SIGKILL)

    until(lambda: scene.router.reclaim(), "the death to be noticed")
    job = scene.router.job("a")
    assert (job.reason, job.reclaims) == (Reason.RECOVERY, 1)
