"""What users put around handlers and workers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from leasehold import InvalidArgument, Lease, Retry, Router, Status, current_lease

from .staging import ended, made, our_threads, with_status, working

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


def test_the_first_hook_is_the_outermost_and_the_handler_sees_what_it_set(router: Router) -> None:
    order: list[str] = []

    @router.around
    def outer(lease: Lease) -> Iterator[None]:
        order.append(f"outer {lease.job_id}")
        token = tenant.set("acme")
        try:
            yield
        finally:
            tenant.reset(token)
            order.append("outer ends")

    @router.around
    @contextmanager
    def inner(lease: Lease) -> Iterator[None]:
        order.append(f"inner {current_lease() is lease}")
        yield
        order.append("inner ends")

    @router.task
    def on_thread() -> str:
        order.append("handler")
        return tenant.get()

    @router.task
    async def on_loop() -> str:
        order.append("handler")
        return tenant.get()

    for name, task in (("t", on_thread), ("l", on_loop)):
        order.clear()
        task.options(id=name).add()
        with working(router):
            [job] = ended(router, name)
        assert job.result == "acme"
        assert order == [f"outer {name}", "inner True", "handler", "inner ends", "outer ends"]


def test_an_async_hook_is_around_async_handlers_only(router: Router) -> None:
    seen: list[str] = []

    @router.around
    async def generator(lease: Lease) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(lease.job_id)
        yield

    @router.around
    @asynccontextmanager
    async def manager(lease: Lease) -> AsyncIterator[None]:
        seen.append(f"again {lease.job_id}")
        yield

    @router.task
    def on_thread() -> None:
        pass

    @router.task
    async def on_loop() -> None:
        pass

    on_thread.options(id="t").add()
    on_loop.options(id="l").add()
    with working(router):
        ended(router, "t", "l")

    assert seen == ["l", "again l"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_of_a_hook_is_an_error_of_the_job(router: Router, where: str) -> None:
    ran: list[int] = []

    @router.around
    def around(lease: Lease) -> Iterator[None]:
        if where == "before":
            raise ValueError("hook")
        yield
        raise ValueError("hook")

    @router.task(retry=Retry(max_errors=1))
    def work() -> None:
        ran.append(1)

    work.options(id="a").add()
    with working(router):
        job = with_status(router, "a", Status.FAILED)

    assert job.last_error is not None
    assert job.last_error.startswith("ValueError: hook")
    assert len(ran) == (1 if where == "after" else 0)


def test_a_hook_that_does_not_fit_is_refused_at_once(router: Router) -> None:
    with pytest.raises(InvalidArgument, match="calls its function with the lease"):

        @router.around
        def none() -> Iterator[None]:
            yield

    with pytest.raises(InvalidArgument, match="does not yield"):

        @router.around
        async def coroutine(lease: Lease) -> None: ...

    with pytest.raises(InvalidArgument, match="calls its function with nothing"):

        @router.lifespan
        def one(what: Any) -> Iterator[None]:
            yield


def test_lifespans_are_entered_once_and_left_in_reverse(router: Router) -> None:
    order: list[str] = []

    @router.lifespan
    def plain() -> Iterator[None]:
        order.append("plain")
        yield
        order.append("plain ends")

    @router.lifespan
    async def on_loop() -> AsyncIterator[None]:
        order.append(threading.current_thread().name)
        task = asyncio.current_task()
        yield
        order.append(f"loop ends {task is asyncio.current_task()}")

    @router.task
    def work() -> None:
        order.append("handler")

    work.options(id="a").add()
    work.options(id="b").add()
    with working(router) as worker:
        ended(router, "a", "b")
        worker.stop()
        worker.stop()

    assert order == ["plain", "leasehold-loop", "handler", "handler", "loop ends True", "plain ends"]


def test_async_lifespans_of_an_async_block_are_on_the_callers_loop(router: Router) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @router.lifespan
    async def on_loop() -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        yield
        loops.append(asyncio.get_running_loop())

    async def main() -> asyncio.AbstractEventLoop:
        async with router.worker():
            await asyncio.sleep(0)
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert loops == [loop, loop]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_lifespan_that_fails_to_begin_leaves_nothing(router: Router, kind: str) -> None:
    order: list[str] = []

    @router.lifespan
    async def first() -> AsyncIterator[None]:
        order.append("first")
        try:
            yield
        finally:
            order.append("first ends")

    if kind == "plain":

        @router.lifespan
        def second() -> Iterator[None]:
            raise ValueError("no database")
            yield

    else:

        @router.lifespan
        async def third() -> AsyncIterator[None]:
            raise ValueError("no database")
            yield

    @router.task
    def work() -> None:
        order.append("handler")

    work.options(id="a").add()
    worker = made(router)
    with pytest.raises(ValueError, match="no database"):
        worker.start()
    assert our_threads() == []
    worker.stop()
    with pytest.raises(ValueError, match="no database"):
        router.work(until_empty=True)

    assert order == ["first", "first ends"] * 2
    assert router.job("a").attempt == 0
    assert not worker.health().consuming


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_lifespan_that_fails_to_end_is_told_and_leaves_nothing(router: Router, kind: str) -> None:
    order: list[str] = []

    @router.lifespan
    def first() -> Iterator[None]:
        yield
        order.append("first ends")

    if kind == "plain":

        @router.lifespan
        def second() -> Iterator[None]:
            yield
            raise ValueError("cannot close")

    else:

        @router.lifespan
        async def third() -> AsyncIterator[None]:
            yield
            raise ValueError("cannot close")

    @router.task
    async def work() -> None:
        pass

    work.options(id="a").add()
    with pytest.raises(ValueError, match="cannot close"):
        router.work(until_empty=True)
    with pytest.raises(ValueError, match="cannot close"), made(router):
        pass

    assert router.job("a").status is Status.DONE
