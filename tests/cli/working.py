"""Runs `leasehold worker` in a folder of its own, with real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.cli.command import COMMAND, environment
from tests.patience import PATIENCE_SECONDS
from tests.support import until

APP = '''
import pathlib, threading, time
from leasehold import Router, current_lease

router = Router("sqlite:///jobs.db?busy_seconds=0.1", trace=True)

@router.task
def greet(name: str) -> str:
    return f"Hello {name}"

@router.task
def gated(gate: str) -> None:
    """Runs until the file GATE is there."""
    pathlib.Path("begun-" + current_lease().job_id).touch()
    while not pathlib.Path(gate).exists():
        time.sleep(0.02)
'''


def begun(folder: Path) -> int:
    """Return how many jobs have begun: claimed is less, since what has not begun goes back at once."""
    return len(list(folder.glob("begun-*")))


class Working:
    """The command as a process. What it writes is in files, so that nobody need read along."""

    def __init__(self, folder: Path, *arguments: str, app: str | None = APP, stderr: int | None = None) -> None:
        if app is not None:
            (folder / "app.py").write_text(app)
        self._err, self._out = folder / "stderr.txt", folder / "stdout.txt"
        with self._err.open("w") as err, self._out.open("w") as out:
            errors: IO[str] | int = err if stderr is None else stderr
            self.process = subprocess.Popen(
                [*COMMAND, "worker", *arguments], cwd=folder, env=environment(), stdout=out, stderr=errors
            )

    def __enter__(self) -> Working:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.pids():  # those of a supervisor; a test that fails leaves none of them behind either
            with suppress(OSError):
                if b"--supervised-by" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """The processes that it has started so far."""
        return [int(pid) for pid in re.findall(r"process \d+ started, pid (\d+)", self.said)]

    @property
    def said(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text()

    def says(self, words: str) -> None:
        """Wait until it has said *words*."""
        until(lambda: words in self.said or self.process.poll() is not None, words)
        assert words in self.said, self.said

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def ends(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(PATIENCE_SECONDS)
