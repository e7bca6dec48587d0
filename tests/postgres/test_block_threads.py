"""Threads that still use the connection of a `lease.transaction()` block when the block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.patience import PATIENCE_SECONDS

from leasehold import LeaseholdError, NotInTransaction
from leasehold.core.job import new_job
from leasehold.lease import Lease
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place
from .staging import Call, until_blocked


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store, a table of the caller's own beside it, and a job."""
    made = place.store()
    with place.connect(made) as connection:
        connection.execute("create table results (what text)")
        connection.execute("insert into results values ('first')")
    made.add([new_job("a")])
    yield made
    assert made.verify() == []


def lease_of(store: PostgresStore) -> Lease:
    """A lease on the next job."""
    [grant] = store.claim("worker")
    return Lease(store, grant)


def rows(store: PostgresStore) -> list[str]:
    """What was committed."""
    with psycopg.connect(store.database.url) as connection:
        return [what for (what,) in connection.execute("select what from results order by what")]


class Watched:
    """The lock of a connection. It calls the test when the thread that made it takes the lock, and when it lets go."""

    def __init__(self, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> None:
        self.others_arrive, self.others_may = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._made_by = threading.get_ident()
        self._before, self._after = before, after

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock."""
        if threading.get_ident() == self._made_by:
            self._before()
        else:
            self.others_arrive.set()
            assert self.others_may.wait(PATIENCE_SECONDS)
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Let go."""
        self._lock.release()
        if threading.get_ident() == self._made_by:
            self._after()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_statement_that_waits_for_the_end_of_the_block_is_not_run(store: PostgresStore, end: str) -> None:
    """Behind the end the session commits each statement by itself: the row would be committed, and not fenced."""
    lease = lease_of(store)
    late: list[Call[Any]] = []

    def let_it_run() -> None:
        lock.others_may.set()
        for call in late:
            with suppress(LeaseholdError, psycopg.Error, AttributeError):
                call.result()

    lock = Watched(after=let_it_run)
    with suppress(KeyError), lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
        connection.lock = lock
        late.append(Call(lambda: connection.execute("insert into results values ('late')")))
        assert lock.others_arrive.wait(PATIENCE_SECONDS)
        if end == "rollback":
            raise KeyError

    with pytest.raises(NotInTransaction, match="has ended"):
        late[0].result()
    assert rows(store) == (["first", "mine"] if end == "commit" else ["first"])


def test_a_statement_under_way_at_the_end_of_the_block_is_part_of_it(store: PostgresStore) -> None:
    """The end of the block waits for it."""
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as other:
        other.execute("update results set what = what")
        lock = Watched(before=other.rollback)
        lock.others_may.set()
        with lease.transaction() as connection:
            connection.lock = lock
            call = Call(lambda: connection.execute("update results set what = 'mine'"))
            until_blocked(store, call)

    call.result()
    assert rows(store) == ["mine"]


def test_a_stream_that_is_not_read_to_its_end_commits_nothing(store: PostgresStore) -> None:
    """The driver keeps the connection locked for it, so the end of the block does not wait."""
    lease = lease_of(store)
    streams = []

    def streaming() -> None:
        with lease.transaction() as connection:
            connection.execute("insert into results values ('mine')")
            streams.append(connection.cursor().stream("select generate_series(1, 100000)"))
            next(streams[0])

    with pytest.raises(NotInTransaction):
        streaming()

    assert rows(store) == ["first"]
    with pytest.raises((NotInTransaction, psycopg.Error)):
        list(streams[0])


def test_every_use_of_a_blocks_connection_after_it_is_refused(store: PostgresStore) -> None:
    """A cursor that was made inside the block included, whatever kind it is."""
    lease = lease_of(store)
    with lease.transaction() as connection:
        cursor, named = connection.cursor(), connection.cursor("named")
    text = "insert into results values ('late')"
    for use in (
        lambda: connection.execute(text),
        lambda: connection.cursor(),
        lambda: cursor.execute(text),
        lambda: cursor.execute(sql.SQL(text) + sql.SQL("")),
        lambda: cursor.executemany(text, [()]),
        lambda: cursor.copy("copy results from stdin").__enter__(),
        lambda: next(cursor.stream(text + " returning what")),
        lambda: named.execute("select 1"),
        lambda: lease.complete(connection=connection),
    ):
        with pytest.raises(NotInTransaction, match="has ended"):
            use()
    named.close()
    assert connection.closed
    assert rows(store) == ["first"]
