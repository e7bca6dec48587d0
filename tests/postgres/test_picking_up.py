"""Transfers and their pick-up beside another transaction that decides about the same job or worker."""

from __future__ import annotations

import psycopg
import pytest

from leasehold.core.job import Grant, new_job
from leasehold.core.workers import WorkerReport
from leasehold.lease import Lease
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .owners import PATIENCE_MS, transfer
from .staging import Call, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


def handed(store: PostgresStore) -> Grant:
    """A job that was transferred to b, and not picked up."""
    store.add([new_job("a")])
    return store.transfer("a", 0, to="b", by="ops")


def report(name: str, given_name: str = "shop") -> WorkerReport:
    """What a worker says of itself."""
    return WorkerReport(name, given_name, None, None, (), 1, 0, 0)


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
@pytest.mark.parametrize("move", ["transfer", "cancel"])
def test_an_accept_that_meets_an_operator_waits_for_it(store: PostgresStore, move: str, ends: str) -> None:
    """If that commits, the owner has nothing to accept, under the name that it has and the epoch that it saw."""
    grant = handed(store)
    with session(store) as other:
        if move == "transfer":
            transfer(other, grant)
        else:
            [row] = other.call("override", "cancel", "a", grant.epoch, "ops", None, None, PATIENCE_MS)
            assert row[0] is None
        accepting = Call(lambda: store.accept("b", [("a", grant.epoch)], claim_id="mine"))
        until_blocked(store, accepting)
        (other.connection.commit if ends == "commits" else other.connection.rollback)()

        accepted = accepting.result()

    assert [one.epoch for one in accepted] == ([] if ends == "commits" else [grant.epoch])
    assert store.job("a").owner == ("b" if ends == "rolls back" else "thief" if move == "transfer" else None)
    assert store.transfers("b") == []


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_of_two_accepts_the_later_one_waits_for_the_first(store: PostgresStore, ends: str) -> None:
    """And gets the lease if the first is undone."""
    grant = handed(store)
    items = f'[{{"id": "a", "epoch": {grant.epoch}}}]'
    with session(store) as other:
        assert len(other.call("accept", "b", items, "other", *[None] * 5, PATIENCE_MS)) == 1
        accepting = Call(lambda: store.accept("b", [("a", grant.epoch)], claim_id="mine"))
        until_blocked(store, accepting)
        (other.connection.commit if ends == "commits" else other.connection.rollback)()

        assert len(accepting.result()) == (ends == "rolls back")

    assert store.lease("a", "b").claim_id == ("other" if ends == "commits" else "mine")


def test_a_lease_that_is_asked_for_beside_a_takeover_marks_nothing(store: PostgresStore) -> None:
    """The next owner's transfer is not picked up by the one before."""
    grant = handed(store)
    with session(store) as other:
        transfer(other, grant)
        asking = Call(lambda: store.lease("a", "b"))
        until_blocked(store, asking)
        other.connection.commit()

        assert asking.result().epoch == grant.epoch  # it was, when it was read

    assert store.transfers("thief") == [("a", store.job("a").epoch)]


def test_an_accept_waits_for_no_fence_and_a_fence_for_no_accept(place: Place, store: PostgresStore) -> None:
    """As a renewal does not: the owner's transaction commits."""
    grant = handed(store)
    with place.connect(store) as own:
        Lease(store, grant).fence(own)
        own.execute("set constraints all immediate")  # the fence looks at the row now, and again at the commit
        Call(lambda: store.accept("b", [("a", grant.epoch)], claim_id="mine")).result()
    assert store.claimed("mine")[0].epoch == grant.epoch


@pytest.mark.parametrize("to", ["w1", "shop"])
def test_a_worker_that_retires_waits_for_a_transfer_to_it(store: PostgresStore, to: str) -> None:
    """So its last look, after it has retired, finds every job that was given to it."""
    store.report(report("w1"))
    store.add([new_job("a")])
    with session(store) as other:
        [row] = other.call("transfer", "a", 0, to, "ops", None, None, 30_000_000, PATIENCE_MS)
        assert row[0] is None
        store.report(report("w1"))  # which need not wait
        retiring = Call(lambda: store.retire("w1"))
        until_blocked(store, retiring)
        other.connection.commit()
        retiring.result()

    [(job_id, epoch)] = store.transfers("w1")
    assert (job_id, epoch) == ("a", store.job("a").epoch)
    assert store.workers() == []


@pytest.mark.parametrize("to", ["w1", "shop"])
def test_a_transfer_that_meets_a_retirement_waits_for_it(store: PostgresStore, to: str) -> None:
    """And then takes the name as it is."""
    store.report(report("w1"))
    store.add([new_job("a")])
    with session(store) as other:
        other.call("retire_worker", "w1", PATIENCE_MS)
        moving = Call(lambda: store.transfer("a", 0, to=to, by="ops"))
        until_blocked(store, moving)
        other.connection.commit()

        assert moving.result().owner == to


def test_a_transfer_that_a_snapshot_settled_is_neither_shown_nor_accepted(place: Place, store: PostgresStore) -> None:
    """The row of its lease stays until the next claim; the lease is over."""
    grant = handed(store)
    with place.connect(store) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        Lease(store, grant).complete(connection=own)

    assert store.transfers("b") == []
    assert store.accept("b", [("a", grant.epoch)], claim_id="mine") == []
    assert store.claimed("mine") == []
    assert store.job("a").status == "done"


def test_a_renewal_that_had_to_wait_picks_up_its_own_transfer_alone(store: PostgresStore) -> None:
    """Asked again behind the lock, it is refused, and the next owner's transfer still waits."""
    grant = handed(store)
    with session(store) as other:
        transfer(other, grant)
        renewing = Call(lambda: store.renew([Renewal("a", grant.epoch)]))
        until_blocked(store, renewing)
        other.connection.commit()
        renewing.result()

    assert store.transfers("thief") == [("a", store.job("a").epoch)]
