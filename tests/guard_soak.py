"""
Races of an old and a new owner, both inside the write at once, on every guard and its real servers.

    python tests/guard_soak.py                     1,000 races on each guard
    python tests/guard_soak.py --races 100         as many as that
    python tests/guard_soak.py --only file         guards whose test has that in its name; may be repeated
    python tests/guard_soak.py --matrix            the other long tests too: SIGSTOP at every step, every pair of steps

It runs the tests of `leasehold.testing.guard_contract` that are marked `soak`, and prints for each guard how many stale
writes were attempted, how many of them were refused, how many came first and were overwritten by the new owner, and how
many stayed on top: 0, or the test is red. Exit code 1 if one is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
RACES = "test_g2_no_old_value_lands_on_top_in_a_thousand_races"
COLUMNS = ("races", "attempted", "refused", "overwritten", "accepted")


class Counts:
    """Collects what the tests have recorded, one row for each guard."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the counts of a test that has run, or why it has not."""
        name = report.nodeid.removeprefix("tests/guards/").replace(f"::{RACES}", "")
        if report.skipped:
            self.skipped.append(f"{name}: {report.longrepr}")
        elif report.when == "call" and RACES in report.nodeid:
            counts = dict(report.user_properties)
            row = [str(counts.get(f"guard_{column}", "?")) for column in COLUMNS]
            self.rows.append((name, *row, report.outcome, f"{report.duration:.0f} s"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the races, print the table, and return 0 if no stale write stayed on top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=1000, metavar="N", help="on each guard (default 1000)")
    parser.add_argument("--only", action="append", metavar="PART", help="guards whose test has that in its name")
    parser.add_argument("--matrix", action="store_true", help="the other long tests of the guards too")
    options = parser.parse_args(argv)
    os.environ["LEASEHOLD_GUARD_RACES"] = str(options.races)
    os.chdir(TOP)
    tests = "" if options.matrix else RACES
    parts = " or ".join(options.only or [])
    wanted = " and ".join(f"({part})" for part in (tests, parts) if part)
    arguments = ["-q", "-m", "soak", "tests/guards", *(["-k", wanted] if wanted else [])]
    counts = Counts()
    code = int(pytest.main(arguments, plugins=[counts]))
    lines = [("guard", *COLUMNS, "", ""), *counts.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for skipped in counts.skipped:
        print(f"skipped {skipped}")
    return 1 if code or not counts.rows else 0


if __name__ == "__main__":
    sys.path.insert(0, str(TOP))
    sys.exit(main())
