"""Trap 8: a claim skips the dead entries at the head of its index, and no job that waits among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

from leasehold.core.job import Grant, Outcome, Settlement, completion, new_job
from leasehold.errors import Settled
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.claiming import Floors
from leasehold.stores.postgres.rows import Claim
from leasehold.testing import ManualClock

from .fixtures import Place
from .staging import session


@pytest.fixture
def timer() -> ManualClock:
    """The clock by which the store looks from the bottom now and then: as long as it stands still, it does not."""
    return ManualClock()


@pytest.fixture
def store(place: Place, timer: ManualClock) -> Iterator[PostgresStore]:
    """A store that has floors: of five jobs, the first was claimed."""
    made = begun(place.store(), timer)
    yield made
    assert made.verify() == []


def begun(made: PostgresStore, timer: ManualClock) -> PostgresStore:
    """Return a new store in which five jobs were added, and the first was claimed."""
    made.claiming.floors = Floors(timer)
    made.add([new_job(f"job-{number}") for number in range(5)])
    assert ids(made) == ["job-0"]
    assert made.claiming.floors.next() is not None
    return made


def ids(store: PostgresStore, limit: int = 1, **options: Any) -> list[str]:
    """Claim, and return the ids of what was got."""
    return [grant.spec.id for grant in store.claim("worker", limit=limit, **options)]


def add_late(store: PostgresStore, take: Callable[[], None]) -> None:
    """Add the job "late" in a transaction that begins before *take* is called, and commits after it."""
    with session(store) as other:
        wish = '{"id":"late","payload":"null","queue":"default","priority":0,"delay":0,"max_errors":1,"max_reclaims":1}'
        other.call("add", store.database.store_id, f"[{wish}]", True, False, None)
        take()
        other.connection.commit()


def test_trap_8_a_job_that_commits_late_is_found_when_there_is_nothing_else(store: PostgresStore) -> None:
    """Its place is below the floor; a claim that would answer "nothing" looks there first."""

    def take() -> None:
        store.add([new_job("newer")])
        assert ids(store, 10) == ["job-1", "job-2", "job-3", "job-4", "newer"]

    add_late(store, take)

    assert ids(store) == ["late"]


def test_trap_8_a_job_that_commits_late_is_found_before_long(store: PostgresStore, timer: ManualClock) -> None:
    """However many jobs wait above the floor, every now and then a claim looks below."""

    def take() -> None:
        store.add([new_job(f"newer-{number}") for number in range(5)])
        assert ids(store, 5) == ["job-1", "job-2", "job-3", "job-4", "newer-0"]

    add_late(store, take)

    assert ids(store) == ["newer-1"]  # a floor is a guess
    timer.advance(5)
    assert ids(store) == ["late"]


def fail(store: PostgresStore, grant: Grant) -> None:
    """It is to be tried again, at once."""
    store.settle([Settlement(grant.spec.id, grant.epoch, Outcome.FAIL, error="boom")])


def release(store: PostgresStore, grant: Grant) -> None:
    """It is handed back."""
    store.settle([Settlement(grant.spec.id, grant.epoch, Outcome.RELEASE)])


@pytest.mark.parametrize("put_back", [fail, release])
def test_a_job_that_comes_back_keeps_its_place(
    store: PostgresStore, put_back: Callable[[PostgresStore, Grant], None]
) -> None:
    """Before the jobs that wait, as without floors."""
    [grant] = store.claim("worker")
    assert ids(store) == ["job-2"]

    put_back(store, grant)

    assert ids(store) == ["job-1"]


def wait_a_moment(store: PostgresStore) -> None:
    """Wait until the server's clock shows that a claim looks at deadlines again: 10 ms after the one before it."""
    clock = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
    began = store.database.read(clock)[0][0]
    until(lambda: bool(store.database.read(clock)[0][0] > began + 10_000))


def test_a_job_that_was_taken_back_keeps_its_place(store: PostgresStore) -> None:
    """By whoever has noticed that its lease is over."""
    assert ids(store, lease_us=1) == ["job-1"]

    wait_a_moment(store)

    assert ids(store) == ["job-1"]


def test_what_is_over_is_found_at_once_when_there_is_nothing_else(store: PostgresStore) -> None:
    """However short ago a claim has looked at the deadlines."""
    assert ids(store, 10, lease_us=1) == ["job-1", "job-2", "job-3", "job-4"]

    assert ids(store, 10) == ["job-1", "job-2", "job-3", "job-4"]


def test_on_a_clock_moved_by_hand_no_deadline_is_overlooked(place: Place) -> None:
    """Not even for a moment: a test of a user's own says when it is."""
    clock = ManualClock()
    store = place.store(clock)
    store.add([new_job(f"job-{number}") for number in range(3)])
    assert ids(store) == ["job-0"]
    assert ids(store, lease_us=500) == ["job-1"]

    clock.advance(0.001)

    assert ids(store) == ["job-1"]


def test_a_job_that_stalled_keeps_its_place(store: PostgresStore) -> None:
    """Likewise, though its lease is not over."""
    store.add([new_job("stalls", priority=1, stall_seconds=0.000_001)])
    assert ids(store) == ["stalls"]

    wait_a_moment(store)

    assert ids(store) == ["stalls"]


def test_a_job_that_becomes_due_comes_in_its_place(store: PostgresStore) -> None:
    """Before those that waited all the time, if it is of a higher priority."""
    store.add([new_job("later", priority=1, delay_seconds=0.001)])
    wait_a_moment(store)

    assert ids(store) == ["later"]


def free_keys(store: PostgresStore, timer: ManualClock, count: int) -> None:
    """Let keys become free one after the other, and be seen to, a second apart."""
    for number in range(count):
        store.add([new_job(f"key-{number}", lock=f"key-{number}", priority=2)])
        [grant] = store.claim("worker")
        assert store.settle([completion(grant)]) == [None]
        timer.advance(1)


def freed(store: PostgresStore) -> int:
    """The number up to which the next claim looks at no key."""
    floors = store.claiming.floors.next()
    return 0 if floors is None else int(floors[2])


@pytest.mark.parametrize("others", [0, 2])
def test_trap_8_a_key_that_becomes_free_late_is_seen_to(store: PostgresStore, timer: ManualClock, others: int) -> None:
    """Its number is below those that were seen to; a claim that finds nothing else looks, and others do before long."""
    store.add([new_job("holder", lock="k", priority=1), new_job("behind", lock="k", priority=1)])
    [holder] = store.claim("worker")
    ids(store, 4)  # all that there are; and the other one is parked
    with session(store) as other:
        assert other.call("complete", ["holder"], [holder.epoch], None, None, 1000) == [(None,)]
        [(number,)] = other.connection.execute(
            sql.SQL("select number from {}").format(sql.Identifier(store.database.schema, "freed"))
        ).fetchall()
        free_keys(store, timer, 5)
        store.add([new_job("first"), *(new_job(f"other-{number}") for number in range(others))])
        assert ids(store) == ["first"]
        assert freed(store) > number
        other.connection.commit()

    if others:
        assert ids(store) == ["other-0"]  # a floor is a guess
        timer.advance(5)
    assert ids(store) == ["behind"]


def test_a_claim_of_many_gets_them_all(store: PostgresStore) -> None:
    """In their order, also if they are more than are told in a row."""
    store.add([new_job(f"more-{number}") for number in range(300)])

    assert ids(store, 250) == [f"job-{number}" for number in range(1, 5)] + [f"more-{number}" for number in range(246)]
    assert ids(store, 100) == [f"more-{number}" for number in range(246, 300)]


def test_a_lock_that_becomes_free_wakes_the_job_in_its_place(store: PostgresStore) -> None:
    """Parked below the floor, it waits there again."""
    store.add([new_job("holder", lock="k", priority=1), new_job("behind", lock="k", priority=1)])
    [holder] = store.claim("worker")
    assert ids(store) == ["job-1"]

    store.settle([Settlement(holder.spec.id, holder.epoch, Outcome.COMPLETE, "null")])

    assert ids(store) == ["behind"]


def test_a_time_in_the_past_and_a_higher_priority_come_first(store: PostgresStore) -> None:
    """Both are below the floor."""
    store.add([new_job("old", run_at=datetime(2000, 1, 1, tzinfo=UTC))])
    assert ids(store) == ["old"]

    store.add([new_job("urgent", priority=1)])
    assert ids(store) == ["urgent"]


def test_a_queue_that_was_empty_is_seen(store: PostgresStore) -> None:
    """Before and behind the queues that have a floor."""
    store.add([new_job("before", queue="a", priority=2), new_job("behind", queue="z", priority=1)])

    assert ids(store, 2) == ["before", "behind"]


@pytest.mark.parametrize("queue", ["a", "z"])
def test_another_queue_alone_is_seen(store: PostgresStore, queue: str) -> None:
    """Whichever side of the one that has a floor it is on."""
    store.add([new_job("other", queue=queue, priority=1)])

    assert ids(store) == ["other"]


def test_trap_2_also_a_short_claim_is_never_an_asynchronous_commit(store: PostgresStore) -> None:
    """Whatever the session's setting, the transaction that issues an epoch waits for the disk."""
    floors = store.claiming.floors.next()
    assert floors is not None
    claim = Claim("other", 1, None, None, None, 30_000_000, None, None, trace=False)
    assert claim.is_plain(floors)
    with session(store) as other:
        other.connection.execute("set session synchronous_commit = off")
        other.connection.commit()

        [row, *rest] = other.call("claim_next", *claim.args(floors))
        assert [row[2], *(more[2] for more in rest)] == [None, ["job-1"]]
        [(setting,)] = other.connection.execute("show synchronous_commit").fetchall()
        assert setting == "on"
        other.connection.commit()


@pytest.mark.parametrize("function", ["claim", "claim_next"])
def test_deadlines_are_looked_at_every_ten_milliseconds(store: PostgresStore, function: str) -> None:
    """A claim that follows another at once takes the next job; a later one takes back what is overdue."""
    store.claim("slow", lease_us=1)
    wait_a_moment(store)
    floors = store.claiming.floors.next()
    assert floors is not None
    claim = Claim("other", 1, None, None, None, 30_000_000, None, None, trace=False)
    moment_ago = sql.SQL("(select (extract(epoch from clock_timestamp()) * 1000000)::bigint)")
    with session(store) as other:
        for swept, found in ((moment_ago, "job-2"), (sql.Literal(floors[1]), "job-1")):
            args = [*map(sql.Literal, claim.args(floors)), sql.SQL("null")]
            args[13] = swept
            call = sql.SQL("select (f).ids from {}({}) as f where (f).ids is not null").format(
                sql.Identifier(store.database.schema, function), sql.SQL(", ").join(args)
            )
            assert other.connection.execute(call).fetchall() == [([found],)]
            other.connection.rollback()


def test_a_completion_that_a_snapshot_has_made_is_known(store: PostgresStore) -> None:
    """Its lease could not be removed there; said again it is heard, and other words are refused."""
    [grant] = store.claim("worker")
    said = Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, "null")
    with psycopg.connect(store.database.url) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        store.transactions.run(own, store.transactions.settle(said))

    assert store.settle([said]) == [None]
    [refused] = store.settle([said._replace(result="1")])

    assert isinstance(refused, Settled)
    assert ids(store) == ["job-2"]


def test_an_old_transaction_of_somebody_else_does_not_make_claims_slower(place: Place, timer: ManualClock) -> None:
    """The entries of jobs that are done stay in the index as long as it is open, and no claim reads them."""
    store = begun(place.store(untouched=True), timer)
    store.claim("worker", limit=4)
    with psycopg.connect(store.database.url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1")
        for batch in range(40):
            store.add([new_job(f"{batch}-{number}") for number in range(50)])
            grants = store.claim("worker", limit=50)
            assert len(grants) == 50
            store.settle([Settlement(g.spec.id, g.epoch, Outcome.COMPLETE, "null") for g in grants])
        store.add([new_job("next")])

        before = entries_read(store)
        assert ids(store) == ["next"]
        assert entries_read(store) - before <= 5


def entries_read(store: PostgresStore) -> int:
    """How many entries of the index of `ready` were read so far."""
    if store.database.read("show server_version_num")[0][0] < "150000":
        pytest.skip("this server cannot be told to publish its statistics at once")
    store.database.read("select pg_stat_force_next_flush()")
    store.database.read("select 1")
    [(count,)] = store.database.read(
        "select idx_tup_read from pg_stat_user_indexes where schemaname = %s and indexrelname = 'ready_pkey'",
        [store.database.schema],
    )
    return int(count)
