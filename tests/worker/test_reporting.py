"""What a worker's log says: which job of which task, what became of it, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest
from tests.support import until
from tests.worker import process_tasks as tasks
from tests.worker.processes import done, kept

from leasehold import Reason, Retry, Router
from leasehold.cli.health import STARTING, pulse_of
from leasehold.testing import ManualClock
from leasehold.worker.reporting import Tally
from leasehold.worker.until_empty import UntilEmpty

from .staging import working


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Router]:
    """The router whose tasks run in processes."""
    with kept(f"sqlite:///{tmp_path}/jobs.db", tmp_path):
        yield tasks.router


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The messages of that level, of workers alone."""
    return [one.getMessage() for one in caplog.records if one.levelno == level and one.name == "leasehold.worker"]


def test_a_failure_names_the_task_and_says_whether_it_is_the_last_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """Its budget is spent, or the error is final."""
    router = Router()

    @router.task(retry=Retry(max_errors=2, delay_seconds=0), final=(LookupError,))
    def thumb(final: bool) -> None:
        raise LookupError if final else ValueError

    thumb.options(id="a").add(False)
    thumb.options(id="b").add(True)
    router.work(until_empty=True)

    assert said(caplog, logging.WARNING) == ["job 'a' (thumb) failed (error 1 of 2); retrying in 0 s"]
    assert sorted(said(caplog, logging.ERROR)) == [
        "job 'a' (thumb) failed for good, after 2 errors",
        "job 'b' (thumb) failed for good, after 1 error, since this one is final",
    ]


def test_each_job_is_told_of_where_somebody_debugs(caplog: pytest.LogCaptureFixture) -> None:
    """And only there."""
    router = Router()

    @router.task
    def thumb() -> None: ...

    with caplog.at_level(logging.DEBUG, "leasehold"):
        thumb.options(id="a").add()
        router.work(until_empty=True)
    with caplog.at_level(logging.INFO, "leasehold"):
        thumb.options(id="b").add()
        router.work(until_empty=True)

    assert said(caplog, logging.DEBUG) == ["job 'a' (thumb) started, attempt 0", "job 'a' (thumb) is done"]


def test_a_job_that_was_taken_from_another_owner_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason; one that came back by itself is not."""
    clock = ManualClock()
    router = Router(clock=clock)

    @router.task
    def thumb() -> None: ...

    thumb.options(id="a").add()
    thumb.options(id="b").add()
    assert router.claim("agent-a", lease_seconds=5) is not None
    other = router.claim("agent-b")
    assert other is not None
    other.release()
    clock.advance(6)
    with caplog.at_level(logging.INFO, "leasehold"), working(router, steady=clock) as worker:
        until(lambda: worker.tally.done == 2, "both")

    assert [text for text in said(caplog, logging.INFO) if "took" in text] == [
        f"took over job 'a' (thumb) ({Reason.TIMEOUT})"
    ]


def test_an_error_of_a_process_is_shown_as_python_shows_one(
    processes: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """With the frames that it had there, and no class of ours."""
    processes.add_many([tasks.errs.options(id="j").job("final")])
    processes.work(concurrency=1, until_empty=True)

    [text] = said(caplog, logging.ERROR)
    lines = text.splitlines()
    assert lines[0] == "job 'j' (errs) failed for good, after 1 error, since this one is final"
    assert lines[1] == "Traceback, in the process of the handler (most recent call last):"
    assert lines[-1] == "tests.worker.process_tasks.NoWay: never"
    assert any("in errs" in line for line in lines)
    assert "Raised" not in text
    assert all(record.exc_info is None for record in caplog.records)


def test_a_handler_that_was_killed_leaves_no_traceback(
    processes: Router, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had its time: there is nothing else to know."""
    processes.add_many([tasks.lasts.options(id="j").job(str(tmp_path))])
    with processes.worker(concurrency=1):
        done("j")

    assert said(caplog, logging.ERROR) == ["job 'j' (lasts) failed for good, after 1 error"]
    assert "Traceback" not in caplog.text
    assert "Killed" not in caplog.text


def test_who_waits_for_the_end_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    """After two seconds in which nothing could be done, and then every thirty."""
    clock, steady = ManualClock(), ManualClock()
    router = Router(clock=clock)
    router.add("held", task="thumb")
    held = router.claim("agent-a", lease_seconds=600)
    later = router.add("later", task="thumb", delay_seconds=60).job
    strange = router.add("strange", task="poster", delay_seconds=90).job
    router.add("other", queue="other")
    waiting = UntilEmpty(router.store, ["default"], steady, lambda task: task == "thumb")

    def after(seconds: float) -> list[str]:
        """Pass the time, look, and return what was said."""
        caplog.clear()
        steady.advance(seconds)
        assert not waiting.nothing_left()
        return said(caplog, logging.INFO)

    with caplog.at_level(logging.INFO, "leasehold"):
        assert [after(0), after(1.9)] == [[], []]
        due = f"{later.run_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        assert after(0.2) == [
            f"waiting for 3 jobs: 2 pending (the first is due at {due}), 1 running elsewhere; "
            "tasks that this worker does not know: 'poster'"
        ]
        assert [after(2), after(27)] == [[], []]
        router.cancel(later, by="ops")
        router.cancel(strange, by="ops")
        assert after(2) == ["waiting for 1 job: 1 running elsewhere"]
        assert held is not None
        waiting.got([held._grant])
        assert [after(40), after(1.9)] == [[], []]
        held.complete()
        steady.advance(40)
        assert waiting.nothing_left()


def test_a_tally_says_who_settled() -> None:
    """ "settled" alone would be true of each of them."""
    assert str(Tally(done=3, settled=2)) == "3 done, 2 settled by their handlers"


def test_a_worker_of_the_command_is_starting_until_it_has_started(router: Router) -> None:
    """Its probe says the same as the supervisor does before the process answers; in a program it is as it was made."""
    worker = router.worker()
    assert pulse_of(worker).why == STARTING == "it is starting"
    assert worker.health().why == "it has not been started"
    with worker:
        assert pulse_of(worker).why in ("", STARTING)
