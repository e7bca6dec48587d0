"""
Verbs beside another transaction that decides about the same job, key, process or epoch.

Each test puts one session into the middle of its transaction, starts the verb, and then ends the session's
transaction. tests/mutants.py keeps the change of the SQL that each of them detects.

Long on purpose: the tests share the sessions that stand in the middle of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

from leasehold import Conflict, Parked, StaleEpoch
from leasehold.core.job import Outcome, Progress, new_job
from leasehold.lease import Lease
from leasehold.liveness import this_process
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.rows import as_json, settlement_json

from .fixtures import Place
from .owners import DONE, OWNERS, PATIENCE_MS, one, refused, settling, transfer
from .staging import Call, Session, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


# A queue that is paused


def test_a_pause_waits_for_no_claim_and_a_later_claim_takes_nothing(place: Place, store: PostgresStore) -> None:
    """A claim that is under way keeps what it takes; one that begins after the pause has returned takes nothing."""
    store.add([new_job(f"job-{number}") for number in range(6)])
    assert [one(store).spec.id, one(store).spec.id] == ["job-0", "job-1"]  # so that there is a floor
    with session(store) as other:
        assert other.claim(1) == ["job-2"]

        Call(lambda: place.again(store).pause("default", by="ops")).result()

        assert store.claim("worker") == []
        assert store.claim("worker", limit=2) == []
        assert other.claim(1) == []  # a statement of its own, which sees what was committed before it
        other.connection.commit()
    assert store.job("job-2").owner == "other"
    store.resume("default", by="ops")
    assert one(store).spec.id == "job-3"


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_of_two_who_decide_about_a_queue_the_later_one_counts(store: PostgresStore, verb: str) -> None:
    """It waits for the first one's commit."""
    store.pause("mail", by="ann")
    with session(store) as other:
        other.call("pause", "mail", "bob", None, PATIENCE_MS)
        later = Call(lambda: store.pause("mail", by="eve") if verb == "pause" else store.resume("mail", by="eve"))
        until_blocked(store, later)
        other.connection.commit()

        assert later.result().paused == (verb == "pause")
    assert [queue.paused_by for queue in store.queues()] == (["eve"] if verb == "pause" else [])


def test_a_pause_that_has_not_committed_is_not_there_yet(store: PostgresStore) -> None:
    """A claim waits for it no more than for anything else."""
    store.add([new_job(f"job-{number}") for number in range(3)])
    with session(store) as other:
        other.call("pause", "default", "ops", None, PATIENCE_MS)
        assert one(store).spec.id == "job-0"
        other.connection.commit()

        assert store.claim("worker") == []


# A lease that is taken over


def test_a_renewal_that_had_to_wait_does_not_renew_the_next_owner(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes over the locked row; the takeover commits; asked again, it meets the row of the next owner."""
    store.add([new_job("a")])
    held = one(store)
    renew = store.batches.renew_part
    with session(store) as other:
        transfer(other, held)

        def renew_after_the_takeover(renewals: Any, *, wait: bool, **options: Any) -> Any:
            if wait:
                other.connection.commit()
            return renew(renewals, wait=wait, **options)

        monkeypatch.setattr(store.batches, "renew_part", renew_after_the_takeover)

        [reply] = store.renew([Renewal("a", held.epoch, 90_000_000)])

    assert type(reply) is StaleEpoch
    assert store.lease("a", "thief").lease_us == 30_000_000
    expires_us = store.job("a").expires_us
    assert expires_us is not None
    assert expires_us < held.granted_us + 85_000_000


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


@pytest.mark.parametrize("verb", OWNERS)
@pytest.mark.parametrize("other", ["a takeover that is undone", "the owner's renewal"])
def test_a_verb_that_had_to_wait_is_done_if_the_lease_is_still_its_own(
    store: PostgresStore, verb: str, other: str
) -> None:
    """The lock alone refuses nothing; and what is found behind it is the row as it is then."""
    store.add([new_job("a")])
    held = one(store, lease_us=60_000_000)
    store.begin_effect("a", held.epoch, "charge")
    with session(store) as beside:
        if other == "the owner's renewal":
            renewals = as_json([{"id": "a", "epoch": held.epoch, "lease_us": 70_000_000}])
            [(_, _, refusal)] = beside.call("renew", renewals, False, PATIENCE_MS, False)
            assert refusal is None
        else:
            transfer(beside, held)

        call = Call(lambda: refused(lambda: OWNERS[verb](store, held)))
        if other == "the owner's renewal" and verb in ("add", "record"):
            call.result()  # for which it need not wait
        else:
            until_blocked(store, call)
        if other == "the owner's renewal":
            beside.connection.commit()
        else:
            beside.connection.rollback()

    assert call.result() is None
    assert DONE[verb](store)
    assert store.job("a").epoch == held.epoch


def test_a_batch_of_completions_that_had_to_wait_for_a_renewal_is_done(store: PostgresStore) -> None:
    """The row of that lease has moved since the batch saw it; a completion alone goes another way."""
    store.add([new_job("a"), new_job("b")])
    grants = store.claim("worker", limit=2, lease_us=60_000_000)
    with session(store) as beside:
        renewals = as_json([{"id": "a", "epoch": grants[0].epoch, "lease_us": 70_000_000}])
        [(_, _, refusal)] = beside.call("renew", renewals, False, PATIENCE_MS, False)
        assert refusal is None
        call = Call(lambda: store.settle([settling(grant) for grant in grants]))
        until_blocked(store, call)
        beside.connection.commit()

        assert call.result() == [None, None]
    assert [job.status for job in store.jobs()] == ["done", "done"]


@pytest.mark.parametrize("verb", ["complete", "mixed", "progress", "renew"])
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_of_a_batch_only_what_collides_waits(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, verb: str, ends: str
) -> None:
    """The others are done meanwhile; the one that waited is refused, or done, by how the other transaction ended."""
    monkeypatch.setattr("leasehold.stores.postgres.owning.BATCH_PATIENCE_MS", 20)
    store.add([new_job(name) for name in "abc"])
    a, b, c = store.claim("worker", limit=3)
    settlements = [settling(b), settling(a), settling(c, Outcome.RELEASE if verb == "mixed" else Outcome.COMPLETE)]
    calls: dict[str, Callable[[], list[Any]]] = {
        "complete": lambda: store.settle(settlements),
        "mixed": lambda: store.settle(settlements),
        "progress": lambda: store.progress([Progress(one.spec.id, one.epoch, 0.5) for one in (b, a, c)]),
        "renew": lambda: store.renew([Renewal(one.spec.id, one.epoch, 90_000_000) for one in (b, a, c)]),
    }

    before = {job.id: job for job in store.jobs()}
    with session(store) as other:
        transfer(other, a)
        call = Call(calls[verb])
        until_blocked(store, call)
        until(lambda: store.job("b") != before["b"] and store.job("c") != before["c"])
        assert store.job("a") == before["a"]
        (other.connection.commit if ends == "commits" else other.connection.rollback)()
        answers = call.result()

    assert [isinstance(answer, StaleEpoch) for answer in answers] == [False, ends == "commits", False]
    job = store.job("a")
    if ends == "commits":
        assert (job.owner, job.progress) == ("thief", None)
        assert store.lease("a", "thief").lease_us == 30_000_000
    else:
        assert job != before["a"]
        assert job.epoch == a.epoch


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
@pytest.mark.parametrize("waiting", ["ready", "scheduled", "parked", "behind its task"])
def test_an_operator_who_saw_a_pending_job_meets_the_claim_beside_it(
    store: PostgresStore, act: str, waiting: str
) -> None:
    """The claim has taken the row by which the job waits; the operator waits for its commit, and finds the owner."""
    waits: dict[str, dict[str, Any]] = {
        "ready": {},
        "scheduled": {"delay_seconds": 60},
        "parked": {"lock": "k"},
        "behind its task": {"task": "new"},
    }
    if waiting == "parked":
        store.add([new_job("holder", lock="k")])
        holder = one(store)
    store.add([new_job("a", **waits[waiting])])
    assert not (waiting == "parked" and store.claim("b"))  # which parks it
    assert not (waiting == "behind its task" and store.claim("b", tasks=["old"]))
    acts: dict[str, Callable[[], Any]] = {
        "cancel": lambda: store.cancel("a", 0, by="ops"),
        "finish": lambda: store.finish("a", 0, by="ops"),
        "transfer": lambda: store.transfer("a", 0, to="b", by="ops"),
    }
    with session(store) as other:
        if waiting == "parked":
            other.call("settle", as_json([settlement_json(settling(holder))]), PATIENCE_MS, False)
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


# Claims that know different tasks, beside each other


def test_claims_wait_for_nobody_who_takes_or_parks_by_tasks(store: PostgresStore) -> None:
    """What is being taken from behind a task, or parked there, is passed over: it is the other claim's."""
    store.add([new_job("new-1", task="new"), new_job("new-2", task="new")])
    assert store.claim("old", limit=10, tasks=["old"]) == []
    store.add([new_job("new-3", task="new"), new_job("old-1", task="old"), new_job("new-4", task="new")])
    with session(store) as other:
        assert other.claim(1, tasks=["new"]) == ["new-1"]  # of those behind the task
        assert [grant.spec.id for grant in store.claim("b", tasks=["new"])] == ["new-2"]
        other.connection.commit()

        assert other.claim(1, tasks=["old"]) == ["old-1"]  # and has parked the others
        assert store.claim("b", limit=10) == []
        other.connection.rollback()

    assert [grant.spec.id for grant in store.claim("b", limit=10)] == ["new-3", "old-1", "new-4"]


def test_a_claim_that_rolls_back_has_parked_nothing(store: PostgresStore) -> None:
    """Nor has it handed on the right to a key."""
    store.add([new_job("holder", lock="k")])
    holder = one(store)
    store.add([new_job("new", task="new", lock="k"), new_job("old", task="old", lock="k")])
    assert store.claim("b", limit=10) == []
    store.settle([settling(holder)])
    with session(store) as other:
        assert other.claim(tasks=["old"]) == ["old"]
        other.connection.rollback()

    assert store.job("new").parked == Parked("lock", "k", "b")
    assert store.verify() == []
    assert [grant.spec.id for grant in store.claim("c", limit=10)] == ["new"]


def test_trap_6_a_key_is_not_forgotten_between_a_claim_that_passes_over_and_one_that_decides(
    store: PostgresStore,
) -> None:
    """Who meets another claim that is deciding about the key leaves the waking to the next claim, which does it."""
    store.add([new_job("holder", lock="k")])
    holder = one(store)
    store.add([new_job("new", task="new", lock="k"), new_job("old", task="old", lock="k")])
    assert store.claim("b", limit=10) == []
    store.settle([settling(holder)])
    store.reclaim()  # which wakes the first
    with session(store) as other:
        other.connection.execute(
            sql.SQL("select pg_advisory_xact_lock({}('k'))").format(sql.Identifier(store.database.schema, "key_of"))
        )
        assert store.claim("c", limit=10, tasks=["old"]) == []
        assert store.job("new").parked == Parked("task", "new", "c")
        assert store.verify() == []
        other.connection.rollback()

    assert [grant.spec.id for grant in store.claim("c", limit=10, tasks=["old"])] == ["old"]


@pytest.mark.parametrize("act", ["cancel", "finish", "requeue", "transfer"])
@pytest.mark.parametrize("how", ["complete", "release", "settles nothing"])
def test_an_operator_who_saw_a_running_job_meets_the_settlement_beside_it(
    store: PostgresStore, act: str, how: str
) -> None:
    """The operator waits, and acts on the job as its owner has left it, under the epoch that both have seen."""
    store.add([new_job("a")])
    held = one(store)
    acts: dict[str, Callable[[], Any]] = {
        "cancel": lambda: store.cancel("a", held.epoch, by="ops"),
        "finish": lambda: store.finish("a", held.epoch, by="ops"),
        "requeue": lambda: store.requeue("a", held.epoch, by="ops"),
        "transfer": lambda: store.transfer("a", held.epoch, to="b", by="ops"),
    }
    with session(store) as other:
        outcome = Outcome.RELEASE if how == "release" else Outcome.COMPLETE
        assert other.call("settle", as_json([settlement_json(settling(held, outcome))]), PATIENCE_MS, False) == []

        call = Call(acts[act])
        until_blocked(store, call)
        (other.connection.rollback if how == "settles nothing" else other.connection.commit)()

        if how == "complete" or (how == "release" and act == "requeue"):
            with pytest.raises(Conflict):
                call.result()
        else:
            call.result()

    after = {"cancel": "cancelled", "finish": "done", "requeue": "pending", "transfer": "running"}[act]
    assert store.job("a").status == ("done" if how == "complete" else after)
    [first, *_] = store.ownerships("a")
    ended = {"complete": "done", "release": "release"}.get(how, "cancellation" if act == "cancel" else "manual")
    assert (first.epoch, first.ended) == (held.epoch, ended)


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_of_two_replays_of_one_job_one_is_done(store: PostgresStore, ends: str) -> None:
    """The second waits for the first, whose epoch it has not seen."""
    store.add([new_job("a")])
    held = one(store)
    store.settle([settling(held)])
    with session(store) as other:
        [row] = other.call("override", "replay", "a", held.epoch, "ops", None, None, PATIENCE_MS)
        assert row[0] is None

        call = Call(lambda: store.replay("a", held.epoch, by="ops"))
        until_blocked(store, call)
        (other.connection.commit if ends == "commits" else other.connection.rollback)()
        if ends == "commits":
            with pytest.raises(StaleEpoch):
                call.result()
        else:
            assert call.result().status == "pending"

    assert (store.job("a").status, store.job("a").attempt) == ("pending", 1)
    assert len(store.events(kind="replayed")) == 1


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_a_prune_of_one_job_waits_for_a_replay_and_is_refused(store: PostgresStore, ends: str) -> None:
    """Unless the replay is rolled back: then the job is the one that was seen."""
    store.add([new_job("a")])
    held = one(store)
    store.settle([settling(held)])
    with session(store) as other:
        other.call("override", "replay", "a", held.epoch, "ops", None, None, PATIENCE_MS)

        call = Call(lambda: store.prune_job("a", held.epoch, by="ops"))
        until_blocked(store, call)
        (other.connection.commit if ends == "commits" else other.connection.rollback)()
        if ends == "commits":
            with pytest.raises(StaleEpoch):
                call.result()
        else:
            call.result()

    assert store.job("a").pruned == (ends != "commits")


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_an_operator_does_not_resolve_what_the_owner_is_recording(store: PostgresStore, ends: str) -> None:
    """Its outcome is known once the owner has committed, and is not written over."""
    store.add([new_job("a")])
    held = one(store)
    store.begin_effect("a", held.epoch, "charge")
    with session(store) as other:
        assert other.call("end_effect", "a", held.epoch, "charge", '"owner"', PATIENCE_MS) == [(None,)]

        call = Call(lambda: store.resolve("a", held.epoch, "charge", by="ops", outcome='"ops"'))
        until_blocked(store, call)
        (other.connection.commit if ends == "commits" else other.connection.rollback)()
        if ends == "commits":
            with pytest.raises(Conflict):
                call.result()
        else:
            call.result()

    [effect] = store.effects("a")
    assert effect.outcome == ('"owner"' if ends == "commits" else '"ops"')


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
        rows = other.call("claim", "other", 1, None, None, None, 30_000_000, None, *[None] * 12, False)
        [epoch] = [epoch for row in rows for epoch in row[1] or ()]
        first = f'[{{"id":"first","epoch":{epoch},"outcome":"complete","result":"1","fingerprint":"x"}}]'
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


@pytest.mark.parametrize("function", ["claim", "add", "transfer"])
def test_a_clock_that_would_use_up_the_epochs_is_refused_by_the_server(store: PostgresStore, function: str) -> None:
    """Where the store's own clock is asked, nothing in Python looks at it first."""
    store.add([new_job("a")])
    asked: dict[str, tuple[Any, ...]] = {
        "add": (store.database.store_id, "[]", True, False, PATIENCE_MS),
        "claim": ("other", 1, None, None, None, 30_000_000, None, *[None] * 12, False),
        "transfer": ("a", 0, "b", "ops", None, None, 30_000_000, PATIENCE_MS),
    }
    with session(store) as other, pytest.raises(psycopg.Error) as refused:
        other.ask(function, *asked[function], 2**52)

    assert refused.value.sqlstate == "LH003"
    assert store.job("a").epoch == 0


def test_of_two_claims_that_find_another_server_one_advances_the_epochs(store: PostgresStore) -> None:
    """The second waits for the first, and then trusts what that one has written."""
    store.add([new_job("a"), new_job("b")])
    before = len(store.events(kind="advanced"))
    with session(store) as other:
        row = sql.Identifier(store.database.schema, "store")
        other.connection.execute(sql.SQL("update {} set fingerprint = 'elsewhere'").format(row))
        other.connection.commit()
        assert other.claim(1) == ["a"]

        second = Call(lambda: one(store))
        until_blocked(store, second)
        other.connection.commit()

        assert second.result().spec.id == "b"

    assert len(store.events(kind="advanced")) == before + 1
    assert second.result().epoch > store.job("a").epoch


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
        store.settle([settling(grant)])
    epoch = store.job("a").epoch
    with session(store) as pruner, session(store) as holder, pausing(store, pruner, 4711):
        holder.connection.execute("select pg_advisory_lock(4711)")
        [(now,)] = holder.connection.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")

        pruning = Call(lambda: pruner.ask("prune", 0, 10, 10, 0, PATIENCE_MS, now))
        until_blocked(store, pruning)
        store.replay("a", epoch, by="ops")
        if since != "a replay":
            store.settle([settling(one(store))])
        holder.connection.execute("select pg_advisory_unlock(4711)")
        holder.connection.commit()

        removed = pruning.result()
        pruner.connection.commit()

    assert removed == [(1, 0, 0)]
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

        assert [ended.job_id for ended in store.upkeep.recover(always=True)] == ["b"]
        other.connection.rollback()

    [ended] = store.upkeep.recover(always=True)
    assert (ended.job_id, ended.ended) == ("a", "recovery")


# A lock on a whole table


def test_a_renewal_outlasts_a_lock_that_is_on_no_row(place: Place, store: PostgresStore) -> None:
    """As CREATE INDEX has one, and a COMMIT that notifies: no lease is lost because it takes more than a moment."""
    store.add([new_job("a"), new_job("b")])
    renewals = [Renewal(grant.spec.id, grant.epoch) for grant in store.claim("worker", limit=2)]
    waited = "select count(*) from pg_locks where not granted and waitstart < clock_timestamp() - interval '400 ms'"
    with session(store) as other:
        leases = sql.Identifier(store.database.schema, "leases")
        other.connection.execute(sql.SQL("lock table {} in share mode").format(leases))
        call = Call(lambda: place.again(store).renew(renewals))
        until(lambda: store.database.read(waited) == [(1,)] or not call.waits)
        other.connection.commit()

    assert all(isinstance(until, int) for until in call.result())
