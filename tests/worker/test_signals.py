"""How signals come to a worker."""

from __future__ import annotations

import signal
from queue import SimpleQueue

from leasehold.testing import ManualClock
from leasehold.worker.signals import signals


def take(number: int) -> None:
    """Have the process's handler take the signal, as Python does on its main thread."""
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, None)


def test_a_signal_that_is_sent_twice_within_a_moment_is_one() -> None:
    """As `timeout` sends it: to the process, and to the group that the process is in."""
    clock, desk = ManualClock(), SimpleQueue[str]()
    before = signal.getsignal(signal.SIGTERM)

    with signals(desk, clock):
        take(signal.SIGTERM)
        take(signal.SIGTERM)
        assert desk.qsize() == 1

        take(signal.SIGINT)
        assert desk.qsize() == 2, "another signal is another word"

        clock.advance(0.2)
        take(signal.SIGTERM)
        assert desk.qsize() == 3

    assert signal.getsignal(signal.SIGTERM) is before
