"""Inside an override, the very same router and its tasks are on another store, and the real one is not touched."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from leasehold import Router, StoreUnavailable, UnknownJob
from leasehold.testing import ManualClock


def test_jobs_added_inside_are_not_in_the_real_store() -> None:
    """Neither by the router nor by its tasks; afterwards the real one is back."""
    router = Router()

    @router.task
    def send(to: str) -> None: ...

    router.add("real")
    real = router.store
    with router.override() as same:
        assert same is router
        assert router.store is not real
        router.add("mine")
        id = send.add("ann").job.id
        assert {"mine", id} == set(router.snapshot())

    assert router.store is real
    assert set(router.snapshot()) == {"real"}


def test_the_real_store_is_never_opened(tmp_path: Path) -> None:
    """Not even its file is made."""
    router = Router(f"sqlite:///{tmp_path}/real.db")

    with router.override():
        router.add("a")

    assert list(tmp_path.iterdir()) == []
    with router:
        router.add("b")
    assert list(tmp_path.glob("real.db*")) != []


def test_an_override_has_a_url_and_a_clock_of_its_own(tmp_path: Path) -> None:
    """And the router shows where it is."""
    clock = ManualClock()
    router = Router()

    with router.override(f"sqlite:///{tmp_path}/test.db", clock=clock):
        assert "test.db" in repr(router)
        assert router.add("a").job.created_at == clock.time
        assert router.add(None).job.id[:8] == f"{clock.now() // 1000:012x}"[:8]
        lease = router.claim("worker-0")
        assert lease is not None
        with lease.transaction() as connection:
            lease.complete(connection=connection)

    assert repr(router) == "<Router memory:>"
    assert router.add("a").job.created_at != clock.time
    assert (tmp_path / "test.db").exists()


def test_settings_of_the_router_hold_inside(tmp_path: Path) -> None:
    """Its schema, its trace and its lease_seconds."""
    router = Router(trace=True, schema="mine", lease_seconds=7)

    with router.override(f"sqlite:///{tmp_path}/test.db"):
        router.add("a")
        lease = router.claim("worker-0")
        assert lease is not None
        assert (lease.expires_at - lease.granted_at).total_seconds() == 7
        assert [event.kind for event in router.events()] == ["added", "claimed"]
        with lease.transaction() as connection:
            names = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        assert names
        assert all(name.startswith("mine") for name in names if not name.startswith("sqlite_"))


def test_an_override_has_a_schema_of_its_own(tmp_path: Path) -> None:
    """So that each test has its own in one database; afterwards the router's is back."""
    router = Router(f"sqlite:///{tmp_path}/test.db", schema="mine")
    with router.override(router.url, schema="t1"):
        router.add("a")
        with router.override(router.url):
            assert router.snapshot() == {}
    with router.override(router.url, schema="t1"):
        assert set(router.snapshot()) == {"a"}
    with router:
        assert router.snapshot() == {}


def test_overrides_nest() -> None:
    """Each is fresh, and each end leads back to the one around it."""
    router = Router()
    with router.override():
        router.add("outer")
        with router.override():
            router.add("inner")
            assert set(router.snapshot()) == {"inner"}
        assert set(router.snapshot()) == {"outer"}
    assert router.snapshot() == {}


def test_the_real_store_is_back_after_an_error() -> None:
    """Whatever the block raises."""
    router = Router()
    real = router.store

    with pytest.raises(RuntimeError, match="the test failed"), router.override():
        raise RuntimeError("the test failed")

    assert router.store is real


def test_a_url_that_names_no_store_changes_nothing() -> None:
    """It is refused before anything is moved."""
    router = Router()
    real = router.store

    with pytest.raises(ValueError, match="is not the URL of a store"), router.override("nosuch://"):
        pytest.fail("the block was entered")

    assert router.store is real
    assert router.url is None


def test_the_fresh_store_is_closed_at_the_end() -> None:
    """What is left of the test cannot write there unnoticed; the real one is open."""
    router = Router()
    with router.override():
        router.add("a")
        lease = router.claim("worker-0")
        fresh = router.store
    assert lease is not None

    with pytest.raises(StoreUnavailable):
        lease.complete()
    assert lease.store is fresh
    router.add("a")


def test_a_lease_keeps_the_store_that_it_came_from() -> None:
    """A real one settles in the real store, also inside an override."""
    router = Router()
    router.add("a")
    lease = router.claim("worker-0")
    assert lease is not None

    with router.override():
        lease.complete("real")
        with pytest.raises(UnknownJob):
            router.job("a")

    assert router.result("a") == "real"


def test_a_task_inside_is_no_child_of_a_real_lease() -> None:
    """The epochs of the real store mean nothing in the fresh one."""
    router = Router()

    @router.task
    def send() -> None: ...

    router.add("a")
    lease = router.claim("worker-0")
    assert lease is not None
    with router.override(), lease.active():
        assert send.add().job.parent is None


def test_every_thread_sees_the_override() -> None:
    """It is the router that moves, and not the caller's context: a web application answers on threads of its own."""
    router = Router()
    seen: list[Any] = []
    with router.override():
        thread = threading.Thread(target=lambda: seen.append(router.store))
        thread.start()
        thread.join()
        assert seen == [router.store]


def test_blocks_that_do_not_end_in_order_end_all_the_same() -> None:
    """As those of two threads may: whoever is left keeps its store, and the last leads back to the real one."""
    router = Router()
    real = router.store
    first, second = router.override(), router.override()
    first.__enter__()
    second.__enter__()
    of_second = router.store

    first.__exit__(None, None, None)
    assert router.store is of_second
    router.add("a")
    second.__exit__(None, None, None)

    assert router.store is real


def test_the_async_verbs_follow() -> None:
    """`router.aio` is the same router."""
    router = Router()
    aio = router.aio
    with router.override():
        asyncio.run(aio.add("a"))
        assert set(router.snapshot()) == {"a"}
    assert router.snapshot() == {}
