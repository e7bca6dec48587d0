"""SqlGuard on SQLite files, on connections to another database, and in blocks whose transaction has ended."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.postgres.fixtures import server_url

from leasehold import (
    GuardUnavailable,
    InvalidArgument,
    NotInTransaction,
    StaleEpoch,
    StaleSnapshot,
)
from leasehold.guards import SqlGuard

from .test_sql_transactions import NEW, OLD, Place, place

__all__ = ["place", "server_url"]  # fixtures

_numbers = itertools.count()


def test_a_snapshot_that_is_too_old_is_named(tmp_path: Path) -> None:
    """A transaction that has read before another one wrote can write no more."""
    path = tmp_path / "app.db"
    guard = SqlGuard(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table notes (text)")
        guard.seal("k", **OLD)
        connection.execute("begin")
        connection.execute("select * from notes").fetchall()
        guard.seal("other", **OLD)
        with pytest.raises(StaleSnapshot, match="BUSY_SNAPSHOT"):
            guard.fence(connection, "k", **OLD)
        connection.execute("rollback")
        with pytest.raises(NotInTransaction, match="BEGIN IMMEDIATE"):
            guard.fence(connection, "k", **OLD)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_file_that_is_locked_names_the_process(tmp_path: Path, journal: str) -> None:
    """And the fence of a rolled-back transaction has left nothing."""
    path = tmp_path / "app.db"
    guard = SqlGuard(f"sqlite:///{path}", busy_seconds=0.05)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        guard.fence(connection, "k", **OLD)
        with pytest.raises(GuardUnavailable, match=r"write lock of .*app\.db"):
            guard.seal("k", **NEW)
        connection.rollback()
    assert guard.mark("k") is None
    assert guard.seal("k", **NEW).mark.counter == 1


def test_connections_to_a_file_can_come_from_anywhere(tmp_path: Path) -> None:
    """A driver's connection in each of its modes, an engine, a session."""
    path = tmp_path / "app.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    sources: list[Any] = [
        lambda: sqlite3.connect(path),
        lambda: sqlite3.connect(path, isolation_level=None),
        engine,
        lambda: Session(engine),
    ]
    if sys.version_info >= (3, 12):  # where sqlite3 has the modes of PEP 249
        sources += [functools.partial(sqlite3.connect, path, autocommit=mode) for mode in (False, True)]
    for number, source in enumerate(sources):
        guard = SqlGuard(source)
        guard.prove()
        assert guard.seal("k", **OLD).mark.counter == 2 * number + 1
        with guard.transaction("k", **OLD) as connection:
            assert connection is not None
        mark = guard.mark("k")
        assert mark is not None
        assert mark.counter == 2 * number + 2


def test_a_connection_to_another_database_than_the_guards_is_not_fenced(tmp_path: Path) -> None:
    """Seals are in the guard's own: a stale owner would pass where none of them is seen."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    guard.seal("k", epoch=9, owner="new", store="s")
    for name in (str(tmp_path / "other.db"), ":memory:"):
        with closing(sqlite3.connect(name, isolation_level=None)) as connection:
            connection.execute("attach ? as app", (str(tmp_path / "app.db"),))
            connection.execute("begin")
            with pytest.raises(InvalidArgument, match="would not be refused, even after a seal"):
                guard.fence(connection, "k", epoch=5, owner="old", store="s")
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as connection:
        connection.execute("begin")
        made = SqlGuard(lambda: sqlite3.connect(tmp_path / "app.db"))
        with pytest.raises(InvalidArgument, match="would not be refused, even after a seal"):
            made.fence(connection, "k", epoch=5, owner="old", store="s")
    (tmp_path / "linked.db").symlink_to(tmp_path / "app.db")
    with closing(sqlite3.connect(tmp_path / "linked.db", isolation_level=None)) as connection:
        connection.execute("begin")
        guard.fence(connection, "k", epoch=9, owner="new", store="s")
        connection.execute("commit")
        connection.execute("begin")
        with pytest.raises(InvalidArgument, match="is to sqlite"):
            SqlGuard("postgresql://localhost/app").fence(connection, "k", epoch=5, owner="old", store="s")


@pytest.mark.parametrize("made", ["empty", "copied"])
def test_another_database_with_the_same_schema_is_not_fenced(server_url: str, made: str) -> None:
    """It has marks of its own, in which no seal of this guard is seen. Also a copy, which has the same numbers."""
    names = [f"{name}_{next(_numbers)}_{os.getpid()}" for name in ("own", "other")]
    own, other = (make_conninfo(server_url, dbname=name) for name in names)
    guards = [SqlGuard(functools.partial(psycopg.connect, url)) for url in (own, other)]
    with closing(psycopg.connect(server_url, autocommit=True)) as server:
        try:
            server.execute(sql.SQL("create database {}").format(sql.Identifier(names[0])))
            guards[0].install()
            template = names[0] if made == "copied" else "template1"
            create = sql.SQL("create database {} template {}")
            server.execute(create.format(sql.Identifier(names[1]), sql.Identifier(template)))
            guards[1].install()
            guards[0].seal("k", **NEW)

            with closing(psycopg.connect(other)) as connection:
                connection.execute("select 1")
                with pytest.raises(
                    InvalidArgument, match=r"not to the guard's own database.*would not be refused, even after a seal"
                ):
                    guards[0].fence(connection, "k", **OLD)
            with closing(psycopg.connect(own)) as connection:
                connection.execute("select 1")
                with pytest.raises(StaleEpoch):
                    guards[0].fence(connection, "k", **OLD)
        finally:
            for name in names:
                server.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.mark.parametrize("how", ["rollback", "rollback to a savepoint"])
def test_a_block_whose_fence_was_rolled_back_commits_nothing_more(tmp_path: Path, how: str) -> None:
    """On SQLite the fence is a write, and goes with what is rolled back. The block notices before its COMMIT."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("create table notes (text)")
    guard.seal("k", **OLD)

    def write() -> None:
        with guard.transaction("k", **NEW) as own:
            own.execute("rollback")
            own.execute("begin")
            if how != "rollback":
                own.execute("savepoint early")
                guard.fence(own, "k", **NEW)
                own.execute("rollback to early")
            own.execute("insert into notes values ('unfenced')")

    with pytest.raises(NotInTransaction, match=r"inside this block has ended its fence"):
        write()

    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("select * from notes").fetchall() == []
    assert (mark := guard.mark("k")) is not None
    assert mark.epoch == OLD["epoch"]


ENDS: dict[str, Any] = {
    "rollback": lambda own, execute: own.rollback(),
    "rollback and begin": lambda own, execute: (execute("rollback"), execute("begin")),
    "commit": lambda own, execute: own.commit(),
    "commit and begin": lambda own, execute: (execute("commit"), execute("begin")),
}


@pytest.mark.parametrize("end", [*ENDS, "rollback and chain"])
@pytest.mark.parametrize("through", ["url", "function", "engine"])
def test_a_postgres_block_whose_transaction_has_ended_commits_nothing_more(
    place: Place, through: str, end: str
) -> None:
    """What follows a ROLLBACK or COMMIT in the block is in another transaction, which has no fence."""
    engine = sqlalchemy.create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    connect = {"url": place.url, "function": functools.partial(place.connect, autocommit=True), "engine": engine}
    guard = SqlGuard(connect[through], schema=place.schema)
    chained = lambda own, execute: execute("rollback and chain")  # noqa: E731

    def write() -> None:
        with guard.transaction("k", **OLD) as own:
            execute = own.exec_driver_sql if through == "engine" else own.execute
            ENDS.get(end, chained)(own, execute)
            guard.seal("k", **NEW)
            execute("insert into notes values ('unfenced')")

    with pytest.raises(NotInTransaction, match=r"inside this block has ended its fence"):
        write()
    assert place.notes() == []
    with guard.transaction("k", **NEW) as own:
        (own.exec_driver_sql if through == "engine" else own.execute)("insert into notes values ('new')")
    assert place.notes() == ["new"]
    guard.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_sqlite_block_whose_transaction_has_ended_commits_nothing_more(tmp_path: Path, end: str) -> None:
    """On the connection of the guard, no statement commits by itself; and each of the keys is compared again."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("create table notes (text)")

    def write() -> None:
        with guard.transaction("a", "b", **OLD) as own:
            ENDS[end](own, own.execute)
            guard.seal("b", **NEW)
            own.execute("insert into notes values ('unfenced')")

    with pytest.raises(NotInTransaction, match=r"inside this block has ended its fence"):
        write()
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("select * from notes").fetchall() == []


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_savepoint_of_sqlite_takes_its_fence_along(tmp_path: Path, journal: str) -> None:
    """
    What was compared stays compared, since the write lock is held to the end; but the mark is not raised.

    So a newer owner is not overwritten. An older one is refused only if the key was sealed before.
    """
    path = tmp_path / "app.db"
    guard = SqlGuard(f"sqlite:///{path}", busy_seconds=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        connection.execute("create table notes (text)")
        guard.seal("sealed", **NEW)
        connection.execute("begin")
        connection.execute("savepoint early")
        fence = guard.fence(connection, "sealed", "unsealed", savepoint=True, **NEW)
        connection.execute("rollback to early")
        connection.execute("insert into notes values ('new')")
        with pytest.raises(GuardUnavailable, match="write lock"):
            guard.seal("unsealed", epoch=11, owner="newest", store="s")
        connection.execute("commit")

        assert fence.committed() is False, "its mark was not raised"
        assert guard.mark("unsealed") is None
        connection.execute("begin")
        with pytest.raises(StaleEpoch):
            guard.fence(connection, "sealed", **OLD)
        guard.fence(connection, "unsealed", **OLD)  # which is why a key is sealed first
        connection.execute("rollback")


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_proof_that_meets_a_stopped_writer_names_it_and_waits_once(tmp_path: Path, journal: str) -> None:
    """As a seal does: an error of leasehold's, after one busy_seconds."""
    path = tmp_path / "app.db"
    guard = SqlGuard(f"sqlite:///{path}", busy_seconds=0.05)
    waits: list[Any] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        guard.install()
        opened = guard._source.open
        guard._source.open = lambda: waits.append(1) or opened()  # type: ignore[method-assign, func-returns-value]
        program = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('begin immediate'); "
            "print('held', flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "held\n"
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                with pytest.raises(
                    GuardUnavailable, match=rf"process {writer.pid} holds the only write lock.*end that"
                ):
                    guard.prove()
            finally:
                os.kill(writer.pid, signal.SIGCONT)
                writer.communicate("\n")
        assert len(waits) <= 3, "one to prove with, one that seals, one for the message"
    guard.prove()


def test_a_temporary_table_does_not_hide_the_marks(tmp_path: Path) -> None:
    """SQLite looks there first: a fence would compare with marks that no other connection has."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    guard.seal("k", epoch=9, owner="new", store="s")
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        [(text,)] = connection.execute("select sql from sqlite_master where name = 'leasehold_guard_marks'")
        connection.execute(text.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
        connection.execute("begin")
        with pytest.raises(StaleEpoch):
            guard.fence(connection, "k", epoch=5, owner="old", store="s")


def test_a_commit_that_meets_a_reader_is_unavailable(tmp_path: Path) -> None:
    """Without a write-ahead log, COMMIT waits for readers; the driver's own error would not tell what to do."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}", busy_seconds=0)
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as reader:
        reader.execute("create table t (x)")
        reader.execute("begin")
        assert reader.execute("select * from t").fetchall() == []
        with (
            pytest.raises(GuardUnavailable, match="since another connection is reading"),
            guard.transaction("k", epoch=9, owner="new", store="s") as connection,
        ):
            connection.execute("insert into t values (1)")
        reader.execute("commit")
        assert reader.execute("select * from t").fetchall() == []
    assert guard.mark("k") is None


@pytest.mark.parametrize("through", ["its path", "a link"])
def test_a_file_that_changes_under_an_open_connection_is_noticed(tmp_path: Path, through: str) -> None:
    """Removed, or no longer what the guard's URL leads to: seals would go to another file."""
    path, link, other = (tmp_path / name for name in ("app.db", "link.db", "other.db"))
    link.symlink_to(path)
    other.touch()
    guard = SqlGuard(f"sqlite:///{path if through == 'its path' else link}")
    with closing(sqlite3.connect(path)) as connection:
        for _ in range(2):
            guard.fence(connection, "k", **OLD)
            connection.commit()
        if through == "its path":
            path.unlink()
        else:
            link.unlink()
            link.symlink_to(other)
        with pytest.raises(InvalidArgument, match="would not be refused, even after a seal"):
            guard.fence(connection, "k", **OLD)


@pytest.mark.parametrize("counter", [2**53 - 1, 2**53, 2**63 - 1])
def test_a_counter_that_cannot_go_up_refuses_every_write(tmp_path: Path, counter: int) -> None:
    """A mark that stayed equal, or that no guard can read, would be worse than none."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    guard.seal("k", **OLD)
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("update leasehold_guard_marks set counter = ?", (counter,))
        connection.commit()
        with pytest.raises(GuardUnavailable):
            guard.fence(connection, "k", **NEW)
        connection.rollback()
        with pytest.raises(GuardUnavailable):
            guard.seal("k", **NEW)
        assert connection.execute("select epoch, counter from leasehold_guard_marks").fetchall() == [(7, counter)]


def test_a_callers_factories_do_not_change_what_a_fence_reads(tmp_path: Path) -> None:
    """Rows as dictionaries, text as bytes: the caller's choice for its own statements."""
    guard = SqlGuard(f"sqlite:///{tmp_path / 'app.db'}")
    guard.seal("k", epoch=5, owner="before", store="another")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.row_factory = lambda cursor, row: dict(enumerate(row))
        connection.text_factory = bytes
        guard.fence(connection, "k", **OLD)
        connection.commit()
        assert connection.execute("select owner from leasehold_guard_marks").fetchall() == [{0: b"old"}]
        with pytest.raises(StaleEpoch, match="owner 'old'"):
            guard.fence(connection, "k", epoch=6, owner="older", store="s")
        assert connection.text_factory is bytes
