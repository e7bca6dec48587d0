"""A router with a guard, and a job whose owner still writes after its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.guards.reference import Reference

from leasehold import GuardUnavailable, Lease, Router
from leasehold.guard import Doubt, Seal, Writer
from leasehold.testing import ManualClock


class Doubting(Reference):
    """Leaves a doubt with every seal."""

    def _seal(self, key: str, writer: Writer) -> Seal:
        return super()._seal(key, writer)._replace(doubts=(Doubt(key, 3, "old", "a call that runs"),))


class Unreachable(Reference):
    """Cannot be sealed as long as it is `away`."""

    away = True

    def _seal(self, key: str, writer: Writer) -> Seal:
        if self.away:
            raise GuardUnavailable(f"{self.resource(key)}: the server is away.")
        return super()._seal(key, writer)


@pytest.fixture
def clock() -> ManualClock:
    """Time, moved by hand."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Router]:
    """A router in memory, and one in a file."""
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url, clock=clock) as made:
        yield made


@pytest.fixture
def shelf(router: Router, tmp_path: Path) -> Reference:
    """A guard that the router knows."""
    (tmp_path / "shelf").mkdir()
    return router.guard("shelf", Reference(tmp_path / "shelf"))


def keys(router: Router, job_id: str) -> list[Any]:
    """What is recorded of the job's keys."""
    return [event.facts["keys"] for event in router.events(job_id, kind="guarded")]


def zombie(router: Router, shelf: Reference, **settings: Any) -> Lease:
    """A lease on a job whose handler has sealed its key, still at work."""
    started: list[Lease] = []

    @router.task(name="zombie", seals=lambda: [shelf.key("a")], **settings)
    def work(lease: Lease) -> None:
        started.append(lease)

    job = work.add().job
    lease = router.claim("zombie")
    assert lease is not None
    assert lease.job_id == job.id
    router._registry.guards.seal([shelf.key("a")], lease)
    return lease
