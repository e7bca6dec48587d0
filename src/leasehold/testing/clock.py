"""Time that moves only by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from ..core import checks, instants

_START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """
    A clock that stands still until `advance` moves it, and then wakes the threads that wait for the time.

    >>> clock = ManualClock()
    >>> clock.advance(31)
    >>> clock.time
    datetime.datetime(2030, 1, 1, 0, 0, 31, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime = _START) -> None:
        self._now = instants.instant(start, "start")
        self._waiting: dict[threading.Condition, int] = {}
        self._lock = threading.Lock()

    @property
    def time(self) -> datetime:
        """The instant that the clock shows."""
        return instants.aware(self._now)

    def now(self) -> int:
        """Return the instant, in microseconds since 1970 (UTC)."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by *seconds*, and wake everybody who waits on it."""
        self._now += checks.microseconds(seconds, "seconds", zero=True)
        with self._lock:
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait on *condition*, which the caller holds, until it is notified; `advance` does that too."""
        with self._lock:
            self._waiting[condition] = self._waiting.get(condition, 0) + 1
        try:
            # The condition is held from here on until the wait lets it go, so an `advance` cannot slip in between.
            if self._now < until:
                condition.wait()
        finally:
            with self._lock:
                self._waiting[condition] -= 1
                if not self._waiting[condition]:
                    del self._waiting[condition]
