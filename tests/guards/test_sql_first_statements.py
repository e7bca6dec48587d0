"""A fence that is the first statement of a transaction, which psycopg begins with it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from tests.guards.test_sql_postgres import LosingProxy
from tests.postgres.fixtures import server_url
from tests.postgres.proxy import Where

from leasehold import GuardUnavailable, StaleEpoch

from .test_sql_transactions import ISOLATIONS, NEW, OLD, Place, place

__all__ = ["place", "server_url"]  # fixtures

KEYS = ["plain", "it's", '"quoted"', "\\", "\\'; commit; --", "100 %s %% $1", "é", "; prepare transaction 'x'"]


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
@pytest.mark.parametrize("key", KEYS)
def test_any_key_is_fenced_at_each_isolation(place: Place, key: str, isolation: psycopg.IsolationLevel) -> None:
    """The key and the owner are literals there, and are read by the server as they are."""
    owner = f"owner of {key}"
    with place.connect() as connection:
        connection.isolation_level = isolation
        place.guard.fence(connection, key, "another", epoch=7, owner=owner, store="s")
        [(level,)] = connection.execute("select current_setting('transaction_isolation')")
        assert level == isolation.name.replace("_", " ").lower()
        connection.execute("insert into notes values ('mine')")
    assert place.notes() == ["mine"]
    for each in (key, "another"):
        mark = place.guard.mark(each)
        assert mark is not None
        assert (mark.epoch, mark.owner) == (7, owner)


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
def test_a_refusal_leaves_a_transaction_that_cannot_commit(place: Place, isolation: psycopg.IsolationLevel) -> None:
    """A caller that catches it, and goes on."""
    place.guard.seal("k", **NEW)
    with place.connect() as connection:
        connection.isolation_level = isolation
        with pytest.raises(StaleEpoch, match="epoch 7 is refused"):
            place.guard.fence(connection, "k", **OLD)
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        connection.execute("insert into notes values ('stale')")
        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    assert StaleEpoch.find(error.value) is not None
    assert place.notes() == []


def test_a_fence_that_fails_leaves_a_failed_transaction(place: Place) -> None:
    """So that nothing of the caller's is committed without a fence."""
    place.guard.install()
    place.execute("drop schema {schema} cascade")
    with place.connect() as connection:
        with pytest.raises(GuardUnavailable, match="missing or incomplete"):
            place.guard.fence(connection, "k", **OLD)
        assert connection.info.transaction_status is TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("insert into notes values ('unfenced')")
    assert place.notes() == []


def test_a_read_only_transaction_cannot_be_fenced(place: Place) -> None:
    """The caller's setting is part of the BEGIN, and PostgreSQL's own error names it."""
    place.guard.install()
    with place.connect() as connection:
        connection.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            place.guard.fence(connection, "k", **OLD)
        assert connection.info.transaction_status is TransactionStatus.INERROR


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name)
def test_a_fence_whose_reply_was_lost_has_fenced_nothing(place: Place, where: Where) -> None:
    """The transaction is gone with its connection, and nothing was written."""
    place.guard.install()
    losing: Any = LosingProxy(place.url)
    losing.meanwhile = lambda: None
    with losing as proxy, psycopg.connect(proxy.url) as connection:
        proxy.cut(where, "BEGIN; SELECT")
        with pytest.raises(GuardUnavailable, match="connection to its database was lost"):
            place.guard.fence(connection, "k", **OLD)
        assert proxy.cuts == 1
        assert connection.broken
    assert place.guard.mark("k") is None


@pytest.mark.parametrize("is_open", [True, False], ids=["open transaction", "first statement"])
def test_a_fence_in_a_pipeline_waits_for_its_reply(place: Place, is_open: bool) -> None:
    """It has to read the marks; what was sent before stays in the same transaction."""
    place.guard.install()
    with place.connect() as connection:
        with connection.pipeline():
            if is_open:
                connection.execute("insert into notes values ('mine')")
            place.guard.fence(connection, "k", **OLD)
            place.guard.seal("k", **NEW)
            with pytest.raises(StaleEpoch):
                place.guard.fence(connection, "k", **OLD)
        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    assert StaleEpoch.find(error.value) is not None
    assert place.notes() == []


def test_a_fence_in_a_pipeline_of_an_event_loop_waits_too(place: Place) -> None:
    """The same, through `.aio`."""
    place.guard.seal("k", **NEW)

    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(place.url) as connection:
            async with connection.pipeline():
                await connection.execute("insert into notes values ('mine')")
                await place.guard.aio.fence(connection, "k", **NEW)
                with pytest.raises(StaleEpoch):
                    await place.guard.aio.fence(connection, "k", **OLD)
            await connection.rollback()

    asyncio.run(body())
