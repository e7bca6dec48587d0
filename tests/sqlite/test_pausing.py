"""What a paused queue costs the claims of other queues in a SQLite file: nothing that grows with its jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold.core.job import new_job
from leasehold.stores.sqlite import SqliteStore, claiming


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A file of its own."""
    with closing(SqliteStore(str(tmp_path / "jobs.db"), synchronous="normal")) as store:
        yield store
        assert store.verify() == []


def steps(store: SqliteStore, limit: int) -> int:
    """How many instructions SQLite executes for a claim of *limit* jobs."""
    writer, count = store.database._writer, 0
    assert writer is not None

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    writer.set_progress_handler(step, 1)
    try:
        grants = store.claim("worker", limit=limit)
    finally:
        writer.set_progress_handler(None, 0)
    assert [grant.spec.queue for grant in grants] == ["busy"] * limit
    return count


@pytest.mark.parametrize("paused", ["a queue before it", "the queue behind it"])
@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_does_not_step_through_the_jobs_of_a_paused_queue(store: SqliteStore, limit: int, paused: str) -> None:
    """As many instructions beside 5,000 paused jobs as beside five."""
    store.add([new_job(f"busy-{number}", queue="busy") for number in range(5 * limit)])
    store.add([new_job(f"paused-{number}", queue=paused) for number in range(5)])
    store.pause(paused, by="ops")
    steps(store, limit)  # prepares the statements
    few = steps(store, limit)

    store.add([new_job(f"more-{number}", queue=paused) for number in range(5_000)])

    assert steps(store, limit) <= few + 20


def test_a_claim_that_waits_beside_a_paused_queue_is_not_busy(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the file now and again, as ever, and does not claim in vain: that would take the write lock."""
    store.add([new_job("a", queue="mail")])
    store.pause("mail", by="ops")
    polls, claims = 0, 0
    version, claim = store.database.version, claiming.claim
    enough = threading.Event()

    def polled() -> tuple[int, int]:
        nonlocal polls
        polls += 1
        if polls >= 20:
            enough.set()
        return version()

    def claimed(*args: object) -> object:
        nonlocal claims
        claims += 1
        return claim(*args)  # type: ignore[arg-type]  # as it was called

    store.database.version = polled  # type: ignore[method-assign]
    monkeypatch.setattr(claiming, "claim", claimed)
    got: list[str] = []
    waiter = threading.Thread(
        target=lambda: got.extend(g.spec.id for g in store.claim("worker", wait_us=3 * PATIENCE_SECONDS * 1_000_000))
    )
    waiter.start()
    assert enough.wait(PATIENCE_SECONDS)
    assert claims <= 2
    store.resume("mail", by="ops")
    waiter.join(PATIENCE_SECONDS)

    assert got == ["a"]
