"""An operator's question reads about as many rows of a large store as of a small one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from benchmarks.operators import QUESTIONS
from benchmarks.operators_data import fill_postgres
from psycopg import sql
from tests.support import until

from leasehold import Router
from leasehold.views import Views

from .fixtures import database

SMALL, LARGE = 42_000, 84_000  # half of either is more than a search looks at
_READ = """
    SELECT (SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables)
         + (SELECT sum(coalesce(idx_tup_read, 0)) FROM pg_stat_user_indexes)
"""
_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def urls(server_url: str) -> Iterator[dict[int, str]]:
    """A store of each size, in a database of its own."""
    found = {size: database(server_url, f"rows_{size}") for size in (SMALL, LARGE)}
    for size, url in found.items():
        with Router(url) as router:
            router.counts()  # the first verb makes the tables
        fill_postgres(url, size, share=2)
    yield found
    with psycopg.connect(server_url, autocommit=True) as admin:
        for url in found.values():
            name = sql.Identifier(urlsplit(url).path.strip("/"))
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def rows_read(url: str, ask: Any, size: int) -> int:
    """Return how many rows and index entries the answer takes: a session that ends reports what it has read."""
    with psycopg.connect(url, autocommit=True) as watching:

        def total() -> int:
            until(lambda: watching.execute(_OTHERS).fetchone() == (0,), "the end of the other sessions")
            watching.execute("SELECT pg_stat_clear_snapshot()")
            [(read,)] = watching.execute(_READ).fetchall()
            return int(read)

        before = total()
        with Router(url) as router:
            assert ask(router, Views(router), size) is not None
        return total() - before


def scans(small: int, large: int) -> bool:
    """Whether so many rows look like a scan."""
    return large > small * 1.2 and large > LARGE / 2


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_reads_no_more_rows_of_a_store_that_is_twice_as_large(urls: dict[int, str], name: str) -> None:
    """Or fewer than half of the jobs: how many run or have failed grows with them."""
    small, large = (rows_read(urls[size], QUESTIONS[name], size) for size in (SMALL, LARGE))

    assert not scans(small, large), (small, large)


def test_a_question_that_reads_all_jobs_would_be_noticed(urls: dict[int, str]) -> None:
    """Such as `jobs` without a limit."""
    small, large = (rows_read(urls[size], lambda router, *_: router.jobs(limit=None), size) for size in (SMALL, LARGE))

    assert scans(small, large), (small, large)
