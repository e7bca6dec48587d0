"""A drain runs what is due, here and now, and leaves jobs as a worker would."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import Conflict, InvalidArgument, Lease, Retry, Router, StaleEpoch, Status, Unsupported, current_lease
from leasehold.testing import ManualClock, take_over
from leasehold.worker import drain as drain_module

marked: ContextVar[str] = ContextVar("marked", default="nothing")
pids: list[int] = []


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Router]:
    """A store of each kind that needs no server, whole at the end."""
    url = None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with Router(url, clock=clock) as router:
        yield router
        assert router.verify() == []


def test_what_is_due_runs_in_its_order_on_this_thread(router: Router, clock: ManualClock) -> None:
    """Larger priorities first; each job is returned as it is after its run; what is due later waits."""
    ran: list[tuple[int, threading.Thread]] = []

    @router.task
    def work(n: int) -> int:
        ran.append((n, threading.current_thread()))
        return 2 * n

    work.add(1)
    work.options(priority=5).add(2)
    later = work.options(delay_seconds=60).add(3).job

    jobs = router.drain()

    assert ran == [(2, threading.current_thread()), (1, threading.current_thread())]
    assert [(job.status, job.result, job.payload["n"]) for job in jobs] == [(Status.DONE, 4, 2), (Status.DONE, 2, 1)]
    assert router.job(later.id).status is Status.PENDING
    clock.advance(60)
    assert [job.id for job in router.drain()] == [later.id]


def test_an_empty_store_is_drained_at_once(router: Router) -> None:
    """Also with advance."""
    assert router.drain() == []
    assert router.drain(advance=True) == []


def test_only_the_queues_that_are_named_are_drained(router: Router, clock: ManualClock) -> None:
    """The others stay, and the clock is not moved for their sake."""
    began = clock.time

    @router.task
    def work() -> None: ...

    a = work.options(queue="a").add().job
    b = work.options(queue="b").add().job
    later = work.options(queue="b", delay_seconds=5).add().job

    assert [job.id for job in router.drain(queues=["a"], advance=True)] == [a.id]
    assert clock.time == began
    assert [job.id for job in router.drain(queues=["b", "c"], advance=True)] == [b.id, later.id]
    assert (clock.time - began).total_seconds() == 5
    with pytest.raises(InvalidArgument, match="queues= must be a list of names"):
        router.drain(queues="a")


def test_a_paused_queue_is_not_drained(router: Router, clock: ManualClock) -> None:
    """As a worker would leave it; the clock is not moved for the sake of what is due later in it."""
    began = clock.time

    @router.task
    def work() -> None: ...

    work.options(queue="mail").add()
    work.options(queue="mail", delay_seconds=5).add()
    other = work.add().job
    router.pause("mail", by="ops")

    assert [job.id for job in router.drain(advance=True)] == [other.id]
    assert clock.time == began
    router.resume("mail", by="ops")
    assert len(router.drain(advance=True)) == 2


def test_children_and_what_a_completion_sets_off_run_too(router: Router) -> None:
    """Until nothing is left."""

    @router.task
    def parent(lease: Lease) -> None:
        child.add(1)
        lease.complete("settled here", then=[child.job(2)])

    @router.task
    def child(n: int) -> int:
        return n

    parent.add()

    jobs = router.drain()

    assert [(job.task, job.result) for job in jobs] == [("parent", "settled here"), ("child", 1), ("child", 2)]
    assert jobs[1].parent == jobs[0].id


@pytest.mark.parametrize("inside", [False, True], ids=["no loop", "inside a running loop"])
def test_async_handlers_run_on_a_loop(router: Router, inside: bool) -> None:
    """Of the drain's own; the caller may itself be on one. They see the caller's context, and their lease."""
    seen: list[tuple[str, str]] = []

    @router.task
    async def work(lease: Lease) -> str:
        await asyncio.sleep(0)
        seen.append((current_lease().job_id, marked.get()))
        await lease.aio.progress(0.5)
        return "async"

    async def body() -> list[Any]:
        return router.drain()

    marked.set("by the caller")
    id = work.add().job.id
    jobs = asyncio.run(body()) if inside else router.drain()

    assert [(job.result, job.progress) for job in jobs] == [("async", 0.5)]
    assert seen == [(id, "by the caller")]
    assert "leasehold-loop" not in {thread.name for thread in threading.enumerate()}


def test_the_async_form_runs_async_handlers_on_the_callers_loop(router: Router) -> None:
    """So that they can use what a test has opened there, and what it awaits goes on meanwhile."""

    @router.task
    async def work() -> bool:
        await gate[0].wait()
        return asyncio.get_running_loop() is loops[0]

    gate: list[asyncio.Event] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def body() -> list[Any]:
        gate.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        draining = asyncio.create_task(router.aio.drain())
        gate[0].set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await draining

    work.add()

    assert [job.result for job in asyncio.run(body())] == [True]


def test_a_drain_that_nobody_awaits_any_more_begins_no_other_job(router: Router) -> None:
    """Staged: it is cancelled while its first handler runs."""
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()

    @router.task
    def work() -> None:
        began.set()
        assert go_on.wait(PATIENCE_SECONDS)

    @router.lifespan
    def lifespan() -> Iterator[None]:
        yield
        over.set()

    async def body() -> None:
        draining = asyncio.create_task(router.aio.drain())
        assert await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        go_on.set()
        assert await asyncio.to_thread(over.wait, PATIENCE_SECONDS)

    work.add()
    work.add()
    asyncio.run(body())

    assert sorted(job.status for job in router.jobs()) == [Status.DONE, Status.PENDING]


def work_in_a_process() -> None:
    """Stands at the top level, as it must."""
    pids.append(os.getpid())


def test_a_handler_of_a_process_runs_in_this_one(router: Router) -> None:
    """Which a test can see into."""
    task = router.task(work_in_a_process, process=True)
    pids.clear()
    task.add()

    assert [job.status for job in router.drain()] == [Status.DONE]
    assert pids == [os.getpid()]


def test_an_error_is_settled_as_a_worker_would(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    """Counted, kept, and due again after its back-off; and said in the log."""

    @router.task(retry=Retry(max_errors=2, delay_seconds=10, jitter=False))
    def work() -> None:
        raise ValueError("no ink")

    work.add()

    with caplog.at_level(logging.WARNING, "leasehold"):
        [job] = router.drain()

    assert (job.status, job.errors) == (Status.PENDING, 1)
    assert job.last_error is not None
    assert job.last_error.startswith("ValueError: no ink")
    assert (job.run_us - job.updated_us) / 1_000_000 == 10
    assert "failed (error 1 of 2)" in caplog.text
    assert router.drain() == []


def test_a_final_error_fails_the_job(router: Router) -> None:
    """Whatever its budget."""

    @router.task(final=(ValueError,))
    def work() -> None:
        raise ValueError("no ink")

    work.add()

    assert [(job.status, job.errors) for job in router.drain(advance=True)] == [(Status.FAILED, 1)]


def test_with_advance_the_clock_moves_until_nothing_is_pending(router: Router, clock: ManualClock) -> None:
    """Through every back-off, and no further."""
    began = clock.time

    @router.task(retry=Retry(max_errors=3, delay_seconds=10, factor=2, jitter=False))
    def flaky() -> None:
        raise ValueError("again")

    @router.task
    def later() -> None: ...

    flaky.add()
    later.options(delay_seconds=15).add()

    jobs = router.drain(advance=True)

    assert [(job.task, job.status, job.errors) for job in jobs] == [
        ("flaky", Status.PENDING, 1),
        ("flaky", Status.PENDING, 2),
        ("later", Status.DONE, 0),
        ("flaky", Status.FAILED, 3),
    ]
    assert (clock.time - began).total_seconds() == 30


def test_advance_needs_a_clock_that_can_be_moved() -> None:
    """And says where to get one; nothing has run."""
    router = Router()
    ran: list[int] = []
    router.task(lambda: ran.append(1), name="work")
    router.add("a", task="work")

    with pytest.raises(Unsupported, match=r"SystemClock has no advance\(\).*ManualClock"):
        router.drain(advance=True)

    assert ran == []
    assert router.job("a").attempt == 0


def test_a_clock_that_does_not_move_ends_the_drain() -> None:
    """Instead of asking it for ever."""

    class Stuck(ManualClock):
        def advance(self, seconds: float) -> None: ...

    router = Router(clock=Stuck())
    router.add("a", task="work", delay_seconds=5)

    with pytest.raises(InvalidArgument, match="the next job is still not due"):
        router.drain(advance=True)


def test_what_waits_for_somebody_elses_key_is_left(router: Router) -> None:
    """Its owner is no handler of this drain, and time alone must not take its job."""

    @router.task
    def work() -> None: ...

    router.add("held", task="work", lock="key", priority=9)
    held = router.claim("somebody")
    assert held is not None
    router.add("parked", task="work", lock="key")

    assert router.drain(advance=True) == []
    held.complete()
    assert [job.id for job in router.drain()] == ["parked"]


@pytest.mark.parametrize("delay_seconds", [None, 60])
def test_a_job_that_hands_itself_back_for_ever_is_noticed(
    router: Router, delay_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It spends no budget, so there is a bound: a thousand runs, and here fewer."""
    monkeypatch.setattr(drain_module, "_MOST_FREE_RUNS", 20)

    @router.task
    def poll(lease: Lease) -> None:
        lease.release(delay_seconds=delay_seconds)

    poll.options(id="a").add()

    with pytest.raises(Conflict, match="job 'a' went back to pending 20 times in this drain"):
        router.drain(advance=True)


def test_with_raise_errors_the_first_error_is_raised_once_it_is_settled(router: Router) -> None:
    """The handler's own; what is behind it has not begun."""
    error = ValueError("no ink")

    @router.task
    def work(n: int) -> None:
        raise error

    first, second = work.add(1).job, work.add(2).job

    with pytest.raises(ValueError, match="no ink") as caught:
        router.drain(raise_errors=True)

    assert caught.value is error
    assert caught.traceback[-1].name == "work"
    assert (router.job(first.id).status, router.job(first.id).errors) == (Status.PENDING, 1)
    assert router.job(second.id).attempt == 0


def test_an_error_of_an_async_handler_is_raised_likewise(router: Router) -> None:
    """From its loop to the caller."""

    @router.task
    async def work() -> None:
        raise ValueError("no ink")

    id = work.add().job.id

    with pytest.raises(ValueError, match="no ink"):
        router.drain(raise_errors=True)

    assert router.job(id).errors == 1


def test_a_test_that_fails_inside_a_handler_fails(router: Router) -> None:
    """What pytest raises is meant for pytest, also without raise_errors; a SystemExit is the handler's own."""

    @router.task
    def work() -> None:
        pytest.fail("seen inside")

    @router.task
    def leave() -> None:
        raise SystemExit(3)

    leave.add()
    assert [job.errors for job in router.drain()] == [1]
    work.add()
    with pytest.raises(pytest.fail.Exception, match="seen inside"):
        router.drain()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_ctrl_c_ends_the_drain_and_the_job_goes_back(router: Router, kind: str) -> None:
    """Its budgets untouched: nobody but the user at the keyboard meant it."""

    def work() -> None:
        raise KeyboardInterrupt

    async def work_async() -> None:
        raise KeyboardInterrupt

    task = router.task(work if kind == "plain" else work_async)
    id = task.add().job.id

    with pytest.raises(KeyboardInterrupt):
        router.drain()

    assert (router.job(id).status, router.job(id).errors) == (Status.PENDING, 0)


def test_ctrl_c_while_an_async_handler_is_waited_for_cancels_it(router: Router) -> None:
    """The signal comes to this thread, and the handler is on another."""
    cleaned_up = threading.Event()

    @router.task
    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            cleaned_up.set()

    id = work.add().job.id

    with pytest.raises(KeyboardInterrupt):
        router.drain()

    assert cleaned_up.wait(PATIENCE_SECONDS)
    assert (router.job(id).status, router.job(id).errors) == (Status.PENDING, 0)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("nosuch", "job 'a' is for the task 'nosuch', which is not a task here; tasks here: work. It was released"),
        (None, "job 'a' names no task; tasks here: work. It was released"),
        ("work", "job 'a' has arguments that do not fit: .*'colour'.* It was released"),
    ],
)
def test_a_job_that_nobody_here_can_handle_is_a_mistake(router: Router, task: str | None, message: str) -> None:
    """A worker would leave it to others; a test has none. The job is as it was."""

    @router.task
    def work(size: int) -> None: ...

    router.add("a", {"colour": "red"}, task=task)

    with pytest.raises(Conflict, match=message):
        router.drain()

    job = router.job("a")
    assert (job.status, job.errors, job.owner) == (Status.PENDING, 0, None)
    assert job.run_us <= job.updated_us


def test_hooks_are_around_handlers_and_lifespans_around_the_drain(router: Router) -> None:
    """In the order of a worker: lifespans once, plain and async, and nothing of them is left behind."""
    said: list[str] = []

    @router.lifespan
    def outer() -> Iterator[None]:
        said.append("outer")
        yield
        said.append("/outer")

    @router.lifespan
    async def inner() -> AsyncIterator[None]:
        said.append("inner")
        yield
        said.append("/inner")

    @router.around
    def around(lease: Lease) -> Iterator[None]:
        said.append(f"around {lease.job_id}")
        yield
        said.append("/around")

    @router.task
    def work() -> None:
        said.append("work")

    @router.task
    async def work_async() -> None:
        said.append("work_async")

    work.options(id="a").add()
    work_async.options(id="b").add()
    router.drain()

    handled = ["around a", "work", "/around", "around b", "work_async", "/around"]
    assert said == ["outer", "inner", *handled, "/inner", "/outer"]
    assert "leasehold-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_lifespan_is_left_when_the_drain_raises(router: Router) -> None:
    """Whatever it raises."""
    said: list[str] = []

    @router.lifespan
    def lifespan() -> Iterator[None]:
        yield
        said.append("left")

    router.add("a", task="nosuch")
    with pytest.raises(Conflict):
        router.drain()

    assert said == ["left"]


def test_a_handler_whose_job_was_taken_over_is_refused(router: Router) -> None:
    """Its successor's job is as the successor left it; the refusal is the handler's error."""
    successors: list[Lease] = []

    @router.task
    def work(lease: Lease) -> str:
        successors.append(take_over(lease))
        return "mine"

    @router.task
    def careful(lease: Lease) -> None:
        successors.append(take_over(lease))
        lease.check()

    work.add()
    [job] = router.drain()
    assert (job.status, job.owner, job.result, job.errors) == (Status.RUNNING, "successor", None, 0)

    careful.add()
    with pytest.raises(StaleEpoch):
        router.drain(raise_errors=True)
    assert len(successors) == 2
    for lease in successors:
        lease.check()


def test_a_job_that_was_settled_in_a_transaction_that_rolled_back_is_not_settled(
    tmp_path: Path, clock: ManualClock
) -> None:
    """The handler swallowed the error and returned; the store is asked, and an error is recorded."""
    router = Router(f"sqlite:///{tmp_path}/jobs.db", clock=clock)

    @router.task(retry=Retry(max_errors=2))
    def work(lease: Lease, commit: bool) -> None:
        try:
            with lease.transaction() as connection:
                lease.complete("settled", connection=connection)
                if not commit:
                    raise ValueError("rolled back")
        except ValueError:
            pass

    work.add(commit=False)
    work.add(commit=True)

    rolled_back, committed = router.drain()

    assert (rolled_back.status, rolled_back.errors, rolled_back.result) == (Status.PENDING, 1, None)
    assert rolled_back.last_error is not None
    assert "did not commit" in rolled_back.last_error
    assert (committed.status, committed.errors, committed.result) == (Status.DONE, 0, "settled")
    router.close()


def test_a_handler_may_drain(router: Router) -> None:
    """What it has added runs inside it."""

    @router.task
    def outer() -> list[str]:
        inner.add()
        return [str(job.result) for job in router.drain()]

    @router.task
    def inner() -> str:
        return "inner"

    outer.add()

    assert [job.result for job in router.drain()] == [["inner"]]


def test_modules_that_a_worker_needs_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `imports` says: a test need not know where the tasks are."""
    router = Router(imports=["drained_tasks"])
    (tmp_path / "drained_tasks.py").write_text(
        "import builtins\n@builtins.drained_router.task\ndef work() -> str:\n    return 'imported'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.drained_router", router, raising=False)
    router.add("a", task="work")

    assert [job.result for job in router.drain()] == ["imported"]
