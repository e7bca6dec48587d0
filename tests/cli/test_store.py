"""`leasehold store check` and `leasehold store advance`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.cli.command import leasehold
from tests.postgres.fixtures import NEWEST, Place, url_of

from leasehold import NewJob, Router
from leasehold.cli.app import run
from leasehold.stores.memory import MemoryStore


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one job done, one running and one pending."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add_many([{"id": name, "queue": "mail"} for name in ("a", "b", "c")])
        first = router.claim("worker-0")
        assert first is not None
        first.complete()
        assert router.claim("worker-0") is not None
    return url


def test_a_sound_store_is_counted_and_passes(url: str) -> None:
    shown = leasehold("store", "check", url)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "jobs: 1 pending, 1 running, 1 done, 0 failed, 0 cancelled",
        "queue mail: 1 pending, 1 running",
        "Every invariant holds.",
    ]


def test_a_check_can_be_read_by_programs(url: str) -> None:
    shown = leasehold("store", "check", url, "--json")

    assert shown.returncode == 0
    assert json.loads(shown.stdout) == {
        "url": url,
        "ok": True,
        "broken": [],
        "counts": {"pending": 1, "running": 1, "done": 1, "failed": 0, "cancelled": 0},
        "queues": {"mail": {"pending": 1, "running": 1}},
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_every_broken_invariant_is_a_line_and_the_check_fails(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["job 'a' is in two places.", "lock 'k' is held by 2 running jobs."]
    store = MemoryStore()
    monkeypatch.setattr(store, "verify", lambda: broken)
    router = Router()
    monkeypatch.setattr(router._adder, "store", store)
    monkeypatch.setattr("leasehold.cli.target.open_existing", lambda url, schema: router)

    code = run(["store", "check", "sqlite:///jobs.db", *(["--json"] if as_json else [])])

    shown = capsys.readouterr().out
    assert code == 1
    if as_json:
        assert json.loads(shown)["broken"] == broken
    else:
        assert [line for line in shown.splitlines() if line.startswith("broken: ")] == [
            f"broken: {it}" for it in broken
        ]
        assert shown.endswith("2 invariants are broken.\n")


def test_advance_prints_a_new_epoch_above_the_one_it_is_given(url: str) -> None:
    plain = leasehold("store", "advance", url)
    mark = int(plain.stdout.split()[3]) + 10**9
    above = leasehold("store", "advance", url, "--above", str(mark), "--json")

    assert plain.returncode == above.returncode == 0
    assert plain.stdout.startswith("advanced to epoch 1")
    assert "Every epoch issued from now on is greater" in plain.stdout
    assert json.loads(above.stdout)["epoch"] > mark
    with Router(url) as router:
        lease = router.claim("worker-1")
        assert lease is not None
        assert lease.epoch > json.loads(above.stdout)["epoch"]


@pytest.mark.parametrize("verb", ["check", "advance"])
def test_a_store_that_is_not_there_is_not_made(verb: str, tmp_path: Path) -> None:
    shown = leasehold("store", verb, "sqlite:///missing.db", cwd=tmp_path)

    assert (shown.returncode, shown.stdout) == (7, "")
    assert (
        "missing.db', which does not exist. Check the path, or create a store there: `leasehold store migrate URL`"
        in shown.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "mysql://host/db"], "'mysql://…' is not the URL of a store"),
        (["check", "memory:"], "a memory store exists only in the process that made it"),
        (["check", "sqlite:///x.db?colour=red"], "'colour' is not a setting of this store"),
        (["advance", "sqlite:///x.db", "--above", "-1"], "--above -1 cannot be an epoch"),
        (["migrate", "sqlite:///x.db", "--wait-seconds", "nan"], "wait_seconds must be a finite number"),
        (["migrate", "postgresql://host/x", "--wait-seconds", "inf"], "wait_seconds must be a finite number"),
        (["migrate", "postgresql://host/x", "--wait-seconds", "-1"], "wait_seconds must be zero or more, not -1.0"),
        (["advance", "sqlite:///x.db", "--above", "17947764000000070"], "years in the future"),
    ],
)
def test_a_wrong_argument_is_one_line_and_a_usage_error(arguments: list[str], said: str) -> None:
    shown = leasehold("store", *arguments)

    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("leasehold: ")
    assert said in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_missing_url_is_a_usage_error() -> None:
    shown = leasehold("store", "check")

    assert shown.returncode == 2
    assert "no store is named: pass --store URL, set LEASEHOLD_STORE" in shown.stderr


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_stats_show_how_large_a_store_is(store: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The jobs by status, and each table; what is estimated is marked so."""
    place = None
    if store == "postgres":
        place = Place(url_of(NEWEST))
        made = place.store(untouched=True)  # its statistics count no row yet
        made.add([NewJob("a", "null")])
        url, schema = made.database.url, made.database.schema
    else:
        schema = "leasehold"
    try:
        assert run(["store", "stats", url, "--schema", schema, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["store", "stats", "--store", url, "--schema", schema]) == 0
        shown = capsys.readouterr().out
    finally:
        if place is not None:
            place.clear()
    tables = {one["name"]: one for one in found["tables"]}
    assert found["bytes"] > 10_000
    assert sum(found["jobs"].values()) == (1 if store == "postgres" else 3)
    assert {"jobs", "events", "ownerships", "store"} <= tables.keys()
    assert [tables["jobs"][name] for name in ("exact", "rows")] == [store == "sqlite", 3 if store == "sqlite" else 0]
    assert ("PostgreSQL " if store == "postgres" else "SQLite ") in shown
    assert ("~" in shown, "DEAD ROWS" in shown) == (store == "postgres",) * 2


def test_a_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all, but long enough to be looked at as one " * 20)

    shown = leasehold("store", "check", "sqlite:///notes.txt", cwd=tmp_path)

    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("leasehold: ")
    assert shown.stderr.count("\n") == 1


def test_a_database_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table other (id integer)")
    connection.close()

    shown = leasehold("store", "check", "sqlite:///other.db", cwd=tmp_path)

    assert shown.returncode == 7
    assert "holds no store" in shown.stderr
    with sqlite3.connect(tmp_path / "other.db") as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("other",)]
    connection.close()


def test_json_has_a_url_as_it_was_given(tmp_path: Path) -> None:
    """Not every character of a file's name is ASCII, and a JSON text takes them all."""
    for verb in ("migrate", "advance", "check"):
        shown = leasehold("store", verb, "sqlite:///Aufträge.db", "--json", cwd=tmp_path)

        assert '"sqlite:///Aufträge.db"' in shown.stdout


def test_what_sqlite_can_index_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its index is of one key, so the command says how to make it."""
    assert run(["store", "index-meta", url]) == 2

    said = capsys.readouterr().err
    assert "SQLite cannot index a whole JSON object" in said
    assert "json_extract(meta, '$.tenant')" in said
