"""
Builds the documentation site and checks its links. For scripts/docs.

    _site.py [--external] [--serve] [--output FOLDER]

Stages the pages in build/docs, since some of them are outside of docs/ (the README is the first page), builds
build/site with zensical in strict mode, and follows every link of the built pages, with its anchor. Ends with 1 after
any warning.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import _api

TOP = Path(__file__).parents[1]
# Pages outside of docs/, and where they are in the site. Any other file that a page links to becomes a page as well.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/README.md": "benchmarks.md",
}
# The section of a page that docs/zensical.toml does not list.
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "decisions": "Decisions",
    "examples": "Examples",
}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> int:
    """Build, check, print what is wrong, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/docs", allow_abbrev=False)
    parser.add_argument("--external", action="store_true", help="follow links to other sites too")
    parser.add_argument("--serve", action="store_true", help="show the site at http://127.0.0.1:8000 afterwards")
    parser.add_argument("--output", type=Path, default=TOP / "build", metavar="FOLDER", help="instead of build/")
    asked = parser.parse_args(arguments)
    staged, site = asked.output / "docs", asked.output / "site"
    wrong = stage(TOP, staged)
    if not wrong:
        wrong = build(asked.output)
    if not wrong:
        wrong = broken_links(site, external=asked.external)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(list(site.rglob('*.html')))} pages, no warning and no broken link: {site / 'index.html'}")
        if asked.serve:
            command = [sys.executable, "-P", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(site)]
            os.execv(sys.executable, command)
    return 1 if wrong else 0


# Staging


def stage(top: Path, staged: Path) -> list[str]:
    """Copy every page to *staged*, with its links as they are there; return what is wrong with them."""
    shutil.rmtree(staged, ignore_errors=True)
    homepage = repository(top)
    homes = {page.resolve(): page.relative_to(top / "docs") for page in sorted((top / "docs").rglob("*.md"))}
    homes |= {(top / name).resolve(): Path(home) for name, home in OUTSIDE.items() if (top / name).exists()}
    wrong: list[str] = []
    pending, done = list(homes), set[Path]()
    while pending:
        page = pending.pop()
        done.add(page)

        def moved(match: re.Match[str], page: Path = page) -> str:
            link, folder = match[2], page if page.is_dir() else page.parent
            for prefix in (f"{homepage}/blob/main/", f"{homepage}/tree/main/"):
                if homepage and link.startswith(prefix):
                    link = os.path.relpath(top / link.removeprefix(prefix), folder)
            path, hash_, heading = link.partition("#")
            if "://" in link or link.startswith("mailto:") or not path:
                return match[0]
            target = (folder / path).resolve()
            if target not in homes:
                if not target.exists() or not target.is_relative_to(top):
                    wrong.append(f"{page.relative_to(top)}: {match[2]} does not exist")
                    return match[0]
                homes[target] = target.relative_to(top) / "index.md" if target.is_dir() else _as_page(target, top)
                pending.append(target)
            return f"{match[1]}{os.path.relpath(homes[target], homes[page].parent)}{hash_}{heading}{match[3]}"

        text = text_of(page, top)
        if page.is_dir() or page.suffix == ".md":
            text = _outside_code(text, moved)
        _write(staged / homes[page], text)
    for api in _api.pages():
        _write(staged / "reference" / api.path, api.text)
    _write(staged.parent / "zensical.toml", configuration(top, staged))
    return wrong


def repository(top: Path) -> str:
    """Return the address of the repository, which links of the README begin with, for a package index."""
    with (top / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return str(project.get("urls", {}).get("Source", "")).rstrip("/")


def text_of(page: Path, top: Path) -> str:
    """Return a page as Markdown: a source file is one block of code, and a folder the list of its files."""
    name = page.relative_to(top)
    if page.is_dir():
        files = [file for file in sorted(page.iterdir()) if not file.name.startswith((".", "__"))]
        rows = [f"- [{file.name}]({file.name})" for file in files]
        return f"# {name}/\n\n" + "\n".join(rows) + "\n"
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    return f"# {name}\n\n```{page.suffix.lstrip('.')}\n{text.rstrip()}\n```\n"


def _as_page(target: Path, top: Path) -> Path:
    return target.relative_to(top).with_suffix(".md")


def _outside_code(text: str, moved: Callable[[re.Match[str]], str]) -> str:
    """Rewrite the links of a page, but not what looks like one in code."""
    code = [match.span() for match in _CODE.finditer(text)]

    def outside(match: re.Match[str]) -> str:
        is_code = any(begin < match.start() and match.end() <= end for begin, end in code)
        return match[0] if is_code else moved(match)

    return _LINK.sub(outside, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# Navigation


def configuration(top: Path, staged: Path) -> str:
    """Return docs/zensical.toml with the navigation completed."""
    text = (top / "docs" / "zensical.toml").read_text(encoding="utf-8")
    nav = completed(tomllib.loads(text)["project"]["nav"], staged)
    begin = text.index("nav = [")
    end = text.index("\n]\n", begin) + len("\n]\n")
    return text[:begin] + f'docs_dir = "docs"\nsite_dir = "site"\nnav = {_toml(nav)}\n' + text[end:]


def completed(nav: list[Any], staged: Path) -> list[Any]:
    """Leave out pages that are not there, and add those that are not listed to the section of their folder."""
    there = sorted(str(path.relative_to(staged)) for path in staged.rglob("*.md"))
    generated = [f"reference/{_api.path_of(module)}" for module in _api.MODULES]
    there = [path for path in there if path not in generated] + generated
    listed = set(_paths(nav))
    nav = _existing(nav, set(there))
    for path in there:
        if path in listed:
            continue
        folder = path.split("/")[0]
        title = "Python" if path.startswith("reference/python/") else SECTIONS.get(folder, "Project")
        section = _section(nav, "Reference") if title == "Python" else nav
        entry: Any = {path.split("/")[-1].removesuffix(".md"): path} if title == "Python" else path
        inner = _section(section, title)
        if path.endswith(("/README.md", "/index.md")):
            inner.insert(0, entry)
        else:
            inner.append(entry)
    return nav


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(entry)


def _existing(nav: list[Any], there: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            kept += [entry] if entry in there else []
        else:
            ((title, inner),) = entry.items()
            if isinstance(inner, list):
                kept.append({title: _existing(inner, there)})
            elif inner in there:
                kept.append(entry)
    return kept


def _section(nav: list[Any], title: str) -> list[Any]:
    for entry in nav:
        if isinstance(entry, dict) and title in entry:
            found: list[Any] = entry[title]
            return found
    found = []
    nav.insert(len(nav) - 1, {title: found})  # before the last, which is about the project
    return found


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml(inner)}' for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"'


# Building


def build(folder: Path) -> list[str]:
    """Build the site; return the warnings, or nothing."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    command = [sys.executable, "-P", "-m", "zensical", "build", "--clean", "--strict"]
    ran = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    output = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout)
    if ran.returncode or "warning" in output.lower() or not (folder / "site" / "index.html").exists():
        return [output, f"zensical failed (exit code {ran.returncode}); each warning above names a staged page"]
    return []


# Links


class _Anchors(HTMLParser):
    """The links of a built page, and what they can lead to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag in ("a", "link") and "href" in found and found.get("rel") != "preconnect":
            self.links.append(found["href"])
        if tag in ("img", "script") and "src" in found:
            self.links.append(found["src"])


def broken_links(site: Path, *, external: bool) -> list[str]:
    """Return a line for every link of the built pages that leads nowhere; those to other sites only on request."""
    pages = {path: _Anchors() for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        page.feed(path.read_text(encoding="utf-8"))
    wrong, elsewhere = [], dict[str, str]()
    for path, page in pages.items():
        if path.name == "404.html":  # whose links are those of a site at the top of its host
            continue
        shown = path.relative_to(site)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                elsewhere.setdefault(link, str(shown))
            elif not parts.scheme:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                if not target.exists():
                    wrong.append(f"{shown}: {link} does not exist")
                elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                    wrong.append(f"{shown}: {link} names no heading of that page")
    if external:
        wrong += [f"{shown}: {link}: {why}" for link, shown in elsewhere.items() if (why := _unreachable(link))]
    return sorted(set(wrong))


def _unreachable(link: str) -> str:
    """Return why a page of another site cannot be read, or nothing."""
    request = urllib.request.Request(link, headers={"User-Agent": "leasehold-docs"})
    try:
        with urllib.request.urlopen(request, timeout=20):
            return ""
    except (urllib.error.URLError, OSError) as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
