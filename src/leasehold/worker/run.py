"""One claimed job on its way through a worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.job import Settlement
    from ..lease import Lease
    from ..tasks.task import Task


_LONG_US = 3_000_000
_taking = threading.Lock()  # held for an instant, by whoever begins a run or hands it back


class Run:
    """A lease, the task that handles it, and what the worker knows of the time that it has."""

    __slots__ = (
        "_moved_us",
        "_moves",
        "_taken",
        "_told",
        "began_us",
        "came_us",
        "deadline_us",
        "handle",
        "has_slot",
        "lease",
        "renew_us",
        "stopped_us",
        "task",
        "transferred",
        "verdict",
    )

    def __init__(
        self, lease: Lease, task: Task[..., ..., Any], sent_us: int, now: int, *, transferred: bool = False
    ) -> None:
        self.lease = lease
        self.task = task
        self.transferred = transferred  # to this very worker: it waits for a slot, however long, and is renewed
        self.came_us = now  # when it came, on the worker's steady clock, as are the others
        # The deadline runs from the sending of what the store has acknowledged: the store's own is not earlier. Of a
        # claim that has waited it is not known when that was; then a renewal, sent at once, says more.
        lasts = lease._grant.lease_us
        self.deadline_us = max(sent_us + lasts, now + lasts // 3)
        self.renew_us = sent_us + lasts // 3
        self.began_us: int | None = None  # None: it waits, or its process has yet to begin
        self.stopped_us: int | None = None  # when the worker told the handler to stop
        self.verdict: Settlement | None = None  # what is settled then; None: nothing, somebody else has the job
        self.handle: Any = None  # what the kind of its task needs in order to stop it
        self.has_slot = False  # the dispatcher's own note
        self._taken = False
        self._told = 0  # of its loss: 1 that it is lost, 2 why
        self._moves = 0
        self._moved_us = now

    def __repr__(self) -> str:
        return f"<Run {self.lease.task} {self.lease!r}>"

    def first(self) -> bool:
        """Return True to the first who asks: either it begins, or it is handed back, and never both."""
        with _taking:
            first, self._taken = not self._taken, True
        return first

    def tells_of_loss(self, *, why: bool) -> bool:
        """Return True to the first who is to tell that its lease is lost, and to the first who knows *why*."""
        with _taking:
            known, self._told = self._told, max(self._told, 2 if why else 1)
            return self._told > known

    @property
    def waits(self) -> bool:
        """Whether it was claimed, and neither begun nor handed back so far."""
        return not self._taken

    @property
    def needs_no_renewal(self) -> bool:
        """Whether it waits, and its lease lasts longer than it will wait."""
        return not self._taken and not self.transferred and self.lease._grant.lease_us >= _LONG_US

    @property
    def may_go_back(self) -> bool:
        """Whether it waits, and may be handed back to the others if that takes too long."""
        return not self._taken and not self.transferred

    @property
    def limit_us(self) -> int | None:
        """When the handler has had its `run_seconds`."""
        if self.began_us is None or (run_us := self.run_us) is None:
            return None
        return self.began_us + run_us

    @property
    def run_us(self) -> int | None:
        """How long the handler may run: what the job says, else what its task says."""
        own = self.lease._grant.spec.options.run_us
        return self.task.run_us if own is None else own

    def stalled(self, now: int) -> bool:
        """Return whether it has said nothing of its progress for its `stall_seconds`, as far as the worker can see."""
        stall_us = self.lease._grant.spec.stall_us
        if stall_us is None:
            return False
        if self.lease._moves != self._moves:
            self._moves = self.lease._moves
            self._moved_us = now
        return now - self._moved_us >= stall_us

    def nears_stall(self, now: int) -> bool:
        """Return whether a third of its `stall_seconds` has passed since it last moved."""
        stall_us = self.lease._grant.spec.stall_us
        return stall_us is not None and now - self._moved_us >= stall_us // 3

    def moved(self, now: int) -> None:
        """Count its `stall_seconds` from *now* on."""
        self._moved_us = now
