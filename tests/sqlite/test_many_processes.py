"""
Four processes share a file; they are killed, replaced, stopped past their leases and woken.

Broken on purpose, in a copy, each of these was found here:
- a settle that asks whether the job is leased, and not whether the epoch is the lease's: late completions counted;
- a free lock key that wakes nobody: a wave never ends;
- epochs counted from what the process has seen, and not from the file: owners cannot be told apart, a wave never ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.sqlite.processes import Line, end, hear, is_stopped, logged, read_log, start
from tests.support import until

from leasehold import Job, Retry, Router

SEED = 20_260
PROCESSES, JOBS_PER_WAVE = 4, 200
LOCKS = ("left", "right", "middle")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP and SIGKILL")


class Crew:
    """The processes, and what the test does to them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.chance = random.Random(SEED)
        self.started = self.killed = 0
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(PROCESSES):
            self.hire()

    def hire(self) -> None:
        """Start one more."""
        self.started += 1
        owner = f"worker-{self.started}"
        log, errors = self.folder / f"{owner}.log", self.folder / f"{owner}.err"
        self.members[owner] = start("claimer.py", self.url, log, owner, SEED + self.started, errors=errors)
        assert hear(self.members[owner]) == "ready", errors.read_text()

    def kill(self) -> None:
        """End somebody, wherever it is, and put another in its place."""
        end(self.members.pop(self.chance.choice(sorted(self.members))))
        self.killed += 1
        self.hire()

    def stop(self) -> None:
        """Stop somebody, wherever it is, for longer than a lease. If that is inside a write, everybody waits."""
        victim = self.members[self.chance.choice(sorted(self.members))]
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(0.45)
        os.kill(victim.pid, signal.SIGCONT)

    def oversleep(self, router: Router) -> None:
        """Stop somebody who holds leases, and wake it once every one of its jobs was taken over."""
        owner = self.chance.choice(sorted(self.members))
        sleeper, log = self.members[owner], self.folder / f"{owner}.log"
        sleeper.send_signal(signal.SIGUSR1)
        until(lambda: is_stopped(sleeper) or self.feed(router, 8), f"{owner} claims something and stops itself")
        lines = read_log(log)
        settled = {line.epoch for line in lines if line.kind != "granted"}
        held = {line.job_id: line.epoch for line in lines if line.kind == "granted" and line.epoch not in settled}
        assert held
        until(lambda: all(router.job(job).epoch > epoch for job, epoch in held.items()), "its jobs are taken over")
        sleeper.send_signal(signal.SIGCONT)

    def feed(self, router: Router, count: int) -> bool:
        """Add *count* jobs if nothing waits; every eighth needs a lock. Return False: nobody has stopped by that."""
        if router.counts().pending:
            return False
        retry = Retry(max_reclaims=1_000)  # what is tested is who may end a job, not how often it may be tried
        locks = [LOCKS[number // 8 % len(LOCKS)] if number % 8 == 0 else None for number in range(count)]
        router.add_many({"id": None, "payload": {"lock": lock}, "lock": lock, "retry": retry} for lock in locks)
        return False

    def leave(self) -> None:
        """Ask everybody to go. Each must do so in peace."""
        for process in self.members.values():
            process.terminate()
        for owner, process in self.members.items():
            assert process.wait(PATIENCE_SECONDS) == 0, (self.folder / f"{owner}.err").read_text()

    def end(self) -> None:
        """Let nobody outlive the test."""
        for process in self.members.values():
            end(process)


class Run(NamedTuple):
    """What came of it."""

    jobs: dict[str, Job]
    lines: list[Line]
    wrong: list[str]
    killed: int
    waves: int

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind."""
        return [line for line in self.lines if line.kind == kind]


@pytest.fixture(scope="module", params=[6, pytest.param(30, marks=pytest.mark.soak)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Waves of jobs, and each wave in another kind of trouble."""
    folder = tmp_path_factory.mktemp("crew")
    url = f"sqlite:///{folder / 'jobs.db'}?synchronous=normal"  # a kill is no power cut
    with Router(url) as router:
        crew = Crew(url, folder)
        try:
            for wave in range(request.param):
                crew.feed(router, JOBS_PER_WAVE)
                _trouble(crew, router, wave)
                until(lambda: not sum(router.counts()[:2]), "the wave is done")
            crew.leave()
        finally:
            crew.end()
        yield Run(router.snapshot(), logged(folder), router.store.verify(), crew.killed, request.param)


def _trouble(crew: Crew, router: Router, wave: int) -> None:
    troubles: list[Callable[[], None]] = [lambda: crew.oversleep(router), crew.kill, crew.kill]
    if wave % 3 == 0:
        troubles.append(crew.stop)
    crew.chance.shuffle(troubles)
    for trouble in troubles:
        time.sleep(crew.chance.random() * 0.05)  # at any point of whatever they are doing
        trouble()


def test_every_job_ends_exactly_once(run: Run) -> None:
    """A completion that counted may be missing from a log only because its process was killed before it said so."""
    accepted = Counter(line.job_id for line in run.of("accepted"))

    assert len(run.jobs) >= run.waves * JOBS_PER_WAVE
    assert {job.status for job in run.jobs.values()} == {"done"}
    assert set(accepted.values()) == {1}
    assert len(run.jobs) - len(accepted) <= run.killed


def test_what_counted_is_the_completion_of_the_last_epoch(run: Run) -> None:
    """And it is its result that the job has."""
    assert {line.job_id: line.epoch for line in run.of("accepted")}.items() <= {
        (job.id, job.epoch) for job in run.jobs.values()
    }
    assert all(job.result == {"epoch": job.epoch} for job in run.jobs.values())


def test_every_late_completion_is_refused(run: Run) -> None:
    """Each wave has an owner that slept until all of its jobs were taken over."""
    refused = run.of("refused")

    assert len(refused) >= run.waves
    assert all(line.epoch < run.jobs[line.job_id].epoch for line in refused)


def test_no_epoch_is_issued_twice(run: Run) -> None:
    """Over all processes, those that were killed included."""
    epochs = Counter(line.epoch for line in run.of("granted"))

    assert len(epochs) > len(run.jobs)  # some jobs were granted more than once
    assert [epoch for epoch, count in epochs.items() if count > 1] == []


def test_later_grants_have_greater_epochs(run: Run) -> None:
    """A grant is certainly later than another if it was asked for when the other had already been told."""
    granted = sorted(run.of("granted"), key=lambda line: line.began)
    told = sorted(granted, key=lambda line: line.ended)
    highest = position = 0
    for line in granted:
        while told[position].ended < line.began:
            highest = max(highest, told[position].epoch)
            position += 1
        assert line.epoch > highest


def test_later_holders_of_a_lock_have_greater_epochs(run: Run) -> None:
    """And of those whose work counted, each had ended before the next one began."""
    holders: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(run.of("granted"), key=lambda line: line.epoch):
        holders[line.lock].append(line)
    ended = {line.epoch: line.began for line in run.of("accepted")}

    assert holders.keys() == {"-", *LOCKS}
    for lock in LOCKS:
        counted = [line for line in holders[lock] if line.epoch in ended]
        assert len(counted) > 20
        for earlier, later in pairwise(counted):
            assert ended[earlier.epoch] < later.ended


def test_nothing_is_lost_or_in_two_places(run: Run) -> None:
    """The store's own checker agrees."""
    assert run.wrong == []
