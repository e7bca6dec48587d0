"""The command line of the hunt."""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from ...core.clock import patience
from ...errors import LeaseholdError
from .run import COUNTED, PROCESSES, THREADS, Evidence, Result, as_json, hunt

_SHOWN_EVERY = 5.0  # seconds, on a terminal; a log gets a line a minute


def main(argv: Sequence[str] | None = None) -> int:
    """Hunt as the command line says; return 0 if nothing was found, 1 if something was, 2 if it could not begin."""
    parser = argparse.ArgumentParser(
        prog="python -m leasehold.testing.hunt",
        description="Hunt for races in a store: random owners, takeovers and fenced transactions, checked by a judge.",
        epilog="It works in its own schemas, and drops them unless something was found. Ctrl-C stops it cleanly.",
    )
    parser.add_argument("url", help="postgresql://host/database or sqlite:///scratch.db")
    parser.add_argument("--minutes", type=float, required=True, metavar="N", help="how long to hunt")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="P", help=f"default {PROCESSES}")
    parser.add_argument("--threads", type=int, default=THREADS, metavar="T", help=f"of each process; default {THREADS}")
    parser.add_argument("--seed", type=int, metavar="S", help="the seed of an earlier hunt, to repeat its choices")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    options = parser.parse_args(argv)
    if not 0 < options.minutes < math.inf:
        parser.error(f"--minutes must be more than 0, and finite, not {options.minutes:g}")
    logging.getLogger("leasehold").addHandler(logging.NullHandler())
    stop = threading.Event()
    before = {number: signal.signal(number, _setting(stop)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = hunt(
            options.url,
            seconds=options.minutes * 60,
            processes=options.processes,
            threads=options.threads,
            seed=options.seed,
            progress=_Shown(),
            stop=stop,
        )
    except LeaseholdError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.stdout.write(f"{as_json(result) if options.json else as_text(result)}\n")
    return 0 if result.holds else 1


def _setting(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # asked twice: at once
        stop.set()

    return handle


class _Shown:
    """Lines on standard error about how far the hunt is."""

    def __init__(self) -> None:
        self._every = _SHOWN_EVERY if sys.stderr.isatty() else 60.0
        self._next = patience(self._every)

    def __call__(self, seconds: float, counts: dict[str, int], findings: int) -> None:
        if self._next() <= 0:
            self._next = patience(self._every)
            facts = ", ".join(f"{counts.get(name, 0):,} {name}" for name in COUNTED)
            sys.stderr.write(f"{_clock(seconds)}  {facts}{f', {findings} FINDINGS' if findings else ''}\n")


def as_text(result: Result) -> str:
    """Return *result* for people."""
    rest = sorted(name for name in result.counts if name not in COUNTED)
    facts = ", ".join(f"{result.counts[name]:,} {name}" for name in COUNTED)
    others = ", ".join(f"{result.counts[name]:,} {name}" for name in rest)
    ended = " (interrupted)" if result.interrupted else ""
    lines = [f"{_clock(result.seconds)}{ended}, seed {result.seed}: {facts}.", f"Also {others}."]
    if result.holds:
        return "\n".join([*lines, "Nothing was found."])
    lines.append(f"{len(result.findings)} found; the schemas {result.schema} and {result.schema}_rows are kept.")
    return "\n".join([*lines, *(_evidence(finding) for finding in result.findings)])


def _evidence(finding: Evidence) -> str:
    lines = [f"\nFOUND {finding.what}"]
    if finding.traceback:
        lines.append(finding.traceback)
    for name in ("reports", "ownerships", "events", "rows"):
        facts = getattr(finding, name)
        if facts:
            lines += [f"  {name} of job {finding.job_id}:", *(f"    {fact}" for fact in facts)]
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
