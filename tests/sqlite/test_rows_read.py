"""An operator's question reads about as much of a large store as of a small one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.operators import QUESTIONS
from benchmarks.operators_data import fill_sqlite

from leasehold import Router
from leasehold.views import Views

SMALL, LARGE = 42_000, 84_000  # half of either is more than a search looks at
STEPS = 100  # of SQLite's virtual machine, between two calls of the handler


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Router]]:
    """A store of each size."""
    found = {}
    for size in (SMALL, LARGE):
        path = tmp_path_factory.mktemp("rows") / f"{size}.db"
        found[size] = Router(f"sqlite:///{path}")
        found[size].counts()  # the first verb makes the tables
        fill_sqlite(str(path), size, share=2)
    yield found
    for router in found.values():
        router.close()


def steps(router: Router, name: str, size: int) -> int:
    """Return how many steps of SQLite's virtual machine the answer takes."""
    count = 0

    def called() -> int:
        nonlocal count
        count += STEPS
        return 0

    store = router.store
    with store.database._reading() as reader:  # type: ignore[attr-defined]  # of a SQLite store
        reader.set_progress_handler(called, STEPS)
    try:
        assert QUESTIONS[name](router, Views(router), size) is not None
    finally:
        with store.database._reading() as reader:  # type: ignore[attr-defined]  # of a SQLite store
            reader.set_progress_handler(None, 0)
    return count


def scans(small: int, large: int) -> bool:
    """Whether so many steps look like a scan: for each job it takes three at least."""
    return large > small * 1.2 and large > LARGE / 2 * 3


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_takes_no_more_steps_in_a_store_that_is_twice_as_large(stores: dict[int, Router], name: str) -> None:
    """Or so few that it cannot have read half of the jobs: how many run or have failed grows with them."""
    small, large = (steps(stores[size], name, size) for size in (SMALL, LARGE))

    assert not scans(small, large), (small, large)


def test_a_question_that_reads_all_jobs_would_be_noticed(stores: dict[int, Router], tmp_path: Path) -> None:
    """The exact counts are one; a job takes several steps."""
    QUESTIONS["counts"] = lambda router, views, _: router.counts()
    try:
        small, large = (steps(stores[size], "counts", size) for size in (SMALL, LARGE))
    finally:
        del QUESTIONS["counts"]

    assert scans(small, large), (small, large)
