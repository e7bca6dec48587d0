"""How the scripts run the tests many times: what they print, how they end, and that they leave nothing running."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres.server import _runs, wait_until

TOP = Path(__file__).parents[1]
RUN = [sys.executable, "-P", str(TOP / "scripts" / "_run.py")]


def started(suite: Path, *options: str, pytest: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Run the tests in *suite* through the script; what it keeps is in that folder, too."""
    return subprocess.Popen(
        [*RUN, *options, "--", str(suite), *pytest],
        env={**os.environ, "TMPDIR": str(suite)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def offspring(pid: int) -> list[int]:
    """The processes that *pid* has started, and those that these have started."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            child, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [child, *offspring(child)]
    return found


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite of two tests: one passes, and the other when a file is there."""
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        f"def test_yes(): Path({str(tmp_path / 'ran')!r}).open('a').write('x')\n"
        f"def test_maybe(): assert Path({str(tmp_path / 'good')!r}).exists()\n"
    )
    return tmp_path


def test_a_run_is_a_line_and_all_of_them_a_summary(suite: Path) -> None:
    """Green is 0."""
    (suite / "good").touch()
    with started(suite, "--repeat", "2", "--load", "1", pytest=("-n", "0")) as running:
        said, _ = running.communicate()

    assert running.returncode == 0, said
    run = r"run {} of 2: green, 2 passed, \d+ s\n"
    assert re.fullmatch(
        run.format(1) + run.format(2) + r"2 runs beside 1 busy loops: 2 green, 0 red; \d+ to \d+ s\n", said
    )
    assert (suite / "ran").read_text() == "xx"
    assert list(suite.glob("leasehold-test-*")) == []


def test_a_red_run_names_its_tests_and_keeps_its_output(suite: Path) -> None:
    """Red is 1."""
    with started(suite, "--title", "Python 3", pytest=("-n", "0")) as running:
        said, _ = running.communicate()

    assert running.returncode == 1
    assert re.match(r"Python 3: RED, 1 failed, 1 passed, \d+ s\n    FAILED .*::test_maybe", said)
    output = Path(said.rpartition("the whole output: ")[2].strip())
    assert "test_maybe" in output.read_text()


@pytest.mark.parametrize(
    "how",
    [signal.SIGINT, *(pytest.param(how, marks=pytest.mark.soak) for how in (signal.SIGTERM, signal.SIGKILL))],
    ids=lambda how: how.name,
)
def test_nothing_is_left_running(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C goes to the group, as at a terminal; of a kill only the busy loops can learn."""
    (tmp_path / "test_it.py").write_text(
        "import threading\n"
        "from pathlib import Path\n"
        "def test_long():\n"
        f"    (begun := Path({str(tmp_path / 'begun')!r})).touch()\n"
        "    while begun.exists(): threading.Event().wait(0.05)\n"
    )
    with started(tmp_path, "--repeat", "3", "--load", "1", pytest=("-n", "1")) as running:
        wait_until((tmp_path / "begun").exists)
        others = offspring(running.pid)
        assert len(others) >= 3, "a loop, pytest and its worker"
        if how == signal.SIGINT:
            os.killpg(running.pid, how)
            # A worker of pytest ignores it, and is killed after ten seconds unless its test ends.
            (tmp_path / "begun").unlink()
        else:
            running.send_signal(how)
        if how == signal.SIGKILL:
            os.killpg(running.pid, how)  # pytest, too
        running.communicate()
        wait_until(lambda: not any(map(_runs, others)))

    assert running.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert how == signal.SIGKILL or list(tmp_path.glob("leasehold-test-*")) == []


def test_ctrl_c_is_tested_in_the_background_too() -> None:
    """There a shell has SIGINT ignored, which every process inherits; tests of Ctrl-C would wait for ever."""
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/worker/test_drain.py", "-k", "ctrl_c"]
    ran = subprocess.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *tests], cwd=TOP, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stdout


def test_a_run_without_a_test_says_that_none_matched() -> None:
    """It ends with pytest's own code, and no test has failed."""
    command = [str(TOP / "scripts" / "test"), "-n", "0", "tests/core/test_errors.py", "-k", "nothing_of_that_name"]
    ran = subprocess.run(command, capture_output=True, text=True)

    assert ran.returncode == 5, ran.stdout
    assert "no test matched: " in ran.stderr
    assert "-k nothing_of_that_name. See which there are" in ran.stderr
    assert "failed" not in ran.stderr


@pytest.mark.parametrize("script", ["test", "test-all"])
def test_the_scripts_explain_themselves(script: str) -> None:
    """Without installing anything first."""
    said = subprocess.run([str(TOP / "scripts" / script), "--help"], capture_output=True, text=True, check=True)

    assert said.stdout.startswith(f"Usage: ./scripts/{script}")
    assert "PYTEST-ARGUMENTS" in said.stdout


OLD = """#!/bin/sh
# As Python 3.10 answers what the scripts ask of it.
echo 3.10.13
exit 10
"""


def old_python(folder: Path) -> Path:
    """A Python below 3.11 of this machine, or a program that answers as one does."""
    found = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    for candidate in [
        *(Path(path) for path in found if path),
        *Path.home().glob(".pyenv/versions/3.[6-9]*/bin/python"),
    ]:
        version = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        if version.returncode == 0:  # a version manager's placeholder is on the PATH and fails when it is run
            return candidate
    stand_in = folder / "python"
    stand_in.write_text(OLD)
    stand_in.chmod(0o755)
    return stand_in


@pytest.mark.parametrize("script", ["demo", "docs", "test"])
def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path, script: str) -> None:
    """In a fresh checkout. Nothing is made, and the message ends with what to do."""
    shutil.copytree(TOP / "scripts", tmp_path / "checkout" / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOP / "pyproject.toml", tmp_path / "checkout")
    python = old_python(tmp_path)
    command = [str(tmp_path / "checkout" / "scripts" / script)]
    ran = subprocess.run(command, env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True)

    assert ran.returncode == 1
    assert re.fullmatch(
        rf"leasehold: needs Python 3\.11 or newer, but {re.escape(str(python))} is 3\.(?:[6-9]|10)\.\d+ \(too old\): "
        r"install one \(Debian, Ubuntu: apt install python3 python3-venv\), or name another Python with "
        r"PYTHON=/path/to/python3\.\n",
        ran.stderr,
    )
    assert not (tmp_path / "checkout" / ".venv").exists()


def test_coverage_counts_the_processes_that_tests_start(tmp_path: Path) -> None:
    """With the settings of pyproject.toml: this program imports nothing of leasehold, and its child adds a job."""
    child = "from leasehold import Router; Router().add('a')"
    (tmp_path / "parent.py").write_text(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    data = tmp_path / "data"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    settings = [f"--rcfile={TOP / 'pyproject.toml'}", f"--data-file={data}"]

    def coverage(command: str, *arguments: str) -> str:
        line = [sys.executable, "-P", "-m", "coverage", command, *settings, *arguments]
        return subprocess.run(line, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True).stdout

    coverage("run", "parent.py")
    coverage("combine", "--quiet")
    files = json.loads(coverage("json", "--quiet", "-o", "-"))["files"]
    (front,) = (found for name, found in files.items() if name.endswith("router/front.py"))
    assert "Router.add" in front["functions"]
    assert front["functions"]["Router.add"]["summary"]["percent_covered"] > 0
