"""The hook of a user's own tests: a Router with a clock, on a real server whose clock then decides nothing."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from leasehold import Router, StaleEpoch
from leasehold.testing import ManualClock

from .fixtures import Place
from .staging import Call


def test_time_moves_by_hand_on_a_server_too(place: Place) -> None:
    """Deadlines, due times, waits, fences, back-off and retention, for two processes that have the same clock."""
    store = place.store(clock := ManualClock())
    url, schema = store.database.url, store.database.schema
    with Router(url, schema=schema, clock=clock) as router, Router(url, schema=schema, clock=clock) as other:
        router.add("job")
        slow = router.claim("slow", lease_seconds=30)
        assert slow is not None
        clock.advance(29)
        assert other.claim("fast") is None
        clock.advance(2)
        fast = other.claim("fast")
        assert fast is not None
        assert (fast.reason, fast.granted_at) == ("timeout", clock.time)
        with pytest.raises(StaleEpoch), slow.transaction():
            pytest.fail("it had begun")
        with fast.transaction() as connection:
            clock.advance(3600)  # it takes long, and nobody takes the job over
            fast.complete(connection=connection)
        assert router.job("job").finished_at == clock.time

        router.add("later", delay_seconds=86_400)
        waiting = Call(lambda: other.claim("fast", wait_seconds=10**6))
        clock.advance(86_401)
        later = waiting.result()
        assert later is not None
        later.fail("once", delay_seconds=60)
        assert router.claim("slow") is None
        clock.advance(61)
        assert router.claim("slow") is not None
        assert router.prune(keep_seconds=2 * 86_400).jobs == 0
        clock.advance(86_400)
        assert router.prune(keep_seconds=2 * 86_400).jobs == 1


def test_the_servers_clock_is_not_asked(place: Place) -> None:
    """No instant that is kept comes from it: all of them are in the year that the test lives in."""
    store = place.store(clock := ManualClock())
    with Router(store.database.url, schema=store.database.schema, clock=clock, trace=True) as router:
        router.add("a")
        lease = router.claim("worker")
        assert lease is not None
        lease.progress(0.5, checkpoint=1)
        lease.once("charge", lambda key: key)
        lease.complete()
        router.replay(router.job("a"), by="ann")
        instants = {event.at for event in router.events()}

    assert instants == {clock.time}
    columns = "select table_name, column_name from information_schema.columns where table_schema = %s "
    columns += "and column_name like '%%\\_at' and data_type = 'bigint'"
    with psycopg.connect(store.database.url) as connection:
        for table, column in connection.execute(columns, [schema := store.database.schema]).fetchall():
            query = sql.SQL("select distinct {0} from {1} where {0} is not null").format(
                sql.Identifier(column), sql.Identifier(schema, table)
            )
            found = psycopg.ClientCursor(connection).execute(query).fetchall()
            assert all(abs(at - clock.now()) <= 30_000_000 for (at,) in found), (table, column)
