"""
Races, staged: a session that stops in the middle of a transaction, and calls that must not wait for it.

A verb is one function, so a second session can call it, stay in its transaction, and end it when the test says so.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import sql
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Router
from leasehold.stores.postgres import PostgresStore

T = TypeVar("T")

ISOLATIONS = list(psycopg.IsolationLevel)[1:]  # PostgreSQL's own three


class Session:
    """Somebody else's session: it calls verbs of the store, and commits when it is told to."""

    def __init__(self, store: PostgresStore, clock_now: int | None = None) -> None:
        store.database.open()
        self.connection = psycopg.connect(store.database.url)
        self._store = store
        self._now = clock_now

    def call(self, function: str, *args: Any) -> list[Any]:
        """Call one of the store's functions, in the transaction that is open, on the store's own clock."""
        return self.ask(function, *args, self._now)

    def ask(self, function: str, *args: Any) -> list[Any]:
        """Call one of the store's functions that takes no instant."""
        name = sql.Identifier(self._store.database.schema, function).as_string(None).replace("%", "%%")
        return list(self.connection.execute(f"select * from {name}({', '.join(['%s'] * len(args))})", args))

    def claim(self, limit: int = 10, tasks: list[str] | None = None) -> list[str]:
        """Claim, and stay in the transaction; return the ids of what was got."""
        rows = self.call("claim", "other", limit, None, tasks, None, 30_000_000, None, *[None] * 12, False)
        return [id_ for row in rows for id_ in row[2] or ()]


@contextmanager
def session(store: PostgresStore) -> Iterator[Session]:
    """A session that is gone at the end of the block, with whatever it has open."""
    made = Session(store)
    try:
        yield made
    finally:
        made.connection.close()


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:  # told to the test by `result`
            self._error = error

    @property
    def waits(self) -> bool:
        """Whether it has not returned."""
        return self._thread.is_alive()

    def result(self) -> T:
        """What it returned or raised; it must be about to."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set by the thread, which has ended


def store_of(router: Router) -> PostgresStore:
    """Return the store of *router*, as what it is."""
    assert isinstance(router.store, PostgresStore)
    return router.store


def blocked(store: PostgresStore) -> bool:
    """Whether some session waits for a lock that another one has."""
    [(count,)] = store.database.read("select count(*) from pg_locks where not granted")
    return bool(count)


def until_blocked(store: PostgresStore, call: Call[Any]) -> None:
    """Wait until *call* waits for a lock; fail at once if it has returned instead."""
    until(lambda: blocked(store) or not call.waits)
    assert call.waits, "the call has returned, and did not wait for a lock"


@contextmanager
def entered_elsewhere(block: AbstractContextManager[T]) -> Iterator[T]:
    """Enter *block* as another thread would: outside of the transactions that are open here."""
    context = contextvars.Context()
    value = context.run(block.__enter__)
    try:
        yield value
    finally:
        context.run(block.__exit__, None, None, None)
