"""What is said to somebody who is new to PostgreSQL, or to leasehold: what went wrong, and what helps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from leasehold import InvalidArgument, NotInTransaction, Router, StoreIncompatible
from leasehold.cli.app import run
from leasehold.stores.postgres.errors import cannot_connect
from leasehold.stores.postgres.rights import missing_right

from .fixtures import NEWEST, url_of

SCHEMA = "words"


@pytest.fixture
def url() -> Iterator[str]:
    """The newest server, without the schema."""
    found = url_of(NEWEST)
    with psycopg.connect(found, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade")
        yield found
        connection.execute(f"drop schema if exists {SCHEMA} cascade")


@pytest.mark.parametrize(
    "question",
    [
        "Is the server running on that host and accepting TCP/IP connections?",
        "Is the server running locally and accepting connections on that socket?",
    ],
)
def test_a_server_that_is_stopped_is_asked_after_once(question: str) -> None:
    """By us, who also say what else it may be."""
    error = psycopg.OperationalError(f"connection failed: connection to server failed: refused\n\t{question}")

    said = str(cannot_connect(error, "postgresql://host/jobs"))

    assert said == (
        "cannot connect to postgresql://host/jobs: connection to server failed: refused. Is the server running, and is "
        "this its address? Nothing was changed."
    )


def test_a_driver_without_libpq_is_told_apart_from_no_driver() -> None:
    """Whoever has installed the extra is not told to do so."""
    code = """
import ctypes.util
ctypes.util.find_library = lambda name: None
from leasehold import Router, Unsupported
try:
    Router("postgresql://host/jobs")
except Unsupported as error:
    print(error)
"""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PSYCOPG_IMPL": "python", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )

    assert "pip install 'psycopg[binary]'" in shown.stdout, shown.stderr
    assert "is not installed" not in shown.stdout


@pytest.mark.parametrize("verb", [("check",), ("grant", "--role", "x", "--kind", "worker"), ("revoke", "--role", "x")])
def test_a_database_without_a_store_is_told_how_to_get_one(
    url: str, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Or that it may be in another schema."""
    assert run(["store", verb[0], url, *verb[1:], "--schema", SCHEMA]) == 7

    said = capsys.readouterr().err
    assert (
        "If the store is in another schema, pass --schema; to create one here, run `leasehold store migrate URL`"
        in said
    )


def test_a_schema_that_was_dropped_is_told_how_to_get_it_back(url: str) -> None:
    """Under a store that had found it."""
    with Router(url, schema=SCHEMA) as router, psycopg.connect(url, autocommit=True) as connection:
        router.add("a")
        connection.execute(f"drop schema {SCHEMA} cascade")

        with pytest.raises(StoreIncompatible, match=r"does not exist.*`leasehold store migrate URL`, which creates"):
            router.add("b")


def test_a_transaction_that_has_failed_before_is_not_called_a_refusal(url: str) -> None:
    """It has to be rolled back; to try again would not help."""
    with Router(url, schema=SCHEMA) as router, psycopg.connect(url) as connection:
        router.add("a")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")

        with pytest.raises(
            NotInTransaction, match=r"failed at an earlier statement.*roll it back.*Nothing was changed"
        ):
            router.add("b", connection=connection)

        connection.rollback()
        assert router.add("b", connection=connection).created


def test_a_job_on_a_connection_without_a_transaction_is_not_called_a_fence(url: str) -> None:
    """Nobody has asked for one."""
    with (
        Router(url, schema=SCHEMA) as router,
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(NotInTransaction, match="each statement would commit by itself") as refused,
    ):
        router.add("a", connection=connection)
    assert "fence" not in str(refused.value)


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -1, "5"])
def test_a_migration_waits_as_long_as_can_be_said(url: str, wait: float) -> None:
    """By the same rule as a claim."""
    with Router(url, schema=SCHEMA) as router, pytest.raises(InvalidArgument, match="wait_seconds must be"):
        router.store.migrate(wait_seconds=wait)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("permission denied for function claim", "--role ann --kind worker`. Nothing"),
        ("permission denied for table events", "--role ann --kind operator` (or `--kind reader`). Nothing"),
    ],
)
def test_a_right_that_lacks_is_given_by_a_command_that_can_be_copied(said: str, advice: str) -> None:
    """One command, and what else would do beside it."""
    assert advice in str(missing_right(said, "host", SCHEMA, "ann"))


def test_a_role_that_is_not_there_is_not_made_to_be_revoked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name is wrong, more likely."""
    with Router(url, schema=SCHEMA) as router:
        router.add("a")

    assert run(["store", "revoke", url, "--role", "nobodyhere", "--schema", SCHEMA]) == 2

    said = capsys.readouterr().err
    assert "the role 'nobodyhere' does not exist" in said
    assert "Check its name" in said
    assert "must exist" not in said
    assert run(["store", "revoke", "--help"]) == 0
    assert "CREATE ROLE" not in capsys.readouterr().out
