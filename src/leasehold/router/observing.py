"""What an operator should look at."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core import checks
from ..core.job import Job, Status
from ..errors import StoreIncompatible

if TYPE_CHECKING:
    from ..core.observations import Observation
    from .front import Router  # which has this function as its method

_RUNNING = 1_000  # running jobs that are looked at for lost owners


def observations(
    router: Router, *, quiet_seconds: float = 600, silent_seconds: float = 5, waiting_seconds: float = 300
) -> list[Observation]:
    """
    Return what is worth a look now: work that does not move, silent owners, queues that are paused or not served.

    A running job is worth one after *quiet_seconds* without progress, a lease *silent_seconds* past its deadline, a due
    job after *waiting_seconds*. It compares, and changes nothing: an observation never moves a job. Upkeep does the
    same with these defaults every ten seconds, and records an event `observed` when an observation begins and
    `cleared` when it has ended: `noted_at` is when it has recorded the begin. A queue that is paused or has no consumer
    it records when a due job has waited there for 30 seconds. Only here, and only among the 1,000 running jobs that
    were added last, jobs that were reclaimed three times or more are looked for.
    """
    from ..core.observations import Bounds  # on use, as the next two: most programs only add jobs, or run them
    from ..core.search import Search
    from ..reconciler import look

    bounds = Bounds(
        checks.microseconds(quiet_seconds, "quiet_seconds"),
        checks.microseconds(silent_seconds, "silent_seconds", zero=True),
        checks.microseconds(waiting_seconds, "waiting_seconds"),
    )
    seen = router.store.observed()
    noted = {one.key: one.noted_us for one in seen.noted}
    # Not in upkeep: whole jobs are much to read every ten seconds.
    running: list[Job] = []
    with suppress(StoreIncompatible):  # on PostgreSQL the role of a worker may not read jobs
        running = router.store.search(Search(Status.RUNNING), limit=_RUNNING).jobs
    found = look(router.store, seen.now_us, bounds, running=running, hides_errors=router.redaction.hides_errors)
    return [replace(one, noted_us=noted.get(one.key)) for one in found]
