"""What a reconciler sees, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.core.backlog import Oldest
from leasehold.core.observations import MOST_NOTED, Bounds, Noted, Observation, noted_first, observe
from leasehold.core.ownership import LiveLease
from leasehold.core.queues import Queue
from leasehold.core.workers import WorkerStatus

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def running(name: str = "a", *, owner: str = "w-1", quiet: int = 0, expires: int = 20, renewed: int = 1) -> LiveLease:
    """A lease without progress for *quiet* seconds, which lasts *expires* seconds more."""
    granted, at = NOW - 8_000 * SECOND, NOW - renewed * SECOND
    return LiveLease(name, 7, owner, granted, NOW + expires * SECOND, at, NOW - quiet * SECOND)


def worker(name: str = "w-1", *, queues: tuple[str, ...] | None = None, alive: bool = True) -> WorkerStatus:
    """A worker with two slots."""
    return WorkerStatus(name, "w", None, queues, (), 2, 0, NOW, NOW, alive)


def seen(
    *leases: LiveLease,
    oldest: tuple[Oldest, ...] = (),
    paused: tuple[str, ...] = (),
    workers: tuple[WorkerStatus, ...] = (),
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
) -> list[Observation]:
    """What is observed."""
    queues = [Queue(name, NOW, "ann") for name in paused]
    return observe(NOW, leases=leases, oldest=oldest, queues=queues, workers=workers, bounds=bounds)


def kinds(found: list[Observation]) -> list[tuple[str, str]]:
    """Their kinds and subjects."""
    return [(one.kind.value, one.subject) for one in found]


def test_an_owner_that_renews_while_the_work_does_not_move_is_observed() -> None:
    """Its heartbeat alone would look well."""
    [found] = seen(running(quiet=700), running("b", quiet=599))

    assert (found.kind, found.subject) == ("not-moving", "a")
    assert found.sentence == "Job 'a' at 'w-1' is still renewed, but has made no progress for 11 min."
    assert found.since_us == NOW - 700 * SECOND
    assert found.command == "leasehold show a"


def test_an_owner_that_has_gone_silent_is_observed() -> None:
    """After a moment in which a sweep takes it over; a silent one is not also called slow."""
    assert kinds(seen(running(quiet=700, expires=-6), running("b", expires=-5))) == [("silent", "a")]


def test_a_worker_that_stopped_reporting_is_silent_before_its_lease_is_over() -> None:
    """A long lease keeps the job of a dead worker from others; one that still renews is not silent."""
    dead = replace(worker(alive=False), seen_us=NOW - 180 * SECOND)
    held = running(expires=3_360, renewed=170)  # claimed or renewed after the last report

    [found] = seen(held, running("b", renewed=10), workers=(dead,))

    assert (found.kind, found.subject, found.since_us) == ("silent", "w-1", dead.seen_us)
    assert found.sentence == "Worker 'w-1' has not reported for 3 min and holds 1 job; its lease lasts another 56 min."
    assert found.command == "leasehold requeue --owner w-1 --status running"
    [both] = seen(held, replaced(held, "b", quiet=700), workers=(dead,))
    assert both.sentence.endswith("holds 2 jobs; the last of their leases lasts another 56 min.")


def replaced(lease: LiveLease, name: str, *, quiet: int) -> LiveLease:
    """Another lease like it, without progress for *quiet* seconds."""
    return lease._replace(job_id=name, epoch=lease.epoch + 1, progressed_us=NOW - quiet * SECOND)


def test_a_job_counts_as_renewed_only_if_it_was_renewed_lately() -> None:
    """Under a long lease, the owner may have been dead for as long as its job is quiet."""
    [stale] = seen(running(quiet=700, renewed=600, expires=3_000))
    [granted] = seen(running(quiet=8_000, renewed=8_000, expires=3_000))

    assert stale.sentence == (
        "Job 'a' at 'w-1' has made no progress for 11 min; its lease was last renewed 10 min ago and lasts another "
        "50 min."
    )
    assert granted.sentence.endswith("; its lease was granted 2 h 13 min ago and lasts another 50 min.")


def waiting(seconds: int) -> Oldest:
    """A queue whose oldest due job waits for so long."""
    return Oldest("mail", None, NOW - seconds * SECOND)


@pytest.mark.parametrize(
    ("oldest", "workers", "expected"),
    [
        (waiting(10), (), ["no-consumer"]),
        (waiting(10), (worker(alive=False),), ["no-consumer"]),
        (waiting(10), (worker(queues=("other",)),), ["no-consumer"]),
        (waiting(10), (worker(queues=("mail",)),), []),
        (waiting(10), (worker(),), []),
        (waiting(300), (worker(),), ["old-backlog"]),
        (waiting(300), (), ["no-consumer", "old-backlog"]),
    ],
)
def test_a_backlog_is_observed_unless_it_is_meant(
    oldest: Oldest, workers: tuple[WorkerStatus, ...], expected: list[str]
) -> None:
    """In a paused queue the pause is what is observed, and no worker is missed."""
    assert [one.kind.value for one in seen(oldest=(oldest,), workers=workers)] == expected
    assert [one.kind.value for one in seen(oldest=(oldest,), workers=workers, paused=("mail",))] == ["paused"]


def test_a_pause_is_observed_while_due_jobs_wait_behind_it() -> None:
    """With its author, its reason and the way out; a paused queue in which nothing is due is left alone."""
    mail = Queue("mail", NOW - 60 * SECOND, "ann", "the relay is down")
    oldest = (waiting(6), Oldest("mail", "charge", NOW - 6 * SECOND))

    [found] = observe(NOW, leases=(), oldest=oldest, queues=[mail], workers=())

    assert (found.kind, found.subject, found.since_us) == ("paused", "mail", NOW - 6 * SECOND)
    assert found.sentence == (
        "Queue 'mail' was paused 1 min ago by 'ann' (\"the relay is down\"), and its oldest due job has waited for 6 s."
    )
    assert found.command == "leasehold queues resume mail"
    assert observe(NOW, leases=(), oldest=(), queues=[mail], workers=()) == []
    [unexplained] = seen(oldest=(waiting(6),), paused=("mail",))
    assert (
        unexplained.sentence == "Queue 'mail' was paused 0 s ago by 'ann', and its oldest due job has waited for 6 s."
    )


@pytest.mark.parametrize(("waited", "expected"), [(29, []), (30, ["paused"])])
def test_a_short_pause_is_not_recorded(waited: int, expected: list[str]) -> None:
    """As with a queue without a consumer, upkeep gives it some time."""
    bounds = Bounds(unserved_us=30 * SECOND)

    assert [one.kind.value for one in seen(oldest=(waiting(waited),), paused=("mail",), bounds=bounds)] == expected


@pytest.mark.parametrize(("waited", "expected"), [(29, []), (30, ["no-consumer"])])
def test_an_unserved_queue_or_task_can_be_given_time(waited: int, expected: list[str]) -> None:
    """For workers that are about to start."""
    bounds, since = Bounds(unserved_us=30 * SECOND), NOW - waited * SECOND

    assert [one.kind.value for one in seen(oldest=(waiting(waited),), bounds=bounds)] == expected
    unknown = seen(oldest=(Oldest("q", "charge", since),), workers=(worker(),), bounds=bounds)
    assert [one.kind.value for one in unknown] == expected


def test_a_worker_whose_slots_are_all_stuck_is_observed() -> None:
    """One that moves is enough to leave it alone."""
    stuck = (running(quiet=700), running("b", quiet=800))
    assert ("never-settles", "w-1") in kinds(seen(*stuck, workers=(worker(),)))

    moving = (running(quiet=700), running("b", quiet=1))
    assert kinds(seen(*moving, workers=(worker(),))) == [("not-moving", "a")]
    assert kinds(seen(running(quiet=700), workers=(worker(),))) == [("not-moving", "a")], "a slot is free"


def test_a_task_that_no_worker_of_its_queue_knows_is_observed_at_once() -> None:
    """Waiting does not help it. Each task is an observation of its own."""
    parked = Oldest("q", "charge", NOW), Oldest("q", "", NOW)
    knows = replace(worker("w-2", queues=("q",)), tasks=("charge",))

    [found] = seen(oldest=parked, workers=(worker(), replace(knows, queues=("other",)), replace(knows, alive=False)))

    assert (found.kind, found.subject, found.task) == ("no-consumer", "q", "charge")
    assert found.sentence == "No live worker of queue 'q' knows the task 'charge', which has waiting jobs."
    assert found.command == "leasehold workers --fields name,queues,tasks"
    assert seen(oldest=parked, workers=(worker(), knows)) == []
    assert "no-consumer" not in dict(kinds(seen(oldest=parked, workers=(worker(),), paused=("q",))))
    assert len({one.key for one in seen(oldest=(*parked, Oldest("q", "other", NOW)), workers=(worker(),))}) == 2


def test_what_is_recorded_already_comes_before_others_if_there_is_too_much() -> None:
    """Else a new observation would end an older one that lasts."""
    found = [*seen(*(running(f"{n:04}", quiet=700) for n in range(MOST_NOTED + 5)))]
    noted = [Noted(*one.key, NOW) for one in found[-3:]]

    chosen = noted_first(found, noted)

    assert len(chosen) == MOST_NOTED
    assert {one.key for one in noted} < {one.key for one in chosen}
