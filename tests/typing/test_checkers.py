"""Type checkers refuse a wrong call of a task, accept the right ones, and know what comes out."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOP = HERE.parents[1]
EXPECTED = {
    number for number, line in enumerate((HERE / "tasks.py").read_text().splitlines(), 1) if line.endswith("# error")
}


def run(checker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker; where it is not installed, fail in CI and skip the test elsewhere."""
    if importlib.util.find_spec(checker) is None:
        reason = f"{checker} is not installed: pip install -e '.[dev]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # about a newer version of itself
    command = [sys.executable, "-m", checker, *arguments]
    return subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)


def test_mypy_refuses_exactly_the_wrong_calls() -> None:
    """Strictly: an ignore that ignores nothing is an error too."""
    ran = run("mypy", str(HERE / "tasks.py"))

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_pyright_refuses_exactly_the_wrong_calls() -> None:
    """Strictly, and with no regard for mypy's ignores."""
    ran = run("pyright", "--outputjson", "--project", str(HERE / "pyright.json"), "--pythonpath", sys.executable)

    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, ran.stdout + ran.stderr
    assert {each["range"]["start"]["line"] + 1 for each in found["generalDiagnostics"]} == EXPECTED


def test_there_are_wrong_calls_to_refuse() -> None:
    """Each of them ignored by mypy, with its code."""
    lines = (HERE / "tasks.py").read_text().splitlines()

    assert len(EXPECTED) > 20
    assert {number for number, line in enumerate(lines, 1) if "type: ignore[" in line} == EXPECTED
