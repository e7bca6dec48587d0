"""
Verbs beside another transaction that decides about the same job, key, process or epoch.

Each test puts one session into the middle of its transaction, starts the verb, and then ends the session's
transaction. tests/mutants.py keeps the change of the SQL that each of them detects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from leasehold import Conflict, Settled, StaleEpoch
from leasehold.core.job import Grant, NewJob, Outcome, Progress, Settlement, new_child, new_job
from leasehold.lease import Lease
from leasehold.process import this_process
from leasehold.store import Refusal, Renewal
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.rows import as_json, settlement

from .fixtures import Place
from .staging import Call, Session, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")

PATIENCE_MS = 60_000  # of a staged session with a lock


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store on the server's own clock, verified at the end."""
    made = place.store()
    yield made
    assert made.verify() == []


def one(store: PostgresStore, owner: str = "worker", **options: Any) -> Grant:
    """Claim exactly one job."""
    [grant] = store.claim(owner, **options)
    return grant


def said(grant: Grant, outcome: Outcome = Outcome.COMPLETE) -> Settlement:
    """How the owner settles its lease."""
    return Settlement(grant.spec.id, grant.epoch, outcome, "null" if outcome is Outcome.COMPLETE else None)


def child(grant: Grant) -> NewJob:
    """A child of the job."""
    return new_child(grant.spec.id, new_job("child"), 1)


def transfer(other: Session, grant: Grant) -> None:
    """Transfer the job in the session's transaction, which stays open."""
    [row] = other.call("transfer", grant.spec.id, grant.epoch, "thief", "ops", None, None, 30_000_000, PATIENCE_MS)
    assert row[0] is None


# A lease that is taken over


def test_a_renewal_that_had_to_wait_does_not_renew_the_next_owner(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes over the locked row; the takeover commits; asked again, it meets the row of the next owner."""
    store.add([new_job("a")])
    held = one(store)
    renew = store._renew
    with session(store) as other:
        transfer(other, held)

        def renew_after_the_takeover(renewals: Any, *, wait: bool, **options: Any) -> Any:
            if wait:
                other.connection.commit()
            return renew(renewals, wait=wait, **options)

        monkeypatch.setattr(store, "_renew", renew_after_the_takeover)

        [reply] = store.renew([Renewal("a", held.epoch, 90_000_000)])

    assert type(reply) is StaleEpoch
    assert store.lease("a", "thief").lease_us == 30_000_000
    expires_us = store.job("a").expires_us
    assert expires_us is not None
    assert expires_us < held.granted_us + 85_000_000


OWNERS: dict[str, Callable[[PostgresStore, Grant], Any]] = {
    "add": lambda store, grant: store.add_children(grant.spec.id, grant.epoch, [child(grant)]),
    "begin_effect": lambda store, grant: store.begin_effect(grant.spec.id, grant.epoch, "mail"),
    "complete": lambda store, grant: store.settle([said(grant)]),
    "end_effect": lambda store, grant: store.end_effect(grant.spec.id, grant.epoch, "charge", "1"),
    "progress": lambda store, grant: store.progress([Progress(grant.spec.id, grant.epoch, 0.5, None, "1")]),
    "release": lambda store, grant: store.settle([said(grant, Outcome.RELEASE)]),
    "renew": lambda store, grant: store.renew([Renewal(grant.spec.id, grant.epoch)]),
}


def refused(call: Callable[[], Any]) -> Refusal | None:
    """The refusal that *call* raises or returns."""
    try:
        reply = call()
    except StaleEpoch as error:
        return error
    return next((one for one in reply if isinstance(one, StaleEpoch)), None) if isinstance(reply, list) else None


@pytest.mark.parametrize("verb", OWNERS)
def test_a_verb_that_meets_a_takeover_waits_for_it_and_is_refused(store: PostgresStore, verb: str) -> None:
    """The takeover has locked the lease and not committed: until it has, nobody knows whether the owner may write."""
    store.add([new_job("a")])
    held = one(store)
    store.begin_effect("a", held.epoch, "charge")
    with session(store) as other:
        transfer(other, held)

        call = Call(lambda: refused(lambda: OWNERS[verb](store, held)))
        until_blocked(store, call)
        other.connection.commit()

    assert type(call.result()) is StaleEpoch
    assert [job.id for job in store.jobs()] == ["a"]
    assert [(effect.name, effect.known) for effect in store.effects("a")] == [("charge", False)]
    assert (store.job("a").owner, store.job("a").progress) == ("thief", None)


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
    several = [said(held, Outcome.RELEASE if how is Outcome.COMPLETE else Outcome.COMPLETE)] * 2
    assert [type(reply) for reply in store.settle(several)] == [Settled, Settled]
    for act in (store.cancel, store.finish):
        if how is Outcome.COMPLETE:
            with pytest.raises(Conflict):
                act("a", held.epoch, by="ops")

    assert (store.job("a"), store.effects("a")) == before
    assert [job.id for job in store.jobs()] == ["a"]


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


def test_a_report_in_a_callers_transaction_is_traced(place: Place) -> None:
    """Once it has committed, with the epoch and what was reported."""
    store = place.store(trace=True)
    store.add([new_job("a")])
    lease = Lease(store, one(store))

    with place.connect(store) as own:
        lease.progress(0.5, note="half", connection=own)
        assert store.events(kind="progressed") == []

    [event] = store.events(kind="progressed")
    assert (event.job_id, event.epoch, event.owner) == ("a", lease.epoch, "worker")
    assert (event.facts["progress"], event.facts["note"]) == (0.5, "half")


def test_a_fenced_transaction_is_ended_by_one_caller_at_a_time(place: Place, store: PostgresStore) -> None:
    """While another session decides about it, it is left alone, and remembered."""
    store.add([new_job("a")])
    held = one(store)
    with session(store) as other, place.connect(store) as paused:
        Lease(store, held).fence(paused)
        [(key,)] = other.ask("key_of", f"end {held.epoch}")
        other.connection.execute("select pg_advisory_xact_lock(%s)", [key])

        store.transfer("a", held.epoch, to="b", by="ops")
        assert paused.execute("select 1").fetchall() == [(1,)]

        other.connection.rollback()
        store.reclaim()
        with pytest.raises(psycopg.OperationalError):
            paused.execute("select 1")
        paused.close()


# Two callers under one epoch


def test_of_two_callers_under_one_epoch_one_gets_a_fresh_effect(store: PostgresStore) -> None:
    """The second waits for the first, and is told that the effect has begun: only one of them may send the mail."""
    store.add([new_job("a")])
    held = one(store)
    with session(store) as other:
        [(_, fresh, *_)] = other.call("begin_effect", "a", held.epoch, "mail", "key", False, PATIENCE_MS)
        assert fresh

        second = Call(lambda: store.begin_effect("a", held.epoch, "mail"))
        until_blocked(store, second)
        other.connection.commit()

    begun = second.result()
    assert (begun.fresh, begun.effect.key) == (False, "key")


# Operators beside a claim


@pytest.mark.parametrize("act", ["cancel", "finish", "transfer"])
@pytest.mark.parametrize("waiting", ["ready", "scheduled", "parked"])
def test_an_operator_who_saw_a_pending_job_meets_the_claim_beside_it(
    store: PostgresStore, act: str, waiting: str
) -> None:
    """The claim has taken the row by which the job waits; the operator waits for its commit, and finds the owner."""
    waits: dict[str, dict[str, Any]] = {"ready": {}, "scheduled": {"delay_seconds": 60}, "parked": {"lock": "k"}}
    if waiting == "parked":
        store.add([new_job("holder", lock="k")])
        holder = one(store)
    store.add([new_job("a", **waits[waiting])])
    assert not (waiting == "parked" and store.claim("b"))  # which parks it
    acts: dict[str, Callable[[], Any]] = {
        "cancel": lambda: store.cancel("a", 0, by="ops"),
        "finish": lambda: store.finish("a", 0, by="ops"),
        "transfer": lambda: store.transfer("a", 0, to="b", by="ops"),
    }
    with session(store) as other:
        if waiting == "parked":
            other.call("settle", as_json([settlement(said(holder))]), PATIENCE_MS, False)
        if waiting == "scheduled":  # the transaction of an hour later
            other._now = store.job("a").run_us + 3_600_000_000
        assert other.claim() == ["a"]

        call = Call(acts[act])
        until_blocked(store, call)
        other.connection.commit()

        with pytest.raises(StaleEpoch) as told:
            call.result()

    assert (told.value.presented, told.value.owner) == (0, "other")
    assert store.job("a").owner == "other"


@pytest.mark.parametrize("claim", ["commits", "rolls back"])
def test_a_transfer_waits_for_a_claim_that_decides_about_its_key(store: PostgresStore, claim: str) -> None:
    """Another job of the key is being claimed: the transfer is told that the key is held, or gets it."""
    store.add([new_job("first", lock="k"), new_job("second", lock="k")])
    with session(store) as other:
        assert other.claim(limit=1) == ["first"]

        moving = Call(lambda: store.transfer("second", 0, to="b", by="ops"))
        until_blocked(store, moving)
        if claim == "commits":
            other.connection.commit()
            with pytest.raises(Conflict, match="'first'"):
                moving.result()
            assert (store.job("first").owner, store.job("second").status) == ("other", "pending")
        else:
            other.connection.rollback()
            assert moving.result().spec.id == "second"


def test_a_transfer_draws_its_epoch_once_it_holds_the_key(store: PostgresStore) -> None:
    """Whoever had the key while the transfer waited for it has a lower epoch, so that a guard refuses only the past."""
    store.add([new_job("first", lock="k"), new_job("second", lock="k")])
    with session(store) as other:
        [(key,)] = other.ask("key_of", "k")
        other.connection.execute("select pg_advisory_xact_lock(%s)", [key])

        moving = Call(lambda: store.transfer("second", 0, to="b", by="ops"))
        until_blocked(store, moving)
        rows = other.call("claim", "other", 1, None, None, 30_000_000, None, *[None] * 12, False)
        [epoch] = [epoch for row in rows for epoch in row[1] or ()]
        first = f'[{{"id":"first","epoch":{epoch},"outcome":"complete","result":"1","said":"x"}}]'
        assert other.call("settle", first, PATIENCE_MS, False) == []
        other.connection.commit()

        assert moving.result().epoch > epoch


# Epochs


def test_no_epoch_is_drawn_while_the_next_one_is_set(store: PostgresStore) -> None:
    """Between the look at the last epoch and the change, a draw would be issued again afterwards."""
    store.add([new_job("a")])
    with session(store) as other, session(store) as drawing:
        name = sql.Literal(sql.Identifier(store.database.schema, "epochs").as_string(other.connection))
        draw = sql.SQL("select nextval({})").format(name)
        [(least,)] = other.ask("raise_epochs", 0)

        drawing.connection.execute("set lock_timeout = '50ms'")
        drawing.connection.commit()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            drawing.connection.execute(draw)
        drawing.connection.rollback()
        claiming = Call(lambda: one(store))
        other.connection.commit()
        assert claiming.result().epoch >= least

        drawing.connection.execute(draw)  # and the other way round
        other.connection.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.ask("raise_epochs", 0)


# Upkeep


@contextmanager
def pausing(store: PostgresStore, other: Session, number: int) -> Iterator[None]:
    """Have *other* wait for the advisory lock *number* in each statement that reads the list of finished jobs."""
    schema = store.database.schema
    table, real, pause = (sql.Identifier(schema, name) for name in ("finished", "finished_rows", "pause"))
    with psycopg.connect(store.database.url, autocommit=True) as owner:
        owner.execute(sql.SQL("alter table {} rename to finished_rows").format(table))
        owner.execute(
            sql.SQL(
                "create function {}() returns boolean language plpgsql volatile as $$ begin "
                "if current_setting('lease.pauses', true) = 'yes' then perform pg_advisory_xact_lock({}); end if; "
                "return true; end $$"
            ).format(pause, number)
        )
        owner.execute(sql.SQL("create view {} as select * from {} where {}()").format(table, real, pause))
        other.connection.execute("set lease.pauses = 'yes'")
        other.connection.commit()
        try:
            yield
        finally:
            # A test that fails leaves its transaction open, which would keep the view from being dropped.
            owner.execute("select pg_terminate_backend(%s, 60000)", [other.connection.info.backend_pid])
            owner.execute(sql.SQL("drop view {}").format(table))
            owner.execute(sql.SQL("drop function {}()").format(pause))
            owner.execute(sql.SQL("alter table {} rename to finished").format(real))


@pytest.mark.parametrize("since", ["a replay", "a replay and another completion"])
def test_a_prune_leaves_a_job_that_was_replayed_after_it_looked(store: PostgresStore, since: str) -> None:
    """It has found the job among the finished ones, and locks it once the replay has committed."""
    store.add([new_job("a"), new_job("b")])
    for grant in store.claim("worker", limit=2):
        store.settle([said(grant)])
    epoch = store.job("a").epoch
    with session(store) as pruner, session(store) as holder, pausing(store, pruner, 4711):
        holder.connection.execute("select pg_advisory_lock(4711)")
        [(now,)] = holder.connection.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")

        pruning = Call(lambda: pruner.ask("prune", 0, 10, 10, PATIENCE_MS, now))
        until_blocked(store, pruning)
        store.replay("a", epoch, by="ops")
        if since != "a replay":
            store.settle([said(one(store))])
        holder.connection.execute("select pg_advisory_unlock(4711)")
        holder.connection.commit()

        removed = pruning.result()
        pruner.connection.commit()

    assert removed == [(1,)]
    assert [job.id for job in store.jobs()] == ["a"]
    assert store.job("a").status == ("pending" if since == "a replay" else "done")


def test_recovery_remembers_a_process_one_of_whose_leases_was_locked(store: PostgresStore) -> None:
    """What it could not take back this time, it takes back the next time, without waiting for the deadline."""
    mine = this_process()
    if mine is None:
        pytest.skip("this system does not tell enough about a process to prove its death")
    gone = mine._replace(started=mine.started - 1)
    store.add([new_job("a"), new_job("b")])
    first, _ = store.claim("worker", limit=2, process=gone)
    leases = sql.Identifier(store.database.schema, "leases")
    with session(store) as other:
        other.connection.execute(sql.SQL("select from {} where epoch = {} for update").format(leases, first.epoch))

        assert [ended.job_id for ended in store._recover(always=True)] == ["b"]
        other.connection.rollback()

    [ended] = store._recover(always=True)
    assert (ended.job_id, ended.ended) == ("a", "recovery")
