"""
Interleavings that broke a straightforward build of such a system, each staged once, under its number.

The numbers are those of docs/explanation/traps.md. The suites of the contract and of the SQLite file stage the same
interleavings with many processes; here each can be read on its own.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from leasehold import NotInTransaction, Reason, Router, StaleEpoch, Status, StoreUnavailable
from leasehold.core.clock import SystemClock
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The store's file."""
    return tmp_path / "jobs.db"


@pytest.fixture
def router(path: Path, clock: ManualClock) -> Iterator[Router]:
    """A router on the file, whole at the end."""
    with Router(f"sqlite:///{path}", clock=clock, lease_seconds=30) as router:
        router.add("job")
        yield router
        assert router.verify() == []


def _table(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("create table results (value text)")
    return connection


def test_trap_4_the_next_holder_of_a_key_has_a_greater_epoch(router: Router) -> None:
    """A guard that was sealed by the first holder must not refuse the rightful second one for ever."""
    router.add_many([{"id": name, "lock": "customer:7"} for name in ("a", "b", "c")])
    router.claim("w", queues=["default"])  # the job without a key

    epochs = []
    for _ in range(3):
        [lease] = router.claim_many("w")
        epochs.append(lease.epoch)
        lease.complete()

    assert epochs == sorted(set(epochs))


def test_trap_4b_a_restored_copy_issues_nothing_twice(path: Path, tmp_path: Path) -> None:
    """A file that is put back under the same path, as an operator would, has forgotten epochs and repeats none."""
    issued = []
    for round_number in range(3):
        with Router(f"sqlite:///{path}", clock=SystemClock()) as router:
            router.add_many([{"id": f"{round_number}-{n}"} for n in range(20)])
            if round_number == 0:
                issued += [lease.epoch for lease in router.claim_many("w", limit=5)]
        if round_number == 0:
            shutil.copy(path, tmp_path / "backup")
        with Router(f"sqlite:///{path}") as router:
            issued += [lease.epoch for lease in router.claim_many("w", limit=10)]
        shutil.copy(tmp_path / "backup", path)

    assert len(set(issued)) == len(issued)


def test_trap_5_the_second_job_behind_a_key_is_parked_and_not_lost(router: Router) -> None:
    """A batch that meets two jobs with one key takes the first, and the second waits its turn."""
    router.add_many([{"id": name, "lock": "k"} for name in ("first", "second")])

    batch = {lease.job_id: lease for lease in router.claim_many("w", limit=10)}
    assert set(batch) == {"job", "first"}

    batch["first"].complete()
    again = router.claim("w")
    assert again is not None
    assert again.job_id == "second"


def test_trap_10_a_claim_whose_reply_was_lost_is_found_again(router: Router) -> None:
    """The commit happened and its reply did not arrive: the owner asks for the leases of its own claim."""
    store = router.store
    assert isinstance(store, SqliteStore)

    def lose_the_reply(where: str) -> None:
        if where == "after commit":
            store.database.point = None
            raise sqlite3.OperationalError("disk I/O error")

    store.database.point = lose_the_reply
    lease = router.claim("w")

    assert lease is not None
    lease.complete("once")
    assert router.job("job").result == "once"


def test_trap_10_a_claim_that_did_not_happen_is_an_error(router: Router) -> None:
    """Without a commit there is nothing to find, and nothing is guessed."""
    store = router.store
    assert isinstance(store, SqliteStore)

    def fail(where: str) -> None:
        store.database.point = None
        raise sqlite3.OperationalError("disk I/O error")

    store.database.point = fail
    with pytest.raises(StoreUnavailable):
        router.claim("w")

    assert router.job("job").status is Status.PENDING


@pytest.mark.parametrize("isolation_level", [None, "DEFERRED"])
def test_trap_13_a_stale_owner_writes_nothing_in_whatever_mode(
    router: Router, path: Path, clock: ManualClock, isolation_level: Literal["DEFERRED"] | None
) -> None:
    """A SELECT as the check would open no transaction, and on an autocommit connection a fence fences nothing."""
    stale = router.claim("w")
    assert stale is not None
    clock.advance(31)
    assert router.claim("w") is not None
    connection = _table(path)
    connection.isolation_level = isolation_level

    with pytest.raises((StaleEpoch, NotInTransaction)):
        stale.fence(connection)
    connection.rollback()

    assert connection.execute("select * from results").fetchall() == []
    connection.close()


def test_trap_13_a_current_owner_on_an_autocommit_connection_is_told(router: Router, path: Path) -> None:
    """Accepting it would promise what nobody keeps."""
    lease = router.claim("w")
    assert lease is not None
    connection = sqlite3.connect(path, isolation_level=None)

    with pytest.raises(NotInTransaction, match="begin one first"):
        lease.fence(connection)
    connection.close()


def test_trap_16_a_refusal_in_a_callers_transaction_is_recorded_apart(
    router: Router, path: Path, clock: ManualClock
) -> None:
    """What the fence wrote would be rolled back with the transaction that it refuses."""
    stale = router.claim("w")
    assert stale is not None
    clock.advance(31)
    connection = _table(path)
    current = router.claim("w")
    assert current is not None

    with pytest.raises(StaleEpoch):
        stale.complete(connection=connection)
    connection.rollback()
    connection.close()

    [event] = router.events("job", kind="refused")
    assert (event.facts["presented"], event.facts["current"]) == (stale.epoch, current.epoch)


def test_trap_17_nobody_commits_between_a_fence_and_what_it_protects(
    router: Router, path: Path, clock: ManualClock
) -> None:
    """The new owner fences and reads; the old one must not slip in a commit before the new one writes."""
    stale = router.claim("a")
    assert stale is not None
    connection = _table(path)
    connection.commit()
    clock.advance(31)
    current = router.claim("b")
    assert current is not None

    current.fence(connection)
    read = connection.execute("select count(*) from results").fetchone()
    late = sqlite3.connect(path, timeout=0)
    with pytest.raises((StaleEpoch, StoreUnavailable)):
        stale.fence(late)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        late.execute("insert into results values ('stale')")
    late.close()
    connection.execute("insert into results values ('current')")
    current.complete(connection=connection)
    connection.commit()

    assert read == (0,)
    assert connection.execute("select value from results").fetchall() == [("current",)]
    connection.close()


_TRANSFER = """
import sys
from leasehold import Router
with Router(sys.argv[1]) as router:
    router.transfer(router.job("job"), to="agent-b", by="ops")
"""


def test_trap_20_the_exit_of_whoever_transferred_a_job_proves_nothing(path: Path) -> None:
    """A tool that hands a job to somebody is not the process that works on it."""
    url = f"sqlite:///{path}"
    with Router(url) as router:
        router.add("job")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", _TRANSFER, url], check=True, env=environment)

        assert router.reclaim() == []

        lease = router.lease("job", owner="agent-b")
        lease.complete()
        assert [(held.owner, held.began, held.ended) for held in router.ownerships("job")] == [
            ("agent-b", Reason.MANUAL, "done")
        ]
