"""Compares deadlines and limits with the time. It never waits for the store."""

from __future__ import annotations

from ..core.clock import Clock
from .run import Run, Runs
from .sleeper import TICK_US, Keeper, Sleeper

STOP_WITHIN_US = 5_000_000
_BEGIN_WITHIN_US = 1_000_000  # prefetched jobs that no slot was free for by then are released


class Watch(Sleeper):
    """Notices deadlines that have passed on the worker's own steady clock, and jobs that could not begin."""

    def __init__(self, steady: Clock, runs: Runs, keeper: Keeper) -> None:
        super().__init__("leasehold-watch", steady, runs)
        self._keeper = keeper

    def _look(self, runs: list[Run]) -> int:
        now = self._steady.now()
        following = now + (TICK_US if runs else 60 * TICK_US)
        for run in runs:
            limit = run.limit_us
            if (stop := run.stop) is not None:
                if now >= stop.at_us + STOP_WITHIN_US:
                    self._keeper.outlived(run)
            elif run.may_go_back:
                if now >= run.came_us + _BEGIN_WITHIN_US:
                    self._keeper.waited(run)
            elif limit is not None and now >= limit:
                self._keeper.outran(run)
            elif now >= run.deadline_us:
                self._keeper.lost(run, None)
            following = min([following, *(us for us in (limit, run.deadline_us) if us is not None and us > now)])
        return following
