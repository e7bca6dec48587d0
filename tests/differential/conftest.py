"""What every test of this folder may ask for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.postgres.fixtures import Place, place, server_url

from leasehold import Router

from .libraries import BUSY_SECONDS, Database
from .stages import Stage, with_task

__all__ = ["place", "server_url", "postgres", "sqlite"]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Stage]:
    """A store in a SQLite file, and a table of the caller's own."""
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("create table results (prefix text, what text)")

        def rows(prefix: str) -> list[str]:
            found = reader.execute("select what from results where prefix = ? order by what", [prefix])
            return [what for (what,) in found.fetchall()]

        url = f"sqlite:///{path}?busy_seconds={BUSY_SECONDS}&synchronous=normal"
        with Router(url, lease_seconds=3600) as router:
            yield Stage(with_task(router), Database(path, is_sqlite=True), rows)
            assert router.verify() == []


@pytest.fixture
def postgres(place: Place) -> Iterator[Stage]:
    """A store in a PostgreSQL schema, and a table of the caller's own."""
    store = place.store()
    with place.connect(store, autocommit=True) as reader:
        reader.execute("create table results (prefix text, what text)")

        def rows(prefix: str) -> list[str]:
            found = reader.execute("select what from results where prefix = %s order by what", [prefix])
            return [str(what) for (what,) in found.fetchall()]

        with Router(store.database.url, schema=store.database.schema, lease_seconds=3600) as router:
            yield Stage(with_task(router), Database(store.database.url, is_sqlite=False), rows)
            assert router.verify() == []
