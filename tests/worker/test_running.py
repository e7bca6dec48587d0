"""Which handlers run where, with what, and what is kept of what they return."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import date
from typing import Any

import pytest
from tests.support import until

from leasehold import Job, Lease, Parked, Retry, Router, Status, StoreUnavailable, current_lease

from .staging import Tampered, ended, with_status, working

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


# Jobs whose arguments do not fit the tasks of the test below.
UNBINDABLE = [
    pytest.param({"task": "known", "payload": {"renamed": 1}}, id="unknown argument"),
    pytest.param({"task": "known", "payload": {}}, id="missing argument"),
    pytest.param({"task": "known", "payload": [1]}, id="no object"),
    pytest.param({"task": "dated", "payload": {"day": "soon"}}, id="wrong type"),
    pytest.param({"task": "known_too", "payload": {"renamed": 1}}, id="async"),
]


@pytest.mark.parametrize("task", ["of_a_later_deploy", None])
def test_a_job_of_an_unknown_task_is_left_to_others_and_costs_nothing(any_router: Router, task: str | None) -> None:
    """A rolling deploy burns no budget: the job waits behind its task, for a worker that knows it."""

    @any_router.task
    def known() -> None:
        pass

    any_router.add_many([{"id": f"j{n}", "task": task, "priority": 1} for n in range(3)])
    known.options(id="known").add()
    with working(any_router) as worker:
        ended(any_router, "known")

    jobs = [any_router.job(f"j{n}") for n in range(3)]
    assert [found.parked for found in jobs] == [Parked("task", task or "", worker.owner)] * 3
    assert {(found.epoch, found.attempt, found.errors, found.reclaims) for found in jobs} == {(0, 0, 0, 0)}
    assert worker.tally.released == 0


def test_a_worker_takes_what_was_parked_behind_its_task(any_router: Router) -> None:
    """It was there before the worker, and so was one that did not know it."""

    @any_router.task
    def known() -> str:
        return "here"

    known.options(id="a").add()
    assert any_router.store.claim("an older one", tasks=["another"]) == []
    assert any_router.job("a").parked == Parked("task", "known", "an older one")
    with working(any_router):
        [job] = ended(any_router, "a")

    assert (job.result, job.attempt, job.parked) == ("here", 0, None)


def test_a_job_of_an_unknown_task_that_was_granted_all_the_same_goes_back(
    any_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """By a claim whose reply was lost, and that knew it: it goes back at once, and the next claim parks it."""

    @any_router.task
    def known() -> None:
        pass

    store = Tampered(any_router.store)
    once = iter([True])

    def claim(real: Any, *args: Any, **kwargs: Any) -> Any:
        return real(*args, **{**kwargs, "tasks": None} if next(once, False) else kwargs)

    store.tampers["claim"] = claim
    any_router.add("a", task="unknown")
    with working(any_router, store=store) as worker:
        until(lambda: any_router.job("a").parked is not None, "it to be parked")

    job = any_router.job("a")
    assert job.parked == Parked("task", "unknown", worker.owner)
    assert (job.errors, job.reclaims, job.last_error) == (0, 0, None)
    assert [one for one in caplog.messages if "which this worker does not know" in one]


@pytest.mark.parametrize("job", UNBINDABLE)
def test_a_job_whose_arguments_do_not_fit_rests_and_costs_nothing(
    any_router: Router, job: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """They may fit another worker, or this one after its restart. The job says why it waits."""

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
    assert all(found.error_message and str(job["task"]) in found.error_message for found in jobs)
    assert all(found.error_type is None for found in jobs)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, [record.getMessage() for record in warnings]


def test_a_job_that_could_not_be_handed_back_at_once_is_handed_back_later(router: Router) -> None:
    """The store is away just when a job goes back whose arguments do not fit: it is no reclaim of that job."""

    @router.task
    def known() -> None:
        pytest.fail("it does not fit")

    store = Tampered(router.store)
    failures = iter([True, True])

    def settle(real, settlements):  # type: ignore[no-untyped-def]  # as the verb
        if next(failures, False):
            raise StoreUnavailable("away")
        return real(settlements)

    store.tampers["settle"] = settle
    router.add("a", {"renamed": 1}, task="known", lease_seconds=3600)
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
