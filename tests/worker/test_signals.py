"""How signals come to a worker."""

from __future__ import annotations

import asyncio
import logging
import signal
from queue import SimpleQueue

import pytest

from leasehold import Router, Unsupported
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


def test_work_on_a_running_event_loop_is_refused_with_what_to_use() -> None:
    """It would block the loop until a signal comes."""
    router = Router()

    async def body() -> None:
        router.work(until_empty=True)

    with pytest.raises(Unsupported, match=r"use `async with router\.worker\(\):`"):
        asyncio.run(body())


def test_a_worker_on_another_thread_says_that_no_signal_stops_it(caplog: pytest.LogCaptureFixture) -> None:
    """On the main one there is nothing to say."""
    router = Router()
    with caplog.at_level(logging.INFO, "leasehold"):
        router.work(until_empty=True)
        assert "no signal stops" not in caplog.text
        asyncio.run(asyncio.to_thread(router.work, until_empty=True))
    assert caplog.text.count("signals do not stop a worker") == 1
