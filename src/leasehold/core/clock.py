"""
The only module that reads a clock.

A store is given a `Clock` and asks nothing else, so a test moves time by hand and never sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

FAR = 2**62  # an instant that never comes


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> int:
        """Return the instant, in microseconds since 1970 (UTC)."""
        ...

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait on *condition*, which the caller holds, until it is notified or *until* has come; maybe less long."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        """Return the instant, in microseconds since 1970 (UTC)."""
        return time.time_ns() // 1000

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait on *condition*, which the caller holds, until it is notified or *until* has come."""
        # In slices, since the wall clock may be set while we wait.
        condition.wait(min(max(until - self.now(), 0) / 1_000_000, 60.0))


class SteadyClock:
    """
    Counts on from some instant in the past, whatever is set: for durations within one process.

    It also counts while the machine is suspended, where the system can tell: a lease expires meanwhile.
    """

    def now(self) -> int:
        """Return the microseconds since that instant."""
        return time.clock_gettime_ns(_STEADY) // 1000

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait on *condition*, which the caller holds, until it is notified or *until* has come."""
        condition.wait(min(max(until - self.now(), 0) / 1_000_000, 60.0))


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Countdown:
    """Tells how much of a time is left on a clock; a clock that is set back makes it no longer."""

    def __init__(self, clock: Clock, micros: int) -> None:
        self._clock = clock
        self._left = micros
        self._at = clock.now()

    def left(self) -> int:
        """Return the microseconds that are left, by the steps forward that the clock has made."""
        now = self._clock.now()
        self._left -= max(now - self._at, 0)
        self._at = now
        return self._left


def patience(seconds: float) -> Callable[[], float]:
    """Return a function that tells how much of *seconds* is left, whatever happens to the wall clock meanwhile."""
    until = time.monotonic() + seconds
    return lambda: until - time.monotonic()
