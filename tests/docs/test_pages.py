"""
Every Python block of the README and the docs runs, page by page, in the order in which a reader meets it.

A line `expression  # -> value` is checked: the value's repr is what the page says. A block without a language, or with
another one than Python, is left alone.
"""

from __future__ import annotations

import ast
import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import Lease, Router

TOP = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
        *(TOP / "docs").rglob("*.md"),
    ]
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"#\s*->\s*(.+)$")
SOURCE = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["urls"]["Source"]
_OURS = re.compile(re.escape(SOURCE) + "/(blob|tree)/main/")


class _Checks(ast.NodeTransformer):
    """Turns `expression  # -> value` into a call that compares."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self.found = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        assert node.end_lineno is not None
        shown = _SHOWN.search(self.lines[node.end_lineno - 1])
        following = self.lines[node.end_lineno] if node.end_lineno < len(self.lines) else ""
        if shown is None and following.strip().startswith("# ->"):
            shown = _SHOWN.search(following)
        if shown is None:
            return node
        self.found += 1
        name = ast.Name("_shows", ast.Load())
        call = ast.Call(name, [node.value, ast.Constant(shown.group(1).strip()), ast.Constant(node.lineno)], [])
        return ast.copy_location(ast.Expr(call), node)


def run_block(source: str, names: dict[str, Any], page: str) -> int:
    checks = _Checks(source)
    tree = ast.fix_missing_locations(checks.visit(ast.parse(source)))
    exec(compile(tree, page, "exec", dont_inherit=True), names)  # the pages are ours, and so are their imports
    return checks.found


def run_blocks(sources: list[str], names: dict[str, Any], page: str) -> int:
    """Run the blocks of a page, and close every router that they make: a later one may have the name of an earlier."""
    routers: list[Router] = []
    found = 0
    try:
        for source in sources:
            found += run_block(source, names, page)
            routers += [value for value in names.values() if isinstance(value, Router)]
    finally:
        for router in routers:
            router.close()
    return found


def shows(value: object, shown: str, line: int) -> None:
    assert repr(value) == shown, f"line {line} of the block"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run, and show what the page says that they show; in the same folder a second time too."""
    monkeypatch.chdir(tmp_path)
    blocks = _BLOCK.findall(page.read_text())
    written = len(re.findall(r"#\s*->", "".join(blocks)))

    level = logging.getLogger("leasehold").level
    try:
        for _ in ("first", "second"):
            names: dict[str, Any] = {"__name__": "__main__", "_shows": shows}
            assert run_blocks(blocks, names, page.name) == written, "a `# ->` stands where nothing compares it"
    finally:
        logging.getLogger("leasehold").setLevel(level)  # a page may show how to change it


def test_a_wrong_value_on_a_page_is_noticed() -> None:
    """The checker itself can fail."""
    with pytest.raises(AssertionError):
        run_block("1 + 1  # -> 3\n", {"_shows": shows}, "page")


def links_of(page: Path) -> list[tuple[Path, str]]:
    """The links of a page to this repository, relative or not: the file, and the heading that the link names."""
    links = [_OURS.sub(f"{TOP}/", link) for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    parts = [link.partition("#") for link in links if "://" not in link]
    return [((page.parent / path).resolve() if path else page, heading) for path, _, heading in parts]


def headings_of(page: Path) -> set[str]:
    """The headings of a page, as GitHub makes links of them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to this repository names a file that exists, and a heading that it has."""
    links = links_of(page)

    assert [str(file) for file, _ in links if not file.exists()] == []
    assert [(file.name, heading) for file, heading in links if heading and heading not in headings_of(file)] == []


def test_the_links_of_the_readme_work_on_a_package_index_too() -> None:
    """They name the repository; a file as a blob, a folder as a tree."""
    links = re.findall(r"\]\(([^)]+)\)", (TOP / "README.md").read_text())
    ours = [(match[1], link[match.end() :].partition("#")[0]) for link in links if (match := _OURS.match(link))]

    assert ours
    assert [link for link in links if "://" not in link and not link.startswith("#")] == []
    assert [path for kind, path in ours if kind != ("tree" if (TOP / path).is_dir() else "blob")] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """By links, over other pages or at once."""
    seen, found = set[Path](), [TOP / "README.md"]
    while found:
        page = found.pop()
        seen.add(page)
        found += [file for file, _ in links_of(page) if file.suffix == ".md" and file not in seen]

    assert [str(page.relative_to(TOP)) for page in PAGES if page not in seen] == []


def test_every_error_is_in_the_reference() -> None:
    """The page of errors names each exception class."""
    page = (TOP / "docs/reference/errors.md").read_text()
    errors = [name for name in leasehold.__all__ if isinstance(getattr(leasehold, name), type)]
    errors = [name for name in errors if issubclass(getattr(leasehold, name), Exception)]

    assert errors
    assert [name for name in errors if f"`{name}`" not in page] == []


def unnamed(kind: type, page: str) -> list[str]:
    """The public attributes of a class that no code span in its section of the page begins with."""
    section = page.partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`@?(?:\w+\.)*(\w+)[^`\n]*`", section))
    return sorted(name for name in vars(kind) if not name.startswith("_") and name not in named)


def test_every_verb_is_in_the_reference() -> None:
    """The page of the API names each public method of Router and Lease in its section; a word in a sentence is none."""
    page = (TOP / "docs/reference/api.md").read_text()

    assert [unnamed(Router, page), unnamed(Lease, page)] == [[], []]
    assert unnamed(Lease, page.replace("`release(", "`releases(").replace("release`", "releases`")) == ["release"]
