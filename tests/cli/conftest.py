"""The store of the tests that run `leasehold worker`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import Router


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """The store that the command works on."""
    with Router(f"sqlite:///{tmp_path}/jobs.db") as router:
        yield router
