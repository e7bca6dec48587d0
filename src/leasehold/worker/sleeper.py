"""
The threads that look at the runs in flight, and what they report to the runner.

None of them is a handler's: a blocked event loop does not make a live worker look dead. One renews and may wait for the
store, one only looks at the time, so a store that does not answer does not hide a deadline.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ..core.clock import FAR, Clock
from ..store import Refusal
from .log import log
from .run import Run, Runs

TICK_US = 1_000_000
_LAST_SECONDS = 1.0


class Keeper(Protocol):
    """What the runner does about what these threads notice."""

    def lost(self, run: Run, refusal: Refusal | None) -> None:
        """The lease is lost: it was refused, or no renewal was acknowledged until its deadline."""
        ...

    def outran(self, run: Run) -> None:
        """The handler has had its `run_seconds`."""
        ...

    def waited(self, run: Run) -> None:
        """The run was claimed and could not begin."""
        ...

    def outlived(self, run: Run) -> None:
        """The handler is being stopped, and has not ended in time."""
        ...


class Sleeper(threading.Thread):
    """A thread that looks at the runs in flight, and sleeps until there is something to see."""

    def __init__(self, name: str, steady: Clock, runs: Runs) -> None:
        super().__init__(name=name, daemon=True)
        self._steady = steady
        self._runs = runs
        self._woken = threading.Condition()
        self._until = FAR  # when it will look next; unknown while it looks
        self._wanted = FAR  # by when `wake_by` wants it to look again
        self._ended = False

    def run(self) -> None:
        """Look until the end."""
        while not self._ended:
            try:
                until = self._look(self._runs.in_flight())
            except Exception:
                log.exception("%s", self.name)
                until = self._steady.now() + TICK_US
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
