"""A file that the package, its tests or a page names is in this repository, and so is a function that a page names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOP = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "benchmarks", "examples", "scripts", "tests")
_FILE = re.compile(r"(?<![\w./*-])(?:\.\./)*(\w[\w-]*(?:/[\w.-]+)*/[\w-]+\.(?:py|sql|md|txt))\b")


_FUNCTION = re.compile(r"`?\b(?:(\w+)\.)?(\w+)\(\)")  # as the page about the architecture writes one


def files() -> list[str]:
    """Every file of the repository, by its path."""
    there = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md", TOP / "SECURITY.md"]
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


class Definitions:
    """The functions, classes and methods of the package, and the functions of its SQL."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.modules: dict[str, set[str]] = {}
        self.methods: dict[str, set[str]] = {}
        self.bases: dict[str, set[str]] = {}
        for file in (TOP / "src").rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.functions.add(node.name)
                    self.modules.setdefault(file.stem, set()).add(node.name)
                elif isinstance(node, ast.ClassDef):
                    own = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
                    # And functions of other modules that are methods here, such as `claim = owners.claim`.
                    lent = [
                        one for one in node.body if isinstance(one, ast.Assign) and isinstance(one.value, ast.Attribute)
                    ]
                    own |= {ast.unparse(target) for one in lent for target in one.targets}
                    self.methods.setdefault(node.name, set()).update(own)
                    self.bases.setdefault(node.name, set()).update(
                        base.id for base in node.bases if isinstance(base, ast.Name)
                    )
        sql = "".join(file.read_text() for file in (TOP / "src").rglob("functions/*.sql"))
        self.in_sql = set(re.findall(r"FUNCTION leasehold\.(\w+)\(", sql))

    def has(self, owner: str, name: str) -> bool:
        """Return whether *name* is defined: as a function, in the class or module *owner*, or in SQL."""
        if owner == "leasehold":
            return name in self.in_sql
        if not owner:
            return name in self.functions
        if owner in ("router", "lease"):  # an instance, as users write it
            owner = owner.capitalize()
        found = self.methods.get(owner, set()) | self.modules.get(owner, set())
        return name in found or any(self.has(base, name) for base in self.bases.get(owner, ()))


def unknown(page: str, definitions: Definitions) -> list[str]:
    """The functions that *page* names and the package does not have."""
    named = [(owner, name) for owner, name in _FUNCTION.findall(page) if not name.isupper()]
    return [f"{owner}.{name}".strip(".") for owner, name in named if not definitions.has(owner, name)]


def test_every_function_on_the_page_about_the_architecture_exists() -> None:
    """So that a renamed one is renamed there too."""
    page = (TOP / "docs" / "explanation" / "architecture.md").read_text()

    assert len(_FUNCTION.findall(page)) > 50
    assert unknown(page, Definitions()) == []


def test_a_function_that_does_not_exist_is_noticed() -> None:
    """Of a class, of a base of it, of none, and in SQL."""
    there = "`Router.add()`, `Settled.of_job()`, `drive()`, `leasehold.claim()`"
    missing = "`Router.melt()`, `melt()`, `leasehold.melt()`"

    assert unknown(there + missing, Definitions()) == ["Router.melt", "melt", "leasehold.melt"]
