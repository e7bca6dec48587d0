"""The page of traps, docs/explanation/traps.md, and the code and tests that it names stay together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs/explanation/traps.md"
NUMBERS = [
    *("1", "2", "3", "4", "4b", "5", "6", "7", "8", "9", "10", "11", "11b", "12", "13", "14", "15", "16", "16b"),
    *("17", "18", "19", "20", "20b", "21", "22"),
]

_HEADING = re.compile(r"^### (\d+b?)\. ", re.MULTILINE)
_NAMED = re.compile(r"`([\w./]+\.(?:py|sql))::(\w+)`")
_IN_A_NAME = re.compile(r"trap_(\d+b?)(?:_and_(\d+b?))?_")
_REFERENCE = re.compile(r"\btraps? (\d+b?)(?: (?:to|and) (\d+b?))?", re.IGNORECASE)
_DEFINED = {
    ".py": r"^\s*(?:(?:async )?def|class) {}\b",
    ".sql": r"^(?:CREATE (?:OR REPLACE FUNCTION|(?:UNIQUE )?INDEX) (?:leasehold\.)?|-- name: ){}\b",
}


def entries() -> dict[str, str]:
    """The text of each entry, by its number."""
    _, *parts = _HEADING.split(PAGE.read_text())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def named(text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The code and the tests that an entry names, as pairs of path and name."""
    code, _, tests = text.partition("**Tests.**")
    return _NAMED.findall(code), _NAMED.findall(tests)


def is_defined(path: str, name: str) -> bool:
    """Whether the file is there and defines that function, class, statement or index."""
    file = TOP / path
    pattern = _DEFINED[file.suffix].format(re.escape(name))
    return file.is_file() and re.search(pattern, file.read_text(), re.MULTILINE) is not None


def numbers_in(match: re.Match[str]) -> list[str]:
    return [number for number in match.groups() if number]


def numbered_tests() -> set[tuple[str, str, str]]:
    """Each test with the number of a trap in its name: the number, the path, the name."""
    files = [*TOP.glob("tests/**/test_*.py"), *TOP.glob("src/leasehold/testing/**/*.py")]
    return {
        (number, str(file.relative_to(TOP)), name)
        for file in files
        for name in re.findall(r"^\s*def (test_\w+)\(", file.read_text(), re.MULTILINE)
        if (found := _IN_A_NAME.search(name)) is not None
        for number in numbers_in(found)
    }


def test_the_page_has_every_trap_in_order() -> None:
    """An entry that is removed is missed, and a number is never given to another one."""
    assert _HEADING.findall(PAGE.read_text()) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_an_entry_has_its_four_parts_and_names_what_exists(number: str) -> None:
    """Code and tests, each at least one, by path and name."""
    text = entries()[number]
    parts = re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)
    code, tests = named(text)

    assert parts == ["What goes wrong", "Rule", "Code", "Tests"]
    assert code
    assert [f"{path}::{name}" for path, name in code if not is_defined(f"src/leasehold/{path}", name)] == []
    assert tests
    assert [f"{path}::{name}" for path, name in tests if not is_defined(path, name)] == []


def test_every_test_with_a_number_is_on_the_page() -> None:
    """Under that number."""
    on_page = {(number, path, name) for number, text in entries().items() for path, name in named(text)[1]}

    assert sorted(numbered_tests() - on_page) == []


def references() -> set[tuple[str, str]]:
    """Where comments name a trap, as "(trap 6)", in the package and in the tests: the path, the number."""
    files = [*TOP.glob("src/**/*.py"), *TOP.glob("src/**/*.sql"), *TOP.glob("tests/**/*.py")]
    texts = {str(file.relative_to(TOP)): re.sub(r"\n\s*(?:--|#)?\s*", " ", file.read_text()) for file in files}
    return {
        (path, number)
        for path, text in texts.items()
        for found in _REFERENCE.finditer(text)
        for number in numbers_in(found)
    }


def test_every_reference_leads_to_an_entry() -> None:
    """Even if it is spread over two lines."""
    found = references()

    assert ("src/leasehold/stores/postgres/functions/07_moving.sql", "16b") in found
    assert sorted((path, number) for path, number in found if number not in NUMBERS) == []


def test_every_trap_of_postgres_has_a_test_there() -> None:
    """From the issuing of epochs to what a successor reads."""
    there = {number for number, path, _ in numbered_tests() if path.startswith("tests/postgres/")}

    assert {*map(str, range(1, 18)), "16b"} - {"7"} <= there
