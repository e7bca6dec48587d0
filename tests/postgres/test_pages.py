"""Pages whose examples need a server: they run as a reader would run them, with the URL of a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from tests.docs.test_pages import PAGES, TOP, run_blocks, shows

from .fixtures import database

_BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"^```py\n(?:(?!^```).)*?postgresql://localhost/", re.MULTILINE | re.DOTALL)
_URL = re.compile(r"postgresql://localhost/\w+")
_ELSEWHERE = re.compile(r"^from django\b", re.MULTILINE)  # tests/sqlite/test_callers_django.py runs it, with a model

NEEDING = [page for page in PAGES if _NEEDS.search(page.read_text())]


@pytest.fixture
def url(server_url: str) -> Iterator[str]:
    """A database, as empty as a reader's."""
    made = database(server_url, "pages")
    yield made
    with psycopg.connect(server_url, autocommit=True) as connection:
        name = sql.Identifier(urlsplit(made).path[1:])
        connection.execute(sql.SQL("drop database {} with (force)").format(name))


@pytest.mark.parametrize("page", NEEDING, ids=lambda page: str(page.relative_to(TOP)))
def test_a_page_does_what_it_says_on_a_server(
    page: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks run in their order, those that need no server too, and show what the page says; a second time too."""
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in _BLOCK.findall(page.read_text()) if not _ELSEWHERE.search(block)]

    for _ in ("first", "second"):
        names: dict[str, Any] = {"__name__": "page", "_shows": shows}
        found = run_blocks([_URL.sub(url, block) for block in blocks], names, page.name)
        assert found == len(re.findall(r"#\s*->", "".join(blocks)))
        assert names["router"].url == url


def test_there_are_such_pages() -> None:
    """The pattern finds what it is for."""
    assert [page.stem for page in NEEDING] == ["test-with-a-clock-of-your-own", "write-your-rows-with-the-job"]
