"""Runs the real command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "leasehold"]
TOP = Path(__file__).parents[2]


def leasehold(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `leasehold ARGUMENTS` to its end."""
    return run([*COMMAND, *arguments], cwd)


def run(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run *command* with the package of this checkout, wherever it is run."""
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def in_the_foreground(*arguments: str) -> subprocess.Popen[str]:
    """Start `leasehold ARGUMENTS` as the leader of a group, as a terminal does, so that Ctrl-C reaches all of it."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    """The environment of a command: this checkout first, and a terminal that is the same everywhere."""
    return {**os.environ, "PYTHONPATH": str(TOP / "src"), "COLUMNS": "100", "TERM": "xterm"}
