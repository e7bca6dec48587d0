"""Real processes on one file: how the tests start them, stop them, wait for them and read what they logged."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")

HERE = Path(__file__).parent


def start(program: str, *arguments: object, errors: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program that lies beside the tests, with this checkout's package."""
    top = HERE.parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top / "src"), str(top)])}
    with open(errors or os.devnull, "ab") as stderr:
        return subprocess.Popen(
            [sys.executable, str(HERE / program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `hear` can see whether there is something to read
            stderr=stderr if errors else None,
            env=environment,
        )


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    """Send one line to *process*."""
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes]) -> str:
    """Wait for the next line of *process*."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 2 * PATIENCE_SECONDS)
    assert ready, "the process says nothing"
    line = process.stdout.readline().decode().strip()
    assert line, f"the process ended with {process.wait(PATIENCE_SECONDS)} instead of an answer"
    return line


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* if it has not ended, and let go of its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a signal has stopped *process*."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    return found is not None and found.si_status != 0


class Line(NamedTuple):
    """What a process logged: it called at *began*, and knew the answer at *ended*, in nanoseconds."""

    kind: str
    began: int
    ended: int
    job_id: str
    epoch: int
    lock: str


class Log:
    """A file to which one process appends, each line by one write, so that a kill cannot tear it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, kind: str, began: int, job_id: str, epoch: int, lock: str | None = None) -> None:
        """Append one line."""
        line = f"{kind} {began} {time.monotonic_ns()} {job_id} {epoch} {lock or '-'}\n"
        os.write(self._file, line.encode())


def read_log(path: Path) -> list[Line]:
    """Return every line of one log."""
    lines = []
    for text in path.read_text().splitlines():
        kind, began, ended, job_id, epoch, lock = text.split(" ")
        lines.append(Line(kind, int(began), int(ended), job_id, int(epoch), lock))
    return lines


def logged(folder: Path) -> list[Line]:
    """Return every line of every log in *folder*."""
    return [line for path in sorted(folder.glob("*.log")) for line in read_log(path)]
