"""Probes: a worker is alive if it consumes, and not merely because its process is there."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.command import leasehold
from tests.cli.test_worker import held
from tests.cli.working import APP, Working, begun
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Router
from leasehold.cli.app import run
from leasehold.cli.health import HealthFile, HealthServer, Pulse

HANGING = APP + (
    "@router.task(run_seconds=0.05)\ndef hang() -> None:\n"
    "    while not pathlib.Path('gate').exists():\n        time.sleep(0.02)\n"
)


def health(working: Working, path: str = "/") -> tuple[int, dict[str, Any]]:
    """Ask the worker."""
    working.says("health is at ")
    [address] = re.findall(r"health is at (http://127.0.0.1:\d+)/", working.said)
    try:
        with urllib.request.urlopen(address + path, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, json.load(answer) if answer.code == 503 else {}


def why(working: Working) -> str:
    code, said = health(working)
    assert code == (200 if said["consuming"] else 503)
    assert said["consuming"] == (said["why"] == "")
    return str(said["why"])


def test_every_slot_hangs_and_then_not(tmp_path: Path, router: Router) -> None:
    """The process is well, and its handlers hold every slot although they should have ended long ago."""
    arguments = ["app", "--health-port", "0", "--health-file", "alive", "--concurrency", "2"]
    with Working(tmp_path, *arguments, app=HANGING) as working:
        until(lambda: health(working)[0] == 200)
        until((tmp_path / "alive").exists)
        assert run(["worker-health", str(tmp_path / "alive")]) == 0
        for _ in range(2):
            router.add(None, {}, task="hang")

        until(lambda: why(working) == "every slot is held by a handler that cannot be stopped")
        (tmp_path / "alive").unlink()
        code, said = health(working, "/?again")
        assert (code, said["running"], said["free"]) == (503, 0, 0)
        assert health(working, "/metrics")[0] == 404

        (tmp_path / "gate").touch()
        until(lambda: why(working) == "")
        until((tmp_path / "alive").exists)
        working.terminate()
        assert working.ends() == 0, working.said
    assert not (tmp_path / "alive").exists(), "it is removed at the end"


def test_the_store_does_not_take_settlements(tmp_path: Path, router: Router) -> None:
    router.add(None, {"gate": "gate"}, task="gated")
    with Working(tmp_path, "app", "--health-port", "0", "--processes", "2") as working:
        until(lambda: health(working)[0] == 200)
        until(lambda: begun(tmp_path) == 1)
        with held(tmp_path / "jobs.db"):
            (tmp_path / "gate").touch()

            until(lambda: "the store does not accept its settlements" in why(working))
        until(lambda: why(working) == "")
        working.terminate()
        assert working.ends() == 0, working.said
    assert router.counts().done == 1


def idle() -> Pulse:
    return Pulse(False, "no claim yet", None, 0, 0, {})


def test_a_port_that_is_taken_and_a_file_that_cannot_be_are_refused_at_the_start(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            click.ClickException, match=f"cannot listen on 127.0.0.1:{port}: .*--health-port"
        ) as refusal:
            HealthServer("127.0.0.1", port, idle)
    assert refusal.value.exit_code == 1, "it may be free the next time"

    with pytest.raises(click.BadParameter, match="the folder of"):
        HealthFile(str(tmp_path / "no" / "alive"), idle)
    with pytest.raises(click.BadParameter, match="cannot write"):
        HealthFile(str(tmp_path), idle)


def test_what_a_killed_worker_has_left_says_nothing_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "alive").touch()

    with HealthFile(str(tmp_path / "alive"), idle):
        assert not (tmp_path / "alive").exists()


def test_a_probe_with_a_file_is_told_by_its_age(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alive = tmp_path / "alive"
    assert run(["worker-health", str(alive)]) == 1
    assert (
        capsys.readouterr().out == f"unhealthy: the file {alive} does not exist, so no healthy worker has written it\n"
    )

    alive.touch()
    assert run(["worker-health", str(alive)]) == 0
    assert capsys.readouterr().out == "healthy\n"

    os.utime(alive, (1_000_000, 1_000_000))
    assert run(["worker-health", str(alive), "--max-age-seconds", "3600"]) == 1
    assert "unhealthy: " in capsys.readouterr().out


def test_a_port_that_is_taken_is_one_line_of_leasehold(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        shown = leasehold("worker", "app", "--health-port", str(taken.getsockname()[1]), cwd=tmp_path)

    assert shown.returncode == 1
    assert "leasehold: cannot listen on 127.0.0.1:" in shown.stderr
    assert "Error" not in shown.stderr
