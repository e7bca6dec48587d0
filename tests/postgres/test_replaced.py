"""A store whose schema is removed or replaced while an owner has a transaction open on its own connection."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from leasehold import Conflict, Lease, Router, StoreUnavailable
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place

SCHEMA = "replaced"


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_fence_in_a_store_that_is_gone_is_not_called_a_wrong_argument(place: Place, again: bool) -> None:
    """The connection is to the right database; that nothing was changed is known."""
    drop = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(SCHEMA))
    with psycopg.connect(place.url, autocommit=True) as admin, Router(place.url, schema=SCHEMA) as router:
        try:
            router.add("a")
            lease = router.claim("worker")
            assert lease is not None
            admin.execute(drop)
            if again:
                with Router(place.url, schema=SCHEMA) as new:
                    new.add("a")
            with psycopg.connect(place.url) as connection:
                connection.execute("select 1")

                with pytest.raises(StoreUnavailable, match=r"since this process opened it.* Nothing was") as refused:
                    lease.fence(connection)

            assert not refused.value.outcome_unknown
        finally:
            admin.execute(drop)


def test_an_effect_whose_intent_is_gone_is_a_conflict(place: Place) -> None:
    """As after a restored dump."""
    store = place.store()
    assert isinstance(store, PostgresStore)
    with Router(store.database.url, schema=store.database.schema) as router:
        router.add("a")
        lease = router.claim("worker")
        assert isinstance(lease, Lease)

        def restore(key: str) -> None:
            with psycopg.connect(store.database.url, autocommit=True) as connection:
                connection.execute(sql.SQL("delete from {}").format(sql.Identifier(store.database.schema, "effects")))

        with pytest.raises(Conflict, match=r"no record of an effect named 'charge'.* Nothing was changed"):
            lease.once("charge", restore)
