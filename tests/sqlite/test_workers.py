"""Workers that report into a file where claims wait."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold.core.job import Grant, new_job
from leasehold.core.workers import WorkerReport
from leasehold.stores.sqlite import SqliteStore

_REPORT = WorkerReport("w1", "shop", None, None, (), 1, 0, 0)


@pytest.mark.parametrize("where", ["another connection to the file", "the same process"])
def test_a_report_makes_no_waiting_claim_write(tmp_path: Path, where: str) -> None:
    """It notices that the file has changed, reads that nothing is due, and waits on: it takes no write lock."""
    path = str(tmp_path / "jobs.db")
    with closing(SqliteStore(path)) as store, closing(SqliteStore(path)) as other:
        begun, looked, writes, claimed = threading.Event(), threading.Semaphore(0), list[str](), list[Grant]()
        read = store.database.read
        writer = other if where == "another connection to the file" else store
        claiming = threading.Thread(
            target=lambda: claimed.extend(store.claim("waiter", wait_us=10 * PATIENCE_SECONDS * 1_000_000)), daemon=True
        )

        def noted(program: Any) -> Any:
            value = read(program)
            begun.set()
            looked.release()
            return value

        store.database.read = noted  # type: ignore[method-assign]  # what a claim that waits looks with
        claiming.start()
        assert begun.wait(PATIENCE_SECONDS)
        # Its look at the file comes in any case: the report that it notices is committed after this one.
        for _ in range(3):
            while looked.acquire(blocking=False):
                pass
            store.database.point = lambda at: writes.append(threading.current_thread().name)
            writer.report(_REPORT)
            assert looked.acquire(timeout=PATIENCE_SECONDS), "the claim has not looked at the file again"
        writer.retire("w1")

        assert claiming.is_alive()
        assert claiming.name not in writes
        store.database.point = None
        other.add([new_job("a")])
        claiming.join(PATIENCE_SECONDS)
        assert [grant.spec.id for grant in claimed] == ["a"]


def test_a_look_for_transfers_writes_nothing(tmp_path: Path) -> None:
    """A worker asks twice a second, also an idle one."""
    with closing(SqliteStore(str(tmp_path / "jobs.db"))) as store:
        store.add([new_job("a")])
        writes: list[str] = []
        store.database.point = writes.append

        assert store.transfers("w1") == []
        assert store.workers() == []

        assert writes == []


def test_a_lease_that_was_picked_up_is_only_read(tmp_path: Path) -> None:
    """The first look at a transfer marks it; the others write nothing, nor does one at a claim."""
    with closing(SqliteStore(str(tmp_path / "jobs.db"))) as store:
        store.add([new_job("a"), new_job("b")])
        writes: list[str] = []
        store.transfer("a", 0, to="agent", by="ops")
        store.claim("worker")
        store.database.point = writes.append

        store.lease("b", "worker")
        assert writes == []
        store.lease("a", "agent")
        assert writes == ["before commit", "after commit"]
        store.lease("a", "agent")
        assert len(writes) == 2
