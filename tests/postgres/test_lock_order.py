"""
Operators beside claims and settlements that they meet halfway: no two of them wait for each other.

The verbs are called as functions, in sessions of their own: a store would repeat one that was given up in a deadlock.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, sql
from tests.support import until

from leasehold.core.job import Outcome, Settlement, Status, new_job
from leasehold.liveness import this_process
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.owning import PATIENCE_MS
from leasehold.testing import ManualClock

from .fixtures import Place
from .staging import Call, Session, session

OPERATORS = ["cancel", "finish", "requeue", "transfer", "resolve"]


def operate(other: Session, verb: str, epoch: int) -> Any:
    """Call an operator's verb on job a, in a transaction of its own; return why it was not done, or None."""
    with other.connection.transaction():
        if verb == "transfer":
            return other.call("transfer", "a", epoch, "b", "ops", None, None, 30_000_000, PATIENCE_MS)[0][0]
        if verb == "resolve":
            return other.call("resolve", "a", epoch, "charge", "ops", '"done"', None, PATIENCE_MS)[0][0]
        return other.call("override", verb, "a", epoch, "ops", None, '"done"', PATIENCE_MS)[0][0]


def complete(other: Session, epoch: int) -> None:
    """Complete job a, in a transaction of its own."""
    with other.connection.transaction():
        assert other.call("complete", ["a"], [epoch], None, None, PATIENCE_MS) == [(None,)]


def table(store: PostgresStore, name: str) -> sql.Identifier:
    """A table of the store."""
    return sql.Identifier(store.database.schema, name)


def until_waiting(store: PostgresStore, count: int) -> None:
    """Wait until that many sessions wait for a lock."""
    until(lambda: store.database.read("select count(*) from pg_locks where not granted") == [(count,)])


@pytest.fixture
def sessions(store: PostgresStore) -> Any:
    """Three sessions: one that is in the way, and two that meet."""
    with ExitStack() as stack:
        yield [stack.enter_context(session(store)) for _ in range(3)]


@pytest.mark.parametrize("verb", OPERATORS)
def test_an_operator_who_saw_no_lease_lets_go_of_the_job_before_it_waits_for_one(
    store: PostgresStore, sessions: list[Session], verb: str
) -> None:
    """The job is claimed between the two looks, and its owner, who holds the lease, is about to complete it."""
    store.add([new_job("a")])
    behind, operator, owner = sessions
    behind.connection.execute(sql.SQL("select from {} for update").format(table(store, "jobs")))
    operating = Call(lambda: operate(operator, verb, 0))
    until_waiting(store, 1)
    [grant] = store.claim("worker")
    completing = Call(lambda: complete(owner, grant.epoch))
    until_waiting(store, 2)

    behind.connection.rollback()

    assert operating.result() is not None  # refused
    completing.result()
    assert store.job("a").status is Status.DONE
    assert store.verify() == []


def put_back(store: PostgresStore) -> None:
    """Have the owner of job a release it in a transaction that leaves the row of the lease behind, to be removed."""
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    with psycopg.connect(store.database.url) as own:
        own.isolation_level = IsolationLevel.REPEATABLE_READ
        # More than a claim sees to at once.
        insertion = sql.SQL("insert into {} (lock) select 'key ' || n from generate_series(1, 200) as n")
        own.execute(insertion.format(table(store, "freed")))
        released = Settlement("a", grant.epoch, Outcome.RELEASE)
        store.transactions.run(own, store.transactions.settle(released), savepoint=False)
    with psycopg.connect(store.database.url) as own:
        left = own.execute(sql.SQL("select seq from {}").format(table(store, "leases"))).fetchall()
    assert len(left) == 1


@pytest.mark.parametrize("verb", ["cancel", "finish", "transfer", "resolve"])
def test_an_operator_who_waits_for_a_claim_does_not_hold_the_lease_that_it_removes(
    store: PostgresStore, sessions: list[Session], verb: str
) -> None:
    """The claim has the place of the job, whose last lease was ended by a caller's transaction and is still there."""
    put_back(store)
    behind, operator, claimer = sessions
    here = this_process()
    assert here is not None
    behind.ask("process_id", *here)  # so that the claim waits, with the place in hand
    claiming = Call(
        lambda: claimer.call("claim", "other", 1, None, None, None, 30_000_000, None, *here, *[None] * 7, False)
    )
    until_waiting(store, 1)
    operating = Call(lambda: operate(operator, verb, store.job("a").epoch))
    until_waiting(store, 2)

    behind.connection.rollback()

    assert len(claiming.result()) == 2
    claimer.connection.commit()
    assert operating.result() is not None
    assert (store.job("a").status, store.job("a").owner) == (Status.RUNNING, "other")
    assert store.verify() == []


@pytest.mark.parametrize("where", ["scheduled", "parked"])
def test_a_claim_does_not_wait_for_who_moves_a_late_job(place: Place, where: str) -> None:
    """Another claim lets it wait in its queue at this moment, or an operator has it: it is left for the next sweep."""
    clock = ManualClock()
    store = place.store(clock=clock)
    store.add([new_job("holder", lock="k"), new_job("other")])
    if where == "scheduled":
        store.add([new_job("late", delay_seconds=1, start_within_seconds=10)])
    else:
        store.claim("worker", lease_us=10**9)
        store.add([new_job("late", lock="k", priority=1, start_within_seconds=10)])
        store.claim("worker", lease_us=10**9)
    store.add([new_job("too late", start_within_seconds=10)])
    clock.advance(60)
    with psycopg.connect(store.database.url) as other:
        found = other.execute(sql.SQL("select seq from {} for update").format(table(store, where))).fetchall()
        assert len(found) == 1

        assert store.reclaim() == []
        assert [store.job(id_).status for id_ in ("late", "too late")] == [Status.PENDING, Status.CANCELLED]

    assert store.reclaim() == []
    assert store.job("late").status is Status.CANCELLED
    assert store.verify() == []
