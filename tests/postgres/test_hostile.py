"""What a hostile reader of the store has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from leasehold import InvalidArgument
from leasehold.core.job import new_job
from leasehold.lease import Lease
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.floors import Floors
from leasehold.testing import ManualClock

from .fixtures import Place


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store that does not look from the bottom by itself."""
    made = place.store()
    made._floors = Floors(ManualClock())
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
    ],
)
def test_a_block_is_not_ended_by_the_second_statement_of_a_text(place: Place, store: PostgresStore, text: str) -> None:
    """A new transaction in its place would look the same, and would not be fenced."""
    place.connect(store).close()
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    lease = Lease(store, grant)

    with pytest.raises(InvalidArgument, match=r"inside lease\.transaction"), lease.transaction() as connection:
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
    monkeypatch.setattr(store, "_end_outlived", lambda always=False: None)
    monkeypatch.setattr(store, "_end_fenced", ended.extend)
    store.add([new_job("floor", queue="y"), new_job("a", queue="x")])
    store.claim("worker", queues=["y"])
    [grant] = store.claim("worker", queues=["x"], lease_us=1)
    with closing(place.connect(store)) as connection:
        Lease(store, grant).fence(connection)

        assert store.claim("other", queues=["y"]) == []

        assert ended == [grant.epoch]
        with pytest.raises(psycopg.Error):
            connection.commit()
