"""
Verbs after a settlement in a caller's transaction at REPEATABLE READ.

Such a transaction cannot remove the row of the lease, which may have been renewed since its snapshot, so the row stays
until the next claim. The lease is over all the same: nothing passes under it, and the job is what its settlement says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

from leasehold import Conflict, Settled
from leasehold.core.job import Grant, Outcome, Progress, new_job
from leasehold.lease import Lease
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .owners import OWNERS, one, refused, settling
from .staging import Call, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


@pytest.mark.parametrize("how", [Outcome.COMPLETE, Outcome.FAIL, Outcome.RELEASE])
def test_after_a_settlement_at_repeatable_read_the_lease_is_over(
    place: Place, store: PostgresStore, how: Outcome
) -> None:
    """Such a transaction cannot remove the row of the lease, so the row stays until the next claim; nothing passes."""
    store.add([new_job("a")])
    held = one(store)
    store.begin_effect("a", held.epoch, "charge")
    with place.connect(store) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        lease = Lease(store, held)
        if how is Outcome.COMPLETE:
            lease.complete(connection=own)
        elif how is Outcome.FAIL:
            lease.fail("x", connection=own)
        else:
            lease.release(connection=own)
    leases = sql.Identifier(store.database.schema, "leases")
    with session(store) as other:
        [(left,)] = other.connection.execute(sql.SQL("select epoch from {}").format(leases)).fetchall()
    assert left == held.epoch
    before = store.job("a"), store.effects("a")
    again = {"complete", "release"} - {str(how.value)}  # the same settlement again is accepted, and changes nothing

    for verb in OWNERS.keys() - {"complete", "release"} | again:
        assert type(refused(lambda verb=verb: OWNERS[verb](store, held))) is Settled, verb  # type: ignore[misc]  # a default is how a lambda keeps a value
    assert type(store.check([("a", held.epoch)])[0]) is Settled
    several = [settling(held, Outcome.RELEASE if how is Outcome.COMPLETE else Outcome.COMPLETE)] * 2
    assert [type(reply) for reply in store.settle(several)] == [Settled, Settled]
    for act in (store.cancel, store.finish):
        if how is Outcome.COMPLETE:
            with pytest.raises(Conflict):
                act("a", held.epoch, by="ops")

    assert (store.job("a"), store.effects("a")) == before
    assert [job.id for job in store.jobs()] == ["a"]


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a batch"])
def test_a_completion_that_waits_for_a_settlement_at_repeatable_read_is_refused_after_it(
    place: Place, store: PostgresStore, count: int
) -> None:
    """It gets the row of the lease, which is left, and finds the job at the epoch of the lease."""
    store.add([new_job("a"), new_job("b")])
    first, second = store.claim("worker", limit=2)
    lock = sql.SQL("select from {} where id = 'a' for update").format(sql.Identifier(store.database.schema, "jobs"))
    with place.connect(store) as own, session(store) as behind:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        Lease(store, first).release(connection=own)
        behind.connection.execute(lock)  # so that its COMMIT stands still, with the lease in hand
        committing = Call(own.commit)
        until_blocked(store, committing)
        completing = Call(lambda: store.settle([settling(first), settling(second)][:count]))
        until(lambda: store.database.read("select count(*) > 1 from pg_locks where not granted") == [(True,)])
        behind.connection.rollback()
        committing.result()

        refusal, *rest = completing.result()

    assert (type(refusal), rest) == (Settled, [None] * (count - 1))
    assert (store.job("a").status, store.job("b").status) == ("pending", "done" if count == 2 else "running")
    assert store.verify() == []


def settled_at_repeatable_read(place: Place, store: PostgresStore, how: str, **options: Any) -> Grant:
    """Claim job "a", and settle it in such a transaction; the row of its lease is left."""
    store.add([new_job("a", **options)])
    held = one(store)
    lease = Lease(store, held)
    store.begin_effect("a", held.epoch, "charge")
    with place.connect(store) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        if how == "fail":
            lease.fail("x", retry=False, connection=own)
        else:
            (lease.complete if how == "complete" else lease.release)(connection=own)
    leases = sql.Identifier(store.database.schema, "leases")
    with session(store) as other:
        [(left,)] = other.connection.execute(sql.SQL("select epoch from {}").format(leases)).fetchall()
    assert left == held.epoch
    return held


@pytest.mark.parametrize("act", ["transfer", "cancel", "finish", "replay", "requeue", "resolve"])
@pytest.mark.parametrize("how", ["complete", "fail", "release"])
@pytest.mark.parametrize("key", [None, "k"])
def test_after_a_settlement_at_repeatable_read_operators_find_the_job_as_it_is(
    place: Place, store: PostgresStore, act: str, how: str, key: str | None
) -> None:
    """What its status admits is done, as if the row of the lease were not left; the rest is a conflict."""
    held = settled_at_repeatable_read(place, store, how, lock=key)
    acts: dict[str, Callable[[], Any]] = {
        "transfer": lambda: store.transfer("a", held.epoch, to="b", by="ops"),
        "cancel": lambda: store.cancel("a", held.epoch, by="ops"),
        "finish": lambda: store.finish("a", held.epoch, by="ops"),
        "replay": lambda: store.replay("a", held.epoch, by="ops"),
        "requeue": lambda: store.requeue("a", held.epoch, by="ops"),
        "resolve": lambda: store.resolve("a", held.epoch, "charge", by="ops", outcome="1"),
    }
    admitted = {"transfer": ["release"], "cancel": ["release"], "finish": ["release", "fail"]}
    admitted |= {"replay": ["complete", "fail"], "requeue": [], "resolve": ["complete", "fail", "release"]}

    if how in admitted[act]:
        acts[act]()
    else:
        with pytest.raises(Conflict):
            acts[act]()

    status = {"complete": "done", "fail": "failed", "release": "pending"}[how]
    then = {"transfer": "running", "cancel": "cancelled", "finish": "done", "replay": "pending"}
    job = store.job("a")
    assert job.status == (then.get(act, status) if how in admitted[act] else status)
    assert job.owner == ("b" if job.status == "running" else None)
    [first, *later] = store.ownerships("a")
    assert (first.epoch, first.ended) == (held.epoch, {"complete": "done", "fail": "failed"}.get(how, "release"))
    assert len(later) == (job.status == "running")
    if job.status == "pending":
        assert one(store).spec.id == "a"


@pytest.mark.parametrize("how", ["complete", "release"])
def test_a_job_settled_at_repeatable_read_can_be_pruned(place: Place, store: PostgresStore, how: str) -> None:
    """If it is finished; the row of the lease that is left means nothing."""
    held = settled_at_repeatable_read(place, store, how)
    if how == "release":
        with pytest.raises(Conflict, match="is pending"):
            store.prune_job("a", held.epoch, by="ops")
        return
    store.resolve("a", held.epoch, "charge", by="ops", outcome="1")

    store.prune_job("a", held.epoch, by="ops")

    assert store.job("a").pruned
    assert store.verify() == []


@pytest.mark.parametrize("how", ["complete", "release"])
@pytest.mark.parametrize("verb", ["complete", "mixed", "progress", "renew"])
def test_after_a_settlement_at_repeatable_read_a_batch_passes_over_that_lease(
    place: Place, store: PostgresStore, how: str, verb: str
) -> None:
    """It is refused where it stands, and the others of the batch are done."""
    held = settled_at_repeatable_read(place, store, how)
    store.add([new_job("b", queue="another")])
    live = store.transfer("b", 0, to="worker", by="ops")  # a claim would remove the row that is left
    both = (held, live)
    last = Outcome.RELEASE if verb == "mixed" else Outcome.COMPLETE
    calls: dict[str, Callable[[], list[Any]]] = {
        "complete": lambda: store.settle([settling(held)._replace(result="7"), settling(live)._replace(result="7")]),
        "mixed": lambda: store.settle([settling(held)._replace(result="7"), settling(live, last)]),
        "progress": lambda: store.progress([Progress(one.spec.id, one.epoch, 0.5) for one in both]),
        "renew": lambda: store.renew([Renewal(one.spec.id, one.epoch) for one in both]),
    }

    replies = calls[verb]()

    assert type(replies[0]) is Settled
    assert not isinstance(replies[1], Exception)
    assert store.job("a").status == ("done" if how == "complete" else "pending")
    assert (store.job("a").result, store.job("a").progress) == (None, None)
    assert store.job("b").status == {"complete": "done", "mixed": "pending"}.get(verb, "running")


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
@pytest.mark.parametrize("act", ["claim", "fast claim", "transfer"])
def test_a_key_that_was_freed_at_repeatable_read_can_be_taken_at_once(
    place: Place, store: PostgresStore, how: str, act: str
) -> None:
    """The row that is left still names the key, and does not hold it."""
    held = settled_at_repeatable_read(place, store, how, lock="k")
    store.add([new_job("b", lock="k", priority=1)])
    if act == "fast claim":
        store.add([new_job("first", priority=2)])
        assert one(store).spec.id == "first"

    taken = store.transfer("b", 0, to="worker", by="ops") if act == "transfer" else one(store)

    assert (taken.spec.id, store.lease("b", "worker")) == ("b", taken)
    assert taken.epoch > held.epoch
    assert store.claim("later", limit=10) == []  # the released job waits behind it


@pytest.mark.parametrize("how", ["complete", "release"])
def test_a_sweep_takes_nothing_back_that_was_settled_at_repeatable_read(
    place: Place, store: PostgresStore, how: str
) -> None:
    """The row of the lease is left and has expired; the lease itself is over, so nothing is reclaimed."""
    store.add([new_job("a")])
    lease = Lease(store, one(store, lease_us=1))
    with place.connect(store) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        (lease.complete if how == "complete" else lease.release)(connection=own)

    assert store.reclaim() == []

    job = store.job("a")
    assert (job.status, job.epoch, job.reclaims) == ("done" if how == "complete" else "pending", lease.epoch, 0)
