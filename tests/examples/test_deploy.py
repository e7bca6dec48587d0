"""The files of examples/deploy: what can be checked without root, registry or cluster, and their commands for real."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.command import COMMAND, TOP, environment, run
from tests.cli.working import Working
from tests.patience import PATIENCE_SECONDS
from tests.support import until

import leasehold
from leasehold import Router

FOLDER = TOP / "examples" / "deploy"
GRACE_SECONDS = 25  # of a worker, unless --grace-seconds says otherwise
AFTERWARDS_SECONDS = 10  # for clean-up and the last settlements, as the page says


def unit() -> configparser.ConfigParser:
    """The systemd unit. No key occurs twice in a section of this one, so a reader of INI files will do."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keep the case
    parser.read(FOLDER / "leasehold-worker.service")
    return parser


def instruction(name: str) -> list[str]:
    """The list behind CMD in a line of the Dockerfile that begins with *name*."""
    [line] = re.findall(rf"^{name}\b.*$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    command: list[str] = json.loads(line[line.index("[") :])
    return command


def compose() -> dict[str, Any]:
    """The Compose file."""
    read: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return read


def deployment() -> dict[str, Any]:
    """The Deployment."""
    [read] = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    assert isinstance(read, dict)
    return read


def container() -> dict[str, Any]:
    """The only container of the Deployment."""
    [one] = deployment()["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def commands() -> dict[str, list[str]]:
    """How each file starts the worker."""
    return {
        "systemd": shlex.split(unit()["Service"]["ExecStart"]),
        "docker": instruction("CMD"),
        "kubernetes": container()["args"],
    }


def here(arguments: list[str], folder: Path) -> list[str]:
    """The same arguments with the folders and the port of a test."""
    instead = {"8080": "0", "0.0.0.0": "127.0.0.1"}
    moved = [re.sub("^(/run/leasehold-worker|/tmp)/", f"{folder}/", word) for word in arguments]
    return [instead.get(word, word) for word in moved]


def is_healthy(kind: str, working: Working, folder: Path) -> bool:
    """Ask as the file asks."""
    if kind != "kubernetes":
        check = here(instruction("HEALTHCHECK"), folder)
        return run([*COMMAND, *check[1:]]).returncode == 0
    path = container()["livenessProbe"]["httpGet"]["path"]
    working.says("health is at ")
    [address] = re.findall(r"health is at (http://127.0.0.1:\d+)/", working.said)
    try:
        with urllib.request.urlopen(address + path, timeout=PATIENCE_SECONDS) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError as reply:
        reply.close()
        return False


@pytest.mark.parametrize("kind", commands())
def test_each_command_runs_jobs_is_healthy_and_stops_at_sigterm(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the application beside it, on the store that the environment names."""
    program, verb, *arguments = commands()[kind]
    assert (Path(program).name, verb) == ("leasehold", "worker")
    shutil.copy(FOLDER / "app.py", tmp_path)
    url = f"sqlite:///{tmp_path}/named.db"
    monkeypatch.setenv("LEASEHOLD_STORE", url)

    with Router(url) as router, Working(tmp_path, *here(arguments, tmp_path), app=None) as working:
        added = router.add(None, {"to": "ann"}, task="send_mail", queue="mail")
        until(lambda: router.job(added.id).finished_at or working.process.poll() is not None, "the job")
        assert router.job(added.id).result == "sent to ann", working.said
        until(lambda: is_healthy(kind, working, tmp_path), "a healthy worker")
        working.terminate()
        assert working.ends() == 0, working.said


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the command exists."""
    text = (FOLDER / "leasehold-worker.service").read_text()
    command = tmp_path / "leasehold"  # a name without blanks, which the checkout's may have
    command.symlink_to(sys.executable)
    file = tmp_path / "leasehold-worker.service"
    file.write_text(text.replace("/srv/shop/.venv/bin/leasehold", str(command)))
    wrong = tmp_path / "wrong.service"
    wrong.write_text(file.read_text().replace("Restart=always", "Restart=sometimes"))

    def verify(unit: Path) -> str:
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
        shown = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return shown.stdout + shown.stderr

    assert verify(file) == ""
    assert "sometimes" in verify(wrong)


def test_the_deployment_fits_together() -> None:
    """Labels, ports and probes that name each other do exist, and only keys that a Deployment has are there."""
    whole, one = deployment(), container()
    spec = whole["spec"]
    [port] = one["ports"]

    assert (whole["apiVersion"], whole["kind"]) == ("apps/v1", "Deployment")
    assert set(whole) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(spec) == {"replicas", "selector", "template"}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert set(one) == {"name", "image", "args", "env", "ports", "startupProbe", "livenessProbe", "resources"}
    assert all(isinstance(word, str) for word in one["args"]), "a number here is refused by the API server"
    assert one["args"][one["args"].index("--health-port") + 1] == str(port["containerPort"])
    assert {one[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")} == {port["name"]}
    assert [variable["name"] for variable in one["env"]] == ["LEASEHOLD_STORE"]


def test_compose_starts_workers_once_the_database_is_there() -> None:
    """The worker waits for a service that has a health check, and the URL names that service and its password."""
    services = compose()["services"]
    worker, database = services["worker"], services["database"]
    given = database["environment"]

    assert worker["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert database["healthcheck"]["test"][0] == "CMD"
    assert worker["environment"]["LEASEHOLD_STORE"] == (
        f"postgresql://postgres:{given['POSTGRES_PASSWORD']}@database/{given['POSTGRES_DB']}"
    )
    assert {volume.partition(":")[0] for volume in database["volumes"]} == set(compose()["volumes"])


def test_all_of_them_wait_for_the_handlers_before_they_kill() -> None:
    """Longer than the worker's grace, with the time that it needs afterwards."""
    waits = [
        unit()["Service"]["TimeoutStopSec"],
        compose()["services"]["worker"]["stop_grace_period"].removesuffix("s"),
        deployment()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
    ]

    assert [int(seconds) for seconds in waits] == [GRACE_SECONDS + AFTERWARDS_SECONDS] * 3
    assert not any("--grace-seconds" in command for command in commands().values())


def test_the_image_has_what_the_worker_needs() -> None:
    """The extras of the command line and of the store that the other files use."""
    needed = (FOLDER / "requirements.txt").read_text().split()

    wheel = f"leasehold-{leasehold.__version__}-py3-none-any.whl"
    assert needed == [f"./{wheel}[cli,postgres]", "psycopg[binary]"]
    assert f"COPY requirements.txt {wheel} ./\n" in (FOLDER / "Dockerfile").read_text()


def test_the_page_shows_the_files_as_they_are() -> None:
    """Each line of a block is in the file that the link above it names, in its order; some may be left out."""
    page = (TOP / "docs/how-to/deploy.md").read_text()
    pattern = r"\]\(../../examples/deploy/([\w.-]+)\):\n\n```\w+\n(.*?)^```$"
    blocks = re.findall(pattern, page, re.MULTILINE | re.DOTALL)

    assert [name for name, _ in blocks] == ["leasehold-worker.service", "Dockerfile", "kubernetes.yaml"]
    for name, block in blocks:
        lines = iter([line.strip() for line in (FOLDER / name).read_text().splitlines()])
        assert [line for line in block.splitlines() if line.strip() not in lines] == []
