"""The history of ownerships, on the server's own clock: a lease begins when it is granted."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from tests.support import until

from leasehold.core.job import Grant, Outcome, Settlement, new_job
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .staging import Call, blocked

_GRANTED: dict[str, Callable[[PostgresStore], Grant]] = {
    "claim": lambda store: store.claim("second")[0],
    "transfer": lambda store: store.transfer("b", 0, to="second", by="ops"),
}


@pytest.mark.parametrize("verb", _GRANTED)
def test_two_ownerships_of_one_key_do_not_overlap_in_the_history(place: Place, verb: str) -> None:
    """A grant that had to wait begins after it has waited: the key was another owner's until then."""
    store = place.store()
    store.add([new_job("a", lock="k"), new_job("b", lock="k")])
    [first] = store.claim("first")
    table = sql.Identifier(store.database.schema, "store")
    with psycopg.connect(store.database.url) as gate:
        # The next verb that issues an epoch sees another fingerprint, and has to lock the row to look again.
        gate.execute(sql.SQL("update {} set fingerprint = fingerprint").format(table))
        gate.commit()
        gate.execute(sql.SQL("select from {} for update").format(table))
        granting = Call(lambda: _GRANTED[verb](store))
        until(lambda: blocked(store))
        assert store.settle([Settlement("a", first.epoch, Outcome.COMPLETE, "null")]) == [None]
        gate.rollback()
    second = granting.result()

    [before] = store.ownerships("a")
    [after] = store.ownerships("b")
    assert before.ended_us is not None
    assert before.ended_us <= after.granted_us
    assert (after.granted_us, after.deadline_us) == (second.granted_us, second.expires_us)
    assert second.expires_us == second.granted_us + second.lease_us
