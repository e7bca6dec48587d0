"""Signals, for a worker that has the process to itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from ..core.clock import Clock, SteadyClock

_STOPS = (signal.SIGTERM, signal.SIGINT)
_MOMENT_US = 100_000  # no one can press Ctrl-C twice within it


@contextmanager
def signals(desk: SimpleQueue[str], steady: Clock | None = None) -> Iterator[None]:
    """
    Put SIGTERM and SIGINT on *desk*, as long as the block lasts; on another thread than the main one, do nothing.

    What sends a signal to a process and then to its group, as `timeout` does, sends one: the same within a moment.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    now = (steady or SteadyClock()).now
    taken: dict[int, int] = {}

    def put(number: int, _: FrameType | None) -> None:
        again, taken[number] = now() < taken.get(number, -_MOMENT_US) + _MOMENT_US, now()
        if not again:
            desk.put("signal")  # which is reentrant, unlike every lock that the interrupted code may hold

    before = {number: signal.signal(number, put) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
