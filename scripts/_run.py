"""
Runs pytest and prints what came of it in one line, as often as asked. For scripts/test and scripts/test-all.

    _run.py [--title TEXT] [--repeat N] [--load N] -- PYTEST-ARGUMENTS

Ends with 0 if every run was green, with 1 if one was red, with 130 after Ctrl-C. The output of a red run is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

# A busy loop. It ends with whoever started it, even if that was killed: the pipe is closed then, and the read returns.
_SPIN = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
_ENDING_SECONDS = 60  # that pytest has to end its servers and workers when it is told to stop


class Ran(NamedTuple):
    """What came of one run."""

    is_green: bool
    counts: str
    seconds: float
    failed: list[str]
    output: Path

    def line(self, title: str) -> str:
        """Say it in one line."""
        return f"{title}: {'green' if self.is_green else 'RED'}, {self.counts}, {self.seconds:.0f} s"


def main(arguments: list[str]) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/test", allow_abbrev=False)
    parser.add_argument("--title", default="", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=_count, default=1, metavar="N", help="run the tests so many times")
    parser.add_argument("--load", type=_count, default=0, metavar="N", help="beside so many busy loops")
    parser.add_argument("pytest", nargs="*")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also as a background job, which ignores it
    kept = Path(tempfile.mkdtemp(prefix="leasehold-test-"))
    runs: list[Ran] = []
    try:
        with _busy(asked.load):
            for number in range(1, asked.repeat + 1):
                title = asked.title or f"run {number} of {asked.repeat}"
                runs.append(_run(asked.pytest, kept / f"{number}.txt"))
                _report(runs[-1], title)
    except KeyboardInterrupt:
        return 130
    finally:
        if len(runs) > 1:
            print(_summary(runs, asked.load), flush=True)
        if not any(kept.iterdir()):
            kept.rmdir()
    return 0 if all(ran.is_green for ran in runs) else 1


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs or loops")
    return int(text)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _report(ran: Ran, title: str) -> None:
    print(ran.line(title), flush=True)
    if ran.is_green:
        ran.output.unlink()
    else:
        for line in ran.failed:
            print(f"    {line}")
        print(f"    the whole output: {ran.output}", flush=True)


def _summary(runs: list[Ran], load: int) -> str:
    red = sum(not ran.is_green for ran in runs)
    seconds = [ran.seconds for ran in runs]
    beside = f" beside {load} busy loops" if load else ""
    return f"{len(runs)} runs{beside}: {len(runs) - red} green, {red} red; {min(seconds):.0f} to {max(seconds):.0f} s"


def _run(arguments: list[str], output: Path) -> Ran:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-rfE", *arguments]
    began = time.monotonic()
    with output.open("w") as file:
        # In this process group, so that Ctrl-C reaches pytest and its workers as well.
        tests = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            code = tests.wait()
        except BaseException:
            _end(tests)
            output.unlink()
            raise
    text = output.read_text(errors="replace")
    counts = re.findall(r"^=* ?((?:\d+ [a-z ]+, )*\d+ [a-z ]+) in [\d.]+s", text, re.MULTILINE)
    return Ran(
        is_green=code == 0,
        counts=counts[-1] if counts else f"pytest ended with {code}",
        seconds=time.monotonic() - began,
        failed=re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE),
        output=output,
    )


def _end(tests: subprocess.Popen[bytes]) -> None:
    """Let pytest end in order; after a second Ctrl-C, or if it takes too long, end it as it is."""
    try:
        tests.send_signal(signal.SIGINT)
        tests.wait(_ENDING_SECONDS)
    finally:
        tests.kill()
        tests.wait()


@contextmanager
def _busy(count: int) -> Iterator[None]:
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            # In a session of its own, so that Ctrl-C does not print a traceback for each.
            spin = [sys.executable, "-I", "-S", "-c", _SPIN]
            loops.append(subprocess.Popen(spin, stdin=subprocess.PIPE, start_new_session=True))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
            assert loop.stdin is not None
            loop.stdin.close()


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main(sys.argv[1:]))
