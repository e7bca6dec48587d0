"""Which handlers run where, with what, and what is kept of what they return."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import date

import pytest

from leasehold import Job, Lease, Retry, Router, Status, StoreUnavailable, current_lease

from .staging import Tampered, ended, until, with_status, working

local: contextvars.ContextVar[str] = contextvars.ContextVar("local", default="nothing")


def deep() -> Lease:
    """Far below a handler."""
    return current_lease()


def test_def_runs_on_a_thread_with_its_lease_and_its_result_is_kept(any_router: Router) -> None:
    seen = []

    @any_router.task
    def double(lease: Lease, number: int) -> int:
        seen.append((threading.current_thread().name, lease, deep()))
        return number * 2

    @any_router.task
    def plain(text: str) -> str:
        return f"{text} of {current_lease().job_id}"

    double.options(id="a").add(21)
    plain.options(id="b").add("word")
    with working(any_router) as worker:
        a, b = ended(any_router, "a", "b")

    assert a.result == 42
    assert b.result == "word of b"
    [(thread, lease, below)] = seen
    assert thread.startswith("leasehold-handler-")
    assert lease is below
    assert lease.job_id == "a"
    assert lease.owner == worker.owner
    assert worker.tally.done == 2


def test_async_def_runs_on_one_loop_of_the_workers_own(any_router: Router) -> None:
    seen = []

    @any_router.task
    async def double(lease: Lease, number: int) -> int:
        await asyncio.sleep(0)
        seen.append((threading.current_thread().name, asyncio.get_running_loop(), lease is deep()))
        return number * 2

    double.options(id="a").add(21)
    double.options(id="b").add(22)
    with working(any_router):
        a, b = ended(any_router, "a", "b")

    assert (a.result, b.result) == (42, 44)
    assert {thread for thread, _, _ in seen} == {"leasehold-loop"}
    assert len({id(loop) for _, loop, _ in seen}) == 1
    assert all(same for _, _, same in seen)


def test_in_an_async_block_async_handlers_run_on_the_callers_loop(router: Router) -> None:
    seen = []

    @router.task
    async def note(lease: Lease) -> None:
        await asyncio.sleep(0)
        seen.append((asyncio.get_running_loop(), lease is deep()))

    @router.task
    def also() -> str:
        return threading.current_thread().name

    async def main() -> asyncio.AbstractEventLoop:
        note.options(id="a").add()
        also.options(id="b").add()
        async with router.worker():
            while router.counts().done < 2:
                await asyncio.sleep(0.005)
        return asyncio.get_running_loop()

    loop = asyncio.run(main())

    assert seen == [(loop, True)]
    assert router.job("b").result.startswith("leasehold-handler-")


def test_what_one_handler_sets_in_its_context_the_next_does_not_see(router: Router) -> None:
    @router.task
    def on_thread() -> str:
        before = local.get()
        local.set("thread")
        return before

    @router.task
    async def on_loop() -> str:
        before = local.get()
        local.set("loop")
        await asyncio.sleep(0)
        return before

    jobs = [f"{kind}{n}" for kind in ("t", "l") for n in range(3)]
    with working(router, concurrency=1):
        for job in jobs:
            (on_thread if job[0] == "t" else on_loop).options(id=job).add()
            [done] = ended(router, job)
            assert done.result == "nothing"


def test_a_handler_that_waits_in_line_on_the_loop_begins_in_a_context_of_its_own(router: Router) -> None:
    """Begun when another handler ends, it still does not run in that one's context."""

    @router.task
    async def note() -> str:
        before = local.get()
        local.set("mine")
        return before

    for n in range(50):
        note.options(id=f"j{n}").add()
    with working(router, concurrency=2):
        jobs = ended(router, *(f"j{n}" for n in range(50)))

    assert {job.result for job in jobs} == {"nothing"}


# Jobs that the worker of the test below cannot handle.
STRANGE = [
    pytest.param({"task": "of_a_later_deploy"}, id="unknown task"),
    pytest.param({}, id="no task"),
    pytest.param({"task": "known", "payload": {"renamed": 1}}, id="unknown argument"),
    pytest.param({"task": "known", "payload": {}}, id="missing argument"),
    pytest.param({"task": "known", "payload": [1]}, id="no object"),
    pytest.param({"task": "dated", "payload": {"day": "soon"}}, id="wrong type"),
    pytest.param({"task": "known_too", "payload": {"renamed": 1}}, id="async"),
]


@pytest.mark.parametrize("job", STRANGE)
def test_a_job_that_nobody_here_can_handle_rests_and_costs_nothing(
    any_router: Router, job: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling deploy burns no budget: another worker may know it, or this one after its restart."""

    @any_router.task
    def known(number: int) -> None:
        pytest.fail("it does not fit")

    @any_router.task
    def dated(day: date) -> None:
        pytest.fail("it does not fit")

    @any_router.task
    async def known_too(number: int) -> None:
        pytest.fail("it does not fit")

    retry = Retry(max_errors=1, max_reclaims=0)
    any_router.add_many([{"id": f"j{n}", "retry": retry, **job} for n in range(3)])

    def released() -> list[Job]:
        return [found for found in any_router.jobs() if found.attempt > 0 and found.status is Status.PENDING]

    with working(any_router) as worker:
        until(lambda: worker.tally.released >= 3, "all to go back")
        until(lambda: len(released()) == 3, "all to wait")
        jobs = released()

    assert all(found.errors == found.reclaims == 0 for found in jobs)
    assert all(found.run_at > found.updated_at for found in jobs), "no back-off"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, [record.getMessage() for record in warnings]


def test_a_job_that_could_not_be_handed_back_at_once_is_handed_back_later(router: Router) -> None:
    """The store is away just when a job of an unknown task goes back: it is no reclaim of that job."""
    store = Tampered(router.store)
    failures = iter([True, True])

    def settle(real, settlements):  # type: ignore[no-untyped-def]  # as the verb
        if next(failures, False):
            raise StoreUnavailable("away")
        return real(settlements)

    store.tampers["settle"] = settle
    router.add("a", task="unknown", lease_seconds=3600)
    with working(router, store=store):
        until(lambda: router.job("a").attempt > 0 and router.job("a").status is Status.PENDING, "it to go back")

    assert router.job("a").reclaims == 0


def test_a_result_that_cannot_be_kept_is_an_error_that_says_so(router: Router) -> None:
    @router.task(retry=Retry(max_errors=1))
    def strange() -> object:
        return object()

    strange.options(id="a").add()
    with working(router):
        job = with_status(router, "a", Status.FAILED)

    assert job.last_error is not None
    assert "the result of task 'strange'" in job.last_error


def test_children_of_a_handler_are_added_under_its_lease(router: Router) -> None:
    @router.task
    def child(number: int) -> int:
        return number

    @router.task
    def parent() -> None:
        child.add(1)
        child.add(1)

    parent.options(id="p").add()
    with working(router):
        ended(router, "p")
        until(lambda: router.counts().done == 3, "both children")

    children = router.jobs(task="child")
    assert [found.parent for found in children] == ["p", "p"]
