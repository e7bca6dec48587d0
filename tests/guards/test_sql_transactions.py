"""SqlGuard in a transaction of the caller's: isolation, savepoints, COMMIT in other words, roles, lost replies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import IsolationLevel, sql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.guards.test_sql_postgres import LosingProxy
from tests.postgres.fixtures import server_url
from tests.postgres.proxy import Where

from leasehold import (
    Conflict,
    GuardUnavailable,
    InDoubt,
    InvalidArgument,
    Lease,
    NotInTransaction,
    StaleEpoch,
    Unsupported,
)
from leasehold.guards import SqlGuard
from leasehold.testing import lease, take_over

__all__ = ["server_url"]  # a fixture

OLD: Any = {"epoch": 7, "owner": "old", "store": "s"}
NEW: Any = {"epoch": 9, "owner": "new", "store": "s"}
ISOLATIONS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
_numbers = itertools.count()


class Place:
    """A database with a table of the application's, and a guard in a schema of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = f"transactions {next(_numbers)}"
        self.guard = SqlGuard(url, schema=self.schema, busy_seconds=5)
        self.execute("create table if not exists notes (text text)")
        self.execute("truncate notes")

    def execute(self, statement: Any) -> list[Any]:
        """Run a statement past the guard; `{schema}` is the guard's."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning")
            cursor = connection.execute(sql.SQL(statement).format(schema=sql.Identifier(self.schema)))
            return cursor.fetchall() if cursor.description else []

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a connection of the application's."""
        return psycopg.connect(self.url, **options)

    def notes(self) -> list[str]:
        """Return what was committed."""
        return [text for (text,) in self.execute("select text from notes order by 1")]


@pytest.fixture
def place(server_url: str) -> Iterator[Place]:
    """A place for each test."""
    made = Place(server_url)
    yield made
    made.guard.close()
    made.execute("drop schema if exists {schema} cascade")


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
def test_a_seal_gets_through_beside_a_paused_owner_whose_commit_is_refused(
    place: Place, isolation: IsolationLevel
) -> None:
    """Nothing is locked before COMMIT; the refusal is found in the driver's error, and counted once."""
    place.guard.seal("k", **OLD)
    with place.connect() as connection:
        connection.isolation_level = isolation
        place.guard.fence(connection, "k", **OLD)
        connection.execute("insert into notes values ('stale')")

        place.guard.seal("k", **NEW)

        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    refusal = StaleEpoch.find(error.value)
    assert refusal is not None
    assert (refusal.presented, refusal.current, refusal.owner, refusal.resource) == (7, 9, "new", "sql:k")
    assert StaleEpoch.find(error.value) is not None
    assert place.guard.refused == 1
    assert place.notes() == []
    assert (isolation is IsolationLevel.READ_COMMITTED) == (error.value.sqlstate == "LG001")


@pytest.mark.parametrize("isolation", ISOLATIONS[1:], ids=lambda level: level.name)
def test_a_faster_sibling_is_a_serialization_failure_and_not_stale(place: Place, isolation: IsolationLevel) -> None:
    """The transaction is to be run again, as at these isolations always."""
    with place.connect() as connection:
        connection.isolation_level = isolation
        place.guard.fence(connection, "k", **OLD)
        connection.execute("insert into notes values ('first')")
        with place.guard.transaction("k", **OLD) as sibling:
            sibling.execute("insert into notes values ('sibling')")

        with pytest.raises(psycopg.errors.SerializationFailure) as error:
            connection.commit()

        assert StaleEpoch.find(error.value) is None
        assert place.guard.refused == 0
        place.guard.fence(connection, "k", **OLD)
        connection.execute("insert into notes values ('again')")
    assert place.notes() == ["again", "sibling"]


@pytest.mark.parametrize("when", ["fence", "commit"])
def test_a_refusal_is_reported_with_the_job_of_the_lease(place: Place, when: str) -> None:
    """So that a router can record it in the history of that job: from the fence, and from the caller's COMMIT."""
    held, reports = lease(), list[tuple[str, str | None]]()
    successor = take_over(held)
    place.guard.on_refusal = lambda guard, key, writer, refusal: reports.append((key, writer.job_id))
    if when == "fence":
        place.guard.seal("k", lease=successor)
    with pytest.raises((StaleEpoch, psycopg.Error)) as error, place.connect() as connection:
        fence_beside(place, connection, held, successor)

    assert StaleEpoch.find(error.value) is not None
    assert reports == [("k", held.job_id)]


def fence_beside(place: Place, connection: Any, held: Lease, successor: Lease) -> None:
    """Fence under a lease, let its successor seal, and commit."""
    place.guard.fence(connection, "k", lease=held)
    place.guard.seal("k", lease=successor)
    connection.commit()


def test_a_refusal_that_is_ignored_is_repeated_by_commit(place: Place) -> None:
    """A caller may catch too much, and its rows are refused all the same."""
    place.guard.seal("k", **NEW)
    with place.connect() as connection:
        connection.execute("insert into notes values ('stale')")
        with pytest.raises(StaleEpoch, match="epoch 7 is refused"):
            place.guard.fence(connection, "k", **OLD)
        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    assert StaleEpoch.find(error.value) is not None
    assert place.notes() == []


@pytest.mark.parametrize(
    "words",
    [
        "END",
        "commit work",
        "/* now */ COMMIT",
        "insert into notes values ('more'); COMMIT",
        "COMMIT AND CHAIN",
        "do $$ begin commit; end $$",
    ],
)
def test_commit_in_other_words_is_fenced_too(place: Place, words: str) -> None:
    """Whatever ends the transaction."""
    with place.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        place.guard.fence(connection, "k", **OLD)
        connection.execute("insert into notes values ('stale')")
        place.guard.seal("k", **NEW)

        with pytest.raises(psycopg.Error):
            connection.execute(words)
        connection.execute("ROLLBACK")
    assert place.notes() == []


def test_constraints_made_immediate_compare_nothing_and_lock_nothing(place: Place) -> None:
    """The comparison is put off to the COMMIT again, so that the successor's seal does not wait."""
    with place.connect() as connection:
        place.guard.fence(connection, "k", **OLD)
        connection.execute("set constraints all immediate")
        connection.execute("insert into notes values ('stale')")
        place.guard.seal("k", **NEW)
        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    assert StaleEpoch.find(error.value) is not None


def test_a_replica_session_is_fenced_too(place: Place) -> None:
    """session_replication_role switches off ordinary triggers."""
    with place.connect() as connection:
        connection.execute("set session_replication_role = replica")
        place.guard.fence(connection, "k", **OLD)
        place.guard.seal("k", **NEW)
        with pytest.raises(psycopg.Error) as error:
            connection.commit()
    assert StaleEpoch.find(error.value) is not None


def test_a_fence_is_not_a_seal(place: Place) -> None:
    """It takes effect with the COMMIT, and is gone with a rollback."""
    with place.connect() as connection:
        place.guard.fence(connection, "k", **NEW)
        assert place.guard.mark("k") is None
        connection.rollback()
    assert place.guard.mark("k") is None


def test_a_savepoint_is_refused_unless_the_caller_knows(place: Place) -> None:
    """Rolled back, it would take the fence along, and the transaction would commit unfenced."""
    with place.connect() as connection:
        connection.execute("insert into notes values ('a')")
        with pytest.raises(Conflict, match="savepoint=True"), connection.transaction():
            place.guard.fence(connection, "k", **OLD)
        with connection.transaction():
            place.guard.fence(connection, "k", savepoint=True, **OLD)
    mark = place.guard.mark("k")
    assert mark is not None
    assert mark.epoch == 7


def test_several_keys_are_fenced_in_sorted_order(place: Place) -> None:
    """Two owners that name them in different orders do not deadlock, and all of the marks are raised."""
    place.guard.install()
    errors: list[BaseException] = []

    def write(keys: tuple[str, ...]) -> None:
        try:
            with place.connect() as connection:
                for _ in range(30):
                    place.guard.fence(connection, *keys, **OLD)
                    connection.commit()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(keys,)) for keys in (("a", "b", "c"), ("c", "b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert [mark.counter for key in "abc" if (mark := place.guard.mark(key))] == [60, 60, 60]
    place.guard.seal("b", **NEW)
    with place.connect() as connection:
        assert place.guard.fence(connection, "f", "d", "e", "d", **OLD).keys == ("d", "e", "f")
        with pytest.raises(StaleEpoch) as refusal:
            place.guard.fence(connection, "c", "b", "a", **OLD)
        connection.rollback()
    assert refusal.value.resource == "sql:b"


def test_autocommit_is_refused(place: Place) -> None:
    """It would fence nothing, silently."""
    engine = sqlalchemy.create_engine(
        place.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    with place.connect(autocommit=True) as plain, pytest.raises(NotInTransaction, match="begin one first"):
        place.guard.fence(plain, "k", **OLD)
    with engine.connect() as connection, pytest.raises(NotInTransaction):
        place.guard.fence(connection, "k", **OLD)


def test_a_failed_transaction_is_named(place: Place) -> None:
    """PostgreSQL takes nothing more in it."""
    with place.connect() as connection:
        place.guard.install()
        with pytest.raises(psycopg.Error):
            connection.execute("select 1/0")
        with pytest.raises(NotInTransaction, match="failed at an earlier statement"):
            place.guard.fence(connection, "k", **OLD)
        connection.rollback()


def test_a_transaction_that_failed_is_not_committed_silently(place: Place) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and no driver calls that an error."""

    def swallow() -> None:
        with place.guard.transaction("k", **OLD) as own:
            own.execute("insert into notes values ('lost')")
            with pytest.raises(psycopg.Error):
                own.execute("select 1/0")

    with pytest.raises(NotInTransaction, match="the block caught an error"):
        swallow()
    assert (place.notes(), place.guard.mark("k")) == ([], None)


# Installation and rights


def test_installing_twice_and_at_once_is_harmless(place: Place) -> None:
    """Every process of an application does it at its start."""
    guards = [SqlGuard(place.url, schema=place.schema) for _ in range(4)]
    errors: list[BaseException] = []

    def seal(guard: SqlGuard) -> None:
        try:
            guard.seal("k", **OLD)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=seal, args=(guard,)) for guard in guards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place.guard.install()
    for guard in guards:
        guard.close()

    assert errors == []
    mark = place.guard.mark("k")
    assert mark is not None
    assert mark.counter == 4


def test_it_can_be_installed_in_a_transaction_of_the_callers(place: Place) -> None:
    """For a migration, whose end decides."""
    with place.connect() as connection:
        place.guard.install(connection)
        connection.rollback()
        assert place.execute("select to_regnamespace('{schema}') is null") == [(True,)]
        place.guard.install(connection)
    place.guard.prove()


def test_a_role_needs_usage_of_the_schema_and_can_touch_no_mark(place: Place) -> None:
    """The functions run with the rights of the schema's owner."""
    place.guard.seal("k", **NEW)
    role = f"app_{place.schema.replace(' ', '_')}"
    place.execute(f"create role {role} login")
    place.execute(f"grant insert on notes to {role}")
    app = SqlGuard(place.url.replace("postgres@", f"{role}@"), schema=place.schema)
    try:
        with pytest.raises(Unsupported, match="GRANT USAGE ON SCHEMA"):
            app.seal("k", **NEW)
        place.execute(f"grant usage on schema {{schema}} to {role}")
        app.seal("k", **NEW)
        app.prove()
        with app.transaction("k", **NEW) as connection:
            connection.execute("insert into notes values ('by the role')")
        for statement in ("update {0}.marks set epoch = 1", "select {0}.admit(null, 'x')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction("k", **NEW) as connection:
                connection.execute(statement.format(f'"{place.schema}"'))
    finally:
        app.close()
        place.execute("drop schema {schema} cascade")
        place.execute(f"drop owned by {role}")
        place.execute(f"drop role {role}")
    assert place.notes() == ["by the role"]


# Lost replies


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name)
def test_a_callers_commit_whose_reply_was_lost_can_be_asked_about(place: Place, where: Where) -> None:
    """`fence()` returns what knows it."""
    place.guard.install()
    losing = LosingProxy(place.url)
    losing.meanwhile = lambda: None
    with losing as proxy, psycopg.connect(proxy.url) as connection:
        fence = place.guard.fence(connection, "k", **OLD)
        connection.execute("insert into notes values ('mine')")
        proxy.cut(where, "COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    assert fence.committed() == (where is Where.AFTER) == (place.notes() == ["mine"])


def test_a_commit_that_many_later_ones_hide_is_in_doubt(place: Place) -> None:
    """The mark remembers the last sixteen."""
    with place.connect() as connection:
        fence = place.guard.fence(connection, "k", **OLD)
        connection.commit()
        for _ in range(15):
            place.guard.seal("k", **OLD)
        assert fence.committed()
        place.guard.seal("k", **OLD)
        with pytest.raises(InDoubt, match="later writes hide it") as doubt:
            fence.committed()
    assert (doubt.value.resource, doubt.value.epoch, doubt.value.job_id) == ("sql:k", 7, None)


# Where connections come from


def test_connections_can_come_from_anywhere(place: Place) -> None:
    """An engine, and functions that return connections of psycopg, of SQLAlchemy, a session."""
    engine = sqlalchemy.create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    sources: list[Any] = [
        engine,
        lambda: psycopg.connect(place.url),
        lambda: psycopg.connect(place.url, autocommit=True),
        engine.connect,
        lambda: Session(engine),
    ]
    for number, source in enumerate(sources, 1):
        guard = SqlGuard(source, schema=place.schema)
        guard.prove()
        assert guard.seal("k", **OLD).mark.counter == number * 2 - 1
        if number < 5:
            with guard.transaction("k", **OLD) as connection:
                run = getattr(connection, "exec_driver_sql", connection.execute)
                run("insert into notes values ('x')")
        else:
            guard.seal("k", **OLD)
    assert len(place.notes()) == 4
    assert place.guard.seal("k", **OLD).mark.counter == 11


def test_what_cannot_be_a_source_is_named(place: Place) -> None:
    """With what can."""
    with pytest.raises(InvalidArgument, match="a function without arguments"):
        SqlGuard(7)
    with pytest.raises(InvalidArgument, match="begins with 'mysql'"):
        SqlGuard("mysql://host/db")
    with pytest.raises(InvalidArgument, match="names no file"):
        SqlGuard("sqlite:///:memory:")
    engine = create_async_engine(place.url.replace("postgresql:", "postgresql+psycopg:"))
    with pytest.raises(Unsupported, match="an async connection, which the guard cannot use"):
        SqlGuard(engine, schema=place.schema).seal("k", **OLD)
    with place.connect() as busy:
        busy.execute("select 1")
        with pytest.raises(Conflict, match="with an open transaction"):
            SqlGuard(lambda: busy, schema=place.schema).seal("k", **OLD)


def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    """And no password is shown."""
    guard = SqlGuard(f"postgresql://app:secret@/db?host={tmp_path}")
    with pytest.raises(GuardUnavailable, match="cannot be reached") as error:
        guard.seal("k", **OLD)
    assert "secret" not in str(error.value)
