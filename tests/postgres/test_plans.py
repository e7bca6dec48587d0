"""The verbs find their rows by index, whatever the server believes about the tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from leasehold.core.job import Outcome, Progress, Settlement, new_job
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place

FEW, MANY = (4_000, 2_000, 1_000), (1_000_000, 1_000_000, 100_000)  # pending, done, blocked behind one key


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.soak)], ids=["few", "many"])
def crowded(request: pytest.FixtureRequest, place: Place) -> Iterator[PostgresStore]:
    """A store with many jobs pending, done, and parked behind one key; never analyzed since it was empty."""
    pending, done, blocked = request.param
    store = place.store()
    for first in range(0, done, 10_000):
        store.add([new_job(f"done-{number}") for number in range(first, min(first + 10_000, done))])
        while grants := store.claim("worker", limit=1_000):
            store.settle([Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, "null") for grant in grants])
    key = os.urandom(4).hex()  # of which no earlier test has left dead entries
    for first in range(0, blocked, 10_000):
        last = min(first + 10_000, blocked)
        store.add([new_job(f"blocked-{number}", lock=key, priority=1) for number in range(first, last)])
        for _ in range(3):  # each parks up to ten thousand
            store.claim("worker", limit=10)
    for first in range(0, pending, 10_000):
        numbers = range(first, min(first + 10_000, pending))
        store.add([new_job(f"pending-{number}", queue=f"queue-{number % 3}") for number in numbers])
    store.claim("worker")  # which steps over the dead entries of those that are parked, once
    yield store
    assert store.verify() == []


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
    if store.database.ask("show server_version_num")[0][0] < "150000":
        pytest.skip("this server cannot be told to publish its statistics at once")
    store.database.ask("select pg_stat_force_next_flush()")
    store.database.ask("select 1")
    before = read(store)
    verb()
    store.database.ask("select pg_stat_force_next_flush()")
    store.database.ask("select 1")
    after = read(store)
    most = {name: enough if "_" in name else 0 for name in after}  # only the names of indexes have a "_"
    return {name: after[name] - before[name] for name in after if after[name] - before[name] > most[name]}


def test_a_claim_reads_what_it_takes(crowded: PostgresStore) -> None:
    """Neither the jobs that are done, nor those that are parked, nor the rest of its queue."""
    assert counted(crowded, lambda: crowded.claim("worker", limit=10), 60) == {}
    assert counted(crowded, lambda: crowded.claim("worker", limit=10, queues=["queue-1"]), 60) == {}
    assert counted(crowded, lambda: crowded.claim("worker", limit=10, queues=["queue-0", "queue-2", "none"]), 60) == {}
    assert counted(crowded, lambda: crowded.claim("worker", queues=["none"]), 10) == {}


def test_an_owners_verbs_read_their_own_leases(crowded: PostgresStore) -> None:
    """Renew, check, progress and settle, in batches."""
    grants = crowded.claim("worker", limit=100)
    holders = [(grant.spec.id, grant.epoch) for grant in grants]
    said = [Settlement(job_id, epoch, Outcome.COMPLETE, "null") for job_id, epoch in holders]
    failed = [Settlement(job_id, epoch, Outcome.FAIL, error="boom") for job_id, epoch in holders]

    assert counted(crowded, lambda: crowded.renew([Renewal(*holder) for holder in holders]), 400) == {}
    assert counted(crowded, lambda: crowded.check(holders), 400) == {}
    assert counted(crowded, lambda: crowded.settle(said[:50]), 200) == {}
    assert counted(crowded, lambda: crowded.settle(failed[50:]), 400) == {}


def test_a_reclaim_reads_what_is_over(crowded: PostgresStore) -> None:
    """By the deadline, and by nothing else."""
    crowded.claim("worker", limit=50, lease_us=1)

    ended: list[Any] = []
    assert counted(crowded, lambda: ended.extend(crowded.reclaim()), 400) == {}
    assert len(ended) == 50


def test_a_key_that_becomes_free_is_not_searched_for(crowded: PostgresStore) -> None:
    """Of a thousand jobs behind it, one is read."""
    [holder] = crowded.jobs(owner="worker", limit=1)
    crowded.settle([Settlement(holder.id, holder.epoch, Outcome.COMPLETE, "null")])

    read = counted(crowded, lambda: crowded.claim("worker"), 10)

    assert read.pop("freed", 0) <= 3  # the key itself, which is the only one there, at each look
    assert read == {}


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
    store = place.store()
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
    store.claim("worker")

    removed: list[int] = []
    read = counted(store, lambda: removed.append(store.prune(0, limit=100)), 400)

    assert removed == [100]
    # The events are more than that, and are all read.
    assert (read.pop("events_at"), read) == (2_000, {"leases": 1})
