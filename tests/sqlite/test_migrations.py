"""
A file of an earlier version is not changed silently: somebody says so, while nobody uses it.

The next version is made here: one more migration than there is.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import leasehold.stores.sqlite.database as module
from leasehold import Router, StoreIncompatible, StoreUnavailable
from leasehold.cli.app import run
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.programs import Migration, migrations

NOW = migrations("leasehold")[-1].version
STEP = f"{NOW + 1:04}_tag_jobs"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a job in it, of this version."""
    with Router(f"sqlite:///{tmp_path / 'jobs.db'}") as router:
        router.add("a", {"x": 1})
    return tmp_path / "jobs.db"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    """The URL of the file, in a leasehold that has one more migration."""

    def steps(schema: str) -> list[Migration]:
        return [
            *migrations(schema),
            Migration(NOW + 1, "tag_jobs", [f"ALTER TABLE {schema}_jobs ADD COLUMN tag TEXT"]),
        ]

    monkeypatch.setattr(module, "migrations", steps)
    return f"sqlite:///{path}"


def dump(path: Path) -> list[str]:
    """All that is in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_an_older_file_is_left_as_it_is_and_says_what_to_do(path: Path, newer: str) -> None:
    """By every kind of verb, also inside a caller's transaction."""
    before = dump(path)
    message = rf"has version {NOW}, and this leasehold needs version {NOW + 1}: .*`leasehold store migrate URL`"

    with Router(newer) as router, closing(sqlite3.connect(path)) as connection:
        for call in (
            lambda: router.add("b"),
            lambda: router.claim("worker"),
            lambda: router.job("a"),
            lambda: router.add("b", connection=connection),
        ):
            with pytest.raises(StoreIncompatible, match=message):
                call()
        connection.rollback()

    assert dump(path) == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_from_before_the_first_release_is_refused_with_what_to_do(path: Path, version: int) -> None:
    """No migration begins there, so `store migrate` says the same."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"update leasehold_store set schema_version = {version}")
    before = dump(path)
    message = rf"has version {version}, from before the first release of leasehold \(version 3\), .*: use a new file"

    with Router(f"sqlite:///{path}") as router:
        with pytest.raises(StoreIncompatible, match=message):
            router.add("b")
        with pytest.raises(StoreIncompatible, match=message):
            router.store.migrate()  # type: ignore[attr-defined]  # a store that keeps a schema

    assert dump(path) == before


def test_it_is_migrated_when_somebody_says_so(path: Path, newer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After a dry run that changes nothing; a second time there is nothing to do."""
    before = dump(path)

    assert run(["store", "migrate", newer, "--dry-run", "--json"]) == 0
    would = json.loads(capsys.readouterr().out)
    assert would == {"url": newer, "from": NOW, "to": NOW + 1, "steps": [STEP], "dry_run": True}
    assert dump(path) == before

    assert run(["store", "migrate", newer]) == 0
    assert capsys.readouterr() == (
        f"ran {STEP}\nThe schema was migrated from version {NOW} to version {NOW + 1}.\n",
        "",
    )
    assert run(["store", "migrate", newer]) == 0
    assert capsys.readouterr().out == f"The schema is already at version {NOW + 1}; there is nothing to do.\n"
    with Router(newer) as router:
        assert router.job("a").payload == {"x": 1}
        assert router.claim("worker") is not None
        assert router.verify() == []


def test_a_file_that_is_in_use_is_not_migrated(path: Path, newer: str) -> None:
    """Who has it open has looked at its version, and would go on with the statements that it knows."""
    before = dump(path)
    with closing(sqlite3.connect(path)) as user, Router(f"{newer}?busy_seconds=0.1") as router:
        user.execute("select * from leasehold_store").fetchall()
        assert isinstance(router.store, SqliteStore)

        in_use = r"is in use by another process.*Stop that process.*Nothing was changed"
        with pytest.raises(StoreUnavailable, match=in_use):
            router.store.migrate()

        assert dump(path) == before
        user.close()
        assert router.store.migrate().steps == [STEP]


def test_a_file_that_is_not_there_is_made_but_not_by_a_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So a deployment may begin with it."""
    url = f"sqlite:///{tmp_path / 'new.db'}"

    assert run(["store", "migrate", url, "--dry-run"]) == 0
    assert f"The schema did not exist: it would be created, at version {NOW}." in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert run(["store", "migrate", url]) == 0
    assert f"The schema did not exist: it was created, at version {NOW}." in capsys.readouterr().out
    assert run(["store", "check", url]) == 0


def test_a_memory_store_has_no_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a usage error."""
    assert run(["store", "migrate", "memory:"]) == 2
    assert "a memory store has no schema" in capsys.readouterr().err
