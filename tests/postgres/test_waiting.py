"""Claims that wait on the server's own clock: woken by a notification, and by polling if there is none."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import sql
from tests.patience import PATIENCE_SECONDS
from tests.support import until

import leasehold.stores.postgres.claiming as waiting
from leasehold import StoreUnavailable
from leasehold.core.job import new_job
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .staging import Call, session

LONG_US = 3 * PATIENCE_SECONDS * 1_000_000  # a claim that is not woken outlasts the test's patience


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make polls so rare that only a notification can end a wait in time."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 2 * PATIENCE_SECONDS)


def registered(store: PostgresStore) -> bool:
    """Whether somebody waits for jobs, and listens."""
    schema = sql.Identifier(store.database.schema).as_string(None).replace("%", "%%")
    [(count,)] = store.database.read(f"select count(*) from {schema}.waiters")
    [(listening,)] = store.database.read(
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'LISTEN%%' "
        "and state = 'idle'"
    )
    return bool(count) and bool(listening)


@pytest.mark.usefixtures("patient")
def test_an_add_wakes_a_claim_that_waits(place: Place) -> None:
    """In another store on the same data, as another machine would have it."""
    store = place.store()
    store.database.open()
    waiter = Call(lambda: store.claim("worker", wait_us=LONG_US))
    until(lambda: registered(store))

    place.again(store).add([new_job("a")])

    assert [grant.spec.id for grant in waiter.result()] == ["a"]


@pytest.mark.usefixtures("patient")
def test_a_transfer_wakes_a_call_that_waits_for_the_lease(place: Place) -> None:
    """It listens as a claim does, and does not poll faster."""
    store = place.store()
    store.add([new_job("a")])
    waiter = Call(lambda: store.lease("a", "agent-b", wait_us=LONG_US))
    until(lambda: registered(store))

    moved = place.again(store).transfer("a", 0, to="agent-b", by="ops")

    assert waiter.result() == moved


def test_several_claims_of_one_process_share_a_listener(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job wakes them; each gets its own. One that was just about to wait may be late by a poll."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 2)
    store = place.store()
    store.database.open()
    waiters = [Call(lambda: store.claim("worker", wait_us=LONG_US)) for _ in range(3)]
    until(lambda: registered(store))
    assert len(listeners(store)) == 1

    for number in range(3):
        store.add([new_job(f"job-{number}")])

    assert sorted(grant.spec.id for waiter in waiters for grant in waiter.result()) == ["job-0", "job-1", "job-2"]


@pytest.mark.usefixtures("patient")
def test_a_job_that_becomes_due_is_claimed_in_time(place: Place) -> None:
    """Although nobody writes anything then."""
    store = place.store()
    store.add([new_job("a", delay_seconds=0.3)])

    waiter = Call(lambda: store.claim("worker", wait_us=LONG_US))

    assert [grant.spec.id for grant in waiter.result()] == ["a"]


def test_a_listener_that_was_cut_off_is_replaced(place: Place) -> None:
    """The claim polls, and then listens again, on another connection."""
    store = place.store()
    store.database.open()
    waiter = Call(lambda: store.claim("worker", wait_us=LONG_US))
    until(lambda: registered(store))
    [cut] = listeners(store)

    with psycopg.connect(store.database.url, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s, 20000)", [cut])
    until(lambda: bool(listeners(store) - {cut}))
    store.add([new_job("a")])

    assert [grant.spec.id for grant in waiter.result()] == ["a"]


def listeners(store: PostgresStore) -> set[int]:
    """The server's processes that listen for somebody."""
    asked = "select pid from pg_stat_activity where datname = current_database() and state = 'idle' "
    return {pid for (pid,) in store.database.read(asked + "and query like 'LISTEN%%'")}


def test_a_transaction_sends_one_notification(place: Place) -> None:
    """However many jobs it adds, and in however many verbs; and none if it is rolled back."""
    store = place.store()
    store.database.open()
    with session(store) as other, place.connect(store) as own:
        [(channel,)] = other.ask("await_jobs", "x", 60.0)
        other.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        other.connection.commit()

        def is_heard() -> bool:
            """Whether a notification comes, and no second one."""
            first = list(other.connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1))
            return len(first) == 1 and is_quiet()

        def is_quiet() -> bool:
            return list(other.connection.notifies(timeout=0.2)) == []

        store.add([new_job(f"alike-{number}") for number in range(100)])
        assert is_heard()
        store.add([new_job("one"), new_job("other", queue="other", unique="u")])
        assert is_heard()
        for number in range(3):
            store.transactions.run(own, store.transactions.add([new_job(f"own-{number}")]))
        assert is_quiet()
        own.commit()
        assert is_heard()
        store.transactions.run(own, store.transactions.add([new_job("undone")]))
        own.rollback()
        assert is_quiet()


def test_who_waits_no_longer_is_soon_not_notified(place: Place) -> None:
    """Nobody takes a registration back, which would be one more question for each claim: it ends by itself."""
    store = place.store()
    store.database.open()
    waiter = Call(lambda: store.claim("worker", wait_us=LONG_US))
    until(lambda: registered(store))
    store.add([new_job("a")])
    waiter.result()

    with psycopg.connect(store.database.url) as connection:
        waiters = sql.Identifier(store.database.schema, "waiters")
        query = sql.SQL("select count(*), max(until) < clock_timestamp() + interval '11 s' from {}").format(waiters)
        assert psycopg.ClientCursor(connection).execute(query).fetchall() == [(1, True)]


def test_nobody_is_notified_while_nobody_waits(place: Place) -> None:
    """NOTIFY takes a lock over all databases: not for nothing."""
    store = place.store()
    store.database.open()
    with session(store) as other:
        [(channel,)] = other.ask("await_jobs", "x", 0.0)
        other.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        other.connection.commit()

        store.add([new_job("a")])

        assert list(other.connection.notifies(timeout=0.2)) == []


def test_closing_ends_the_wait(place: Place) -> None:
    """The claim raises, and nothing is left open."""
    store = place.store()
    store.database.open()
    threads = set(threading.enumerate())
    waiter = Call(lambda: store.claim("worker", wait_us=LONG_US))
    until(lambda: registered(store))

    store.close()

    with pytest.raises(StoreUnavailable):
        waiter.result()
    until(lambda: set(threading.enumerate()) <= threads)
