"""Routers for the tests of the worker; and no test may leave a thread behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres.fixtures import place, server_url
from tests.support import until

from leasehold import Router

from .staging import our_threads

__all__ = ["any_router", "place", "router", "server_url", "sqlite_router"]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = our_threads()
    yield
    until(lambda: our_threads() <= before, f"threads to end: {our_threads()}")


@pytest.fixture
def router() -> Iterator[Router]:
    """A router in memory."""
    with Router() as router:
        yield router


@pytest.fixture
def sqlite_router(tmp_path: Path) -> Iterator[Router]:
    """A router on a file."""
    with Router(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") as router:
        yield router


@pytest.fixture(params=["memory", "sqlite"])
def any_router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Router]:
    """A router in memory, and one on a file."""
    url = None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with Router(url) as router:
        yield router
