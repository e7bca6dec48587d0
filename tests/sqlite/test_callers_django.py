"""Django's transactions on SQLite."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, models, transaction
from tests.django_connection import django_connection
from tests.support import lease_of

from leasehold import Conflict, NotInTransaction, Router, StaleEpoch

TOP = Path(__file__).parents[2]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """A router on a file, Django's default connection to the same file, and a table of the caller's."""
    file = tmp_path / "jobs.db"
    with (
        Router(f"sqlite:///{file}") as router,
        django_connection(ENGINE="django.db.backends.sqlite3", NAME=str(file)),
    ):
        with connection.cursor() as cursor:
            cursor.execute("create table results (what text)")
        yield router
        assert router.verify() == []


def written() -> int:
    """How many rows are committed."""
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from results")
        return int(cursor.fetchone()[0])


def insert() -> None:
    """Write a row of the caller's own."""
    with connection.cursor() as cursor:
        cursor.execute("insert into results values ('mine')")


def test_rows_and_completion_are_one_commit(router: Router) -> None:
    """And roll back together."""
    lease = lease_of(router)

    def failing() -> None:
        with transaction.atomic():
            insert()
            lease.complete(connection=connection)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()
    assert (written(), router.job("a").status) == (0, "running")

    with transaction.atomic():
        lease.fence(connection)
        insert()
        assert lease.add("child", connection=connection).created
        assert router.add("other", connection=connection).created
        lease.complete(7, connection=connection)

    assert (written(), router.job("a").status) == (1, "done")
    assert set(router.snapshot()) == {"a", "a/child", "other"}


def test_autocommit_and_nested_atomics_are_refused(router: Router) -> None:
    """Django's default would fence nothing, and a savepoint could be rolled back alone."""
    lease = lease_of(router)

    with pytest.raises(NotInTransaction, match=r"transaction\.atomic\(\)"):
        lease.fence(connection)
    with transaction.atomic():
        insert()
        with pytest.raises(Conflict, match="savepoint"), transaction.atomic():
            lease.complete(connection=connection)

    assert (written(), router.job("a").status) == (1, "running")


def test_a_stale_owner_writes_nothing(router: Router) -> None:
    """The refusal leaves the block, and takes the rows with it."""
    lease = lease_of(router)
    router.transfer("a", epoch=lease.epoch, to="b", by="ops")

    def stale() -> None:
        with transaction.atomic():
            insert()
            lease.fence(connection)

    with pytest.raises(StaleEpoch):
        stale()

    assert written() == 0


@functools.cache  # a model is registered once in a process
def shipment_model() -> Any:
    """A model of a reader's; Django must be set up before."""
    meta = type("Meta", (), {"app_label": "page"})
    return type("Shipment", (models.Model,), {"__module__": "page", "Meta": meta, "sku": models.TextField()})


def test_the_block_of_the_page_does_what_it_says(router: Router) -> None:
    """As a reader runs it, with a model of their own; with the next job too."""
    page = (TOP / "docs/how-to/write-your-rows-with-the-job.md").read_text()
    [block] = re.findall(r"^```py\n(from django\b.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shipment = shipment_model()
    with connection.schema_editor() as editor:
        editor.create_model(shipment)

    for sku in ("rice", "salt"):
        router.add(sku, {"sku": sku})
        exec(block, {"lease": router.claim("worker-0"), "Shipment": shipment})  # the page is ours

    assert [one.sku for one in shipment.objects.order_by("id")] == ["rice", "salt"]
    assert {job.status for job in router.snapshot().values()} == {"done"}
