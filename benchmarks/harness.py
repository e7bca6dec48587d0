"""
What the benchmarks share: two figures measured in turn, their ratio, and how rows are shown.

A figure alone says more about the machine than about the code. So a row measures leasehold and a peer in the same
process, in rounds that alternate, and its goal is a ratio of the two medians. Timings are reported and never asserted:
a missed goal is a word in the table, not an exit code.

    @row("memory: add", peer="a bare router", goal=0.05)
    def adding(run: Run) -> Iterator[Sides]:
        ...                                 # prepared once
        yield ours, theirs                  # each call is one round and returns its figure
        ...                                 # cleaned up

    if __name__ == "__main__":
        sys.exit(main([adding]))
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TextIO, TypeVar

T = TypeVar("T")
Round = Callable[[], float]
Sides = tuple[Round, Round]  # ours, theirs

ROUNDS = 21  # many and short: what else the machine does then falls on both sides alike
QUICK_ROUNDS = 7
QUIET_SECONDS = 2.0


class Run:
    """One run of some rows: how large they should be, and where they say how far they are."""

    def __init__(self, *, quick: bool = False, rounds: int | None = None, stderr: TextIO | None = None) -> None:
        self.quick = quick
        self._rounds = rounds
        self._stderr = stderr
        self._said = time.monotonic()

    def pick(self, full: T, quick: T) -> T:
        """Return *quick* in a quick run, else *full*."""
        return quick if self.quick else full

    def rounds(self, most: int | None = None) -> int:
        """Return how many rounds each side gets."""
        rounds = self._rounds or self.pick(ROUNDS, QUICK_ROUNDS)
        return rounds if most is None else min(rounds, most)

    def say(self, text: str) -> None:
        """Tell the person who waits."""
        self._said = time.monotonic()
        print(text, file=self._stderr or sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """Tell the person who waits, unless they were told something within the last two seconds."""
        if time.monotonic() - self._said >= QUIET_SECONDS:
            self.say(f"    {text}")


@dataclass(frozen=True)
class Row:
    """What is to be compared. A ratio of at least *goal* holds; if less is better, the ratio is theirs by ours."""

    name: str
    peer: str
    goal: float
    unit: str
    better: Literal["more", "less"]
    rounds: int | None
    sides: Callable[[Run], AbstractContextManager[Sides]]


def row(
    name: str,
    *,
    peer: str,
    goal: float,
    unit: str = "jobs/s",
    better: Literal["more", "less"] = "more",
    rounds: int | None = None,
) -> Callable[[Callable[[Run], Iterator[Sides]]], Row]:
    """Make a row of a generator that prepares, yields the two sides and cleans up; *rounds* is the most it needs."""

    def declare(sides: Callable[[Run], Iterator[Sides]]) -> Row:
        return Row(name, peer, goal, unit, better, rounds, contextmanager(sides))

    return declare


@dataclass(frozen=True)
class Figure:
    """The middle of some rounds, and how far they spread."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Figure:
        """Return the figure of *rounds*, which are positive numbers: anything else has no ratio."""
        for value in rounds:
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"a round must return a positive number, not {value!r}.")
        return cls(statistics.median(rounds), min(rounds), max(rounds))

    def __str__(self) -> str:
        return (
            shown(self.median)
            if self.low == self.high
            else f"{shown(self.median)} ({shown(self.low)}–{shown(self.high)})"
        )


@dataclass(frozen=True)
class Result:
    """A row with its figures."""

    row: Row
    ours: Figure
    theirs: Figure
    spread: Figure  # of the ratios of the pairs of rounds

    @property
    def ratio(self) -> float:
        """How many times better ours is than theirs: above 1, ours is the better one."""
        return _ratio(self.row, self.ours.median, self.theirs.median)

    @property
    def holds(self) -> bool:
        """Whether the goal is met."""
        return self.ratio >= self.row.goal

    def as_json(self) -> str:
        """Return the row as one line of JSON."""
        facts: dict[str, Any] = {
            "name": self.row.name,
            "peer": self.row.peer,
            "unit": self.row.unit,
            "better": self.row.better,
            "ours": self.ours.median,
            "ours_spread": [self.ours.low, self.ours.high],
            "theirs": self.theirs.median,
            "theirs_spread": [self.theirs.low, self.theirs.high],
            "ratio": self.ratio,
            "ratio_spread": [self.spread.low, self.spread.high],
            "goal": self.row.goal,
            "holds": self.holds,
        }
        return json.dumps(facts, allow_nan=False)


def measure(row: Row, run: Run) -> Result:
    """Measure both sides of *row*, in turn."""
    ours: list[float] = []
    theirs: list[float] = []
    rounds = run.rounds(row.rounds)
    with row.sides(run) as (our_round, their_round):
        gc.collect()  # what the preparation left behind is nobody's cost
        for number in range(1, rounds + 1):
            ours.append(our_round())
            theirs.append(their_round())
            run.progress(f"round {number} of {rounds}")
    figures = Figure.of(ours), Figure.of(theirs)
    return Result(row, *figures, Figure.of([_ratio(row, *pair) for pair in zip(ours, theirs, strict=True)]))


def _ratio(row: Row, ours: float, theirs: float) -> float:
    return ours / theirs if row.better == "more" else theirs / ours


def rate(
    step: Callable[[], int],
    *,
    steps: int = 1,
    before: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return how many per second of *clock* a step does, which returns how many it did. *before* is not timed."""
    done, spent = 0, 0.0
    for _ in range(steps):
        if before is not None:
            before()
        start = clock()
        did = step()
        spent += clock() - start
        done += did
    return done / spent


def shown(value: float) -> str:
    """Return *value* with about three digits, and all of those before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(results: Sequence[Result]) -> str:
    """Return the rows for people."""
    lines = [("", "ours", "theirs", "unit", "ratio", "goal", "", "theirs is")]
    for result in results:
        ratio = Figure(result.ratio, result.spread.low, result.spread.high)
        held = "holds" if result.holds else "MISSED"
        facts = (str(result.ours), str(result.theirs), result.row.unit, str(ratio), f"≥ {shown(result.row.goal)}", held)
        lines.append((result.row.name, *facts, result.row.peer))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def titles(rows: Sequence[Row]) -> list[str]:
    """Return how each row is called: by its name, and where several have that, by its peer too."""
    names = Counter(row.name for row in rows)
    return [row.name if names[row.name] == 1 else f"{row.name}, beside {row.peer}" for row in rows]


def main(
    rows: Sequence[Row],
    argv: Sequence[str] | None = None,
    *,
    about: str | None = None,
    on_server: Callable[[str], None] | None = None,
) -> int:
    """
    Measure the rows that the command line asks for, and print them. Return 0, goals met or not.

    *on_server* is told which server to use, if the command line names one.
    """
    parser = argparse.ArgumentParser(
        description=about and about.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Files are made in the folder that TMPDIR names: for durable figures, it must be on a disk.",
    )
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds; under a minute for all rows")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    parser.add_argument("--only", metavar="SUBSTRING", action="append", help="rows whose name contains it; repeatable")
    parser.add_argument(
        "--rounds", metavar="N", type=int, help=f"rounds of each side (default {ROUNDS}, quick {QUICK_ROUNDS})"
    )
    if on_server is not None:
        parser.add_argument("--url", help="a server of yours, where databases are made and dropped again")
    options = parser.parse_args(argv)
    if on_server is not None and options.url is not None:
        on_server(options.url)
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {options.rounds}.")
    wanted = [part.lower() for part in options.only or [""]]
    named = list(zip(titles(rows), rows, strict=True))
    chosen = [(title, row) for title, row in named if any(part in title.lower() for part in wanted)]
    if not chosen:
        names = "\n".join(f"  {title}" for title, _ in named)
        parser.error(f"no row has {' or '.join(map(repr, options.only))} in its name. The rows are\n{names}")
    run = Run(quick=options.quick, rounds=options.rounds)
    results = []
    for number, (title, row) in enumerate(chosen, 1):
        run.say(f"[{number}/{len(chosen)}] {title}")
        results.append(measure(row, run))
        if options.json:
            print(results[-1].as_json(), flush=True)
    if not options.json:
        print(table(results))
    return 0
