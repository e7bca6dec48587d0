"""What a reconciler sees, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.core.job import Job, Status, new_job, new_state
from leasehold.core.observations import Backlog, Observation, observe
from leasehold.core.ownership import Reason
from leasehold.core.workers import WorkerStatus

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def running(name: str = "a", *, owner: str = "w-1", quiet: int = 0, expires: int = 20) -> Job:
    """A running job without progress for *quiet* seconds, whose lease lasts *expires* seconds more."""
    return replace(
        new_state(new_job(name), NOW - 9_000 * SECOND),
        status=Status.RUNNING,
        epoch=7,
        owner=owner,
        reason=Reason.CLAIM,
        granted_us=NOW - 8_000 * SECOND,
        updated_us=NOW - quiet * SECOND,
        expires_us=NOW + expires * SECOND,
    )


def worker(name: str = "w-1", *, queues: tuple[str, ...] | None = None, alive: bool = True) -> WorkerStatus:
    """A worker with two slots."""
    return WorkerStatus(name, "w", None, queues, (), 2, 0, NOW, NOW, alive)


def seen(*jobs: Job, backlogs: tuple[Backlog, ...] = (), workers: tuple[WorkerStatus, ...] = ()) -> list[Observation]:
    """What is observed."""
    return observe(NOW, running=jobs, backlogs=backlogs, workers=workers)


def kinds(found: list[Observation]) -> list[tuple[str, str]]:
    """Their kinds and subjects."""
    return [(one.kind.value, one.subject) for one in found]


def test_an_owner_that_renews_while_the_work_does_not_move_is_observed() -> None:
    """Its heartbeat alone would look well."""
    [found] = seen(running(quiet=700), running("b", quiet=599))

    assert (found.kind, found.subject) == ("not-moving", "a")
    assert found.sentence == "Job 'a' at 'w-1' is renewed, and has made no progress for 11 min."
    assert found.since_us == NOW - 700 * SECOND
    assert found.command == "leasehold show a"


def test_an_owner_that_has_gone_silent_is_observed() -> None:
    """After a moment in which a sweep takes it over; a silent one is not also called slow."""
    assert kinds(seen(running(quiet=700, expires=-6), running("b", expires=-5))) == [("silent", "a")]


@pytest.mark.parametrize(
    ("backlog", "workers", "expected"),
    [
        (Backlog("mail", 3, NOW - 10 * SECOND, False), (), ["no-consumer"]),
        (Backlog("mail", 3, NOW - 10 * SECOND, False), (worker(alive=False),), ["no-consumer"]),
        (Backlog("mail", 3, NOW - 10 * SECOND, False), (worker(queues=("other",)),), ["no-consumer"]),
        (Backlog("mail", 3, NOW - 10 * SECOND, False), (worker(queues=("mail",)),), []),
        (Backlog("mail", 3, NOW - 10 * SECOND, False), (worker(),), []),
        (Backlog("mail", 3, NOW - 300 * SECOND, False), (worker(),), ["old-backlog"]),
        (Backlog("mail", 3, NOW - 300 * SECOND, False), (), ["no-consumer", "old-backlog"]),
        (Backlog("mail", 3, NOW - 300 * SECOND, True), (), []),
        (Backlog("mail", 3, NOW + SECOND, False), (), []),
        (Backlog("mail", 0, None, False), (), []),
    ],
)
def test_a_backlog_is_observed_unless_it_is_meant(
    backlog: Backlog, workers: tuple[WorkerStatus, ...], expected: list[str]
) -> None:
    """A paused queue waits on purpose, and a job that is not due yet does not wait."""
    assert [one.kind.value for one in seen(backlogs=(backlog,), workers=workers)] == expected


def test_a_worker_whose_slots_are_all_stuck_is_observed() -> None:
    """One that moves is enough to leave it alone."""
    stuck = (running(quiet=700), running("b", quiet=800))
    assert ("never-settles", "w-1") in kinds(seen(*stuck, workers=(worker(),)))

    moving = (running(quiet=700), running("b", quiet=1))
    assert kinds(seen(*moving, workers=(worker(),))) == [("not-moving", "a")]
    assert kinds(seen(running(quiet=700), workers=(worker(),))) == [("not-moving", "a")], "a slot is free"


def test_a_task_that_no_worker_of_its_queue_knows_is_observed_at_once() -> None:
    """Waiting does not help it; even if the first job of the queue is due later."""
    backlog = Backlog("q", 3, NOW + SECOND, False, {"charge": 2, "": 1})
    knows = replace(worker("w-2", queues=("q",)), tasks=("charge",))

    [found] = seen(
        backlogs=(backlog,), workers=(worker(), replace(knows, queues=("other",)), replace(knows, alive=False))
    )

    assert (found.kind, found.subject) == ("no-consumer", "q")
    assert found.sentence == "No live worker of queue 'q' knows the task 'charge', for which 2 jobs wait."
    assert found.command == "leasehold workers --fields name,queues,tasks"
    assert seen(backlogs=(backlog,), workers=(worker(), knows)) == []
    assert seen(backlogs=(backlog._replace(paused=True),), workers=(worker(),)) == []
