"""How a store goes over what is finished, in portions, at a bounded rate, and prunes what its policy lets go."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.retention import Retention
from ..core.workers import FORGET_AFTER_US

PRUNE_EVERY_US = 60_000_000  # a pass that has come to its end is followed by the next one after this
PORTION = 1_000
KEPT = "kept"  # jobs that say themselves how long they are kept
EVENTS = "events"
IDS = "ids"
WORKERS = "workers"  # that are dead
_STEPS = ("done", "failed", "cancelled", KEPT, EVENTS, IDS, WORKERS)
_FIXED_US = {KEPT: 0, WORKERS: FORGET_AFTER_US}  # what no retention says

# Looks at one portion of that kind, from where the last one ended, and removes what may go; returns where the next one
# begins, None at the end.
Place = tuple[int, int]  # an instant or a number, and the job behind which to go on
Step = Callable[[str, int, Place], Place | None]


class Pass:
    """
    Where one process has come to in its pass over the finished jobs.

    A job may have to stay although its time has come: its parent is kept, or an effect is in doubt. A pass goes on
    behind it, and the next one looks at it again. So however many of them there are, a portion is soon done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = 0
        self._from: Place = (0, 0)
        self._ended_us: int | None = None

    def portion(self, now: int, retention: Retention, step: Step) -> bool:
        """Prune one portion if it is time for it; return whether more is to be looked at."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread is at it
        try:
            if self._ended_us is not None and 0 <= now - self._ended_us < PRUNE_EVERY_US:
                return False
            self._ended_us = None
            while self._step < len(_STEPS):
                kind = _STEPS[self._step]
                keep_us = _FIXED_US[kind] if kind in _FIXED_US else retention.keep_us(kind)
                following = None if keep_us is None else step(kind, keep_us, self._from)
                if following is not None:
                    self._from = following
                    return True
                self._step, self._from = self._step + 1, (0, 0)
            self._step, self._ended_us = 0, now
            return False
        finally:
            self._lock.release()
