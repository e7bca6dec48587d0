"""What becomes of errors: recorded, tried again, given up, and never the end of a worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.support import until

from leasehold import InvalidArgument, Lease, Retry, Router, Status, StoreUnavailable

from .staging import ended, with_status, working


def deeper() -> NoReturn:
    """Raise below the handler."""
    raise KeyError("missing")


def test_an_error_is_recorded_with_the_users_frames_and_the_job_rests(any_router: Router) -> None:
    @any_router.task(retry=Retry(max_errors=3, delay_seconds=600, jitter=False))
    def work() -> None:
        deeper()

    work.options(id="a").add()
    with working(any_router) as worker:
        until(lambda: worker.tally.retried == 1, "its end")

    job = any_router.job("a")
    assert (job.status, job.errors, job.attempt) == (Status.PENDING, 1, 1)
    assert 599 < (job.run_at - job.updated_at).total_seconds() <= 600
    assert job.last_error is not None
    first, *rest = job.last_error.splitlines()
    assert first == "KeyError: 'missing'"
    assert (job.error_type, job.error_message) == ("KeyError", "'missing'")
    assert any("in deeper" in line for line in rest)
    assert any("in work" in line for line in rest)
    assert "handling.py" not in job.last_error, "frames of ours tell the user nothing"


def test_an_async_error_too(router: Router) -> None:
    @router.task(retry=Retry(max_errors=1))
    async def work() -> None:
        await asyncio.sleep(0)
        deeper()

    work.options(id="a").add()
    with working(router):
        job = with_status(router, "a", Status.FAILED)

    assert job.last_error is not None
    assert job.last_error.startswith("KeyError: 'missing'\n")
    assert "in deeper" in job.last_error
    assert "handling.py" not in job.last_error


def test_the_last_error_is_final(router: Router) -> None:
    ran: list[int] = []

    @router.task(retry=Retry(max_errors=3, delay_seconds=0))
    def work(lease: Lease) -> None:
        ran.append(lease.attempt)
        raise ValueError(f"number {lease.attempt}")

    work.options(id="a").add()
    with working(router) as worker:
        job = with_status(router, "a", Status.FAILED)
        until(lambda: worker.tally.failed == 1, "the tally")

    assert ran == [0, 1, 2]
    assert (job.errors, job.reclaims) == (3, 0)
    assert job.last_error is not None
    assert job.last_error.startswith("ValueError: number 2")
    assert (worker.tally.retried, worker.tally.failed) == (2, 1)


def test_an_exception_that_the_task_calls_final_is_not_tried_again(router: Router) -> None:
    class NoSuchCustomer(LookupError):
        pass

    @router.task(final=(LookupError,), retry=Retry(delay_seconds=0))
    def work(kind: str, lease_free: bool = False) -> None:
        raise NoSuchCustomer() if kind == "final" else ValueError()

    work.options(id="a").add("final")
    work.options(id="b", retry=Retry(max_errors=2, delay_seconds=0)).add("other")
    with working(router):
        a, b = (with_status(router, name, Status.FAILED) for name in "ab")

    assert (a.errors, b.errors) == (1, 2)


@pytest.mark.parametrize("kind", ["thread", "loop", "drain"])
def test_only_the_exceptions_that_the_task_names_are_tried_again(any_router: Router, kind: str) -> None:
    """Also for jobs with budgets of their own, and a subclass counts; `final` beats `only`."""

    def fail(how: str) -> None:
        raise {"only": ConnectionResetError, "final": ConnectionAbortedError, "other": ValueError}[how]("no")

    retry = Retry(max_errors=3, delay_seconds=0, only=(ConnectionError, OSError))
    task = any_router.task(retry=retry, final=(ConnectionAbortedError,), name="work")
    add: Any
    if kind == "loop":

        async def work(how: str) -> None:
            fail(how)

        add = task(work)
    else:
        add = task(fail)
    own = add.options(id="own", retry=Retry(max_errors=2, delay_seconds=0))
    for id, job in {"only": add.options(id="only"), "other": add.options(id="other"), "own": own}.items():
        job.add("only" if id == "own" else id)
    add.options(id="final").add("final")
    if kind == "drain":
        any_router.drain()
    else:
        with working(any_router):
            for id in ("only", "other", "own", "final"):
                with_status(any_router, id, Status.FAILED)

    assert {job.id: (job.status, job.errors) for job in any_router.jobs()} == {
        "only": (Status.FAILED, 3),
        "other": (Status.FAILED, 1),
        "own": (Status.FAILED, 2),
        "final": (Status.FAILED, 1),
    }


def test_a_list_of_exceptions_stays_with_the_task_and_holds_after_a_restart(tmp_path: Path) -> None:
    """The store keeps nothing of it: it holds for jobs from before, and an older release can read what it adds."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Router(url) as before:

        @before.task(retry=Retry(max_errors=4, delay_seconds=0))
        def work() -> None:
            raise ValueError

        work.options(id="a").add()
        stored = work.job().retry

    with Router(url) as after:

        @after.task(name="work", retry=Retry(max_errors=4, delay_seconds=0, only=(OSError,)))
        def restarted() -> None:
            raise ValueError

        assert restarted.job().retry == stored
        assert stored.only == ()
        with working(after):
            assert with_status(after, "a", Status.FAILED).errors == 1


def test_a_list_of_exceptions_cannot_be_stored_with_a_job(router: Router) -> None:
    """So it is refused there, and so is what is not a tuple of exceptions."""

    @router.task
    def work() -> None: ...

    for add in (
        lambda: router.add("a", retry=Retry(only=(OSError,))),
        lambda: router.add_many([{"id": "a", "retry": Retry(only=(OSError,))}]),
        lambda: work.options(retry=Retry(only=(OSError,))),
    ):
        with pytest.raises(InvalidArgument, match=r"^Retry\(only=…\) is for @router\.task\(retry=…\): exception"):
            add()
    anything: Any = Retry
    for wrong in (OSError, [OSError], ("OSError",)):
        with pytest.raises(
            InvalidArgument, match=r"^only must be a tuple of exception classes, such as \(ValueError,\)"
        ):
            anything(only=wrong)
    assert router.jobs() == []


def test_a_store_that_did_not_answer_is_always_tried_again(router: Router) -> None:
    """A list of the handler's own exceptions does not speak of leasehold's store."""

    @router.task(retry=Retry(max_errors=2, delay_seconds=0, only=(OSError,)))
    def work() -> None:
        raise StoreUnavailable("the store did not answer")

    work.options(id="a").add()
    with working(router):
        assert with_status(router, "a", Status.FAILED).errors == 2


def test_a_delay_function_says_how_long_it_rests(router: Router) -> None:
    asked: list[Any] = []

    def delay(errors: int, error: BaseException) -> float:
        asked.append((errors, type(error)))
        return 1234.0

    @router.task(delay=delay)
    def work() -> None:
        raise ValueError

    work.options(id="a").add()
    with working(router) as worker:
        until(lambda: worker.tally.retried == 1, "its end")

    job = router.job("a")
    assert asked == [(1, ValueError)]
    assert 1233 < (job.run_at - job.updated_at).total_seconds() <= 1234


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), None, "soon", ValueError(), SystemExit(), 1e30])
def test_a_delay_function_that_fails_is_passed_over(
    router: Router, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def delay(errors: int, error: BaseException) -> float:
        if isinstance(wrong, BaseException):
            raise wrong
        return wrong  # type: ignore[no-any-return]  # which is what is tried

    @router.task(delay=delay, retry=Retry(max_errors=2, delay_seconds=0))
    def work() -> None:
        raise ValueError("no")

    @router.task
    def other() -> None:
        pass

    work.options(id="a").add()
    with working(router, concurrency=1):
        job = with_status(router, "a", Status.FAILED)
        other.options(id="b").add()
        ended(router, "b")

    assert job.errors == 2
    assert "the delay function of task 'work' failed" in caplog.text


def test_a_delay_function_that_fails_shows_nothing_of_the_error_that_it_was_given(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be one that has to stay hidden."""

    @router.task(delay=lambda errors, error: float(str(error)), retry=Retry(max_errors=1))
    def work() -> None:
        raise ValueError("card 4111")

    work.options(id="a").add()
    with working(router, concurrency=1):
        with_status(router, "a", Status.FAILED)

    [record] = [record for record in caplog.records if "delay function" in record.getMessage()]
    assert "(ValueError)" in record.getMessage()
    assert "could not convert" not in record.getMessage()
    assert record.exc_info is None


class Unprintable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")

    __repr__ = __str__


class Odd(BaseException):
    """None of those that one knows."""


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the worker's log is part of the test's report: xdist cannot send half a character."""
    monkeypatch.setattr(logging.getLogger("leasehold.worker"), "disabled", True)


ERRORS = [
    pytest.param(SystemExit(3), id="SystemExit"),
    pytest.param(KeyboardInterrupt(), id="KeyboardInterrupt"),
    pytest.param(asyncio.CancelledError(), id="CancelledError"),
    pytest.param(GeneratorExit(), id="GeneratorExit"),
    pytest.param(StopIteration(1), id="StopIteration"),
    pytest.param(StopAsyncIteration(1), id="StopAsyncIteration"),
    pytest.param(MemoryError(), id="MemoryError"),
    pytest.param(Odd("odd"), id="BaseException"),
    pytest.param(BaseExceptionGroup("many", [KeyboardInterrupt(), ValueError()]), id="group"),
    pytest.param(Unprintable(), id="unprintable"),
    pytest.param(ValueError("x" * 5_000_000), id="huge"),
    pytest.param(ValueError("\ud800 lone \udfff"), id="surrogates"),
    pytest.param(ValueError("a\0b"), id="NUL"),
    pytest.param(ValueError(), id="empty"),
    pytest.param(SyntaxError("bad", ("file", 1, 1, "\0\ud800", 1, 2)), id="SyntaxError"),
    pytest.param(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), id="UnicodeDecodeError"),
]


@pytest.mark.parametrize("hooked", [False, True], ids=["", "in a hook"])
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_handler_raises_is_an_error_of_its_job_and_of_nothing_else(
    router: Router, error: BaseException, hooked: bool, unlogged: None
) -> None:
    """It ends no thread, no loop and no worker: the next job runs where this one did."""
    if hooked:

        @router.around
        def around(lease: Lease) -> Any:
            yield

    @router.task(retry=Retry(max_errors=1))
    def on_thread() -> None:
        raise error

    @router.task(retry=Retry(max_errors=1))
    async def on_loop() -> None:
        raise error

    @router.task
    def next_thread() -> str:
        return threading.current_thread().name

    @router.task
    async def next_loop() -> str:
        return threading.current_thread().name

    on_thread.options(id="t").add()
    with working(router, concurrency=1) as worker:
        t = with_status(router, "t", Status.FAILED)
        on_loop.options(id="l").add()
        loop = with_status(router, "l", Status.FAILED)
        next_thread.options(id="nt").add()
        next_loop.options(id="nl").add()
        nt, nl = ended(router, "nt", "nl")
        assert worker.health().consuming

    assert nt.result == "leasehold-handler-0"
    assert nl.result == "leasehold-loop"
    for job in (t, loop):
        assert job.errors == 1
        assert job.last_error is not None
        assert len(job.last_error) < 20_000
        if not isinstance(error, StopIteration | StopAsyncIteration):  # which Python turns into RuntimeError
            assert type(error).__name__ in job.last_error


def test_errors_that_are_hard_to_keep_are_kept_on_a_file_too(sqlite_router: Router, unlogged: None) -> None:
    @sqlite_router.task(retry=Retry(max_errors=1))
    def work(number: int) -> None:
        raise [ValueError("\ud800"), ValueError("\0"), ValueError("x" * 5_000_000), Unprintable()][number]

    for number in range(4):
        work.options(id=f"j{number}").add(number)
    with working(sqlite_router):
        jobs = [with_status(sqlite_router, f"j{number}", Status.FAILED) for number in range(4)]

    assert [job.last_error.splitlines()[0][:24] for job in jobs if job.last_error] == [
        "ValueError: \\ud800",
        "ValueError: \\x00",
        "ValueError: xxxxxxxxxxxx",
        "tests.worker.test_retries.Unprintable: <exception str() failed>"[:24],
    ]


def test_a_handler_may_fail_its_job_for_good(router: Router) -> None:
    @router.task
    def work(lease: Lease) -> None:
        lease.fail("no use", retry=False)

    work.options(id="a").add()
    with working(router) as worker:
        job = with_status(router, "a", Status.FAILED)
        until(lambda: worker.tally.settled == 1, "its end")

    assert (job.errors, job.last_error) == (1, "no use")


def test_a_handler_may_hand_its_job_back(router: Router) -> None:
    ran: list[int] = []

    @router.task
    def work(lease: Lease) -> None:
        ran.append(lease.attempt)
        if lease.attempt < 3:
            lease.release()

    work.options(id="a").add()
    with working(router) as worker:
        [job] = ended(router, "a")
        until(lambda: worker.tally.done == 1, "its end")

    assert ran == [0, 1, 2, 3]
    assert (job.errors, job.reclaims, job.attempt) == (0, 0, 3)
    assert worker.tally.settled == 3


def test_a_reclaim_costs_its_own_budget(router: Router) -> None:
    """Both budgets at once: an error does not count as a reclaim, nor the other way round."""

    @router.task(retry=Retry(max_errors=2, max_reclaims=1, delay_seconds=0))
    def work(lease: Lease) -> str:
        if lease.attempt == 1:
            raise ValueError
        return "third"

    work.options(id="a").add()
    lost = router.claim("somebody who dies", process=None, lease_seconds=0.001)
    assert lost is not None
    with working(router):
        [job] = ended(router, "a")

    assert (job.result, job.errors, job.reclaims, job.attempt) == ("third", 1, 1, 2)


@pytest.mark.parametrize("returned", [lambda: 1, object(), {"x": [object()]}, float("nan"), {1: 2}])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_that_cannot_be_kept_is_an_error_that_is_not_tried_again(returned: object, is_async: bool) -> None:
    """The work is done, and would come to the same: the error says what to return instead."""
    router, calls = Router(), []

    def plain() -> object:
        calls.append(1)
        return returned

    async def awaited() -> object:
        return plain()

    added = router.task(awaited if is_async else plain).add()
    tally = router.work(until_empty=True)

    job = router.job(added.job.id)
    assert (job.status, job.errors, calls, tally.failed) == (Status.FAILED, 1, [1], 1)
    assert "Return a value that JSON can hold, or None. The work is done, so the job is not retried." in (
        job.last_error or ""
    )


def test_one_wording_for_everything_that_has_no_form() -> None:
    """A function, and the most general object."""
    router = Router()

    @router.task
    def give() -> object: ...

    for value in (len, object()):
        with pytest.raises(
            InvalidArgument, match=r"^the result of task 'give' is .* and cannot be stored: JSON has no form"
        ):
            give.encode_result(value)
