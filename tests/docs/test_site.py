"""The documentation site builds without a warning and has every page and public name, and its links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import leasehold

TOP = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module behind scripts/docs."""
    monkeypatch.syspath_prepend(TOP / "scripts")
    return importlib.import_module("_site")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as scripts/docs builds it."""
    output = tmp_path_factory.mktemp("docs")
    command = [sys.executable, str(TOP / "scripts" / "_site.py"), "--output", str(output)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no warning and no broken link" in ran.stdout
    return output / "site"


def test_every_page_is_in_the_site(built: Path) -> None:
    """Those of docs/, and the README as its first."""
    pages = [page.relative_to(TOP / "docs").with_suffix(".html") for page in (TOP / "docs").rglob("*.md")]
    pages = [page.with_name("index.html") if page.name == "README.html" else page for page in pages]

    assert [str(page) for page in pages if not (built / page).exists()] == []
    assert "presumed dead cannot write" in (built / "index.html").read_text()


def test_every_public_name_has_its_docstring_in_the_site(built: Path) -> None:
    """The reference of the API is written from the package itself."""
    page = (built / "reference/python/leasehold.html").read_text()
    ids = set(re.findall(r'id="leasehold\.([\w.]+)"', page))

    assert set(leasehold.__all__) <= ids
    assert {"Router.claim", "Router.transfer", "Lease.complete", "AsyncRouter.claim", "StaleEpoch.find"} <= ids
    assert not re.search(r" at 0x[0-9a-f]+", page)


def test_the_search_index_has_the_pages(built: Path) -> None:
    """What the search box of the site looks through."""
    index = (built / "search.json").read_text()
    assert "tutorial/first-jobs" in index
    assert "Router.claim" in index


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two pages."""
    (tmp_path / "pyproject.toml").write_text('[project]\nurls.Source = "https://example.org/leasehold"\n')
    (tmp_path / "README.md").write_text("# One\n\n[two](docs/how-to/two.md#a-b) and `[no](link.md)`\n")
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "how-to" / "two.md").write_text("# Two\n\n## A b\n\n[one](../../README.md)\n")
    (tmp_path / "docs" / "zensical.toml").write_text(
        '[project]\nsite_name = "a"\nnav = [\n  { "Home" = "index.md" },\n]\n'
    )
    return tmp_path


def test_links_are_those_of_the_staged_pages(site: Any, repository: Path) -> None:
    """Relative ones and those that name the repository by its address; a source file becomes a page."""
    (repository / "shop.py").write_text("print()\n")
    with (repository / "README.md").open("a") as readme:
        readme.write(
            "[a](https://example.org/leasehold/blob/main/docs/how-to/two.md) [b](shop.py) [c](https://c.org/d.md)\n"
        )

    assert site.stage(repository, repository / "build/docs") == []
    staged = repository / "build/docs"
    assert staged.joinpath("index.md").read_text() == (
        "# One\n\n[two](how-to/two.md#a-b) and `[no](link.md)`\n[a](how-to/two.md) [b](shop.md) [c](https://c.org/d.md)\n"
    )
    assert staged.joinpath("how-to/two.md").read_text().endswith("[one](../index.md)\n")
    assert "```py\nprint()\n```" in staged.joinpath("shop.md").read_text()
    assert "how-to/two.md" in (repository / "build/zensical.toml").read_text(), "though `nav` does not list it"


def test_a_folder_becomes_the_list_of_its_files_and_folders(site: Any, repository: Path) -> None:
    """Of whatever kind; not what Python leaves there."""
    folder = repository / "examples"
    for path in ("shop.py", "deploy/Dockerfile", "__pycache__/shop.pyc"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x\n")
    (repository / "README.md").write_text("[a](examples)\n")

    assert site.stage(repository, repository / "build/docs") == []
    staged = repository / "build/docs/examples"
    assert (
        staged.joinpath("index.md").read_text() == "# examples/\n\n- [deploy](deploy/index.md)\n- [shop.py](shop.md)\n"
    )
    assert staged.joinpath("deploy/index.md").read_text() == "# examples/deploy/\n\n- [Dockerfile](Dockerfile.md)\n"


def test_a_link_to_a_missing_file_is_noticed(site: Any, repository: Path) -> None:
    """Before anything is built."""
    (repository / "README.md").write_text("[gone](docs/gone.md)\n")

    assert site.stage(repository, repository / "build/docs") == ["README.md: docs/gone.md does not exist"]


def test_a_link_of_a_built_page_that_leads_nowhere_is_noticed(site: Any, tmp_path: Path) -> None:
    """A page, a heading and an image; what leads to another site is not followed unless asked for."""
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="b.html#y"></a><a href="#x"></a><a href="#z"></a><a href="b.html#w"></a>'
        '<a href="c.html"></a><img src="i.png"><a href="http://127.0.0.1:9/"></a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="y"></h2>')
    expected = [
        "a.html: #z names no heading of that page",
        "a.html: b.html#w names no heading of that page",
        "a.html: c.html does not exist",
        "a.html: i.png does not exist",
    ]

    assert site.broken_links(tmp_path, external=False) == expected
    more = set(site.broken_links(tmp_path, external=True)) - set(expected)
    assert [line.startswith("a.html: http://127.0.0.1:9/: ") for line in more] == [True]


def test_a_warning_fails_the_build(site: Any, repository: Path) -> None:
    """Such as a link that only the site generator can judge."""
    folder = repository / "build"
    site.stage(repository, folder / "docs")
    assert site.build(folder) == []
    (folder / "docs" / "index.md").write_text("# One\n\n[gone](gone.md)\n")

    assert any("page does not exist" in line for line in site.build(folder))


def test_the_docs_need_no_package_outside_of_their_extra() -> None:
    """Else `./scripts/docs` fails in a fresh clone, where no test has installed the rest."""
    code = "import sys, _api; _api.pages(); print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], cwd=TOP / "scripts", capture_output=True, text=True, check=True)
    of = importlib.metadata.packages_distributions()
    imported = {normalised(name) for module in ran.stdout.split() for name in of.get(module, [])}

    assert "pytest" in imported
    assert imported - required("leasehold", "docs") <= {"pip", "setuptools"}  # which may begin by themselves


def normalised(name: str) -> str:
    """The name of a distribution as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(name: str, *extras: str) -> set[str]:
    """*name* and what its extras install, and what these need."""
    found, left = set[tuple[str, str]](), [(name, extra) for extra in ("", *extras)]
    while left:
        one, extra = left.pop()
        if (one, extra) in found:
            continue
        found.add((one, extra))
        with suppress(importlib.metadata.PackageNotFoundError):  # not for this platform
            for line in importlib.metadata.requires(one) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left += [(normalised(needed.name), more) for more in ("", *needed.extras)]
    return {one for one, _ in found}
