"""Every trap has a test under its number."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
NUMBERS = {*map(str, range(1, 23)), "4b", "16b"} - {"7"}  # which is about limits, and there are none yet


def test_every_trap_has_a_test_under_its_number() -> None:
    """On whichever store or part it can spring."""
    files = [*TOP.glob("tests/**/*.py"), *TOP.glob("src/leasehold/testing/**/*.py")]
    names = [name for file in files for name in re.findall(r"def (test_\w*trap_\w+)\(", file.read_text())]

    numbered = [re.search(r"trap_(\d+b?)(?:_and_(\d+b?))?_", name) for name in names]

    assert {number for found in numbered if found for number in found.groups() if number} == NUMBERS


def test_every_trap_of_postgres_has_a_test_there() -> None:
    """From the issuing of epochs to what a successor reads."""
    names = " ".join(file.read_text() for file in TOP.glob("tests/postgres/*.py"))
    numbered = re.findall(r"def test_trap_(\d+b?)(?:_and_(\d+b?))?_", names)

    assert {*map(str, range(1, 18)), "16b"} - {"7"} <= {number for found in numbered for number in found}
