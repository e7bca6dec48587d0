"""
How leases are kept while their handlers work, and noticed to be lost.

Two threads, neither of them a handler's: one renews and may wait for the store, the other only looks at the time. So
a blocked event loop does not make a live worker look dead, and a store that does not answer does not hide a deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ..core.clock import FAR, Clock
from ..core.wording import counted
from ..errors import StoreUnavailable
from ..store import Refusal, Renewal, Store
from .log import log
from .run import Run

T = TypeVar("T")

_TICK_US = 1_000_000
_LAST_SECONDS = 1.0
_MOST_PARTS = 64
STOP_WITHIN_US = 5_000_000
_BEGIN_WITHIN_US = 1_000_000  # a job that was claimed ahead and finds no thread until then goes back to the others


class Keeper(Protocol):
    """What a worker does about what is noticed here."""

    def lost(self, run: Run, refusal: Refusal | None) -> None:
        """The lease is lost: it was refused, or nobody has acknowledged it until its deadline."""
        ...

    def outran(self, run: Run) -> None:
        """The handler has had its `run_seconds`."""
        ...

    def waited(self, run: Run) -> None:
        """The run was claimed and could not begin."""
        ...

    def outlived(self, run: Run) -> None:
        """The handler was told to stop, and has not."""
        ...


class Sleeper(threading.Thread):
    """A thread that looks at the runs in flight, and sleeps until there is something to see."""

    def __init__(self, name: str, steady: Clock, in_flight: dict[int, Run]) -> None:
        super().__init__(name=name, daemon=True)
        self._steady = steady
        self._in_flight = in_flight
        self._woken = threading.Condition()
        self._until = FAR  # when it will look next; while it looks, nobody knows
        self._wanted = FAR  # by when somebody wants it to look again
        self._ended = False

    def run(self) -> None:
        """Look until the end."""
        while not self._ended:
            try:
                until = self._look(list(self._in_flight.copy().values()))
            except Exception:
                log.exception("%s", self.name)
                until = self._steady.now() + _TICK_US
            with self._woken:
                # What came while it looked, it may not have seen.
                self._until = until = min(until, self._wanted)
                if not self._ended and until > self._steady.now():
                    self._steady.wait(self._woken, until)
                self._until = self._wanted = FAR

    def wake_by(self, us: int) -> None:
        """Look at *us* at the latest."""
        if us < self._until:
            with self._woken:
                self._wanted = min(self._wanted, us)
                self._woken.notify_all()

    def end(self) -> None:
        """Look no more; return when a look that is under way is over, unless the store keeps it waiting."""
        self._ended = True
        with self._woken:
            self._woken.notify_all()
        self.join(_LAST_SECONDS)

    def _look(self, runs: list[Run]) -> int:
        """Look, and return when to look again."""
        raise NotImplementedError


class Renewer(Sleeper):
    """
    Renews what is executing and what waits for its settlement, all in one batch, when a third of a lease has passed.

    A failed renewal is unknown, not lost: it is tried again, and the deadline of the last acknowledged one stands.
    Not renewed: a job that says nothing about its progress for its `stall_seconds`.
    """

    def __init__(self, store: Store, steady: Clock, in_flight: dict[int, Run], keeper: Keeper) -> None:
        super().__init__("leasehold-renew", steady, in_flight)
        self._store = store
        self._keeper = keeper
        self._parts = 1
        self.failing = False

    def _look(self, runs: list[Run]) -> int:
        now = self._steady.now()
        # A little early, so that those that are due at about the same time are one batch. Not what waits for a thread:
        # that goes back to the others before long.
        due = [run for run in runs if not run.needs_no_renewal and run.renew_us - run.lease._grant.lease_us // 9 <= now]
        stalled = [run for run in due if run.stalled(now)]
        if stalled:
            self._check(stalled, now)
        self._renew([run for run in due if run not in stalled] if stalled else due)
        waiting = now + _TICK_US // 10
        return min((waiting if run.needs_no_renewal else run.renew_us for run in runs), default=now + 60 * _TICK_US)

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
        renewals = [Renewal(run.lease.job_id, run.lease.epoch, us) for run, us in zip(runs, lasts, strict=True)]
        replies: list[int | Refusal | None] = [*self._told(lambda: self._store.renew(renewals), len(runs))]
        for run, us, reply in zip(runs, lasts, replies, strict=True):
            if isinstance(reply, int):
                run.lease._expires_us = reply
                run.deadline_us = sent + us
                run.renew_us = sent + run.lease._grant.lease_us // 3
            else:
                self._refused(run, reply, sent)
        return replies[0] is not None

    def _check(self, runs: list[Run], now: int) -> None:
        """Let the leases of stalled jobs run out, and learn who takes them."""
        holders = [(run.lease.job_id, run.lease.epoch) for run in runs]
        for run, reply in zip(runs, self._told(lambda: self._store.check(holders), len(runs)), strict=True):
            if reply is None:
                run.renew_us = now + _TICK_US
            else:
                self._refused(run, reply, now)

    def _refused(self, run: Run, refusal: Refusal | None, now: int) -> None:
        if refusal is None:  # unknown
            run.renew_us = now + min(_TICK_US, run.lease._grant.lease_us // 9)
        else:
            run.renew_us = now + run.lease._grant.lease_us
            self._keeper.lost(run, refusal)

    def _told(self, verb: Callable[[], list[T]], count: int) -> Iterable[T | None]:
        try:
            replies = verb()
        except StoreUnavailable as error:
            if not self.failing:
                leases = counted(count, "lease, which is", "leases, which are")
                log.warning("cannot renew %s unknown and not lost: %s", leases, error)
            self.failing = True
            return [None] * count
        self.failing = False
        return replies


def _lasts(run: Run) -> int:
    # A third longer than asked for, so that at any moment a whole lease is left to a process that stands still.
    # Nor shorter than the handler itself has asked for.
    return max(run.lease._grant.lease_us * 4 // 3, run.lease._asked_us)


class Watch(Sleeper):
    """Notices deadlines that have passed on the worker's own steady clock, and jobs that could not begin."""

    def __init__(self, steady: Clock, in_flight: dict[int, Run], keeper: Keeper) -> None:
        super().__init__("leasehold-watch", steady, in_flight)
        self._keeper = keeper

    def _look(self, runs: list[Run]) -> int:
        now = self._steady.now()
        following = now + (_TICK_US if runs else 60 * _TICK_US)
        for run in runs:
            limit = run.limit_us
            if run.stopped_us is not None:
                if now >= run.stopped_us + STOP_WITHIN_US:
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
