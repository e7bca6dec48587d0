"""
The fixtures that pytest has once leasehold is installed.

    leasehold_clock       a `ManualClock`
    leasehold_override    puts a router on a fresh store with that clock, until the test ends
    leasehold_lease       makes a lease with that clock, to call a handler with

It also registers the marker `soak`, which `leasehold.testing.guard_contract` puts on its long matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from ..core.clock import Clock
from ..lease import Lease
from ..router import Router
from ..tasks.task import AnyTask
from .clock import ManualClock
from .leases import lease


class Override(Protocol):
    """What `leasehold_override` is."""

    def __call__(self, router: Router, url: str | None = None, *, schema: str | None = None) -> Router:
        """Put *router* on a fresh store in memory, or on that of *url*, until the test ends."""
        ...


class MakeLease(Protocol):
    """What `leasehold_lease` is: `leasehold.testing.lease` with another clock to begin with."""

    def __call__(
        self,
        payload: object = None,
        *,
        task: str | AnyTask | None = None,
        owner: str = "test",
        checkpoint: object = None,
        clock: Clock | None = None,
        lease_seconds: float = 30,
    ) -> Lease:
        """Return a lease in a fresh store."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that take minutes."""
    config.addinivalue_line("markers", "soak: takes minutes; leave it out with -m 'not soak'")


@pytest.fixture
def leasehold_clock() -> ManualClock:
    """Return the time of this test, which moves only by hand."""
    return ManualClock()


@pytest.fixture
def leasehold_override(leasehold_clock: ManualClock) -> Iterator[Override]:
    """Yield a function that puts a router on a fresh store with `leasehold_clock`, until the test ends."""
    with ExitStack() as stack:

        def override(router: Router, url: str | None = None, *, schema: str | None = None) -> Router:
            return stack.enter_context(router.override(url, clock=leasehold_clock, schema=schema))

        yield override


@pytest.fixture
def leasehold_lease(leasehold_clock: ManualClock) -> MakeLease:
    """Return `leasehold.testing.lease`, with `leasehold_clock` as its clock."""
    return functools.partial(lease, clock=leasehold_clock)
