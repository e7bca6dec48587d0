"""The records of decisions have one form, and the index names each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
_HEAD = re.compile(r"# (\d{4})\. (.+)\n\nStatus: (accepted|replaced by \d{4})\. Date: (\d{4}-\d\d-\d\d)\.\n")
_SECTIONS = (["Context", "Decision", "Consequences"], ["Context", "Decision", "Consequences", "Figures"])


def head(record: Path) -> tuple[str, str, str]:
    """Number, title and date."""
    found = _HEAD.match(record.read_text())
    assert found is not None, f"{record.name} does not begin with its number, title, status and date"
    number, title, _, date = found.groups()
    return number, title, date


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_has_its_parts(record: Path) -> None:
    """The same ones in the same order; its file begins with its number."""
    assert record.name.startswith(head(record)[0] + "-")
    assert re.findall(r"^## (.+)$", record.read_text(), re.MULTILINE) in _SECTIONS


def test_numbers_are_given_once_and_in_order() -> None:
    """None is left out, so a record that was removed is noticed."""
    assert [head(record)[0] for record in RECORDS] == [f"{number:04}" for number in range(1, len(RECORDS) + 1)]


def test_the_index_has_every_record() -> None:
    """With its title and date."""
    rows = re.findall(r"^\| \[(\d{4})\]\((.+?)\) \| (.+) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)

    assert rows == [(head(record)[0], record.name, *head(record)[1:]) for record in RECORDS]
