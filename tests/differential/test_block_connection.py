"""What a caller may do with the connection of a block, on either database, and that it is fenced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest

from leasehold import Conflict, Lease, Router, StaleEpoch
from leasehold.testing import elsewhere, take_over

from .stages import Stage

Use = Callable[[Any], Any]


def plain(lease: Lease, use: Use) -> Any:
    """Call *use* with the connection of `lease.transaction()`."""
    with lease.transaction() as connection:
        return use(connection)


def awaited(lease: Lease, use: Use) -> Any:
    """Call *use* with the connection of `lease.aio.transaction()`, whose methods are not awaited."""

    async def block() -> Any:
        async with lease.aio.transaction() as connection:
            return use(connection)

    return asyncio.run(block())


@pytest.fixture
def stages(sqlite: Stage, postgres: Stage) -> list[Stage]:
    """Both stores."""
    return [sqlite, postgres]


@pytest.fixture(params=[plain, awaited])
def inside(request: pytest.FixtureRequest) -> Callable[[Lease, Use], Any]:
    """Each face of the block in turn."""
    found: Callable[[Lease, Use], Any] = request.param
    return found


def lease_of(router: Router) -> Lease:
    """A lease to be used in a block."""
    router.add("mine")
    lease = router.claim("worker")
    assert lease is not None
    return lease


def insert(stage: Stage) -> str:
    """Return the statement with the placeholders of the database."""
    mark = "?" if stage.database.is_sqlite else "%s"
    return f"insert into results values ({mark}, {mark})"


def test_many_rows_are_written_in_one_call(stages: list[Stage], inside: Callable[[Lease, Use], Any]) -> None:
    """On the connection itself, from any iterable; the cursor that it returns has their number."""
    for stage in stages:
        statement, rows = insert(stage), [("p", "a"), ("p", "b"), ("p", "c")]

        cursor = inside(lease_of(stage.router), methodcaller("executemany", statement, iter(rows)))

        assert cursor.rowcount == 3
        assert stage.rows("p") == ["a", "b", "c"]


def test_many_rows_of_an_owner_that_was_replaced_are_refused(
    stages: list[Stage], inside: Callable[[Lease, Use], Any]
) -> None:
    """Replaced before the block on SQLite, where nothing happens beside it; after its rows on PostgreSQL."""
    for stage in stages:
        lease = lease_of(stage.router)

        def use(connection: Any, stage: Stage = stage, lease: Lease = lease) -> None:
            connection.executemany(insert(stage), [("p", "stale")])
            elsewhere(take_over, lease)

        if stage.database.is_sqlite:
            take_over(lease)
        with pytest.raises(StaleEpoch):
            inside(lease, use)

        assert stage.rows("p") == []


@pytest.mark.parametrize("text", ["commit", "rollback", "begin"])
def test_the_end_of_the_transaction_is_refused_in_many_too(
    stages: list[Stage], inside: Callable[[Lease, Use], Any], text: str
) -> None:
    """As in a single statement. The error leaves the block, and nothing is written."""
    for stage in stages:

        def use(connection: Any, stage: Stage = stage) -> None:
            connection.executemany(insert(stage), [("p", "a")])
            connection.executemany(text, [()])

        with pytest.raises((Conflict, sqlite3.DatabaseError)):
            inside(lease_of(stage.router), use)

        assert stage.rows("p") == []
