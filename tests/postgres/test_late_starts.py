"""Jobs that nobody has claimed in time, beside who is about to: a claim waits for nobody."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from leasehold.core.job import Status, new_job
from leasehold.testing import ManualClock

from .fixtures import Place


@pytest.mark.parametrize("table", ["ready", "jobs", "starts"])
def test_what_somebody_has_locked_is_left_for_the_next_sweep(place: Place, table: str) -> None:
    """A claim has locked its place, an operator the job, another sweep the deadline: neither is waited for."""
    clock = ManualClock()
    store = place.store(clock=clock)
    store.add([new_job("a", start_within_seconds=10), new_job("b", start_within_seconds=10)])
    clock.advance(10)
    with psycopg.connect(store.database.url) as other:
        name = sql.Identifier(store.database.schema, table)
        other.execute(sql.SQL("select from {} where seq = (select min(seq) from {}) for update").format(name, name))

        assert store.reclaim() == []
        assert [store.job(id_).status for id_ in "ab"] == [Status.PENDING, Status.CANCELLED]
        other.rollback()

    assert store.reclaim() == []
    assert [store.job(id_).status for id_ in "ab"] == [Status.CANCELLED, Status.CANCELLED]
    assert store.verify() == []


@pytest.mark.parametrize("parked", [False, True], ids=["ready", "behind its task"])
def test_what_somebody_has_just_taken_is_not_cancelled(place: Place, parked: bool) -> None:
    """Its place is gone, and its lease is not seen yet."""
    clock = ManualClock()
    store = place.store(clock=clock)
    store.add([new_job("a", task="new", start_within_seconds=10)])
    if parked:
        assert store.claim("old", tasks=["old"]) == []
    clock.advance(9)
    with psycopg.connect(store.database.url) as other:
        schema = sql.Identifier(store.database.schema)
        now = clock.now()
        other.execute(
            sql.SQL(
                "select * from {}.claim('w', 1, null, null, null, 1000000000, null, null, null, null, null, null, "
                "null, null, null, null, null, null, null, false, {})"
            ).format(schema, now)
        )
        clock.advance(5)
        assert store.reclaim() == []
        assert store.job("a").status is Status.PENDING
        other.commit()

    assert store.reclaim() == []
    assert (store.job("a").status, store.job("a").owner) == (Status.RUNNING, "w")
    assert store.verify() == []
