"""A file that the package, its tests or a page names is in this repository."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "benchmarks", "examples", "scripts", "tests")
_FILE = re.compile(r"(?<![\w./*-])(?:\.\./)*(\w[\w-]*(?:/[\w.-]+)*/[\w-]+\.(?:py|sql|md|txt))\b")


def files() -> list[str]:
    """Every file of the repository, by its path."""
    there = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md"]
    there += [file for folder in FOLDERS for file in (TOP / folder).rglob("*.*") if "__pycache__" not in file.parts]
    return [str(file.relative_to(TOP)) for file in there]


def dangling(texts: dict[str, str], there: list[str]) -> list[tuple[str, str]]:
    """Where a text names a file, from the top or from some folder, that does not exist."""
    known = {path[i:] for path in there for i in [0, *(match.end() for match in re.finditer("/", path))]}
    return [(path, name) for path, text in texts.items() for name in _FILE.findall(text) if name not in known]


def test_every_file_that_is_named_exists() -> None:
    """In comments, docstrings, SQL and pages."""
    there = files()
    named = [path for path in there if path.startswith(("src/", "docs/", "CONTRIBUTING", "README"))]
    texts = {path: (TOP / path).read_text() for path in named if path.endswith((".py", ".sql", ".md"))}

    assert dangling(texts, there) == []


def test_a_file_that_does_not_exist_is_noticed() -> None:
    """By its whole path or a part of it; a file of somebody's machine is none of ours."""
    there = ["src/leasehold/core/job.py", "docs/design.md"]
    texts = {
        "a": "see core/job.py and docs/design.md",
        "b": "core/gone.py, /srv/shop.py, *.md",
        "c": "../notes/plan.md",
    }

    assert dangling(texts, there) == [("b", "core/gone.py"), ("c", "notes/plan.md")]
