"""What holds for the whole run."""

from __future__ import annotations

import gc
import signal

from hypothesis import HealthCheck, settings

# An example that took long says something about the machine, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """
    Let Ctrl-C mean what it means at a terminal.

    A shell starts what it runs in the background with SIGINT ignored. Python then installs no handler, every process
    that a test starts inherits that, and a test of Ctrl-C waits for an end that nothing brings about.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later collection of garbage, which they would slow down."""
    gc.collect()
    gc.freeze()
