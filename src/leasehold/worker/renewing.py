"""Renews the leases of a worker. It may wait for the store, so it does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from ..core.clock import Clock
from ..core.wording import counted
from ..errors import StoreUnavailable
from ..lease import worker_side
from ..store import Refusal, Renewal, Store
from .log import log
from .run import Run, Runs
from .sleeper import TICK_US, Keeper, Sleeper

T = TypeVar("T")

_MOST_PARTS = 64


class Renewer(Sleeper):
    """
    Renews what is executing and what waits for its settlement, all in one batch, when a third of a lease has passed.

    A failed renewal is unknown, not lost: it is tried again, and the deadline of the last acknowledged one stands.
    Not renewed: a job that says nothing about its progress for its `stall_seconds`.
    """

    def __init__(self, store: Store, steady: Clock, runs: Runs, keeper: Keeper) -> None:
        super().__init__("leasehold-renew", steady, runs)
        self._store = store
        self._keeper = keeper
        self._parts = 1
        self.failing = False

    def _look(self, runs: list[Run]) -> int:
        now = self._steady.now()
        # A little early, so that those that are due at about the same time are one batch. Not what waits for a thread:
        # that goes back to the others before long.
        due = [run for run in runs if not run.needs_no_renewal and run.renew_us - run.grant.lease_us // 9 <= now]
        stalled = [run for run in due if run.stalled(now)]
        if stalled:
            self._check(stalled, now)
        self._renew([run for run in due if run not in stalled] if stalled else due)
        waiting = now + TICK_US // 10
        return min((waiting if run.needs_no_renewal else run.renew_us for run in runs), default=now + 60 * TICK_US)

    def _renew(self, runs: list[Run]) -> None:
        """Renew all at once; after a failure in parts, since maybe one of them is locked and the others are not."""
        if not runs:
            return
        size = -(-len(runs) // self._parts)
        answers: list[bool] = []
        for first in range(0, len(runs), size):
            part = runs[first : first + size]
            if len(answers) == 2 and not any(answers):  # the store does not answer: it is asked again before long
                for run in part:
                    self._refused(run, None, self._steady.now())
            else:
                answers.append(self._renew_part(part))
        self._parts = 1 if all(answers) else min(2 * self._parts, _MOST_PARTS)

    def _renew_part(self, runs: list[Run]) -> bool:
        sent = self._steady.now()
        lasts = [_lasts(run) for run in runs]
        renewals = [Renewal(run.grant.spec.id, run.grant.epoch, us) for run, us in zip(runs, lasts, strict=True)]
        replies: list[int | Refusal | None] = [*self._ask(lambda: self._store.renew(renewals), len(runs))]
        for run, us, reply in zip(runs, lasts, replies, strict=True):
            if isinstance(reply, int):
                worker_side.note_renewal(run.lease, reply)
                run.deadline_us = sent + us
                run.renew_us = sent + run.grant.lease_us // 3
            else:
                self._refused(run, reply, sent)
        return replies[0] is not None

    def _check(self, runs: list[Run], now: int) -> None:
        """Let the leases of stalled jobs run out, and learn who takes them."""
        holders = [(run.grant.spec.id, run.grant.epoch) for run in runs]
        for run, reply in zip(runs, self._ask(lambda: self._store.check(holders), len(runs)), strict=True):
            if reply is None:
                run.renew_us = now + TICK_US
            else:
                self._refused(run, reply, now)

    def _refused(self, run: Run, refusal: Refusal | None, now: int) -> None:
        if refusal is None:  # unknown
            run.renew_us = now + min(TICK_US, run.grant.lease_us // 9)
        else:
            run.renew_us = now + run.grant.lease_us
            self._keeper.lost(run, refusal)

    def _ask(self, verb: Callable[[], list[T]], count: int) -> Iterable[T | None]:
        try:
            replies = verb()
        except StoreUnavailable as error:
            if not self.failing:
                leases = counted(count, "lease", "leases")
                log.warning("could not renew %s (outcome unknown; retrying): %s", leases, error)
            self.failing = True
            return [None] * count
        self.failing = False
        return replies


def _lasts(run: Run) -> int:
    # A third longer than asked for, so that at any moment a whole lease is left to a process that stands still.
    # Nor shorter than the handler itself has asked for.
    return max(run.grant.lease_us * 4 // 3, worker_side.asked_us(run.lease))
