"""What an operator should look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import checks
from ..core.job import Status
from ..core.observations import Backlog, Bounds, Observation, observe
from ..core.search import Search
from .bulk import matching

if TYPE_CHECKING:  # which has this function as its method
    from .front import Router


def observations(
    router: Router, *, quiet_seconds: float = 600, silent_seconds: float = 5, waiting_seconds: float = 300
) -> list[Observation]:
    """
    Return what is worth a look now: work that does not move, silent owners, and queues without a consumer.

    A running job is worth one after *quiet_seconds* without progress, a lease *silent_seconds* past its deadline, a due
    job after *waiting_seconds*. It compares, and changes nothing: an observation never moves a job.
    """
    bounds = Bounds(
        checks.microseconds(quiet_seconds, "quiet_seconds"),
        checks.microseconds(silent_seconds, "silent_seconds", zero=True),
        checks.microseconds(waiting_seconds, "waiting_seconds"),
    )
    store = router.store
    paused = {queue.name for queue in store.queues() if queue.paused}
    counts = store.counts()
    backlogs = [
        Backlog(
            name,
            counted["pending"],
            _oldest(router, name),
            name in paused,
            {task: found[name] for task, found in counts.parked.items() if name in found},
        )
        for name, counted in counts.queues.items()
        if counted["pending"]
    ]
    return observe(
        router._clock.now(),
        running=matching(router, Search(Status.RUNNING)),
        backlogs=backlogs,
        workers=store.workers(),
        bounds=bounds,
    )


def _oldest(router: Router, queue: str) -> int | None:
    """Return when the oldest pending job of *queue* was due, of the first that were added."""
    jobs = router.store.search(Search(Status.PENDING, queue=queue, newest=False), limit=1).jobs
    return jobs[0].run_us if jobs else None
