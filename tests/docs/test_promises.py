"""The promises have one home, docs/explanation/promises.md; README and code agree with it."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
ROW = re.compile(r"^\| (P\d+) \| \*\*(.+?)\.\*\* .+ \| ([C\d, ]+) \|$", re.MULTILINE)
NUMBERS = [f"P{number}" for number in range(1, 10)]


def promises() -> list[tuple[str, str, list[str]]]:
    """Number, title and clauses of each."""
    page = (TOP / "docs/explanation/promises.md").read_text()
    return [(number, title, clauses.split(", ")) for number, title, clauses in ROW.findall(page)]


def test_the_page_has_nine_promises_and_each_has_clauses_of_the_contract() -> None:
    """A clause that is renumbered is noticed here."""
    contracts = "".join((TOP / "src/leasehold" / name).read_text() for name in ("store.py", "transaction.py"))
    contract = set(re.findall(r"^\s*(C\d+)\. ", contracts, re.MULTILINE))

    assert [number for number, _, _ in promises()] == NUMBERS
    assert [(number, clause) for number, _, clauses in promises() for clause in clauses if clause not in contract] == []


def test_every_reference_to_a_promise_leads_to_one() -> None:
    """In the package, its tests and the pages."""
    kinds = {".py", ".sql", ".md"}
    files = [file for name in ("src", "tests", "docs") for file in (TOP / name).rglob("*") if file.suffix in kinds]
    found = {(file, number) for file in files for number in re.findall(r"\bP\d+\b", file.read_text())}

    assert ("schema.sql", "P2") in {(file.name, number) for file, number in found}
    assert [(str(file.relative_to(TOP)), number) for file, number in found if number not in NUMBERS] == []


def test_the_short_form_of_the_readme_has_the_same_promises_in_the_same_order() -> None:
    """By the first words of each, and links to the page."""
    readme = (TOP / "README.md").read_text()
    section = readme.partition("## What is promised")[2].partition("\n## ")[0]
    titles = re.findall(r"^\d\. \*\*(.+?)\.?\*\*", section, re.MULTILINE)

    assert titles == [title for _, title, _ in promises()]
    assert "/docs/explanation/promises.md)" in section
