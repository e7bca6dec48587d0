"""`leasehold demo --store postgresql://…`: the same story, in a schema that is there only as long as it plays."""

from __future__ import annotations

import os
import re
import signal
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.cli.command import COMMAND, TOP, in_the_foreground, leasehold
from tests.cli.command import run as in_a_process
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, url_of

from leasehold import StaleEpoch, StoreUnavailable
from leasehold.cli.app import run
from leasehold.cli.demo import stage, story, venue
from leasehold.core.clock import SystemClock
from leasehold.lease import Lease


@pytest.fixture(scope="module")
def url() -> str:
    """A database on a server."""
    return url_of(NEWEST)


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that expire soon and work that takes no time: the same story, sooner."""
    monkeypatch.setattr(story, "SHORT_SECONDS", 0.05)
    monkeypatch.setattr(stage.Stage, "work", lambda stage, seconds: None)


def schemas(url: str) -> list[str]:
    """The schemas that demos have left in the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = r"select nspname from pg_namespace where nspname like 'leasehold\_demo%' order by 1"
        return [name for (name,) in connection.execute(query).fetchall()]


@pytest.mark.usefixtures("in_a_hurry")
def test_on_a_server_the_same_story_plays_and_nothing_is_left(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["demo", "--plain", "--store", url])

    shown, said = capsys.readouterr()
    assert (code, said) == (0, "")
    for line in (
        rf"Played in {re.escape(url)}, in the schema leasehold_demo_[0-9a-f]{{8}}, which is dropped afterwards\.",
        r"job-B +worker-1 +e\+2 +REFUSED complete: current is e\+4 \(worker-2\)",
        r"job-C +no owner +e\+6 +taken from worker-1: process gone \(recovery\)",
        r"job-D +worker-1 +e\+8 +REFUSED complete: current is e\+10 \(same name\)",
        r"job-E +worker-1 +e\+11 +REFUSED transaction: current is e\+13 \(worker-2\)",
        r"job-E +worker-1 +e\+11 +REFUSED add: current is e\+13 \(worker-2\)",
        r"job-F +agent-a +e\+14 +REFUSED progress: current is e\+15 \(agent-b\)",
        r"In demo_results, total = 42\.",
        r"\n5 stale writes were refused; none was accepted\.\n",
    ):
        assert re.search(line, shown), line
    assert schemas(url) == []


@pytest.mark.usefixtures("in_a_hurry")
def test_a_row_that_no_fence_has_stopped_fails_the_demo(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stale owner writes on a connection of its own, and the verdict reads its row."""
    put = story.RowResult._put

    def unfenced(result: story.RowResult, lease: Lease, total: int) -> None:
        try:
            put(result, lease, total)
        except StaleEpoch:
            with psycopg.connect(url) as connection:
                connection.execute(f"update {result._stage.venue.table} set total = {total}")
            raise

    monkeypatch.setattr(story.RowResult, "_put", unfenced)

    code = run(["demo", "--plain", "--store", url])

    assert code == 1
    assert "FAILED  job-E: the totals that were kept: expected [42], saw [41]" in capsys.readouterr().out
    assert schemas(url) == []


def test_ctrl_c_leaves_no_schema(url: str) -> None:
    with in_the_foreground("demo", "--store", url) as played:
        assert played.stdout is not None
        assert next(line for line in played.stdout if "job-B  worker-1  e+2   claims it" in line)
        [schema] = schemas(url)
        os.killpg(played.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground
        _, said = played.communicate(timeout=PATIENCE_SECONDS)

    assert (played.returncode, said.strip()) == (130, "leasehold: interrupted")
    assert schema.startswith("leasehold_demo_")
    assert schemas(url) == []


def test_a_schema_that_cannot_be_dropped_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody looks at its jobs in a transaction that stays open."""
    monkeypatch.setattr(venue, "LOCK_PATIENCE_MS", 10)
    played_in = venue.Venue.at(url)

    with psycopg.connect(url) as somebody:
        with (
            pytest.raises(
                StoreUnavailable,
                match=f"still exists.* drop it with: drop schema if exists {played_in.schema} cascade$",
            ),
            played_in.router(SystemClock(), 30),
        ):
            somebody.execute(f"select from {played_in.schema}.jobs")
        somebody.rollback()
        assert schemas(url) == [played_in.schema]
        somebody.execute(f"drop schema if exists {played_in.schema} cascade")  # as it says
    assert schemas(url) == []


def test_a_role_that_may_not_make_schemas_is_told_what_it_needs(url: str) -> None:
    role = f"demo_visitor_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'secret'")
        parts = urlsplit(url)
        visitor = urlunsplit(parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}"))
        try:
            played = leasehold("demo", "--store", visitor)
        finally:
            connection.execute(f"drop role {role}")

    assert (played.returncode, played.stdout) == (1, "")
    assert "the demo creates a schema of its own, and its role has no right to create one in" in played.stderr
    assert f" TO {role}`. Nothing was changed." in played.stderr
    assert "secret" not in played.stderr


def test_a_server_that_is_not_there_is_said_before_the_story_begins() -> None:
    played = leasehold("demo", "--store", "postgresql://me:secret@127.0.0.1:1/jobs")

    assert (played.returncode, played.stdout) == (7, "")
    assert played.stderr.startswith("leasehold: cannot connect to postgresql://me:…@127.0.0.1:1/jobs: ")
    assert "Is the server running, and is this its address?" in played.stderr


def test_a_url_that_means_nothing_is_a_usage_error() -> None:
    played = leasehold("demo", "--store", "postgresql://localhost/jobs?sslmod=require")

    assert (played.returncode, played.stdout) == (2, "")
    assert "is not a URL that PostgreSQL understands" in played.stderr
    assert "Did you mean 'sslmode'?" in played.stderr


def test_without_the_driver_the_demo_says_what_to_install() -> None:
    command = "import sys; sys.modules['psycopg'] = None; from leasehold.cli.app import run; sys.exit(run())"
    played = in_a_process([COMMAND[0], "-c", command, "demo", "--store", "postgresql://localhost/jobs"], TOP)

    assert (played.returncode, played.stdout) == (2, "")
    assert "pip install 'psycopg[binary]'" in played.stderr
