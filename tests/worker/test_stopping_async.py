"""From start to stop in an async block, on the caller's own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from leasehold import (
    Router,
    Status,
)

from .staging import (
    PATIENCE,
    assert_nothing_left,
    our_threads,
)


def test_in_an_async_block_it_stops_while_the_loop_goes_on(router: Router) -> None:
    begun, ticked = asyncio.Event(), asyncio.Event()

    @router.task
    async def work() -> str:
        begun.set()
        await ticked.wait()  # which the loop must still bring about after the block has begun to stop
        return "done"

    async def tick() -> None:
        for _ in range(10):
            await asyncio.sleep(0.005)
        ticked.set()

    async def main() -> None:
        work.options(id="a").add()
        async with router.worker():
            await begun.wait()
            ticking = asyncio.create_task(tick())
        await ticking

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert router.job("a").result == "done"
    assert_nothing_left()


def test_an_async_block_stops_also_if_handlers_hold_all_shared_threads(router: Router) -> None:
    free = threading.Event()

    @router.task
    async def work() -> None:
        await asyncio.to_thread(free.wait, PATIENCE)

    async def main() -> None:
        async with router.worker(concurrency=100, grace_seconds=0):
            for _ in range(100):
                work.add()
            while router.counts().running < 100:
                await asyncio.sleep(0.005)
        free.set()

    asyncio.run(main())
    assert router.counts().pending == 100


def test_a_cancelled_start_leaves_no_worker(router: Router) -> None:
    entered, go_on, left = threading.Event(), asyncio.Event(), []

    @router.lifespan
    async def slow() -> AsyncIterator[None]:
        entered.set()
        await go_on.wait()
        try:
            yield
        finally:
            left.append(1)

    async def main() -> None:
        starting = asyncio.ensure_future(router.worker().__aenter__())
        while not entered.is_set():
            await asyncio.sleep(0.002)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        go_on.set()
        while our_threads():
            await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert left == [1]


def test_an_async_block_that_is_cancelled_twice_hands_back_at_once(router: Router) -> None:
    cleaned: list[int] = []

    @router.task
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(1)

    async def block() -> None:
        async with router.worker():
            work.options(id="a").add()
            await asyncio.sleep(3600)

    async def main() -> None:
        blocking = asyncio.create_task(block())
        while not (router.counts().running):
            await asyncio.sleep(0.002)
        blocking.cancel()
        await asyncio.sleep(0.05)
        assert not blocking.done(), "it waits for its handlers"
        blocking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocking

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert cleaned == [1]
    job = router.job("a")
    assert (job.status, job.errors) == (Status.PENDING, 0)
