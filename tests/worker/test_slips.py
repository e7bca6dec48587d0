"""Ordinary slips, and habits from other libraries: each is answered with what to write instead."""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
import pickle
import pydoc
from pathlib import Path
from typing import Any

import pytest

from leasehold import Lease, Retry, Router
from leasehold.core import suggestions

AnyRetry: Any = Retry
AnyRouter: Any = Router


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_retries", "use max_errors, which counts the first run too: 3 retries are max_errors=4."),
        ("max_attempts", "use max_errors."),
        ("backoff", "use delay_seconds."),
        ("retry_on", "use only."),
    ],
)
def test_a_retry_says_what_it_calls_that(name: str, advice: str) -> None:
    """A TypeError, as for every other function; then all the names that there are."""
    with pytest.raises(TypeError) as refused:
        AnyRetry(**{name: 3})
    assert str(refused.value) == (
        f"Retry has no {name!r}: {advice} It takes max_errors, max_reclaims, delay_seconds, factor, max_delay_seconds, "
        "jitter, only."
    )


def test_a_near_miss_is_suggested_and_the_rest_is_listed() -> None:
    """Also where nothing is known by another name."""
    with pytest.raises(TypeError, match=r"Retry has no 'max_error'\. It takes .*\. Did you mean 'max_errors'\?$"):
        AnyRetry(max_error=3)
    with pytest.raises(TypeError, match=r"router\.work has no 'colour'\. It takes concurrency, .*, until_empty\.$"):
        AnyRouter().work(colour="red")


@pytest.mark.parametrize(
    ("verb", "name", "advice"),
    [
        ("work", "workers", "use concurrency."),
        ("worker", "threads", "use concurrency."),
        ("work", "processes", "start `leasehold worker app:router --processes N`."),
        ("work", "queue", "use queues, a list of names."),
        ("worker", "until_empty", "use router.work(until_empty=True)."),
        ("work", "burst", "use router.work(until_empty=True)."),
    ],
)
def test_a_worker_says_what_it_calls_that(verb: str, name: str, advice: str) -> None:
    """Nothing is started."""
    with pytest.raises(TypeError) as refused:
        getattr(AnyRouter(), verb)(**{name: 4})
    assert str(refused.value).startswith(f"router.{verb} has no {name!r}: {advice} It takes concurrency, queues, name,")


def test_an_error_inside_such_a_call_stays_what_it_is() -> None:
    """A TypeError of a hook is not taken for a wrong call."""
    router = Router()

    @router.lifespan
    def broken() -> Any:
        raise TypeError("of the application")
        yield

    with pytest.raises(TypeError, match=r"^of the application$"):
        router.work(until_empty=True, grace_seconds=0)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("enqueue", r"Use router\.add\(id, payload, task=…\), or my_task\.add\(…\) with the task's own arguments\.$"),
        ("cron", r"There are no schedules yet: start a script from cron that adds the job, .*examples/nightly\.py"),
        ("apply_async", r"Use router\.add\(…, delay_seconds=…\) or run_at=…"),
        ("dequeue", r"Use router\.claim\(owner\)\.$"),
        ("run", r"Use router\.work\(\), or `leasehold worker app:router`\.$"),
    ],
)
def test_a_router_says_what_it_calls_that(name: str, advice: str) -> None:
    """An AttributeError, so that `hasattr` works as ever."""
    router = Router()
    with pytest.raises(AttributeError, match=rf"^Router has no attribute '{name}'\. {advice}"):
        getattr(router, name)
    assert not hasattr(router, name)


def test_the_error_lets_python_suggest_an_attribute_that_is_spelled_alike() -> None:
    """It does so for an error that says whose attribute was missing."""
    router: Any = Router()
    with pytest.raises(AttributeError) as refused:
        router.clam("worker-0")
    assert (refused.value.name, refused.value.obj) == ("clam", router)


def test_no_advice_is_for_a_name_that_exists() -> None:
    """Or for one that does not exist here either."""
    assert [name for name in suggestions.ROUTER if hasattr(Router(), name)] == []
    for verb in (Router.work, Router.worker):
        taken = set(inspect.signature(verb).parameters) & set(suggestions.WORK)
        assert taken <= {"until_empty"}, "which one of them takes, and the other does not"
    assert set(inspect.signature(Retry).parameters) & set(suggestions.RETRY) == set()


def test_a_retry_is_still_copied_compared_and_pickled() -> None:
    """It is a dataclass like any other."""
    retry = Retry(max_errors=2, only=(OSError,))
    assert pickle.loads(pickle.dumps(retry)) == retry != Retry(max_errors=2)
    assert hash(retry) == hash(Retry(max_errors=2, only=(OSError,)))


# Calling a task


def test_a_task_called_without_its_lease_says_so(router: Router) -> None:
    """Python would have called the last argument missing, or taken the first one for the lease."""

    @router.task
    def resize(lease: Lease, image_id: int, width: int = 256) -> tuple[Any, int, int]:
        return lease, image_id, width

    called: Any = resize
    for args, kwargs in [((42,), {}), ((42, 64), {}), ((), {"image_id": 42}), ((), {}), ((Path("a"), 1), {})]:
        with pytest.raises(TypeError) as refused:
            called(*args, **kwargs)
        assert str(refused.value) == (
            "resize(…) is missing its lease: a call just runs the function, so pass a Lease first, as in "
            "resize(lease, …); leasehold.testing.lease(…) makes one for a test. To add a job: resize.add(…)."
        )


def test_a_stand_in_for_a_lease_is_welcome(router: Router) -> None:
    """A test may pass what it likes, by position or by name; what else is missing Python says."""

    @router.task
    def resize(lease: Lease, image_id: int) -> Any:
        return lease, image_id

    called: Any = resize
    fake = object()
    assert called(fake, 1) == called(lease=fake, image_id=1) == (fake, 1)
    assert called(None, 1) == (None, 1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'image_id'"):
        called(fake)


# A task that is not known


def test_a_job_for_a_task_that_is_almost_known_is_kept_and_logged_once(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process may know the task, so nothing is refused."""

    @router.task
    def greet(name: str) -> None: ...

    with caplog.at_level(logging.WARNING, "leasehold"):
        router.add("a", {"name": "Ann"}, task="gret")
        router.add("b", {"name": "Bob"}, task="gret")
        router.add_many([{"id": "c", "task": "gret"}, {"id": "d", "task": "greeet"}, {"id": "e", "task": "greet"}])
        router.add("f", task="send_mail")
        greet.add("Cid")
    assert [record.getMessage() for record in caplog.records] == [
        "job 'a' was added for the task 'gret', which this router does not have: did you mean 'greet'?",
        "job 'd' was added for the task 'greeet', which this router does not have: did you mean 'greet'?",
    ]
    assert [router.job(id).task for id in "abcdef"] == ["gret", "gret", "gret", "greeet", "greet", "send_mail"]


def test_a_router_without_tasks_says_nothing(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    """It only adds jobs, for tasks that others know."""
    router.add("a", task="greet")
    assert caplog.records == []


# Help


def test_help_shows_no_value_that_looks_like_data() -> None:
    """A default that stands for something is shown as what it stands for."""
    router = Router()

    @router.task
    def step() -> None: ...

    assert "process: 'Process | None' = <the calling process>" in shown(Router.claim)
    assert "process: 'Process | None' = <the calling process>" in shown(Router.claim_many)
    assert "parent: 'Lease | None' = <the current lease>" in shown(step.options)
    assert "self, *, concurrency: 'int' = 16" in shown(Router.work)


def shown(thing: Any) -> str:
    """What `help` says."""
    out = io.StringIO()
    pydoc.Helper(output=out).help(thing)
    return " ".join(out.getvalue().split())


# Blocking the event loop


def test_a_verb_that_blocks_the_loop_of_async_handlers_is_logged_once(
    sqlite_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """With the form that does not block; the verb itself does what it always did."""
    router = sqlite_router

    @router.task
    async def hasty(lease: Lease) -> None:
        lease.progress(0.1)
        lease.progress(0.2)
        lease.check()
        with lease.transaction():
            pass
        router.job(lease.job_id)
        lease.complete()

    @router.task
    async def adder(n: int) -> None:
        if n:
            adder.add(n - 1)

    hasty.options(id="a").add()
    hasty.options(id="b").add()
    adder.add(2)
    router.work(until_empty=True)

    assert [job.status for job in router.jobs()] == ["done"] * 5
    assert router.job("a").progress == 0.2
    logged = [record for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert sorted(record.getMessage().rpartition("write ")[2] for record in logged) == [
        "`async with lease.aio.transaction(…)`",
        "`await adder.aio.add(…)`",
        "`await lease.aio.check(…)`",
        "`await lease.aio.complete(…)`",
        "`await lease.aio.progress(…)`",
        "`await router.aio.job(…)`",
    ]
    [progress] = [record for record in logged if "progress" in record.getMessage()]
    assert progress.getMessage() == (
        "task 'hasty' calls lease.progress(…), which blocks the event loop and every handler on it: write "
        "`await lease.aio.progress(…)`"
    )
    assert progress.pathname == __file__


def test_what_does_not_block_the_loop_of_handlers_is_not_logged(
    sqlite_router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """What is awaited, what joins the caller's transaction, what runs on a thread, and what is outside a handler."""
    router = sqlite_router

    @router.task
    async def patient(lease: Lease) -> None:
        await lease.aio.progress(0.5)
        await asyncio.to_thread(lease.check)
        await router.aio.job(lease.job_id)
        await quick.options(id="child").aio.add()
        assert lease.payload == {}
        async with lease.aio.transaction() as connection:
            await lease.aio.complete(connection=connection)

    @router.task
    def quick(lease: Lease) -> None:
        lease.progress(0.5)
        asyncio.run(outside(lease))

    async def outside(lease: Lease) -> None:
        router.job(lease.job_id)  # on a loop of the handler's own

    patient.options(id="a").add()
    quick.add()
    router.work(until_empty=True)

    async def elsewhere() -> None:
        router.add("b")

    asyncio.run(elsewhere())

    assert [job.status for job in router.jobs()] == ["done"] * 3 + ["pending"]
    assert [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()] == []
