"""What a hostile reader of the store has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from leasehold import Conflict, Settled
from leasehold.core.job import Outcome, Progress, Settlement, completion, new_job
from leasehold.lease import Lease
from leasehold.liveness import this_process
from leasehold.stores.postgres import PostgresStore, rows
from leasehold.stores.postgres.claiming import Floors
from leasehold.testing import ManualClock

from .fixtures import Place
from .staging import Call, session, until_blocked


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store that does not look from the bottom by itself."""
    made = place.store()
    made.claiming.floors = Floors(ManualClock())
    yield made
    assert made.verify() == []


def test_what_is_known_of_an_effect_stays_known(store: PostgresStore) -> None:
    """One thread has recorded that it happened; another one, that it did not."""
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    assert store.begin_effect("a", grant.epoch, "mail").fresh
    store.end_effect("a", grant.epoch, "mail", '"sent"')

    store.end_effect("a", grant.epoch, "mail", None)

    begun = store.begin_effect("a", grant.epoch, "mail")
    assert not begun.fresh
    assert begun.effect.outcome == '"sent"'


@pytest.mark.parametrize(
    "text",
    [
        "select 1; commit and chain",
        "select 1; commit; begin",
        "select 1; /* so */ end",
        "select 1;; rollback; select 2",
        "select 1; -- old lines end so\rcommit and chain",
    ],
)
def test_a_block_is_not_ended_by_the_second_statement_of_a_text(place: Place, store: PostgresStore, text: str) -> None:
    """A new transaction in its place would look the same, and would not be fenced."""
    place.connect(store).close()
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    lease = Lease(store, grant)

    with pytest.raises(Conflict, match=r"inside lease\.transaction"), lease.transaction() as connection:
        connection.execute(text)


def test_queues_are_asked_in_order_whichever_was_first(store: PostgresStore) -> None:
    """Of a queue that was named twice, twice as many would be counted."""
    store.add([new_job(f"m-{number}", queue="m") for number in range(2)])
    assert [grant.spec.id for grant in store.claim("worker")] == ["m-0"]
    store.add([new_job("b-0", queue="b", priority=1)])
    assert [grant.spec.id for grant in store.claim("worker")] == ["b-0"]
    for number in range(2):
        store.add([new_job(f"b-late-{number}", queue="b"), new_job(f"z-late-{number}", queue="z")])

    found = [grant.spec.id for grant in store.claim("worker", limit=4)]

    assert found == ["m-1", "b-late-0", "z-late-0", "b-late-1"]


def test_a_claim_that_looks_again_tells_of_the_transactions_that_its_first_look_has_outlived(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are locked until somebody ends them."""
    ended: list[int] = []
    monkeypatch.setattr(store.upkeep, "end_outlived", lambda always=False: None)
    monkeypatch.setattr(store.upkeep, "end_fenced", ended.extend)
    store.add([new_job("floor", queue="y"), new_job("a", queue="x")])
    store.claim("worker", queues=["y"])
    [grant] = store.claim("worker", queues=["x"], lease_us=1)
    with closing(place.connect(store)) as connection:
        Lease(store, grant).fence(connection)

        assert store.claim("other", queues=["y"]) == []

        assert ended == [grant.epoch]
        with pytest.raises(psycopg.Error):
            connection.commit()


def test_a_claim_can_take_more_jobs_than_it_tidies_up_after(place: Place, store: PostgresStore) -> None:
    """A transaction of a snapshot ends a lease and cannot remove it; a claim first removes some, and may take more."""
    store.add([new_job(f"j-{number}") for number in range(250)])
    grants = store.claim("worker", limit=250)
    with closing(place.connect(store)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for grant in grants:
            Lease(store, grant).release(connection=connection)
        connection.commit()

    again = store.claim("other", limit=250)

    assert len(again) == 250
    assert min(grant.epoch for grant in again) > max(grant.epoch for grant in grants)
    store.reclaim()  # what is tidied up then is not the new leases
    assert store.check([(grant.spec.id, grant.epoch) for grant in again]) == [None] * 250


def test_a_claim_takes_what_is_put_back_between_its_statements(place: Place, store: PostgresStore) -> None:
    """The first statement sees that there is nothing to tidy up; the second one sees the job, and its ended lease."""
    store.add([new_job("floor"), new_job("a")])
    store.claim("worker", process=this_process())
    lease = Lease(store, store.transfer("a", 0, to="agent", by="operator"))
    with closing(place.connect(store)) as connection, session(store) as other:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        lease.release(connection=connection)
        # What the claim asks for between the two.
        name = sql.Identifier(store.database.schema, "processes")
        other.connection.execute(sql.SQL("lock table {} in access exclusive mode").format(name))
        claim = Call(lambda: store.claim("other", process=this_process()))
        until_blocked(store, claim)
        connection.commit()
        other.connection.rollback()

        [grant] = claim.result()

    assert (grant.spec.id, grant.epoch > lease.epoch) == ("a", True)


@pytest.mark.parametrize("count", [1, 2])
def test_a_lease_that_was_ended_and_could_not_be_removed_is_over(
    place: Place, store: PostgresStore, count: int
) -> None:
    """To say the same again is heard, and anything else is refused, though its row is still there."""
    store.add([new_job("a"), new_job("b")])
    grants = store.claim("worker", limit=count)
    with closing(place.connect(store)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for grant in grants:
            Lease(store, grant).complete(connection=connection)
        connection.commit()

    assert store.settle([completion(grant) for grant in grants]) == [None] * count
    failed = [Settlement(grant.spec.id, grant.epoch, Outcome.FAIL, error="late") for grant in grants]
    assert all(isinstance(refusal, Settled) for refusal in store.settle(failed))


def test_a_checkpoint_is_not_kept_in_memory(store: PostgresStore) -> None:
    """What most jobs share is remembered as text; a thousand checkpoints of a megabyte would be too."""
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    checkpoint = '"' + "x" * 100_000 + '"'
    assert store.progress([Progress("a", grant.epoch, checkpoint=checkpoint)]) == [None]
    Lease(store, grant).release()
    rows._short.cache_clear()

    [again] = store.claim("worker")

    assert again.checkpoint == checkpoint
    assert rows._short.cache_info().currsize == 0


def test_a_sweep_that_meets_the_end_of_its_store_warns_of_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C may close the store while another thread is about to end what a takeover has left."""
    store = place.store()
    other = place.again(store)
    other.add([new_job("a")])
    other.close()

    other.upkeep.end_fenced([1])

    assert caplog.records == []
