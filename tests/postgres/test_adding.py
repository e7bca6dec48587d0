"""Adds that meet a transaction which somebody keeps open: they wait, for a while, and say for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from leasehold import Router, StoreUnavailable
from leasehold.testing import elsewhere

from .fixtures import Place
from .staging import Call, store_of, until_blocked

KEPT = (
    r"^another transaction holds a lock that this call needs \(a row, or the id or unique key of a new "
    r"job\): .*\. Nothing was changed\. Try again once that transaction has ended: pg_stat_activity shows "
    r"which ones are open, and since when\.$"
)

ADDS: dict[str, Callable[[Router], object]] = {
    "one": lambda router: router.add("held"),
    "many alike": lambda router: router.add_many([{"id": "other"}, {"id": "held"}]),
    "many": lambda router: router.add_many([{"id": "other", "priority": 1}, {"id": "held"}]),
    "an id, with a key": lambda router: router.add("held", unique="another"),
    "a key": lambda router: router.add("other", unique="key"),
}


@pytest.fixture
def router(place: Place) -> Iterator[Router]:
    """A Router on a new store."""
    store = place.store()
    with Router(store.database.url, schema=store.database.schema) as made:
        yield made
        assert made.verify() == []


@contextmanager
def held(router: Router) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's open transaction, which has added a job."""
    with psycopg.connect(store_of(router).database.url) as connection:
        router.add("held", unique="key", connection=connection)
        yield connection


def patience(connection: psycopg.Connection[Any]) -> str:
    """How long the transaction's statements wait for a lock."""
    [(setting,)] = connection.execute("show lock_timeout").fetchall()
    return str(setting)


@pytest.mark.parametrize("add", ADDS.values(), ids=ADDS)
def test_an_add_waits_for_an_open_transaction_no_longer_than_any_verb(
    router: Router, add: Callable[[Router], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it says that nothing was changed, whom it has waited for, and what to do."""
    monkeypatch.setattr("leasehold.stores.postgres.store.PATIENCE_MS", 50)
    with held(router) as own:
        with pytest.raises(StoreUnavailable, match=KEPT):
            Call(lambda: add(router)).result()

        assert router.jobs() == []
        own.commit()
    add(router)
    assert {job.id for job in router.jobs()} - {"other"} == {"held"}


def test_a_child_likewise(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has always had the patience of its owner's verbs."""
    monkeypatch.setattr("leasehold.stores.postgres.store.PATIENCE_MS", 50)
    router.add("parent")
    lease = router.claim("worker")
    assert lease is not None
    with held(router), pytest.raises(StoreUnavailable, match=KEPT):
        elsewhere(lease.add, "child", unique="key")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("how", [*ADDS, "a child", "a child's key"])
def test_an_add_that_waited_is_told_how_it_ended(router: Router, ends: str, how: str) -> None:
    """If the other one committed, its job is the one; else this is."""
    router.add("parent")
    lease = router.claim("worker")
    assert lease is not None
    adds: dict[str, Callable[[Router], object]] = {
        **ADDS,
        "a child": lambda _: elsewhere(lease.add, "held"),
        "a child's key": lambda _: elsewhere(lease.add, "other", unique="key"),
    }
    with psycopg.connect(store_of(router).database.url) as own:
        router.add("parent/held" if how == "a child" else "held", unique="key", connection=own)
        adding = Call(lambda: adds[how](router))
        until_blocked(store_of(router), adding)

        getattr(own, ends)()

        answer: Any = adding.result()
    *others, last = answer if isinstance(answer, list) else [answer]
    assert [added.created for added in others] == [True] * len(others)
    assert last.created == (ends == "rollback")
    name = {"a key": "other", "a child": "parent/held", "a child's key": "parent/other"}.get(how, "held")
    if ends == "commit" and how.endswith("key") and not how.startswith("an id"):
        name = "held"
    assert last.id == name
    assert {job.id for job in router.jobs()} == {"parent", name, *(added.id for added in others)}


def test_the_patience_of_an_add_is_not_that_of_whoever_has_the_session_next(router: Router) -> None:
    """It is set for one transaction."""
    database = store_of(router).database
    for add in ADDS.values():
        add(router)
        [connection] = database.pool.idle
        assert patience(connection) == "0"


def test_a_callers_transaction_keeps_its_own_patience(router: Router) -> None:
    """Whatever it adds, before its COMMIT or inside it; its later statements wait as long as it has said."""
    router.add("parent")
    lease = router.claim("worker")
    assert lease is not None
    with psycopg.connect(store_of(router).database.url) as own:
        own.execute("set lock_timeout = '77s'")
        own.commit()
        router.add("plain", connection=own)
        router.add("unique", unique="u", connection=own)
        lease.add("child", connection=own)
        lease.complete(then=[{"id": "then"}], connection=own)
        assert patience(own) == "77s"
        own.commit()
        assert patience(own) == "77s"
    assert {job.id for job in router.jobs()} == {"parent", "plain", "unique", "parent/child", "parent/then"}


def test_an_add_in_a_callers_transaction_waits_as_long_as_that_says(router: Router) -> None:
    """And no longer, nor less."""
    with held(router), psycopg.connect(store_of(router).database.url) as own:
        own.execute("set local lock_timeout = '1ms'")
        with pytest.raises(StoreUnavailable, match=KEPT):
            router.add("held", connection=own)
