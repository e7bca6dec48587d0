"""
The servers that the tests run on, and a schema for each test.

Every test runs on the newest PostgreSQL that is found here. The contract, and what differs between versions (mark
`each_version`), runs on the oldest one as well. Each process of a test run starts its own servers, when a test first
asks for one.

LEASEHOLD_TEST_POSTGRES=15 runs everything on that version alone. With a URL it names one more server, of any version
from 14 on, whose role must be a superuser; `-k other` runs the tests on that one alone.

Where there is no server, the tests fail in CI and are skipped elsewhere; one that was named must be there.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from leasehold.core.clock import Clock, SystemClock
from leasehold.core.invariants import violation
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Connection

from .server import INSTALLED, NoServer, Server, installed, server


def chosen(named: str, versions: list[str]) -> list[str]:
    """Return the oldest and the newest of *versions*, or the one that is *named*."""
    if named.isdigit():
        if named not in versions:
            known = ", ".join(versions) or "none"
            raise pytest.UsageError(f"LEASEHOLD_TEST_POSTGRES is {named}, but of PostgreSQL this machine has: {known}")
        versions = [named]
    # Without any, the tests ask for the newest of the wheel, and say what to install.
    return sorted({*versions[:1], *versions[-1:]} or {"18"}, key=int)


_named = os.environ.get("LEASEHOLD_TEST_POSTGRES", "")
OTHER = None if not _named or _named.isdigit() else _named
VERSIONS = chosen(_named, list(INSTALLED))
NEWEST = VERSIONS[-1]
_others = ["other"] if OTHER else []
SERVERS = (NEWEST, *_others)

each_version = pytest.mark.parametrize("server_url", [*VERSIONS, *_others], indirect=True, scope="session")
"""For a test of something that differs between versions, and that asks for `place` or `server_url`."""

_TABLES = """
    select relname, pg_relation_size(c.oid) > 80000 from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname = %s and relkind = 'r' and relname <> 'store'
"""

_numbers = itertools.count()
_spare: dict[str, list[int]] = defaultdict(list)  # by URL, the numbers of schemas that are there and empty
_cleaners: dict[str, psycopg.Connection[Any]] = {}  # by URL
_kept: dict[str, list[Connection]] = defaultdict(list)  # by URL, the connections of stores that were closed
_exit = ExitStack()
atexit.register(_exit.close)


@_exit.callback
def _part() -> None:
    for connection in itertools.chain.from_iterable(_kept.values()):
        connection.close()


@functools.cache
def url_of(which: str) -> str:
    """Start the server, if it is ours to start, and return the URL of an empty database in it."""
    if which == "other":
        assert OTHER is not None
        return database(OTHER, "first")
    return database(_exit.enter_context(started(which)).url(), "first")


@contextmanager
def started(which: str, *, durable: bool = False) -> Iterator[Server]:
    """Run a server of that version; where there is none, fail in CI, and skip the test elsewhere."""
    with ExitStack() as running:
        try:
            found = running.enter_context(server(which, durable=durable))
        except NoServer as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no PostgreSQL {which} here: {error}")
        yield found


def must_have(version: str) -> None:
    """Skip the test, or fail it in CI, where there is no server of that version."""
    try:
        installed(version)
    except NoServer as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL {version} here: {error}")


def database(url: str, name: str) -> str:
    """Return the URL of another database on the server of *url*, made if it is not there."""
    name = f"leasehold_test_{os.getpid()}_{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("select from pg_database where datname = %s", [name]).fetchall():
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def with_path(url: str, path: str) -> str:
    """Return *url* for connections whose unqualified names mean *path*."""
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{path}"


def without_path(url: str) -> str:
    """Return *url* as it was before `with_path`."""
    return url.rpartition("options=")[0][:-1]


def path_of(url: str) -> str:
    """Return what `with_path` has put into *url*."""
    return url.rpartition("%3D")[2]


class _Keeping(PostgresStore):
    """A store that goes on with the sessions of one that was closed: to open some takes longer than most tests."""

    def __init__(self, url: str, *, clock: Clock | None, trace: bool, schema: str) -> None:
        super().__init__(url, clock=clock, trace=trace, schema=schema)
        self.database.pool.idle += _kept.pop(url, [])

    def close(self) -> None:
        """Close it, and keep what is idle."""
        idle = self.database.pool.idle
        _kept[self.database.url] += idle
        idle.clear()
        super().close()


@dataclass
class Place:
    """A database to make stores in, each in a schema of its own, all of them dropped after the test."""

    url: str
    stores: list[PostgresStore] = field(default_factory=list)
    others: list[PostgresStore] = field(default_factory=list)  # on the data of one of those, by another URL
    broken: bool = False  # by the test itself; else every store is asked at the end whether it is still whole
    keeps: bool = False  # whether stores leave their sessions to those of later tests

    def store(
        self, clock: Clock | None = None, *, trace: bool = False, url: str | None = None, untouched: bool = False
    ) -> PostgresStore:
        """Return a new, empty store; *untouched*: of which no earlier test has left dead rows, nor statistics."""
        number = next(_numbers) if untouched else self._spare(url or self.url)
        schema = f"test {number} \"%s' é"  # nothing that a name may contain needs care
        url = with_path(url or self.url, f"rows_{number}")  # for the caller's own tables, which are dropped too
        kind = _Keeping if self.keeps else PostgresStore
        made = kind(url, clock=clock, trace=trace, schema=schema)
        self.stores.append(made)
        made.database.open()
        made.database.call("raise_epochs", (clock or SystemClock()).now())
        return made

    def _spare(self, url: str) -> int:
        return _spare[url].pop() if _spare[url] else next(_numbers)

    def again(self, store: PostgresStore, clock: Clock | None = None) -> PostgresStore:
        """Return another store on the same data, as another process would have it."""
        made = PostgresStore(store.database.url, clock=clock, schema=store.database.schema)
        self.stores.append(made)
        return made

    def connect(self, store: PostgresStore, *, autocommit: bool = False) -> psycopg.Connection[tuple[object, ...]]:
        """Return a connection of a caller's own."""
        connection = psycopg.connect(store.database.url, autocommit=True)
        connection.execute(f"create schema if not exists {path_of(store.database.url)}")
        connection.set_autocommit(autocommit)
        return connection

    def clear(self) -> None:
        """See that every store is whole, and empty its schema for the next test: to make one takes longer than most."""
        for store in [*self.stores, *self.others]:
            store.close()
        found: list[str] = []
        for url, schema in {(store.database.url, store.database.schema) for store in self.stores}:
            found += _emptied(without_path(url), schema, path_of(url))
            _spare[without_path(url)].append(int(path_of(url).removeprefix("rows_")))
        assert self.broken or not found, found


CLEANER = "the cleaner of the tests"  # by which a test that ends all sessions leaves this one alone


def _emptied(url: str, schema: str, rows: str) -> list[str]:
    """Empty the tables of a store, and drop the caller's, on a connection that is kept; return what was broken."""
    cleaner = _cleaners.get(url)
    if cleaner is None or cleaner.closed or cleaner.broken:
        cleaner = _cleaners[url] = _exit.enter_context(psycopg.connect(url, autocommit=True, application_name=CLEANER))
        cleaner.execute("set client_min_messages = warning; set lock_timeout = '20s'")
    tables = cleaner.execute(_TABLES, [schema]).fetchall()
    checker = sql.SQL("select * from {}()").format(sql.Identifier(schema, "broken"))
    broken = [violation(kind, *json.loads(facts)) for kind, facts in cleaner.execute(checker).fetchall()]
    statements = [
        sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(rows)),
        *(
            # To truncate takes longer, but the next test does not step over what thousands of rows have left behind.
            sql.SQL("truncate {}" if large else "delete from {}").format(sql.Identifier(schema, table))
            for table, large in tables
        ),
        sql.SQL("alter sequence {} restart").format(sql.Identifier(schema, "epochs")),
    ]
    cleaner.execute(sql.SQL("; ").join(statements))
    return broken


@pytest.fixture(params=SERVERS, scope="session")
def server_url(request: pytest.FixtureRequest) -> str:
    """A database on the newest server, and on the one that was named; on the oldest as well with `each_version`."""
    return url_of(request.param)


@pytest.fixture
def place(server_url: str) -> Iterator[Place]:
    """Where a test makes its stores."""
    made = Place(server_url)
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store on the server's own clock, verified at the end."""
    made = place.store()
    yield made
    assert made.verify() == []


@pytest.fixture
def kept_sessions(place: Place) -> None:
    """Let stores use sessions that an earlier test has left: for tests to which it does not matter who opened them."""
    place.keeps = True
