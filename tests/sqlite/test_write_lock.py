"""What holds from the moment at which a write has the file's write lock to its commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from leasehold import Lease, StaleEpoch, StoreUnavailable
from leasehold.core.job import Grant, new_job
from leasehold.store import Renewal
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

SECOND = 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file will be."""
    return tmp_path / "jobs.db"


class Looking(ManualClock):
    """A clock that moves on at each look, and remembers whether the write lock of a file was held then."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.held: dict[int, bool] = {}

    def now(self) -> int:
        """Return the instant, after another connection has tried to get the write lock."""
        self.advance(1)
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.held[super().now()] = True
            else:
                self.held[super().now()] = False
        return super().now()


def held(store: SqliteStore) -> Grant:
    """Add a job, and claim it."""
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    return grant


@pytest.mark.parametrize("verb", ["claim", "renew", "transfer"])
def test_a_lease_begins_when_the_write_lock_is_held(path: Path, verb: str) -> None:
    """A verb may wait for the lock for long: read before that, the clock would grant a lease that is half over."""
    clock = Looking(path)
    with closing(SqliteStore(str(path), clock=clock)) as store:
        grant = held(store)
        if verb == "renew":
            [renewed] = store.renew([Renewal("a", grant.epoch, SECOND)])
            assert isinstance(renewed, int)
            read = renewed - SECOND
        elif verb == "transfer":
            read = store.transfer("a", grant.epoch, to="b", by="ops").granted_us
        else:
            read = grant.granted_us

    assert clock.held[read]
    assert not all(clock.held.values())  # it does notice a lock that is free


def test_a_pending_refusal_outlives_a_transaction_that_fails(path: Path) -> None:
    """A refusal inside a caller's transaction is recorded by the next write; if that one fails, by the one after it."""
    with closing(SqliteStore(str(path))) as store:
        grant = held(store)
        store.transfer("a", grant.epoch, to="other", by="ops")
        with closing(sqlite3.connect(path, isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            with pytest.raises(StaleEpoch):
                Lease(store, grant).fence(own)
            own.execute("ROLLBACK")

        def point(where: str) -> None:
            store.database.point = None
            raise sqlite3.OperationalError("disk I/O error")

        store.database.point = point
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            store.add([new_job("b")])
        store.add([new_job("c")])

        with closing(sqlite3.connect(path)) as newcomer:
            found = newcomer.execute("select count(*) from leasehold_events where kind = 'refused'").fetchone()
        assert found == (1,)
        assert [event.facts["verb"] for event in store.events(kind="refused")] == ["fence"]
