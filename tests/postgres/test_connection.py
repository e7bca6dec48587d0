"""The fast path to ask: what is sent, what comes back, and what is prepared."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import waiting
from tests.support import until

from leasehold import Router, StoreUnavailable
from leasehold.core.job import new_job
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Connection, Unanswered
from leasehold.testing import elsewhere

from .fixtures import Place
from .staging import Call, entered_elsewhere


@pytest.fixture
def connection(place: Place) -> Iterator[Connection]:
    """A connection as a store has it."""
    with place.store().database.connection() as lent:
        yield lent


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 2**62),
        ("bigint", -1),
        ("double precision", 0.1),
        ("text", ""),
        ("text", 'it\'s \\ "é" 🦊 %s $1'),
        ("uuid", uuid.UUID(int=7)),
        ("bigint[]", [1, 2**40]),
        ("bigint[]", []),
    ],
)
@pytest.mark.parametrize("cursor", [False, True], ids=["directly", "with a cursor"])
def test_a_value_comes_back_as_it_was(
    connection: Connection, kind: str, value: Any, cursor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent as text, without the driver's own adaptation; also once the statement is prepared."""
    if cursor:
        monkeypatch.setattr("leasehold.stores.postgres.connection.execute", None)
    for _ in range(10):
        assert connection.ask(f"select $1::{kind}, null, true", [value]) == [(value, None, True)]


def test_a_nul_is_refused(connection: Connection) -> None:
    """The text would end there, and something else be looked for."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        connection.ask("select $1::text", ["a\0b"])

    assert connection.ask("select $1::text", ["a"]) == [("a",)]


def test_no_rows_and_many(connection: Connection) -> None:
    """The same way."""
    assert connection.ask("select 1 where false", []) == []
    assert connection.ask("select n from generate_series(1, $1) as n", [1000]) == [(n,) for n in range(1, 1001)]


def test_an_error_is_the_drivers(connection: Connection) -> None:
    """With its state and its words; and the connection goes on."""
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero") as raised:
        connection.ask("select 1 / $1::integer", [0])

    assert raised.value.sqlstate == "22012"
    assert connection.ask("select 1", []) == [(1,)]


WITHOUT_GENERATORS = """
import sys
import psycopg
import psycopg.generators

del psycopg.generators.execute  # as in a release that has moved it: psycopg's own modules have theirs already
used = []

class Counting(psycopg.RawCursor):
    def execute(self, query, *args, **options):
        used.append(query)
        return super().execute(query, *args, **options)

psycopg.RawCursor = Counting

from leasehold import Router

with Router(sys.argv[1], schema=sys.argv[2]) as router:
    router.add("a")
    lease = router.claim("worker")
    lease.progress(0.5, checkpoint={"page": 1})
    lease.renew()
    lease.complete({"it's": "done"}, then=[{"id": "next"}])
    print(router.job("a").result, router.counts().pending, bool(used))
"""


def test_a_psycopg_without_its_generators_is_used_through_its_cursors(place: Place) -> None:
    """The store works, only slower, with a release in which they are elsewhere."""
    database = place.store().database
    command = [sys.executable, "-c", WITHOUT_GENERATORS, database.url, database.schema]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ran.stdout, ran.stderr) == ("{\"it's\": 'done'} 1 True\n", "")


def prepared(connection: Connection) -> list[str]:
    """The statements that the session has."""
    query = "select statement from pg_prepared_statements where name like 'leasehold%' order by prepare_time"
    return [text for (text,) in connection.execute(query).fetchall()]


def test_what_is_asked_often_is_prepared(connection: Connection) -> None:
    """And only that; nothing at all behind a pooler, whose next session would not know it."""
    for number in range(5):
        connection.ask("select $1::bigint", [number])
    assert prepared(connection) == []

    connection.ask("select $1::bigint", [5])
    assert prepared(connection) == ["select $1::bigint"]

    connection.prepare_threshold = None
    for number in range(10):
        connection.ask("select 1 + $1::bigint", [number])
    assert prepared(connection) == ["select $1::bigint"]


def test_a_claim_comes_to_the_driver_in_eight_frames(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who follows a claim from the router to the driver opens five modules, and goes back to none."""
    names = list[str]()

    def wait(connection: Any, *args: Any, **options: Any) -> Any:
        if not names:
            stack = [frame for frame in inspect.stack()[1:] if "leasehold" in Path(frame.filename).parts]
            names.extend(f"{Path(frame.filename).stem}.{frame.function}" for frame in reversed(stack))
            # Once the process has run an async handler, each verb is wrapped to warn where it would block a loop.
            names[:] = [name for name in names if name != "aio.call"]
        return really(connection, *args, **options)

    really = psycopg.Connection.wait
    database = place.store().database
    with Router(database.url, schema=database.schema) as router:
        router.add("a")
        router.add("b")
        for way in ("claim", "claim_next"):
            assert router.counts().pending  # so that a connection is there
            with monkeypatch.context() as patched:
                patched.setattr(psycopg.Connection, "wait", wait)
                assert router.claim("worker") is not None, way
            assert len(names) <= 8, names
            assert names[-1] == "connection.wait"
            names.clear()


def test_a_session_keeps_so_many_statements(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different ones are asked."""
    monkeypatch.setattr("leasehold.stores.postgres.connection._NAMES", 2)
    for number in range(4):
        for _ in range(10):
            connection.ask(f"select {number}", [])

    assert prepared(connection) == ["select 0", "select 1"]


def test_ctrl_c_while_a_statement_is_prepared(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have it, under a name that nobody has noted: that name is not given again."""
    wait, left = waiting.wait, [1]

    def strike(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise KeyboardInterrupt  # the driver asks the server to stop, too late, and waits for its answer
        return wait(*args, **options)

    for number in range(5):
        connection.ask("select $1::bigint", [number])
    with monkeypatch.context() as patched:
        patched.setattr(waiting, "wait", strike)
        with pytest.raises(KeyboardInterrupt):
            connection.ask("select $1::bigint", [5])
    assert prepared(connection) == ["select $1::bigint"]
    assert connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE  # so it will be lent again

    assert connection.ask("select $1::bigint", [6]) == [(6,)]


def test_an_answer_that_does_not_come_is_given_up(place: Place, connection: Connection) -> None:
    """And the connection with it, on which it could come later."""
    connection.reply_seconds = 0.2
    backend = connection.info.backend_pid
    with pytest.raises(Unanswered):
        connection.ask("select pg_sleep($1)", [30])

    assert connection.closed
    with psycopg.connect(place.url, autocommit=True) as other:  # the server does not know, and its snapshot is old soon
        other.execute("select pg_terminate_backend(%s)", [backend])


def test_the_encoding_is_ours(place: Place) -> None:
    """Whatever the URL says."""
    store = place.store()
    database = place.again(store).database
    database._settings["client_encoding"] = "latin1"
    with database.connection() as connection:
        assert connection.ask("select $1::text, length($1)", ["é🦊"]) == [("é🦊", 2)]


def test_a_connection_of_the_parent_is_not_used_in_a_child(connection: Connection) -> None:
    """Nothing is sent on it, for its answer would be the parent's."""
    connection.made_in = -1
    with pytest.raises(psycopg.InterfaceError, match="forked"):
        connection.ask("select 1", [])

    assert connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
    connection.made_in = os.getpid()


def test_who_waits_for_a_connection_gets_the_next(place: Place) -> None:
    """And not only when its patience is over."""
    database = PostgresStore(place.store().database.url, connections=1, wait_seconds=600).database
    with database.connection() as only:
        waiting = Call(database.pool.borrow)
        until(lambda: bool(database.pool._room._waiters))  # type: ignore[attr-defined]  # of the standard library
        assert waiting.waits
    assert waiting.result() is only
    database.pool.give(only)
    database.close()


def test_who_waits_for_a_connection_hears_that_the_store_is_closed(place: Place) -> None:
    """All of them, and not only the one who would be next."""
    database = PostgresStore(place.store().database.url, connections=1, wait_seconds=600).database
    with database.connection():
        waiting = [Call(database.pool.borrow) for _ in range(3)]
        until(lambda: len(database.pool._room._waiters) == 3)  # type: ignore[attr-defined]  # of the standard library
        database.close()
        for call in waiting:
            with pytest.raises(StoreUnavailable, match="closed"):
                call.result()


def test_open_blocks_do_not_count_against_the_connections_of_renewals(place: Place) -> None:
    """Else the owner of a few long blocks would lose their leases while it holds them."""
    database = place.store().database
    with Router(f"{database.url}&connections=1&wait_seconds=0.1", schema=database.schema) as router:
        router.add_many([{"id": name} for name in "abc"])
        leases = router.claim_many("worker", limit=3)
        with ExitStack() as blocks:
            for lease in leases:
                blocks.enter_context(entered_elsewhere(lease.transaction()))
            for lease in leases:
                elsewhere(lease.renew)


def test_a_closed_store_begins_no_block(place: Place) -> None:
    """Its connection would stay open for good."""
    store = place.store()
    store.add([new_job("a")])
    [grant] = store.claim("worker")
    store.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        store.transactions.begin(grant.spec.id, grant.epoch)


class Struck:
    """A lock that Ctrl-C strikes as soon as it is free: once."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._left = [1]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._left:
            self._left.pop()
            raise KeyboardInterrupt


def test_ctrl_c_in_the_middle_of_a_loan_costs_no_connection(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would take one of those that may be lent away for good."""
    database = PostgresStore(place.store().database.url, connections=1, wait_seconds=0.1).database
    with database.connection() as kept:
        pass
    with monkeypatch.context() as patched:
        patched.setattr(database.pool, "_lock", Struck(database.pool._lock))
        with pytest.raises(KeyboardInterrupt):
            database.pool.borrow()
    assert kept.closed

    with database.connection() as connection:
        assert connection.ask("select 1", []) == [(1,)]
    database.close()


def test_ctrl_c_that_meets_the_next_in_line_wakes_the_one_behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told that there is room, and takes none."""
    database = PostgresStore(place.store().database.url, connections=1, wait_seconds=600).database
    only = database.pool.borrow()
    wait_for = database.pool._room.wait_for

    def strike(*args: Any) -> Any:
        wait_for(*args)
        raise KeyboardInterrupt

    def struck() -> str:
        try:
            database.pool.borrow()
        except KeyboardInterrupt:
            return "Ctrl-C"
        return "lent"

    monkeypatch.setattr(database.pool._room, "wait_for", strike)
    first = Call(struck)
    until(lambda: len(database.pool._room._waiters) == 1)  # type: ignore[attr-defined]  # of the standard library
    monkeypatch.undo()
    second = Call(database.pool.borrow)
    until(lambda: len(database.pool._room._waiters) == 2)  # type: ignore[attr-defined]  # of the standard library

    database.pool.give(only)

    assert first.result() == "Ctrl-C"
    assert second.result() is only
    database.pool.give(only)
    database.close()
