"""The verbs find their rows by index, whatever the server believes about the tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

from leasehold.core.job import Grant, Outcome, Progress, Settlement, completion, new_job
from leasehold.liveness import this_process
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.claiming import Floors
from leasehold.testing import ManualClock

from .fixtures import Place

FEW, MANY = (4_000, 2_000, 1_000), (1_000_000, 1_000_000, 100_000)  # pending, done, blocked behind one key


@pytest.fixture(params=["few", pytest.param("many", marks=pytest.mark.soak)])
def crowded(request: pytest.FixtureRequest, place: Place) -> Iterator[PostgresStore]:
    """A store with many jobs pending, done, and parked behind one key; never analyzed since it was empty."""
    if request.param == "few":
        store = filled(place.store(untouched=True), *FEW)
    else:
        many: PostgresStore = request.getfixturevalue("many")
        store = PostgresStore(many.database.url, schema=many.database.schema)
        place.others.append(store)
    undisturbed(store)
    claim(store)  # which steps over the dead entries of those that are parked, once
    yield store
    assert store.verify() == []


@pytest.fixture(scope="module")
def many(server_url: str) -> Iterator[PostgresStore]:
    """What takes minutes to fill, and so is the same for all tests on a server."""
    place = Place(server_url)
    yield filled(place.store(), *MANY)
    place.clear()


def filled(store: PostgresStore, pending: int, done: int, blocked: int) -> PostgresStore:
    """Return *store* with so many jobs."""
    for first in range(0, done, 10_000):
        store.add([new_job(f"done-{number}") for number in range(first, min(first + 10_000, done))])
        while grants := claim(store, 1_000):
            store.settle([Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, "null") for grant in grants])
    key = os.urandom(4).hex()  # of which no earlier test has left dead entries
    for first in range(0, blocked, 10_000):
        last = min(first + 10_000, blocked)
        store.add([new_job(f"blocked-{number}", lock=key, priority=1) for number in range(first, last)])
        for _ in range(3):  # each parks up to ten thousand
            claim(store, 10)
    for first in range(0, pending, 10_000):
        numbers = range(first, min(first + 10_000, pending))
        store.add([new_job(f"pending-{number}", queue=f"queue-{number % 3}") for number in numbers])
    # Of an empty table it would not be seen that all of it is read.
    some = range(pending // 100)
    store.add([new_job(f"delayed-{number}", delay_seconds=36_000) for number in some])
    store.add([new_job(f"unique-{number}", unique=f"key-{number}", queue="queue-0") for number in some])
    return store


def undisturbed(store: PostgresStore) -> None:
    """
    Wait until no other session has a snapshot, such as autovacuum's when it analyzes a table.

    While one has, no dead entry of an index can be marked as dead, and every claim steps over all of them.
    """
    query = (
        "select backend_type, application_name, state, now() - xact_start, left(query, 200) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and backend_xmin is not null"
    )
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        try:
            until(lambda: connection.execute(query).fetchall() == [])
        except AssertionError as error:
            raise AssertionError(f"sessions keep a snapshot: {connection.execute(query).fetchall()}") from error


def claim(store: PostgresStore, limit: int = 1, **options: Any) -> list[Grant]:
    """Claim for longer than any of this takes."""
    return store.claim("worker", limit=limit, **{"lease_us": 10**12, **options})


def read(store: PostgresStore) -> dict[str, int]:
    """How many rows of each table were read without an index, and how many entries of each index, so far."""
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        rows = connection.execute(
            "select relname, seq_tup_read from pg_stat_user_tables "
            "where schemaname = %(schema)s and relname <> 'store' union all "
            "select indexrelname, idx_tup_read from pg_stat_user_indexes where schemaname = %(schema)s",
            {"schema": store.database.schema},
        )
        return {str(name): int(count) for name, count in rows}


def counted(store: PostgresStore, verb: Any, enough: int = 0) -> dict[str, int]:
    """
    How much *verb* reads, by table and index.

    Up to *enough* entries of an index are as it should be and left out: a batch reads a few for each of its jobs.
    """
    if store.database.read("show server_version_num")[0][0] < "150000":
        pytest.skip("this server cannot be told to publish its statistics at once")
    store.database.read("select pg_stat_force_next_flush()")
    store.database.read("select 1")
    before = read(store)
    verb()
    store.database.read("select pg_stat_force_next_flush()")
    store.database.read("select 1")
    after = read(store)
    most = {name: enough if "_" in name else 0 for name in after}  # only the names of indexes have a "_"
    return {name: after[name] - before[name] for name in after if after[name] - before[name] > most[name]}


def test_a_claim_reads_what_it_takes(crowded: PostgresStore) -> None:
    """Neither the jobs that are done, nor those that are parked, nor the rest of its queue."""
    assert counted(crowded, lambda: claim(crowded, 10), 60) == {}
    assert counted(crowded, lambda: claim(crowded, 10, queues=["queue-1"]), 60) == {}
    assert counted(crowded, lambda: claim(crowded, 10, queues=["queue-0", "queue-2", "none"]), 60) == {}
    assert counted(crowded, lambda: claim(crowded, queues=["none"]), 10) == {}


@pytest.mark.parametrize("queue", ["a queue before it", "queue-1", "the queue behind it"])
def test_a_claim_does_not_read_the_jobs_of_a_paused_queue(crowded: PostgresStore, queue: str) -> None:
    """However many there are, and where they stand in the index: nor does the fast path, which it does not leave."""
    crowded.add([new_job(f"paused-{number}", queue=queue) for number in range(1_000)])
    crowded.pause(queue, by="ops")
    crowded.pause("default", by="ops")
    crowded.add([new_job(f"busy-{number}", queue="queue-0", priority=2) for number in range(40)])
    for other in {"queue-1", "queue-2"} - {queue}:
        crowded.pause(other, by="ops")
    undisturbed(crowded)
    assert claim(crowded)[0].spec.queue == "queue-0"  # which finds a floor

    # Each of the paused queues is read a few times: its first entry is the way to the next queue.
    assert counted(crowded, lambda: claim(crowded), 20) == {}
    assert counted(crowded, lambda: claim(crowded, 10), 60) == {}
    assert counted(crowded, lambda: claim(crowded, 2, queues=[queue, "queue-0"]), 20) == {}
    assert counted(crowded, lambda: claim(crowded, queues=[queue]), 10) == {}


def test_a_claim_does_not_read_the_jobs_behind_tasks_that_it_does_not_know(crowded: PostgresStore) -> None:
    """However many they are; one that knows them reads what it takes, and the fast path is not left for them."""
    crowded.add([new_job(f"new-{number}", task=f"new-{number % 3}", priority=3) for number in range(1_500)])
    known = ["", "old", "older"]
    while crowded.counts().parked.get("new-0", {}).get("default", 0) < 500:
        claim(crowded, 10, tasks=known)
    undisturbed(crowded)
    claim(crowded, tasks=known)

    assert counted(crowded, lambda: claim(crowded, 10, tasks=known), 80) == {}
    assert counted(crowded, lambda: claim(crowded, tasks=known, queues=["queue-0"]), 20) == {}
    assert counted(crowded, lambda: claim(crowded, 10, tasks=["new-1"]), 80) == {}


def test_an_owners_verbs_read_their_own_leases(crowded: PostgresStore) -> None:
    """Renew, check, progress and settle, in batches."""
    grants = claim(crowded, 100)
    holders = [(grant.spec.id, grant.epoch) for grant in grants]
    said = [Settlement(job_id, epoch, Outcome.COMPLETE, "null") for job_id, epoch in holders]
    failed = [Settlement(job_id, epoch, Outcome.FAIL, error="boom") for job_id, epoch in holders]

    assert counted(crowded, lambda: crowded.renew([Renewal(*holder) for holder in holders]), 400) == {}
    assert counted(crowded, lambda: crowded.check(holders), 400) == {}
    assert counted(crowded, lambda: crowded.settle(said[:50]), 200) == {}
    assert counted(crowded, lambda: crowded.settle(failed[50:]), 400) == {}


def test_a_worker_that_asks_for_its_transfers_reads_no_lease_of_a_claim(crowded: PostgresStore) -> None:
    """Their index has no entry for what was claimed: to ask costs the same, however many leases the worker has."""
    claim(crowded, 500)
    undisturbed(crowded)
    assert counted(crowded, lambda: crowded.transfers("worker")) == {}

    crowded.add([new_job("handed")])
    grant = crowded.transfer("handed", 0, to="worker", by="ops")
    undisturbed(crowded)

    assert counted(crowded, lambda: crowded.transfers("worker"), 2) == {}
    assert counted(crowded, lambda: crowded.accept("worker", [("handed", grant.epoch)], claim_id="mine"), 10) == {}
    assert counted(crowded, lambda: crowded.transfers("worker"), 1) == {}


def test_a_reclaim_reads_what_is_over(crowded: PostgresStore) -> None:
    """By the deadline, and by nothing else."""
    claim(crowded, 50, lease_us=1)

    ended: list[Any] = []
    assert counted(crowded, lambda: ended.extend(crowded.reclaim()), 400) == {}
    assert len(ended) == 50


def test_a_key_that_becomes_free_is_not_searched_for(crowded: PostgresStore) -> None:
    """Of a thousand jobs behind it, one is read."""
    [holder] = [job for job in crowded.jobs(owner="worker", limit=500) if job.spec.lock is not None]
    crowded.settle([Settlement(holder.id, holder.epoch, Outcome.COMPLETE, "null")])

    read = counted(crowded, lambda: claim(crowded), 20)

    assert read.pop("freed", 0) <= 3  # the key itself, which is the only one there, at each look
    assert read == {}


def test_keys_that_became_free_are_read_once(place: Place) -> None:
    """While somebody keeps an old transaction open, nobody can remove their rows, and no claim steps over them."""
    store, timer = place.store(), ManualClock()
    store.claiming.floors = Floors(timer)
    with closing(place.connect(store)) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from pg_class")
        for number in range(200):
            store.add([new_job(f"key-{number}", lock=f"key-{number}")])
            [grant] = store.claim("worker")
            assert store.settle([completion(grant)]) == [None]
        store.add([new_job(f"job-{number}") for number in range(10)])
        for _ in range(3):
            timer.advance(1)
            claim(store)

        assert counted(store, lambda: claim(store), 10) == {}
        assert counted(store, lambda: claim(store, 2), 20) == {}


def test_the_order_of_a_claim_comes_from_its_index(crowded: PostgresStore) -> None:
    """No sort, however many jobs wait."""
    ready = sql.Identifier(crowded.database.schema, "ready").as_string(None)
    with psycopg.connect(crowded.database.url) as connection:
        connection.execute("set enable_seqscan = off; set enable_bitmapscan = off")  # as for every function
        [(plan,)] = connection.execute(
            f"explain (format json) select seq from {ready} where queue = 'queue-1' "
            "order by rank, run_at, seq limit 10 for update skip locked"
        ).fetchall()

    assert "Sort" not in json.dumps(plan)


def test_a_prune_reads_what_it_removes(place: Place) -> None:
    """Neither what is younger nor what is kept of other jobs, also by a plan that was made when there was nothing."""
    store = place.store(untouched=True)
    for number in range(6):  # PL/pgSQL keeps its plans from then on
        store.prune(number)
    for numbers in (range(200), range(200, 2_000)):
        store.add([new_job(f"job-{number}") for number in numbers])
        for outcome in (Outcome.RELEASE, Outcome.COMPLETE):  # a release leaves an ownership and an event
            for _ in range(len(numbers) // 100):
                grants = store.claim("worker", limit=100)
                for grant in grants[:3]:
                    store.begin_effect(grant.spec.id, grant.epoch, "effect")
                store.progress([Progress(grant.spec.id, grant.epoch, checkpoint="1") for grant in grants])
                store.settle([Settlement(grant.spec.id, grant.epoch, outcome, "null") for grant in grants])
    store.add([new_job("held")])
    here = this_process()
    assert here is not None
    [held] = store.claim("worker", process=here)
    for pid in range(1, 4):  # three more processes, which hold nothing
        store.settle([Settlement(held.spec.id, held.epoch, Outcome.RELEASE)])
        [held] = store.claim("worker", process=here._replace(pid=pid))

    removed: list[int] = []
    undisturbed(store)
    read = counted(store, lambda: removed.append(store.prune(0, limit=100).jobs), 600)

    assert removed == [100]
    # The events are more than that, and are all read.
    assert (read.pop("events_at"), read) == (2_003, {"leases": 1})
