"""What an operator should look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core import checks
from ..core.observations import Bounds, Observation
from ..reconciler import look

if TYPE_CHECKING:  # which has this function as its method
    from .front import Router


def observations(
    router: Router, *, quiet_seconds: float = 600, silent_seconds: float = 5, waiting_seconds: float = 300
) -> list[Observation]:
    """
    Return what is worth a look now: work that does not move, silent owners, and queues without a consumer.

    A running job is worth one after *quiet_seconds* without progress, a lease *silent_seconds* past its deadline, a due
    job after *waiting_seconds*. It compares, and changes nothing: an observation never moves a job. Upkeep does the
    same with these defaults every ten seconds, and records an event `observed` when an observation begins and
    `cleared` when it has ended: `noted_at` is when it has recorded the begin.
    """
    bounds = Bounds(
        checks.microseconds(quiet_seconds, "quiet_seconds"),
        checks.microseconds(silent_seconds, "silent_seconds", zero=True),
        checks.microseconds(waiting_seconds, "waiting_seconds"),
    )
    seen = router.store.observed()
    noted = {one.key: one.noted_us for one in seen.noted}
    return [replace(one, noted_us=noted.get(one.key)) for one in look(router.store, seen.now_us, bounds)]
