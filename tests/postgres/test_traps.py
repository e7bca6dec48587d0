"""
The interleavings that broke a straightforward build, each under its number, staged with real sessions.

Long on purpose: one test after the other in the order of docs/explanation/traps.md, on the same stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

import leasehold.stores.postgres.owning as owning
from leasehold import Conflict, NotInTransaction, Router, Settled, StaleEpoch, StoreUnavailable
from leasehold.core.children import new_child
from leasehold.core.job import Grant, NewJob, Outcome, Progress, Settlement, Status, new_job
from leasehold.lease import Lease
from leasehold.liveness import this_process
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.rows import as_json, settlement_json

from .fixtures import Place
from .staging import ISOLATIONS, Call, blocked, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


def one(store: PostgresStore, owner: str = "worker", **options: Any) -> Grant:
    """Claim exactly one job."""
    [grant] = store.claim(owner, **options)
    return grant


def completed(grant: Grant, then: tuple[NewJob, ...] = ()) -> Settlement:
    """The owner's word that the job is done."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, "null", then)


def last_epoch(store: PostgresStore) -> int:
    """The highest epoch that was issued."""
    [(last,)] = store.database.call("last_epoch")
    return int(last)


# Issuing epochs


@pytest.mark.parametrize(
    "verb",
    [
        "claim",
        "claim, the short way",
        "transfer",
        "cancel",
        "finish",
        "requeue",
        "replay",
        "reclaim",
        "recover",
        "advance",
    ],
)
def test_trap_2_and_3_every_statement_that_issues_looks_where_it_is(
    place: Place, store: PostgresStore, verb: str
) -> None:
    """On a server that is not the one of the last epoch, every issuing verb first goes above the clock."""
    store.add([new_job("a"), new_job("b")])
    mine = this_process()
    gone = None if mine is None else mine._replace(started=mine.started - 1)  # who had our number before us
    held = one(store, lease_us=1 if verb == "reclaim" else None, process=gone if verb == "recover" else None)
    if verb == "replay":
        store.settle([completed(held)])
    schema = sql.Identifier(store.database.schema)
    with session(store) as other:
        # What a restored dump, a copied data directory or a promoted standby would have.
        other.connection.execute(sql.SQL("update {}.store set fingerprint = 'elsewhere'").format(schema))
        other.connection.execute(sql.SQL("alter sequence {}.epochs restart with 1000").format(schema))
        other.connection.commit()

    verbs: dict[str, Callable[[], int]] = {
        "claim": lambda: one(place.again(store), lease_us=1).epoch,
        "claim, the short way": lambda: one(store, lease_us=1).epoch,
        "transfer": lambda: store.transfer("a", held.epoch, to="b", by="ops").epoch,
        "cancel": lambda: store.cancel("a", held.epoch, by="ops").epoch,
        "finish": lambda: store.finish("a", held.epoch, by="ops").epoch,
        "requeue": lambda: store.requeue("a", held.epoch, by="ops").epoch,
        "replay": lambda: store.replay("a", held.epoch, by="ops").epoch,
        "reclaim": lambda: (store.reclaim(), store.job("a").epoch)[1],
        "recover": lambda: (store.upkeep.recover(always=True), store.job("a").epoch)[1],
        "advance": store.advance,
    }

    issued = verbs[verb]()

    assert issued > held.epoch
    assert store.events(kind="advanced")


def test_trap_2_an_epoch_is_never_issued_by_an_asynchronous_commit(store: PostgresStore) -> None:
    """Whatever the role's setting, the transaction that issues one waits for the disk."""
    store.add([new_job("a")])

    with session(store) as other:
        other.connection.execute("set session synchronous_commit = off")
        other.connection.commit()
        other.claim()

        [(setting,)] = other.connection.execute("show synchronous_commit").fetchall()
        assert setting == "on"


@pytest.mark.parametrize("function", ["complete", "settle"])
def test_trap_2_a_settlement_is_never_an_asynchronous_commit(store: PostgresStore, function: str) -> None:
    """What an owner was told is done; nor does it run in an isolation in which it would not see who came first."""
    store.add([new_job("a")])
    held = one(store)
    said = as_json([settlement_json(completed(held))])
    args = {
        "complete": (["a"], [held.epoch], None, None, 1000),
        "settle": (said, 1000, False),
    }[function]
    with session(store) as other:
        other.connection.execute("set session synchronous_commit = off")
        other.connection.commit()
        other.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error) as refused:
            other.call(function, *args)
        other.connection.rollback()
        other.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

        other.call(function, *args)

        [(setting,)] = other.connection.execute("show synchronous_commit").fetchall()
        other.connection.commit()
    assert refused.value.sqlstate == "LH005"
    assert setting == "on"
    assert store.job("a").status == Status.DONE


def test_trap_4_no_epoch_is_drawn_before_its_key_is_held(store: PostgresStore) -> None:
    """A claim that meets somebody at the key draws nothing, so the next holder's epoch is above the last one's."""
    store.add([new_job("first", lock="k"), new_job("second", lock="k")])
    with session(store) as other:
        assert other.claim(limit=1) == ["first"]
        before = last_epoch(store)

        assert store.claim("b") == []

        assert last_epoch(store) == before
        other.connection.commit()
    first = store.lease("first", "other")
    assert store.settle([completed(first)]) == [None]
    assert one(store).epoch > first.epoch


# Claiming, parking, waking


def test_trap_5_a_job_whose_key_somebody_is_deciding_about_is_not_lost(store: PostgresStore) -> None:
    """It stays where it waits, the jobs behind it are granted, and it comes when the key is free."""
    store.add([new_job("first", lock="k"), new_job("second", lock="k"), new_job("free")])
    with session(store) as other:
        assert other.claim(limit=1) == ["first"]

        assert [grant.spec.id for grant in store.claim("b", limit=10)] == ["free"]

        assert store.verify() == []
        other.connection.commit()
    assert store.claim("b", limit=10) == []
    store.settle([completed(store.lease("first", "other"))])
    assert one(store).spec.id == "second"


def test_trap_5_a_claim_that_rolls_back_loses_nothing(store: PostgresStore) -> None:
    """What it had taken and what it had parked is where it was."""
    store.add([new_job("first", lock="k"), new_job("second", lock="k")])
    with session(store) as other:
        assert other.claim() == ["first"]
        other.connection.rollback()

    assert store.verify() == []
    assert one(store, limit=10).spec.id == "first"


def test_trap_6_a_settlement_does_not_miss_the_job_that_is_being_parked(store: PostgresStore) -> None:
    """A claim parks behind a key, the holder settles, another claim sees to the key, and then the parking commits."""
    store.add([new_job("first", lock="k")])
    grant = one(store)
    store.add([new_job("second", lock="k")])
    with session(store) as other:
        assert other.claim() == []  # and has parked the second

        assert store.settle([completed(grant)]) == [None]
        assert store.claim("b") == []
        other.connection.commit()

    assert store.verify() == []
    assert one(store).spec.id == "second"


def test_trap_6_a_claim_does_not_park_behind_a_key_for_ever(store: PostgresStore) -> None:
    """The holder has settled and not committed; a claim parks behind it; then the settlement commits."""
    store.add([new_job("first", lock="k")])
    grant = one(store)
    store.add([new_job("second", lock="k")])
    with session(store) as other:
        said = f'[{{"id":"first","epoch":{grant.epoch},"outcome":"complete","result":"1","fingerprint":"x"}}]'
        assert other.call("settle", said, 1000, False) == []

        assert store.claim("b") == []
        other.connection.commit()

    assert one(store).spec.id == "second"


def test_trap_9_a_waiter_that_registers_behind_an_adders_back_is_late_by_one_poll(place: Place) -> None:
    """The adder looks and finds nobody; somebody begins to wait; then it commits, and tells nobody."""
    store = place.store()
    other = place.again(store)
    with psycopg.connect(store.database.url) as own:
        other.transactions.run(own, other.transactions.add([new_job("a")]))

        waiting = Call(lambda: store.claim("worker", wait_us=60_000_000))
        until(lambda: bool(store.claiming.listening._registered_us))
        with session(store) as listener:
            [(channel,)] = listener.ask("await_jobs", "me", 0.0)
            listener.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            listener.connection.commit()
            own.commit()

            assert [grant.spec.id for grant in waiting.result()] == ["a"]
            assert list(listener.connection.notifies(timeout=0)) == []  # so it was a poll


@pytest.mark.parametrize("way", ["claim", "claim_next"])
def test_trap_10_a_claim_whose_reply_is_lost_is_found_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The owner asks for the leases of its own claim, whichever way it went, and not for those of a namesake."""
    url, schema = (made := place.store().database).url, made.schema
    with Router(url, schema=schema) as router, Router(url, schema=schema) as fresh:
        router.add("a")
        router.add("b")
        namesake = router if way == "claim_next" else fresh
        assert namesake.claim("worker") is not None  # and a Router that has claimed goes the short way next
        call = router.store.database.call  # type: ignore[attr-defined]  # this store has one
        lost: list[str] = []

        def call_and_lose(function: str, *args: Any, **options: Any) -> Any:
            rows = call(function, *args, **options)
            if function.startswith("claim"):
                lost.append(function)
                raise StoreUnavailable("the reply is lost")
            return rows

        monkeypatch.setattr(router.store.database, "call", call_and_lose)  # type: ignore[attr-defined]  # the same

        lease = router.claim("worker")

        assert lost == [way]
        assert lease is not None
        assert lease.job_id == "b"
        lease.complete()


# Batches


def test_trap_11_batches_in_opposite_orders_do_not_deadlock(store: PostgresStore) -> None:
    """Renewals and settlements of the same leases, in every order at once, wait for each other and for nothing else."""
    store.add([new_job(f"job-{number}") for number in range(60)])
    grants = store.claim("worker", limit=60)
    [(before,)] = store.database.read("select deadlocks from pg_stat_database where datname = current_database()")

    def renew(leases: list[Grant]) -> None:
        for _ in range(10):
            store.renew([Renewal(grant.spec.id, grant.epoch) for grant in leases])

    calls = [Call(lambda order=order: renew(order)) for order in (grants, grants[::-1], grants[30:] + grants[:30])]  # type: ignore[misc]  # a default is how a lambda keeps a value
    for call in calls:
        call.result()
    halves = [Call(lambda order=order: store.settle([completed(g) for g in order])) for order in (grants, grants[::-1])]  # type: ignore[misc]  # the same
    for settled in halves:
        assert settled.result() == [None] * 60

    [(after,)] = store.database.read("select deadlocks from pg_stat_database where datname = current_database()")
    assert after == before


@pytest.mark.parametrize("verb", ["complete", "fail", "progress", "renew", "reclaim"])
def test_trap_11_a_batch_waits_for_its_first_row_with_none_behind_it_in_hand(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Whatever order it was asked in: so of two batches one waits for the other, and never both."""
    monkeypatch.setattr(owning, "BATCH_PATIENCE_MS", 60_000)
    store.add([new_job("first"), new_job("second")])
    first, second = store.claim("worker", limit=2, lease_us=1 if verb == "reclaim" else None)
    asked = (second, first)
    verbs: dict[str, Callable[[], Any]] = {
        "complete": lambda: store.settle([completed(grant) for grant in asked]),
        "fail": lambda: store.settle([completed(grant)._replace(outcome=Outcome.FAIL, error="x") for grant in asked]),
        "progress": lambda: store.progress([Progress(grant.spec.id, grant.epoch, 0.5, None, "1") for grant in asked]),
        "renew": lambda: store.batches.renew_part([Renewal(grant.spec.id, grant.epoch) for grant in asked], wait=True),
        "reclaim": store.reclaim,
    }
    leases = sql.Identifier(store.database.schema, "leases")
    with session(store) as holder, session(store) as looker:
        holder.connection.execute(sql.SQL("select from {} where epoch = {} for update").format(leases, first.epoch))

        call = Call(verbs[verb])
        if verb == "reclaim":
            call.result()  # it waits for nobody
            assert (store.job("first").status, store.job("second").status) == ("running", "pending")
            return
        until_blocked(store, call)

        free = sql.SQL("select from {} where epoch = {} for update skip locked").format(leases, second.epoch)
        assert psycopg.ClientCursor(looker.connection).execute(free).rowcount == 1
        looker.connection.rollback()
        holder.connection.rollback()
        call.result()


def test_trap_11_a_renewal_passes_over_what_somebody_has_locked(store: PostgresStore) -> None:
    """The other leases of the batch are renewed at once; the locked one as soon as it can be."""
    store.add([new_job("a"), new_job("b")])
    a, b = store.claim("worker", limit=2)
    with session(store) as other:
        other.call("override", "cancel", "a", a.epoch, "ops", None, None, 1000)

        renewing = Call(lambda: store.renew([Renewal("a", a.epoch, 90_000_000), Renewal("b", b.epoch, 90_000_000)]))
        until(lambda: store.job("b").expires_us != b.expires_us)

        assert renewing.waits
        other.connection.rollback()
    assert all(isinstance(reply, int) for reply in renewing.result())


def test_trap_12_only_the_job_that_collides_waits(store: PostgresStore) -> None:
    """Somebody's open transaction has added the follow-up of one job: the other jobs of the batch are settled."""
    store.add([new_job(f"job-{number}") for number in range(8)])
    grants = store.claim("worker", limit=8)
    child = new_child("job-3", new_job("child"), 1)
    said = [completed(grant, (child,) if grant.spec.id == "job-3" else ()) for grant in grants]
    with session(store) as other:
        other.call("add", store.database.store_id, '[{"id":"job-3/child","payload":"null","queue":"x","priority":0,'
                   '"delay":0,"max_errors":1,"max_reclaims":1}]', True, False, None)  # fmt: skip

        settling = Call(lambda: store.settle(said))
        until(lambda: store.counts().done == 7)

        assert settling.waits
        assert store.job("job-3").status == "running"
        other.connection.commit()
    assert settling.result() == [None] * 8


# The fence in a caller's transaction


@contextmanager
def fenced(
    place: Place,
    store: PostgresStore,
    grant: Grant,
    isolation: psycopg.IsolationLevel | None = None,
    *,
    settings: str | None = None,
) -> Iterator[psycopg.Connection[Any]]:
    """A caller's connection in the middle of a fenced transaction that has written a row."""
    connection = place.connect(store, autocommit=True)
    connection.execute("create table if not exists results (what text)")
    if settings is not None:
        connection.execute(f"set {settings}".encode())
    connection.set_autocommit(False)
    connection.isolation_level = isolation
    try:
        connection.execute("insert into results values ('mine')")
        Lease(store, grant).fence(connection)
        yield connection
    finally:
        connection.close()


def rows(place: Place, store: PostgresStore) -> int:
    """How many rows were committed."""
    with place.connect(store) as connection:
        [(count,)] = connection.execute("select count(*) from results").fetchall()
        return int(str(count))


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
def test_trap_13_a_pause_before_the_commit_passes_nothing(
    place: Place, store: PostgresStore, isolation: psycopg.IsolationLevel
) -> None:
    """The owner is stopped between its last statement and COMMIT, the job moves on, the owner wakes: refused."""
    store.add([new_job("a")])
    grant = one(store)
    with fenced(place, store, grant, isolation) as connection:
        backend = connection.info.backend_pid
        # Its backend is spared, so that it is the fence that refuses.
        store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]
        moved = store.transfer("a", grant.epoch, to="b", by="ops")

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

    found = StaleEpoch.find(refused.value, Lease(store, grant))
    assert found is not None
    assert (found.presented, found.current, found.owner) == (grant.epoch, moved.epoch, "b")
    assert rows(place, store) == 0
    assert backend


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.RELEASE])
def test_trap_13_what_was_settled_meanwhile_is_over(
    place: Place, store: PostgresStore, isolation: psycopg.IsolationLevel, outcome: Outcome
) -> None:
    """By the same owner, under the same epoch, and elsewhere: rows that come after that are nobody's."""
    store.add([new_job("a")])
    grant = one(store)
    with fenced(place, store, grant, isolation) as connection:
        assert store.settle([completed(grant)._replace(outcome=outcome)]) == [None]

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

    found = StaleEpoch.find(refused.value, Lease(store, grant))
    assert isinstance(found, Settled)
    assert rows(place, store) == 0


def test_trap_13_an_autocommit_connection_is_refused(place: Place, store: PostgresStore) -> None:
    """It would fence nothing, silently."""
    store.add([new_job("a")])
    lease = Lease(store, one(store))

    with place.connect(store, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            lease.fence(connection)
        with connection.transaction():
            lease.fence(connection)


@pytest.mark.parametrize("how", ["psycopg", "by hand"])
def test_trap_13_a_savepoint_is_refused(place: Place, store: PostgresStore, how: str) -> None:
    """It could be rolled back, and the outer transaction commit without the completion."""
    store.add([new_job("a")])
    lease = Lease(store, one(store))
    with place.connect(store) as connection:
        connection.execute("select 1")
        if how == "psycopg":
            with pytest.raises(Conflict, match="savepoint"), connection.transaction():
                lease.complete(connection=connection)
        else:
            connection.execute("savepoint s")
            with pytest.raises(Conflict, match="savepoint"):
                lease.complete(connection=connection)
        connection.rollback()
        assert store.job("a").status == "running"

        connection.execute("savepoint s")
        lease.complete(connection=connection, savepoint=True)
        connection.commit()

    assert store.job("a").status == "done"


@pytest.mark.parametrize("disguise", ["temporary tables", "search_path", "replica", "swallowed", "immediate and back"])
def test_trap_13_nothing_that_a_session_does_disarms_the_fence(
    place: Place, store: PostgresStore, disguise: str
) -> None:
    """Neither tables that shadow ours, nor a replica's role, nor an error that is swallowed."""
    store.add([new_job("a")])
    grant = one(store)
    store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # see above
    early = "session_replication_role=replica" if disguise == "replica" else None
    with fenced(place, store, grant, settings=early) as connection:
        if disguise == "temporary tables":
            for table in ("leases", "jobs", "fences", "store"):
                connection.execute(f"create temporary table {table} (seq bigint, epoch bigint, id text)")
            connection.execute("set local search_path = pg_temp")
        elif disguise == "search_path":
            connection.execute("set local search_path = ''")
        elif disguise == "replica":
            pass  # since before the fence: one that is queued stays so
        elif disguise == "swallowed":
            connection.execute("savepoint s")
            with pytest.raises(psycopg.Error):
                connection.execute("select 1/0")
            connection.execute("rollback to savepoint s")
        else:
            connection.execute("savepoint s")
            connection.execute("set constraints all immediate")
            connection.execute("rollback to savepoint s")
        store.transfer("a", grant.epoch, to="b", by="ops")

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

    assert StaleEpoch.find(refused.value) is not None
    assert rows(place, store) == 0


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
@pytest.mark.parametrize("settle", [False, True], ids=["fence", "complete"])
def test_trap_14_a_renewal_does_not_refuse_its_own_owner(
    place: Place, store: PostgresStore, isolation: psycopg.IsolationLevel, settle: bool
) -> None:
    """A current owner that takes long, and renews meanwhile, commits; and its key is free for the next."""
    store.add([new_job("a", lock="k"), new_job("b", lock="k")])
    grant = one(store, limit=10)
    with fenced(place, store, grant, isolation) as connection:
        if settle:
            Lease(store, grant).complete(connection=connection)
        assert isinstance(store.renew([Renewal("a", grant.epoch)])[0], int)

        connection.commit()

    assert rows(place, store) == 1
    assert store.job("a").status == ("done" if settle else "running")
    assert store.verify() == []
    if settle:
        assert [grant.spec.id for grant in store.claim("w", limit=10)] == ["b"]
        assert store.settle([completed(grant)]) == [None]


def test_trap_14_a_released_job_can_be_claimed_after_a_snapshot_released_it(place: Place, store: PostgresStore) -> None:
    """A transaction of an older snapshot cannot remove the lease that it ended; the next claim does."""
    store.add([new_job("a")])
    grant = one(store)
    with fenced(place, store, grant, psycopg.IsolationLevel.REPEATABLE_READ) as connection:
        Lease(store, grant).release(connection=connection)
        store.renew([Renewal("a", grant.epoch)])
        connection.commit()

    assert (store.job("a").status, store.verify()) == ("pending", [])
    assert isinstance(store.renew([Renewal("a", grant.epoch)])[0], StaleEpoch)
    assert one(store).epoch > grant.epoch


def test_trap_15_an_open_fence_does_not_block_a_takeover(place: Place, store: PostgresStore) -> None:
    """The successor gets the job at once, and the rows that the paused owner had locked are free."""
    store.add([new_job("a")])
    grant = one(store, lease_us=1)
    lease = Lease(store, grant)
    with fenced(place, store, grant) as connection:
        lease.fence(connection)
        connection.execute("lock table results in exclusive mode")

        new = one(store, "b")

        assert new.epoch > grant.epoch
        with place.connect(store) as other:
            other.execute("insert into results values ('new')")  # waits no longer than the paused owner lives
        with pytest.raises(psycopg.OperationalError) as ended:
            connection.commit()
    assert ended.value.sqlstate in (None, "57P01")
    # Of a transaction that this lease does not know, the store cannot tell whether it was committed before.
    assert StaleEpoch.find(ended.value, Lease(store, grant)) is None
    found = StaleEpoch.find(ended.value, lease)
    assert found is not None
    assert found.owner == "b"
    assert rows(place, store) == 1


@pytest.mark.parametrize("when", ["before", "after", "in a function"])
def test_trap_15_a_fence_that_was_made_immediate_holds_up_nobody(place: Place, store: PostgresStore, when: str) -> None:
    """SET CONSTRAINTS ALL IMMEDIATE would lock the lease to the transaction's end: the fence is put off."""
    store.add([new_job("a")])
    grant = one(store, lease_us=1)
    store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # see above
    immediate = "set constraints all immediate"
    with place.connect(store) as connection:
        connection.execute(immediate if when == "before" else "select 1")
        Lease(store, grant).fence(connection)
        if when != "before":
            connection.execute(immediate if when == "after" else f"do $$begin {immediate}; end$$")
            connection.execute(immediate)

        new = one(store, "b")

        assert new.epoch > grant.epoch
        with pytest.raises(psycopg.Error) as refused:
            connection.commit()
    assert StaleEpoch.find(refused.value) is not None


def test_trap_15_a_current_owner_may_make_its_constraints_immediate(place: Place, store: PostgresStore) -> None:
    """Put off, the fence still passes who is current, and settles its job once."""
    store.add([new_job("a")])
    lease = Lease(store, one(store))
    with place.connect(store) as connection:
        lease.fence(connection)
        lease.complete(connection=connection)
        for _ in range(3):
            connection.execute("set constraints all immediate")
        assert store.job("a").status == "running"
        connection.execute("select 1; commit")  # a COMMIT in other words
        fences = sql.Identifier(store.database.schema, "fences")
        left = psycopg.ClientCursor(connection).execute(sql.SQL("select * from {}").format(fences)).fetchall()

    assert store.job("a").status == "done"
    assert left == []


@pytest.mark.parametrize(
    "text",
    [
        "prepare transaction 'lh'",
        "/* web */ PREPARE  TRANSACTION 'lh'",
        "select 1; prepare transaction 'lh'",
        "prepare/**/transaction 'lh'",
        "prepare -- two\n transaction 'lh'",
        "prepare -- two\r transaction 'lh'",
        "select ';'; /* a; */ -- b\rprepare transaction 'lh'",
    ],
)
def test_trap_15_a_fenced_transaction_cannot_be_prepared(place: Place, store: PostgresStore, text: str) -> None:
    """It would keep its lease locked until somebody commits it, over restarts too."""
    store.add([new_job("a")])
    grant = one(store)
    try:
        with fenced(place, store, grant) as connection, pytest.raises(psycopg.Error, match="cannot be prepared"):
            connection.execute(text.encode())
    finally:
        with place.connect(store, autocommit=True) as other:
            if other.execute("select from pg_prepared_xacts where gid = 'lh'").fetchall():
                other.execute("rollback prepared 'lh'")

    assert rows(place, store) == 0
    assert isinstance(store.renew([Renewal("a", grant.epoch)])[0], int)


def test_trap_15_a_text_that_only_speaks_of_it_commits(place: Place, store: PostgresStore) -> None:
    """Also where the COMMIT is in the same text."""
    store.add([new_job("a")])
    with fenced(place, store, one(store)) as connection:
        connection.execute("select 'to prepare transaction reports'; commit")

    assert rows(place, store) == 1


def test_trap_16_a_refusal_at_the_commit_is_recorded_apart(place: Place, store: PostgresStore) -> None:
    """What the server writes in a transaction that it refuses is gone; the store records it afterwards, once."""
    store.add([new_job("a")])
    grant = one(store)
    lease = Lease(store, grant)
    store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # see above

    def outlived() -> None:
        with lease.transaction() as connection:
            connection.execute("select 1")
            store.transfer("a", grant.epoch, to="b", by="ops")

    with pytest.raises(StaleEpoch) as refused:
        outlived()

    assert (refused.value.owner, refused.value.reason) == ("b", "manual")
    [event] = store.events(kind="refused")
    assert (event.owner, event.facts["presented"], event.facts["verb"]) == ("b", grant.epoch, "fence")


def test_trap_16b_a_current_owners_transaction_is_never_ended(place: Place, store: PostgresStore) -> None:
    """Only the transactions of epochs that are over are ended, and only after the takeover has committed."""
    store.add([new_job("a")])
    grant = one(store)
    with fenced(place, store, grant) as connection:
        with session(store) as other:
            other.call("transfer", "a", grant.epoch, "b", "ops", None, None, 30_000_000, 1000)
            other.connection.rollback()

        assert store.database.call("end_fenced", [grant.epoch]) == [(0,)]
        connection.commit()

    assert rows(place, store) == 1


def test_trap_16b_a_transaction_that_was_ended_tells_its_owner_why(place: Place, store: PostgresStore) -> None:
    """The server hangs up without facts; `lease.transaction()` asks the store for them."""
    store.add([new_job("a")])
    grant = one(store)
    lease = Lease(store, grant)

    def outlived() -> None:
        with lease.transaction() as connection:
            connection.execute("select 1")
            store.transfer("a", grant.epoch, to="b", by="ops")

    with pytest.raises(StaleEpoch) as refused:
        outlived()

    assert refused.value.owner == "b"


def test_trap_17_what_the_successor_reads_is_not_overwritten_behind_it(place: Place, store: PostgresStore) -> None:
    """Once the job is claimed anew, nothing that the earlier owner wrote can commit after the successor's read."""
    store.add([new_job("a")])
    grant = one(store, lease_us=1)
    store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # see above
    with fenced(place, store, grant) as old:
        new = one(store, "b")
        with place.connect(store) as connection:
            Lease(store, new).fence(connection)
            [(seen,)] = connection.execute("select count(*) from results").fetchall()

            with pytest.raises(psycopg.Error):
                old.commit()
            connection.execute("insert into results values (%s)", [f"{seen} before me"])
            connection.commit()

    assert rows(place, store) == 1


def test_trap_18_a_transaction_that_failed_inside_is_not_taken_for_committed(
    place: Place, store: PostgresStore
) -> None:
    """PostgreSQL answers COMMIT after an error with a rollback and no error; the block's end says so."""
    store.add([new_job("a")])
    lease = Lease(store, one(store))

    def swallowing() -> None:
        with lease.transaction() as connection:
            lease.complete(connection=connection)
            with pytest.raises(psycopg.Error):
                connection.execute("select 1/0")

    with pytest.raises(NotInTransaction):
        swallowing()

    assert store.job("a").status == "running"
    assert not blocked(store)
