"""Why a job is not running: one sentence, the most decisive reason first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.core.explanation import explain, span
from leasehold.core.failure import written
from leasehold.core.job import Job, Status, new_job, new_state
from leasehold.core.ownership import Reason
from leasehold.core.parking import Parked
from leasehold.core.queues import Queue
from leasehold.core.workers import WorkerStatus

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def job(**changes: object) -> Job:
    """A job that has been pending for a minute."""
    made = new_state(new_job("a", queue="mail", task="send"), NOW - 60 * SECOND)
    return replace(made, **changes)  # type: ignore[arg-type]  # by name


def worker(
    queues: tuple[str, ...] | None = None, tasks: tuple[str, ...] = ("send",), alive: bool = True
) -> WorkerStatus:
    """A worker that has reported."""
    return WorkerStatus("w-1", "w", None, queues, tasks, 4, 0, NOW, NOW, alive)


def running(**changes: object) -> Job:
    """A job that has been running for ten minutes, and whose lease lasts for twenty seconds more."""
    held = {
        "status": Status.RUNNING,
        "epoch": 7,
        "owner": "w-1",
        "reason": Reason.CLAIM,
        "granted_us": NOW - 600 * SECOND,
        "updated_us": NOW - 600 * SECOND,
        "expires_us": NOW + 20 * SECOND,
    }
    return job(**{**held, **changes})


PAUSED = Queue("mail", NOW - 5 * SECOND, "ann", "the relay is down")
LOCKED = Parked("lock", "k", "w-1")


def test_a_paused_queue_comes_before_everything_else() -> None:
    """Nothing else matters as long as it is paused."""
    said = explain(job(parked=LOCKED), NOW, queues=[PAUSED], workers=[])

    assert said == "Its queue 'mail' has been paused by 'ann' since 2027-01-15T07:59:55+00:00: \"the relay is down\"."


def test_a_job_that_is_due_later_says_when_and_after_what() -> None:
    """A retry names the error, and a release why the worker could not begin it."""
    later = job(run_us=NOW + 90 * SECOND, errors=3, last_error="no route")
    unfit = job(run_us=NOW + 90 * SECOND, last_error="the payload has no 'year'.")

    assert (
        explain(later, NOW) == "It is due at 2027-01-15T08:01:30+00:00, in 1 min 30 s, after error 3 of 5 (no route)."
    )
    assert explain(unfit, NOW).endswith(", in 1 min 30 s; its last error was: the payload has no 'year'.")


def test_a_lock_names_its_holder() -> None:
    """With the owner, and since when."""
    holder = replace(running(), spec=new_job("b", lock="k"))

    said = explain(job(parked=LOCKED), NOW, workers=[], holder=holder)

    assert said == "It waits for its lock 'k', which job 'b' holds: owner 'w-1', since 2027-01-15T07:50:00+00:00."


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([], "No live worker serves its queue 'mail': no worker is alive."),
        ([worker(alive=False)], "No live worker serves its queue 'mail': no worker is alive."),
        ([worker(("other",))], "No live worker serves its queue 'mail': 1 live worker serves other queues."),
        (
            [worker(tasks=("other",))],
            "No live worker of queue 'mail' knows the task 'send' (1 live worker).",
        ),
        ([worker(), worker()], "It is due, and waits to be claimed by one of 2 live workers."),
        (
            [replace(worker(), running=4), replace(worker(), running=5), worker(queues=("else",))],
            "It is due, and waits for a free slot: all 8 of 2 live workers of its queue were taken at the last report.",
        ),
        (
            [replace(worker(), concurrency=0, running=2)],
            "It is due, and waits for a free slot: all 2 of 1 live worker of its queue are held by handlers that have "
            "lost their jobs and cannot be stopped.",
        ),
        ([worker(), worker(queues=("else",))], "It is due, and waits to be claimed by one of 1 live worker."),
    ],
)
def test_a_missing_worker_is_named(workers: list[WorkerStatus], said: str) -> None:
    """Whether none serves the queue, or none knows the task."""
    assert explain(job(), NOW, workers=workers) == said


def test_a_job_without_a_task_is_not_for_workers() -> None:
    """It is claimed by hand."""
    plain = replace(job(parked=Parked("task", "", "w-1")), spec=new_job("a", queue="mail"))

    assert explain(plain, NOW, workers=[worker()]).startswith("It names no task")


def test_a_running_job_shows_its_lease_beside_its_progress() -> None:
    """Alive and not moving is one glance."""
    assert explain(running(), NOW) == (
        "It has been running at 'w-1' since 2027-01-15T07:50:00+00:00 under epoch 7: its lease lasts another 20 s; "
        "no progress for 10 min."
    )
    moving = running(updated_us=NOW - 3 * SECOND, progress=0.4, note="page 4")
    assert explain(moving, NOW).endswith('its lease lasts another 20 s; last progress 3 s ago at 40% ("page 4").')
    renewed = running(renewed_us=NOW - 3 * SECOND)
    assert "renewed 3 s ago, its lease lasts another 20 s; no progress for 10 min." in explain(renewed, NOW)
    claimed = running(renewed_us=NOW - 600 * SECOND)
    assert "renewed" not in explain(claimed, NOW), "it was granted then"
    late = running(expires_us=NOW - 5 * SECOND)
    assert "its lease expired 5 s ago, and the job has not been taken over" in explain(late, NOW)


def test_a_finished_job_says_so() -> None:
    """With its error."""
    failed = job(status=Status.FAILED, finished_us=NOW, last_error="no route")
    raised = replace(failed, last_error=written("KeyError: 'tax_rate'", '  File "app.py", line 3, in book'))

    assert explain(failed, NOW) == "It failed at 2027-01-15T08:00:00+00:00: no route."
    assert explain(raised, NOW) == "It failed at 2027-01-15T08:00:00+00:00: KeyError: 'tax_rate'."
    assert explain(raised, NOW, hides_errors=True).endswith(": KeyError: [redacted].")


def test_a_running_job_shows_how_often_it_was_reclaimed() -> None:
    """With the last cause, unless another error came after it."""
    lost = running(reclaims=2, last_error="the process of 'w-0' is gone; reclaimed")

    assert explain(lost, NOW).endswith("no progress for 10 min; reclaimed 2 times, last: the process of 'w-0' is gone.")
    assert explain(replace(lost, reclaims=1, last_error="no route"), NOW).endswith("; reclaimed 1 time.")
    assert explain(lost, NOW, hides_errors=True).endswith("; reclaimed 2 times, last: [redacted].")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-1, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (600, "10 min"), (3600, "1 h")),
        *((3660, "1 h 1 min"), (86400, "1 d"), (90000, "1 d 1 h"), (10**9, "11574 d 1 h")),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, shown: str) -> None:
    """As a person would say it."""
    assert span(round(seconds * SECOND)) == shown
