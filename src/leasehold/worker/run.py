"""
One claimed job on its way through a worker, and the states that it goes through.

    waiting ──▶ executing ──▶ settling ──▶ over          the usual way
       │            ▼            ▲ ▲
       │        stopping ────────┘ │                     the worker has stopped the handler, and it ended
       │            ▼              │
       │        outlived ──▶ lingering ──▶ over          the handler goes on without its job, and keeps its slot
       └───────────────────────────┘                     handed back before a handler began
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..lease import worker_side

if TYPE_CHECKING:
    from ..core.job import Grant, Settlement
    from ..lease import Lease
    from ..tasks.task import Task


_LONG_US = 3_000_000


class State(IntEnum):
    """Where a run is, in an order in which those that take a slot come first."""

    WAITING = 0  # claimed; no executor has begun it
    EXECUTING = 1  # its handler runs, or its process has yet to begin
    STOPPING = 2  # its handler is being stopped, and has not ended
    OUTLIVED = 3  # what is settled is decided; the handler has not ended, and keeps its slot
    LINGERING = 4  # the same, and the store has confirmed it, or there is nothing to settle
    SETTLING = 5  # what is settled is decided; the store has yet to confirm it
    OVER = 6


# In Python 3.11 an enum's member is found through its metaclass, ten times slower.
WAITING, EXECUTING, STOPPING, OUTLIVED, LINGERING, SETTLING, OVER = State


class Stop(NamedTuple):
    """That the worker stops a handler: since when, and what is settled unless it returns a value all the same."""

    at_us: int
    verdict: Settlement | None  # None: another owner has the job, so nothing is settled


class Run:
    """A grant, the lease that its handler gets, and what the worker knows of the time that it has."""

    __slots__ = (
        "_moved_us",
        "_moves",
        "_runs",
        "began_us",
        "came_us",
        "deadline_us",
        "grant",
        "handle",
        "has_slot",
        "lease",
        "loss_reported",
        "renew_us",
        "state",
        "stop",
        "task",
        "transferred",
    )

    def __init__(
        self,
        runs: Runs,
        grant: Grant,
        lease: Lease,
        task: Task[..., ..., Any],
        sent_us: int,
        now: int,
        *,
        transferred: bool = False,
    ) -> None:
        self._runs = runs
        self.grant = grant
        self.lease = lease
        self.task = task
        self.state = WAITING
        self.transferred = transferred  # to this very worker: it waits for a slot, however long, and is renewed
        self.came_us = now  # when it came, on the worker's steady clock, as are the others
        # The deadline runs from the sending of what the store has acknowledged: the store's own is not earlier. A claim
        # that waited may have been granted at any time since: assume a third of the lease is left, and renew at once.
        lasts = grant.lease_us
        third = lasts // 3
        self.deadline_us = sent_us + lasts if now - sent_us <= lasts - third else now + third
        self.renew_us = sent_us + third
        self.began_us: int | None = None  # None: it waits, or its process has yet to begin
        self.stop: Stop | None = None
        self.handle: Any = None  # what its executor needs in order to stop it
        self.has_slot = False  # the dispatcher's own note
        self.loss_reported = 0  # the reporter's own note: 1 that the lease is lost, 2 why
        self._moves = 0
        self._moved_us = now

    def __repr__(self) -> str:
        return f"<Run {self.grant.spec.task} {self.state.name.lower()} {self.lease!r}>"

    def transition(self, expected: State, new: State, stop: Stop | None = None) -> bool:
        """Go from *expected* to *new*; return False, and change nothing, if it is not there."""
        with self._runs.lock:
            return self.move(expected, new, stop)

    def move(self, expected: State, new: State, stop: Stop | None = None) -> bool:
        """Do what `transition` does, for a caller that has the lock of the runs."""
        if self.state is not expected:
            return False
        if stop is not None:
            self.stop = stop
        self.state = new
        if expected <= LINGERING < new:
            self._runs._slots -= 1
        if expected > EXECUTING or new is OVER:  # few runs
            self._runs._note(self, expected, new)
        return True

    @property
    def verdict(self) -> Settlement | None:
        """What is settled if its handler, which was stopped, returns no value."""
        return None if self.stop is None else self.stop.verdict

    @property
    def waits(self) -> bool:
        """Whether it was claimed, and neither begun nor handed back so far."""
        return self.state is WAITING

    @property
    def is_undecided(self) -> bool:
        """Whether it is still open what is settled."""
        return self.state <= STOPPING

    @property
    def needs_no_renewal(self) -> bool:
        """Whether it waits, and its lease lasts longer than it will wait."""
        return self.state is WAITING and not self.transferred and self.grant.lease_us >= _LONG_US

    @property
    def may_go_back(self) -> bool:
        """Whether it waits, and may be handed back to the others if that takes too long."""
        return self.state is WAITING and not self.transferred

    @property
    def limit_us(self) -> int | None:
        """When the handler has had its `run_seconds`."""
        if self.began_us is None or (run_us := self.run_us) is None:
            return None
        return self.began_us + run_us

    @property
    def run_us(self) -> int | None:
        """How long the handler may run: what the job says, else what its task says."""
        own = self.grant.spec.options.run_us
        return self.task.run_us if own is None else own

    def stalled(self, now: int) -> bool:
        """Return whether it has reported no progress for its `stall_seconds`, as far as the worker can see."""
        stall_us = self.grant.spec.stall_us
        if stall_us is None:
            return False
        if (moves := worker_side.moves(self.lease)) != self._moves:
            self._moves = moves
            self._moved_us = now
        return now - self._moved_us >= stall_us

    def nears_stall(self, now: int) -> bool:
        """Return whether a third of its `stall_seconds` has passed since it last moved."""
        stall_us = self.grant.spec.stall_us
        return stall_us is not None and now - self._moved_us >= stall_us // 3

    def moved(self, now: int) -> None:
        """Count its `stall_seconds` from *now* on."""
        self._moved_us = now


class Runs:
    """
    The runs of a worker that are not over. They change state under its lock, one at a time.

    Every claim asks how many take a slot, and how many of those go on without their job, so these are counted.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._runs: dict[int, Run] = {}  # by epoch
        self._slots = 0
        self._without_job = 0

    def add(self, runs: Sequence[Run]) -> None:
        """Note *runs*, which wait."""
        with self.lock:
            self._slots += len(runs)
            for run in runs:
                self._runs[run.grant.epoch] = run

    def confirm(self, runs: Iterable[Run]) -> None:
        """Let go of *runs*, whose settlement the store has confirmed or refused."""
        with self.lock:
            for run in runs:
                if run.state is OUTLIVED:
                    run.state = LINGERING
                else:
                    run.state = OVER
                    del self._runs[run.grant.epoch]

    def _note(self, run: Run, before: State, after: State) -> None:
        """Count a run that goes on without its job, and let go of one that is over."""
        self._without_job += (OUTLIVED <= after <= LINGERING) - (OUTLIVED <= before <= LINGERING)
        if after is OVER:
            del self._runs[run.grant.epoch]

    def in_flight(self) -> list[Run]:
        """Return the runs whose leases the worker holds: the store has not confirmed their end."""
        return [run for run in self._runs.copy().values() if run.state is not LINGERING]

    def find(self, epoch: int) -> Run | None:
        """Return the run in flight with that *epoch*, if there is one."""
        run = self._runs.get(epoch)
        return None if run is None or run.state is LINGERING else run

    def undecided(self) -> list[Run]:
        """Return the runs that wait, execute, or are being stopped."""
        return [run for run in self._runs.copy().values() if run.is_undecided]

    @property
    def count_in_flight(self) -> int:
        """How many runs the store has not confirmed the end of."""
        return len(self.in_flight())

    @property
    def count_undecided(self) -> int:
        """How many runs wait, execute, or are being stopped."""
        with self.lock:  # else a run that goes from one count to the other might be missed
            return self._slots - self._without_job

    @property
    def count_without_job(self) -> int:
        """How many handlers go on without their job, and keep their slots."""
        return self._without_job

    def count_lost(self, until_us: int) -> int:
        """Return how many handlers go on without their job that were stopped at *until_us* or before."""
        stops = [run.stop for run in self._runs.copy().values() if run.state in (OUTLIVED, LINGERING)]
        return sum(stop is not None and stop.at_us <= until_us for stop in stops)

    @property
    def count_handlers(self) -> int:
        """How many handlers run, with or without their job."""
        return sum(EXECUTING <= run.state <= LINGERING for run in self._runs.copy().values())

    @property
    def count_slots(self) -> int:
        """How many slots are taken, or will be as soon as one is free."""
        return self._slots
