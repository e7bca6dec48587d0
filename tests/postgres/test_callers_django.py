"""Django's transactions on PostgreSQL, with psycopg 3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError, connection, connections, transaction
from tests.django_connection import django_connection
from tests.support import lease_of

from leasehold import Conflict, InvalidArgument, NotInTransaction, Router, StaleEpoch, Unsupported
from leasehold.stores.postgres import PostgresStore
from leasehold.testing import elsewhere

from .fixtures import Place
from .libraries import django_of


@pytest.fixture
def router(place: Place) -> Iterator[Router]:
    """A router on a store of its own, Django's default connection to the same database, and a table of the caller's."""
    store = place.store()
    with place.connect(store) as own:
        own.execute("create table results (what text)")
    with Router(store.database.url, schema=store.database.schema) as router, django_of(store.database.url):
        yield router
        assert router.verify() == []


def unended(router: Router) -> None:
    """Leave refusing to the fence: a takeover ends nobody's session."""
    assert isinstance(router.store, PostgresStore)
    router.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]


def insert(what: str = "mine") -> None:
    """Write a row of the caller's own."""
    with connection.cursor() as cursor:
        cursor.execute("insert into results values (%s)", [what])


def written() -> int:
    """How many rows are committed."""
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from results")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("which", ["the proxy", "the wrapper"])
def test_rows_and_completion_are_one_commit(router: Router, which: str) -> None:
    """`django.db.connection`, which stands for this thread's, or that one itself."""
    lease = lease_of(router)
    given: Any = connection if which == "the proxy" else connections["default"]

    with transaction.atomic():
        lease.fence(given)
        insert()
        assert lease.add("child", {"n": 1}, connection=given).created
        assert router.add("other", connection=given).created
        lease.complete(7, then=[{"id": "then"}], connection=given)
        assert router.job("a").status == "running"

    assert written() == 1
    assert (router.job("a").status, router.job("a").result) == ("done", 7)
    assert set(router.snapshot()) == {"a", "a/child", "other", "a/then"}


def test_what_is_rolled_back_has_not_happened(router: Router) -> None:
    """Rows, jobs, completion."""
    lease = lease_of(router)

    def failing() -> None:
        with transaction.atomic():
            insert()
            router.add("other", connection=connection)
            lease.complete(connection=connection)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()

    assert (written(), set(router.snapshot()), router.job("a").status) == (0, {"a"}, "running")


def test_trap_13_autocommit_is_refused_with_what_to_do(router: Router) -> None:
    """It is Django's default, and would fence nothing."""
    lease = lease_of(router)

    for verb in (
        lambda: lease.fence(connection),
        lambda: lease.complete(connection=connection),
        lambda: lease.add("child", connection=connection),
        lambda: router.add("other", connection=connection),
    ):
        with pytest.raises(NotInTransaction, match=r"transaction\.atomic\(\)"):
            verb()

    transaction.set_autocommit(False)
    lease.complete(connection=connection)
    transaction.commit()
    transaction.set_autocommit(True)
    assert router.job("a").status == "done"


@pytest.mark.parametrize("how", ["atomic", "by hand"])
def test_trap_13_a_nested_atomic_is_refused(router: Router, how: str) -> None:
    """If it alone were rolled back, the rows would commit without the completion."""
    lease = lease_of(router)

    def nested() -> None:
        with transaction.atomic():
            insert()
            if how == "atomic":
                with transaction.atomic():
                    lease.complete(connection=connection)
            else:
                connection.savepoint()
                lease.complete(connection=connection)

    with pytest.raises(Conflict, match=r"nested transaction\.atomic" if how == "atomic" else "inside a savepoint"):
        nested()
    assert (written(), router.job("a").status) == (0, "running")

    with transaction.atomic(), transaction.atomic(savepoint=False):
        lease.fence(connection)
    with transaction.atomic(), transaction.atomic():
        lease.complete(connection=connection, savepoint=True)
    assert router.job("a").status == "done"


def test_trap_13_an_inner_atomic_that_is_rolled_back_takes_no_fence_with_it(router: Router) -> None:
    """The fence is the outer transaction's, whatever becomes of the savepoints in it."""
    lease = lease_of(router)
    unended(router)

    def overtaken() -> None:
        with transaction.atomic():
            lease.fence(connection)
            with transaction.atomic():
                insert("undone")
                connection.check_constraints()
                transaction.set_rollback(True)
            insert()
            elsewhere(router.transfer, "a", epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(DatabaseError) as refused:
        overtaken()

    found = StaleEpoch.find(refused.value)
    assert found is not None
    assert found.owner == "b"
    assert written() == 0


def test_trap_15_check_constraints_holds_up_no_takeover(router: Router) -> None:
    """Django sends SET CONSTRAINTS ALL IMMEDIATE; the fence stays with the COMMIT, and is not lost either."""
    lease = lease_of(router)
    unended(router)

    def overtaken() -> None:
        with transaction.atomic():
            insert()
            lease.complete(connection=connection)
            connection.check_constraints()
            elsewhere(router.transfer, "a", epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(DatabaseError) as refused:
        overtaken()

    found = StaleEpoch.find(refused.value)
    assert found is not None
    assert (found.job_id, found.presented, found.owner, found.reason) == ("a", lease.epoch, "b", "manual")
    assert (found.verb, written(), router.job("a").owner) == ("complete", 0, "b")


def test_an_owner_whose_session_was_ended_finds_out_why(router: Router) -> None:
    """The server hangs up without facts, which the store has; and Django connects anew."""
    lease = lease_of(router)

    def overtaken() -> None:
        with transaction.atomic():
            lease.fence(connection)
            insert()
            elsewhere(router.transfer, "a", epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(DatabaseError) as ended:
        overtaken()

    assert StaleEpoch.find(ended.value) is None
    found = StaleEpoch.find(ended.value, lease)
    assert found is not None
    assert found.owner == "b"
    connection.close_if_unusable_or_obsolete()
    assert written() == 0


def test_a_stale_owner_is_told_before_its_commit_if_it_can_be(router: Router) -> None:
    """By leasehold's own error; it is recorded, and the lease knows."""
    lease = lease_of(router)
    router.transfer("a", epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(StaleEpoch), transaction.atomic():
        lease.fence(connection)

    assert lease.lost
    assert len(router.events(kind="refused")) == 1


def test_a_connection_to_something_else_is_refused(router: Router, tmp_path: Path) -> None:
    """Only rows in the same database can commit together. A cache of Django's only looks like a connection."""
    lease = lease_of(router)

    with (
        django_connection(ENGINE="django.db.backends.sqlite3", NAME=str(tmp_path / "other.db")),
        transaction.atomic(),
        pytest.raises(InvalidArgument, match="is to sqlite"),
    ):
        lease.fence(connection)
    with pytest.raises(Unsupported, match="Django"):
        lease.fence(cache)


def test_leasehold_does_not_import_django() -> None:
    """Who has no Django does not get one."""
    code = (
        "import sys, leasehold.stores.postgres, leasehold.stores.sqlite; "
        "sys.exit('django' in {name.partition('.')[0] for name in sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
