"""Retention holds up nobody."""

from __future__ import annotations

import pytest

from leasehold.core.job import Outcome, Progress, Settlement, Status, new_job
from leasehold.store import Renewal
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .staging import session

AT_ONCE_MS = 3000  # what waits for longer than that, waits for somebody


@pytest.fixture
def store(place: Place) -> PostgresStore:
    """A store with a few finished jobs."""
    made = place.store()
    made.add([new_job(f"done-{number}") for number in range(5)])
    complete(made, 5)
    return made


def complete(store: PostgresStore, limit: int) -> None:
    """Claim and complete jobs."""
    grants = store.claim("worker", limit=limit)
    assert store.settle([Settlement(it.spec.id, it.epoch, Outcome.COMPLETE, "null") for it in grants]) == [None] * limit


def test_a_prune_in_the_middle_of_its_transaction_holds_up_no_verb(place: Place, store: PostgresStore) -> None:
    """Neither producers, nor owners, nor operators: it locks what it removes, and nothing else."""
    store.add([new_job("held"), new_job("kept")])
    [held] = store.claim("worker")
    url, path = store.database.url.split("options=")
    other = PostgresStore(f"{url}options={path}%20-cstatement_timeout%3D{AT_ONCE_MS}", schema=store.database.schema)
    place.others.append(other)
    with session(store) as pruning:
        assert pruning.call("prune", 0, 3, 10_000) == [(3,)]

        other.add([new_job("new"), new_job("unique", unique="u")])
        assert isinstance(other.renew([Renewal("held", held.epoch)])[0], int)
        assert other.progress([Progress("held", held.epoch, 0.5, None, "1")]) == [None]
        complete(other, 3)
        other.reclaim()
        assert len(other.jobs(status=Status.DONE)) == 8
        other.cancel("held", held.epoch, by="ann")
        pruning.connection.commit()

    assert other.prune(0) == 6
    assert [job.id for job in other.jobs()] == []
