"""The first statement of a transaction of psycopg: sent with the driver's BEGIN, and otherwise as a cursor runs it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg.generators
import pytest
from psycopg import IsolationLevel
from psycopg._connection_base import BaseConnection
from psycopg.pq import TransactionStatus
from tests.postgres.fixtures import server_url

from leasehold.connections import psycopg as ours
from leasehold.connections import recognise, recognise_async

__all__ = ["server_url"]  # a fixture

TEXTS = ["plain", "it's", '"', "\\", "\\'; drop table x; --", "100 %s %% $1", "é", ""]
CURSOR_ONLY: dict[str, Any] = {"a list": [1, 2], "bytes": b"x", "a negative number": -1, "a float": 1.5}
MISSING: dict[str, Any] = {
    "how it words its BEGIN": (BaseConnection, "_get_tx_start_command"),
    "its generators": (psycopg.generators, "execute"),
    "its errors": (psycopg.errors, "error_from_result"),
}


@pytest.fixture
def connection(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of an application's, in psycopg's own mode."""
    with psycopg.connect(server_url) as made:
        yield made
        made.rollback()


def by_cursor(connection: psycopg.Connection[Any]) -> bool:
    """Return whether what began the transaction was sent as a statement of its own."""
    [(query,)] = recognise(connection).execute("select current_query()")
    return not query.startswith("BEGIN")


def status(connection: psycopg.Connection[Any]) -> TransactionStatus:
    """Return the state of its transaction."""
    return connection.info.transaction_status


def test_the_begin_goes_along_with_the_first_statement_only(connection: psycopg.Connection[Any]) -> None:
    """Later ones are run by a cursor, with parameters."""
    assert not by_cursor(connection)
    assert status(connection) is TransactionStatus.INTRANS
    assert by_cursor(connection)
    connection.rollback()
    assert not by_cursor(connection)


@pytest.mark.parametrize("together", [True, False], ids=["together", "cursor"])
def test_values_arrive_as_they_were(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Quotes, percent signs, NULL and numbers: the same by both ways."""
    if not together:
        monkeypatch.setattr(ours, "_parts", lambda: None)
    for text in TEXTS:
        rows = recognise(connection).execute(
            "select %s::text, %s::bigint, %s::bool, %s::bool, %s::text, '%%'", (text, 2**53 - 1, True, False, None)
        )
        assert rows == [(text, 2**53 - 1, True, False, None, "%")]
        connection.rollback()


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SJIS"])
@pytest.mark.parametrize("escapes", ["on", "off"])
def test_the_settings_of_the_session_are_kept_to(
    connection: psycopg.Connection[Any], encoding: str, escapes: str
) -> None:
    """A backslash ends no literal, whatever the client's encoding and standard_conforming_strings are."""
    connection.execute(f"set client_encoding = '{encoding}'")
    connection.execute(f"set standard_conforming_strings = {escapes}")
    connection.commit()
    for text in ("\\' or true --", "'' \\\\", {"UTF8": "表é", "LATIN1": "é", "SJIS": "表"}[encoding]):
        assert recognise(connection).execute("select %s::text", (text,)) == [(text,)]
        connection.rollback()
    if encoding != "UTF8":
        with pytest.raises(UnicodeEncodeError):
            recognise(connection).execute("select %s::text", ("\N{SNOWMAN}",))


def test_nul_is_refused(connection: psycopg.Connection[Any]) -> None:
    """A literal would end there."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        recognise(connection).execute("select %s::text", ("a\0b",))


@pytest.mark.parametrize("level", list(IsolationLevel), ids=lambda level: level.name)
def test_the_drivers_begin_is_sent_as_it_is(connection: psycopg.Connection[Any], level: IsolationLevel) -> None:
    """With the isolation, and what else the caller has set for its transactions."""
    connection.isolation_level, connection.read_only, connection.deferrable = level, True, True
    [found] = recognise(connection).execute(
        "select current_setting('transaction_isolation'), current_setting('transaction_read_only'), "
        "current_setting('transaction_deferrable'), current_query() like 'BEGIN%%'"
    )
    assert found == (level.name.replace("_", " ").lower(), "on", "on", True)


def test_a_failed_statement_leaves_a_failed_transaction(connection: psycopg.Connection[Any]) -> None:
    """As it is behind a cursor: what follows is refused until the caller rolls back."""
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
        recognise(connection).execute("select 1 / %s", (0,))
    assert status(connection) is TransactionStatus.INERROR
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        recognise(connection).execute("select 1")
    connection.rollback()
    assert recognise(connection).execute("select 1") == [(1,)]


@pytest.mark.parametrize("value", CURSOR_ONLY.values(), ids=CURSOR_ONLY)
def test_what_is_no_plain_literal_is_left_to_a_cursor(connection: psycopg.Connection[Any], value: Any) -> None:
    """With the caller's adapters, also for subclasses of plain types."""
    [(query, found)] = recognise(connection).execute("select current_query(), %s", (value,))
    assert not query.startswith("BEGIN")
    assert found == value


class Name(str):
    """Text for which an application may have an adapter."""


class CountingCursor(psycopg.Cursor[Any]):
    """A cursor of an application's."""

    statements = 0

    def execute(self, *args: Any, **options: Any) -> Any:
        """Count, and run."""
        CountingCursor.statements += 1
        return super().execute(*args, **options)


def test_an_applications_own_classes_see_the_statement(connection: psycopg.Connection[Any]) -> None:
    """A cursor class that logs or counts, and an adapter for a subclass of str."""
    [(query,)] = recognise(connection).execute("select current_query() where %s = 'x'", (Name("x"),))
    assert not query.startswith("BEGIN")
    connection.rollback()
    connection.cursor_factory = CountingCursor
    assert by_cursor(connection)
    assert CountingCursor.statements == 1


def test_in_autocommit_no_transaction_is_begun(server_url: str) -> None:
    """The statement commits by itself, as the caller wants it to."""
    with psycopg.connect(server_url, autocommit=True) as plain:
        assert by_cursor(plain)
        assert status(plain) is TransactionStatus.IDLE


def test_in_a_pipeline_the_begin_is_the_pipelines(connection: psycopg.Connection[Any]) -> None:
    """Its answers come later, and one message can have one statement only."""
    found = recognise(connection)
    assert isinstance(found, ours.Psycopg)
    with connection.pipeline():
        found.send("select %s::text", ("x",))
    assert status(connection) is TransactionStatus.INTRANS


def test_a_psycopg_without_the_parts_uses_a_cursor(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not part of its documented interface."""
    uncached = ours._parts.__wrapped__
    for owner, name in MISSING.values():
        with monkeypatch.context() as patched:
            patched.delattr(owner, name)
            assert uncached() is None, name
    assert uncached() is not None
    monkeypatch.setattr(ours, "_parts", lambda: None)
    assert by_cursor(connection)


def test_notices_reach_the_callers_handlers(connection: psycopg.Connection[Any]) -> None:
    """And notifications too, which the driver reads with the reply."""
    notices, notified = list[str](), list[str]()
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    connection.add_notify_handler(lambda notify: notified.append(notify.payload))
    connection.execute("listen news")
    connection.commit()
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute("notify news, 'now'")
    recognise(connection).execute("do $$ begin raise notice 'mind the gap'; end $$")
    assert (notices, notified) == (["mind the gap"], ["now"])


def test_ctrl_c_cancels_the_statement(connection: psycopg.Connection[Any]) -> None:
    """The driver asks the server to, and the connection can be used again."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            recognise(connection).execute("select pg_sleep(%s)", (60,))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert status(connection) is TransactionStatus.INERROR
    connection.rollback()
    assert recognise(connection).execute("select 1") == [(1,)]


def test_a_lost_connection_is_an_operational_error(server_url: str) -> None:
    """As with a cursor, and the connection knows that it is broken."""
    connection = psycopg.connect(server_url)
    with psycopg.connect(server_url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        recognise(connection).execute("select pg_sleep(%s)", (5,))
    assert connection.broken
    with pytest.raises(psycopg.OperationalError, match="closed"):
        recognise(connection).execute("select 1")


def test_a_thread_that_shares_the_connection_waits_for_its_turn(connection: psycopg.Connection[Any]) -> None:
    """The second statement finds a transaction, and begins none."""
    found: list[str] = []

    def ask() -> None:
        [(query, _)] = recognise(connection).execute("select current_query(), pg_sleep(%s)::text", ("0.1",))
        found.append(query[:5])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["BEGIN", "selec", "selec"]


def test_connections_of_an_event_loop_do_the_same(server_url: str) -> None:
    """Rows, errors, and the state of the transaction."""

    async def body(check: Callable[[Any], Any]) -> None:
        async with await psycopg.AsyncConnection.connect(server_url) as connection:
            found = await recognise_async(connection)
            [(query, text)] = await found.execute_async("select current_query(), %s::text", ("it's é",))
            assert (query[:5], text) == ("BEGIN", "it's é")
            assert await found.execute_async("select %s::text", ("more",)) == [("more",)]
            await connection.rollback()
            with pytest.raises(psycopg.errors.DivisionByZero):
                await found.execute_async("select 1 / %s", (0,))
            assert check(connection) is TransactionStatus.INERROR
            await connection.rollback()

    asyncio.run(body(status))
