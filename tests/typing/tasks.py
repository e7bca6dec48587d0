"""
What type checkers make of tasks: never run, and read by mypy and pyright in strict mode.

A line that ends with `# error` must be refused by both, and no other may be. mypy sees to it by itself, as it refuses
an ignore that ignores nothing; for pyright, `test_checkers.py` compares the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, assert_type

from leasehold import Added, Lease, NewJob, Retry, Router
from leasehold.tasks.task import Task
from leasehold.worker.reporting import Tally

router = Router("postgresql://host/db", imports=["app.tasks"])


@router.task
def resize(lease: Lease, image_id: int, *, big: bool = False) -> str:
    return f"{lease.job_id} {image_id} {big}"


@router.task(
    name="thumb",
    queue="images",
    priority=2,
    lease_seconds=30,
    stall_seconds=120,
    run_seconds=600,
    retry=Retry(max_errors=5),
    final=(ValueError, KeyError),
    delay=lambda errors, error: 2.0**errors,
)
async def thumb(lease: Lease, image_id: int) -> str:
    return f"{lease.job_id} {image_id}"


@router.task(process=True)
def cut(image_id: int, at: datetime | None = None) -> bytes:
    return b""


@router.task
def sweep() -> None: ...


@router.task
async def ping(host: str) -> int:
    return len(host)


def plain(to: str) -> float:
    return len(to)


sent = router.task(plain, queue="mail")


def called(lease: Lease) -> None:
    assert_type(resize(lease, 42), str)
    assert_type(resize(lease, 42, big=True), str)
    assert_type(cut(42), bytes)
    assert_type(sweep(), None)
    assert_type(sent("a"), float)
    resize(42)  # type: ignore[call-arg, arg-type]  # error
    resize(lease)  # type: ignore[call-arg]  # error
    resize(lease, "x")  # type: ignore[arg-type]  # error
    cut(lease, 42)  # type: ignore[arg-type]  # error
    sweep(lease)  # type: ignore[call-arg]  # error


async def awaited(lease: Lease) -> None:
    assert_type(await thumb(lease, 1), str)
    assert_type(await ping("a"), int)
    assert_type(await thumb.aio.add(1), Added)
    assert_type(await resize.options(delay_seconds=5).aio.add(1), Added)
    await thumb.aio.add("x")  # type: ignore[arg-type]  # error
    await thumb.options(id="a").aio.add()  # type: ignore[call-arg]  # error


def added(lease: Lease) -> None:
    assert_type(resize.add(42), Added)
    assert_type(resize.add(image_id=42, big=True), Added)
    assert_type(cut.add(42, None), Added)
    assert_type(sweep.add(), Added)
    assert_type(thumb.add(1), Added)
    assert_type(ping.add("a"), Added)
    assert_type(sent.add(to="a"), Added)
    resize.add("x")  # type: ignore[arg-type]  # error
    resize.add()  # type: ignore[call-arg]  # error
    resize.add(1, 2)  # type: ignore[call-arg, arg-type]  # error
    resize.add(lease, 1)  # type: ignore[call-arg, arg-type]  # error
    resize.add(1, size=2)  # type: ignore[call-arg]  # error
    resize.add(1, queue="q")  # type: ignore[call-arg]  # error
    thumb.add(None)  # type: ignore[arg-type]  # error
    cut.add(at=None)  # type: ignore[call-arg]  # error
    sweep.add(1)  # type: ignore[call-arg]  # error
    sent.add(to=1)  # type: ignore[arg-type]  # error


def with_options(lease: Lease, connection: Any) -> None:
    assert_type(resize.options(id="resize:42", delay_seconds=5).add(42), Added)
    assert_type(resize.options(parent=None, connection=connection, savepoint=True).add(42), Added)
    assert_type(resize.options(parent=lease, retry=Retry(max_errors=1), lock="a", unique="b").add(42), Added)
    resize.options(id="resize:42").add("x")  # type: ignore[arg-type]  # error
    resize.options(colour="red")  # type: ignore[call-arg]  # error
    resize.options(task="thumb")  # type: ignore[call-arg]  # error
    resize.options(priority="high")  # type: ignore[arg-type]  # error
    resize.options(parent="job-1")  # type: ignore[arg-type]  # error


def for_later(lease: Lease) -> None:
    assert_type(resize.job(42), NewJob)
    router.add_many([resize.job(42), thumb.options(queue="q").job(1)])
    lease.add(resize.job(42))
    lease.complete(then=[resize.job(42), {"id": "a", "payload": 1}])
    resize.job("x")  # type: ignore[arg-type]  # error
    resize.options(queue="q").job(1, 2)  # type: ignore[call-arg, arg-type]  # error


def habits_from_elsewhere() -> None:
    Retry(max_retries=3)  # type: ignore[call-arg]  # error
    Retry(only=ValueError)  # type: ignore[arg-type]  # error
    router.work(workers=4)  # type: ignore[call-arg]  # error
    router.worker(until_empty=True)  # type: ignore[call-arg]  # error
    router.enqueue("a")  # type: ignore[attr-defined]  # error
    resize.delay(42)  # type: ignore[attr-defined]  # error
    assert_type(router.work(concurrency=4), Tally)
    assert_type(resize.add(42).id, str)


def by_kind(errors: int, error: Exception) -> float:
    return errors * (2.0 if isinstance(error, OSError) else 1.0)


def decorated() -> None:
    router.task(delay=by_kind)
    router.task(1)  # type: ignore[call-overload]  # error
    router.task(queue=1)  # type: ignore[call-overload]  # error
    router.task(colour="red")  # type: ignore[call-overload]  # error
    router.task(delay=lambda: 1.0)  # type: ignore[arg-type, misc]  # error


def spelled_out(
    with_lease: Callable[[Lease, int], str], without: Callable[[int], Coroutine[Any, Any, str]]
) -> list[Task[..., ..., Any]]:
    assert_type(router.task(with_lease), Task[[Lease, int], [int], str])
    assert_type(router.task(without), Task[[int], [int], Coroutine[Any, Any, str]])
    return [resize, thumb, cut, sweep]
