"""`with lease.keep()`: a lease that was claimed by hand is renewed until the end of the block."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until
from tests.worker.staging import PATIENCE, Gate, Tampered, ended, our_threads, working

from leasehold import InvalidArgument, Lease, Router, StaleEpoch, StoreUnavailable
from leasehold.lease import keep
from leasehold.testing import ManualClock

LEASE_SECONDS = 30


class Stage:
    """A lease on a store whose renewals can be tampered with, and the clocks of both sides."""

    def __init__(self, router: Router, clock: ManualClock) -> None:
        self.router = router
        self.clock = clock
        self.store = Tampered(router.store)
        router.add("a")
        claimed = router.claim("by hand", lease_seconds=LEASE_SECONDS)
        assert claimed is not None
        self.lease = Lease(self.store.store, claimed._grant)

    @property
    def renewals(self) -> int:
        """How many were sent."""
        return len(self.store.asked["renew"])

    def renewed(self, count: int) -> None:
        """Wait until so many were sent, and the keeper sleeps."""
        until(lambda: self.renewals >= count, f"renewal {count}")
        until(self.sleeps, "the keeper to sleep")
        assert self.renewals == count

    def sleeps(self) -> bool:
        """Return whether the keeper waits for the clock."""
        [keeper] = [thread for thread in threading.enumerate() if isinstance(thread, keep.Keeper)]
        return bool(keeper._changed._waiters)  # type: ignore[attr-defined]  # who waits

    def take_away(self) -> None:
        """Give the job to another owner."""
        self.router.transfer(self.router.job("a"), to="agent-b", by="operator", lease_seconds=3600)


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    clock = ManualClock()
    monkeypatch.setattr(keep, "_steady", clock)
    url = None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with Router(url, clock=clock) as router:
        yield Stage(router, clock)
    assert keepers() == 0


def keepers() -> int:
    """Return how many threads renew."""
    return our_threads().count("leasehold-keep")


def test_it_is_renewed_at_once_and_whenever_a_third_has_passed(stage: Stage) -> None:
    """So a lease that is nearly over is safe too, and a process that stands still has a whole lease left."""
    stage.clock.advance(LEASE_SECONDS - 1)
    with stage.lease.keep() as lease:
        assert lease is stage.lease
        for count in range(1, 6):
            stage.renewed(count)
            left = (stage.lease.expires_at - stage.clock.time).total_seconds()
            assert left == pytest.approx(LEASE_SECONDS * 4 / 3)
            stage.clock.advance(LEASE_SECONDS / 3 - 1)
            until(stage.sleeps, "the keeper to sleep")
            assert stage.renewals == count
            stage.clock.advance(1)
        assert stage.router.reclaim() == []
        stage.renewed(6)

    stage.lease.complete()
    assert not stage.lease.lost


def test_a_longer_lease_that_the_owner_has_asked_for_is_not_made_shorter(stage: Stage) -> None:
    stage.lease.renew(3600)
    before = stage.lease.expires_at
    with stage.lease.keep():
        stage.renewed(2)

    assert stage.lease.expires_at >= before


def test_without_a_block_there_is_no_thread_and_after_it_none(stage: Stage) -> None:
    assert keepers() == 0
    with stage.lease.keep():
        assert keepers() == 1
    assert keepers() == 0
    sent = stage.renewals
    stage.clock.advance(3600)
    assert stage.renewals == sent


def test_a_loss_is_told_once_the_block_goes_on_and_its_end_does_not_raise(stage: Stage) -> None:
    told: list[Lease] = []
    heard = threading.Event()

    def on_lost(lease: Lease) -> None:
        told.append(lease)
        heard.set()

    with stage.lease.keep(on_lost=on_lost):
        stage.renewed(1)
        assert not stage.lease.lost
        stage.take_away()
        stage.clock.advance(LEASE_SECONDS / 3)
        assert heard.wait(PATIENCE)
        assert stage.lease.lost
        with pytest.raises(StaleEpoch, match="agent-b"):
            stage.lease.progress(0.5)

    assert told == [stage.lease]
    assert stage.renewals == 2


def test_a_loss_that_a_verb_of_the_block_meets_is_told_too(stage: Stage) -> None:
    told: list[Lease] = []
    with stage.lease.keep(on_lost=told.append):
        stage.renewed(1)
        stage.take_away()
        with pytest.raises(StaleEpoch):
            stage.lease.progress(0.5)

    assert told == [stage.lease]


def test_an_exception_of_the_block_leaves_it_and_what_on_lost_raises_is_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def on_lost(lease: Lease) -> None:
        raise RuntimeError("a slip")

    def fail() -> None:
        with stage.lease.keep(on_lost=on_lost):
            stage.renewed(1)
            stage.take_away()
            stage.clock.advance(LEASE_SECONDS / 3)
            until(lambda: stage.lease.lost, "the loss")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "the function passed as on_lost= for the lease of job 'a' raised an error" in caplog.text
    assert "RuntimeError: a slip" in caplog.text


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("a defect")])
def test_a_renewal_that_fails_is_tried_again_since_unknown_is_not_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    told: list[Lease] = []
    away = threading.Event()
    away.set()

    def renew(real: Any, *args: Any) -> Any:
        if away.is_set():
            raise error
        return real(*args)

    stage.store.tampers["renew"] = renew
    with stage.lease.keep(on_lost=told.append):
        for count in range(1, 5):
            stage.renewed(count)
            stage.clock.advance(1)
        stage.renewed(5)
        away.clear()
        stage.clock.advance(1)
        stage.renewed(6)
        assert (stage.lease.expires_at - stage.clock.time).total_seconds() == pytest.approx(LEASE_SECONDS * 4 / 3)
        assert not stage.lease.lost

    assert told == []
    assert caplog.text.count("could not renew the lease of job 'a' (outcome unknown; retrying)") == 1


@pytest.mark.parametrize("how", ["complete", "fail", "release", "elsewhere"])
def test_a_lease_that_its_owner_settles_in_the_block_is_not_lost(stage: Stage, how: str) -> None:
    told: list[Lease] = []
    with stage.lease.keep(on_lost=told.append):
        stage.renewed(1)
        match how:
            case "complete":
                stage.lease.complete()
            case "fail":
                stage.lease.fail("no")
            case "release":
                stage.lease.release()
            case "elsewhere":  # by another object of the same lease
                Lease(stage.router.store, stage.lease._grant).complete()
        stage.clock.advance(LEASE_SECONDS / 3)
        until(lambda: keepers() == 0, "the keeper to end")

    assert told == []
    assert not stage.lease.lost
    assert stage.renewals == (2 if how == "elsewhere" else 1)


def test_in_a_worker_s_handler_it_is_harmless(stage: Stage) -> None:
    gate = Gate()

    @stage.router.task
    def work(lease: Lease) -> str:
        with lease.keep():
            gate.pass_by()
        return "kept"

    work.options(id="b", lease_seconds=LEASE_SECONDS).add()
    with working(stage.router, store=stage.store, steady=stage.clock) as worker:
        gate.wait_for()
        for _ in range(3):
            sent = stage.renewals
            until(lambda: worker.runner.renewer._woken._waiters, "the renewer to sleep")  # type: ignore[attr-defined]  # who waits
            until(stage.sleeps, "the keeper to sleep")
            stage.clock.advance(LEASE_SECONDS / 3)
            until(lambda: stage.renewals >= sent + 2, "both")  # noqa: B023 (it is called at once)
        gate.open()
        [job] = ended(stage.router, "b")

    assert (job.result, job.reclaims, job.errors) == ("kept", 0, 0)


async def _async(lease: Lease) -> None:
    """Not called."""


@pytest.mark.parametrize("on_lost", ["f", 3, _async])
def test_what_cannot_be_called_with_a_lease_is_refused_at_the_beginning(stage: Stage, on_lost: Any) -> None:
    with pytest.raises(InvalidArgument, match="on_lost must be a plain function"), stage.lease.keep(on_lost=on_lost):
        raise AssertionError("it has begun")
    assert keepers() == 0


# Async


def test_async_code_keeps_a_lease_and_hears_of_its_loss_on_its_loop(stage: Stage) -> None:
    told: list[tuple[Lease, int]] = []

    async def main() -> None:
        heard = asyncio.Event()

        def on_lost(lease: Lease) -> None:
            told.append((lease, threading.get_ident()))
            heard.set()

        async with stage.lease.aio.keep(on_lost=on_lost) as lease:
            assert lease is stage.lease
            await asyncio.to_thread(stage.renewed, 1)
            await asyncio.to_thread(stage.take_away)
            stage.clock.advance(LEASE_SECONDS / 3)
            await asyncio.wait_for(heard.wait(), PATIENCE)
            assert stage.lease.lost
        assert keepers() == 0

    asyncio.run(main())
    assert told == [(stage.lease, threading.get_ident())]


def test_a_cancelled_block_leaves_no_thread(stage: Stage) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with stage.lease.aio.keep():
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    until(lambda: keepers() == 0, "the keeper to end")
    assert not stage.lease.lost


# With a process that is stopped for longer than its lease

OWNER = """
import sys, threading
from leasehold import Router

router = Router(sys.argv[1], schema=sys.argv[2])
lost = threading.Event()
lease = router.claim("owner", lease_seconds=3)
with lease.keep(on_lost=lambda lease: lost.set()):
    print("kept", flush=True)
    assert lost.wait(float(sys.argv[3]))
print("lost" if lease.lost else "held", flush=True)
"""


def stop_outside_a_write(pid: int, file: Path | None) -> None:
    """Stop the process; on SQLite, not while it holds the file's write lock, for which every claim would wait."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        if file is None:
            return
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as beside:
            try:
                beside.execute("BEGIN IMMEDIATE")
                beside.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_process_that_was_stopped_for_too_long_learns_that_its_lease_is_lost(tmp_path: Path, kind: str) -> None:
    place = Place(url_of(NEWEST)) if kind == "postgres" else None
    try:
        database = None if place is None else place.store().database
        url = f"sqlite:///{tmp_path}/jobs.db?synchronous=normal" if database is None else database.url
        schema = "leasehold" if database is None else database.schema
        with Router(url, schema=schema) as router:
            router.add("a")
            command = [sys.executable, "-c", OWNER, url, schema, str(PATIENCE_SECONDS)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
                assert owner.stdout is not None
                try:
                    assert owner.stdout.readline() == "kept\n"
                    stop_outside_a_write(owner.pid, None if place is not None else tmp_path / "jobs.db")
                    successor = router.claim("successor", wait_seconds=PATIENCE_SECONDS, lease_seconds=3600)
                    os.kill(owner.pid, signal.SIGCONT)
                    assert owner.stdout.readline() == "lost\n"
                except BaseException:
                    owner.kill()  # a stopped process would be waited for without end
                    raise
            assert owner.returncode == 0
            assert successor is not None
            successor.complete()
    finally:
        if place is not None:
            place.clear()
