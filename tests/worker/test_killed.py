"""
Workers that are killed and stopped at random, and effects that happen exactly once all the same.

Four processes work; each job writes a row and completes in one transaction. They are killed and started again, or
stopped for longer than a lease and woken, until every job is done. The long form is `-m soak`.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, Place, path_of, url_of
from tests.support import until

from leasehold import Retry, Router, Status

HERE = Path(__file__).parent
WORKERS = 4
SHORT = (160, 0.1, 0.25)  # jobs; how many seconds one takes, and how many pass between two blows, on average
LONG = (5000, 0.16, 0.8)  # a minute, on a machine that has nothing else to do


class Scene(NamedTuple):
    """A store with a table of effects in the same database."""

    url: str
    schema: str
    rows: Callable[[], list[tuple[str, int, int]]]


@pytest.fixture
def sqlite_scene(tmp_path: Path) -> Scene:
    """A file."""
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table effects (job_id text, epoch int, number int)")
        connection.commit()

    def rows() -> list[tuple[str, int, int]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("select job_id, epoch, number from effects").fetchall()

    return Scene(f"sqlite:///{path}", "leasehold", rows)


@pytest.fixture
def postgres_scene() -> Iterator[Scene]:
    """A schema on a server."""
    place = Place(url_of(NEWEST))
    try:
        store = place.store()
        with place.connect(store, autocommit=True) as connection:
            connection.execute(
                f"create table {path_of(store.database.url)}.effects (job_id text, epoch bigint, number int)"
            )

            def rows() -> list[tuple[str, int, int]]:
                return connection.execute("select job_id, epoch, number from effects").fetchall()  # type: ignore[return-value]

            yield Scene(store.database.url, store.database.schema, rows)
    finally:
        place.clear()


class Crew:
    """The processes, and what is done to them."""

    def __init__(self, scene: Scene, nap_seconds: float, blow_seconds: float, seed: int) -> None:
        self._command = [sys.executable, str(HERE / "effecter.py"), scene.url, scene.schema, str(nap_seconds)]
        top = HERE.parents[1]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top / "src"), str(top)])}
        self._random = random.Random(seed)
        self._blow_seconds = blow_seconds
        self._woken_at: dict[int, float] = {}  # those that are stopped, by number
        self.killed = 0
        self.stopped = 0
        self._processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL)

    def harm(self) -> None:
        """Do something to one of them."""
        number = self._random.randrange(WORKERS)
        if number not in self._woken_at:
            if self._random.random() < 0.4:
                self._kill(number)
            else:
                self._processes[number].send_signal(signal.SIGSTOP)
                self._woken_at[number] = time.monotonic() + self._random.uniform(0.3, 2.0)  # a lease lasts for 0.8 s
                self.stopped += 1
        time.sleep(self._random.uniform(0.3, 1.7) * self._blow_seconds)

    def woken(self) -> bool:
        """Let those go on whose time has come, and return True."""
        for number, at in list(self._woken_at.items()):
            if time.monotonic() >= at:
                self._processes[number].send_signal(signal.SIGCONT)
                del self._woken_at[number]
        return True

    def kill_an_owner(self, router: Router) -> bool:
        """Kill a process that has begun jobs, and return whether there was one."""
        owners = {job.owner.split(":")[1] for job in router.jobs(status=Status.RUNNING) if job.owner}
        for number, process in enumerate(self._processes):
            if str(process.pid) in owners:
                self._kill(number)
                return True
        return False

    def _kill(self, number: int) -> None:
        process = self._processes[number]
        assert process.poll() is None, f"a worker ended by itself with {process.returncode}"
        process.kill()
        process.wait()
        self._processes[number] = self._start()
        self.killed += 1

    def end(self) -> list[int]:
        """Tell all to stop, and return how they ended."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            return [process.wait(PATIENCE_SECONDS) for process in self._processes]
        finally:
            for process in self._processes:
                process.kill()
                process.wait()


def harmed(scene: Scene, count: int, nap_seconds: float, blow_seconds: float, seed: int) -> None:
    """Run that many jobs under harm, and look at what came of it."""
    with Router(scene.url, schema=scene.schema) as router:
        retry = Retry(max_reclaims=1_000_000)
        router.add_many(
            [{"id": f"j{n}", "task": "effect", "payload": {"number": n}, "retry": retry} for n in range(count)]
        )
        crew = Crew(scene, nap_seconds, blow_seconds, seed)
        try:
            until(lambda: crew.kill_an_owner(router), "the first to begin")
            while (done := router.counts().done) < count:
                crew.harm()
                # On a slow machine they would else be killed before they have begun, over and over.
                until(lambda: crew.woken() and router.counts().done > done, f"something to be done, seed {seed}")
        finally:
            ended = crew.end()

        jobs = router.jobs(limit=None)
        assert {job.status for job in jobs} == {Status.DONE}
        assert [job.errors for job in jobs] == [0] * count
        effects = scene.rows()
        assert Counter(job_id for job_id, _, _ in effects) == {job.id: 1 for job in jobs}
        assert {(job_id, epoch) for job_id, epoch, _ in effects} == {(job.id, job.epoch) for job in jobs}
        assert router.store.verify() == []
        assert crew.stopped, "it was over too soon"
        assert any(job.reclaims for job in jobs), "nothing was taken over"
        assert set(ended) <= {0, -signal.SIGTERM}, "told to stop, they end in order, or had hardly begun"


def test_every_effect_happens_once_on_sqlite(sqlite_scene: Scene) -> None:
    harmed(sqlite_scene, *SHORT, seed=1)


def test_every_effect_happens_once_on_postgres(postgres_scene: Scene) -> None:
    harmed(postgres_scene, *SHORT, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [11, 12])
def test_every_effect_happens_once_for_a_minute_on_sqlite(sqlite_scene: Scene, seed: int) -> None:
    harmed(sqlite_scene, *LONG, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [21, 22])
def test_every_effect_happens_once_for_a_minute_on_postgres(postgres_scene: Scene, seed: int) -> None:
    harmed(postgres_scene, *LONG, seed=seed)
