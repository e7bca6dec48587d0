"""
The hunt's own tables, in the store's database: the rows that fenced transactions write.

A transaction takes the next place of its job, which locks a row of `marks` until its end: so the places of a job are in
the order of the commits. It keeps the greatest epoch that wrote before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ...errors import StaleSnapshot, Unsupported
from ...router import Router
from .judge import EffectRow

_TABLES = (
    "CREATE TABLE {marks} (job_id text PRIMARY KEY, place bigint NOT NULL, epoch bigint NOT NULL, "
    "before bigint NOT NULL)",
    "CREATE TABLE {effects} (token text PRIMARY KEY, job_id text NOT NULL, epoch bigint NOT NULL, "
    "place bigint NOT NULL, before bigint NOT NULL, settles boolean NOT NULL, how text NOT NULL)",
)
_MARK = (
    "INSERT INTO {marks} AS m (job_id, place, epoch, before) VALUES (%s, 1, %s, 0) "
    "ON CONFLICT (job_id) DO UPDATE SET place = m.place + 1, before = m.epoch, "
    "epoch = CASE WHEN excluded.epoch > m.epoch THEN excluded.epoch ELSE m.epoch END RETURNING place, before"
)
_WRITE = "INSERT INTO {effects} (token, job_id, epoch, place, before, settles, how) VALUES (%s, %s, %s, %s, %s, %s, %s)"
_READ = "SELECT token, job_id, epoch, place, before, settles, how FROM {effects}"

LOST = "lost"  # stands for the SQLSTATE of a connection that is gone
_GONE = ("57P01", "57P02", "57P03", "08003", "08006")


class Tables(Protocol):
    """What the hunt needs of a database."""

    pauses: float  # how much of a pause a fenced transaction may take without holding up everybody
    isolations: tuple[str, ...]
    deferred: bool  # whether what settles in a transaction waits for its COMMIT

    def create(self) -> None:
        """Make the tables."""
        ...

    def drop(self) -> None:
        """Remove them, and the store's."""
        ...

    def connect(self, isolation: str) -> Any:
        """Return a connection of the hunter's own, that begins a transaction with its first statement."""
        ...

    def begin(self, connection: Any) -> None:
        """Begin a transaction, if none is open, before a savepoint."""
        ...

    def mark(self, connection: Any, job_id: str, epoch: int) -> tuple[int, int]:
        """Take the next place of a job; return it, and the greatest epoch that wrote before."""
        ...

    def write(self, connection: Any, row: EffectRow) -> None:
        """Write a row."""
        ...

    def rows(self) -> list[EffectRow]:
        """Return every row that was committed."""
        ...

    def stale(self) -> list[EffectRow]:
        """Return rows behind a greater epoch."""
        ...

    def state_of(self, error: BaseException) -> str | None:
        """Return what kind of a driver's error it is: a SQLSTATE, `LOST`, or None for something else."""
        ...

    def deadlocks(self) -> int:
        """Return how many deadlocks the server has had to end in this database, so far."""
        ...


class _Written:
    """What is written and read in the same words everywhere, on connections that `_own` opens."""

    _write: str
    _read: str

    def _own(self) -> Any:
        raise NotImplementedError

    def write(self, connection: Any, row: EffectRow) -> None:
        """Write a row."""
        connection.execute(self._write, list(row))

    def rows(self) -> list[EffectRow]:
        """Return every row that was committed."""
        return self._select(self._read)

    def stale(self) -> list[EffectRow]:
        """Return rows behind a greater epoch."""
        return self._select(f"{self._read} WHERE before > epoch LIMIT 10")

    def _select(self, query: str) -> list[EffectRow]:
        with closing(self._own()) as connection:
            return [EffectRow(*row) for row in connection.execute(query)]


class PostgresTables(_Written):
    """The tables in a schema of a PostgreSQL database."""

    pauses = 1.0
    isolations: tuple[str, ...] = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
    deferred = True

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        names = {"marks": f'"{schema}_rows".marks', "effects": f'"{schema}_rows".effects'}
        self._tables = [statement.format(**names) for statement in _TABLES]
        self._mark, self._write, self._read = (text.format(**names) for text in (_MARK, _WRITE, _READ))

    def _own(self) -> Any:
        import psycopg  # on use: an extra

        return psycopg.connect(self._url, autocommit=True, application_name="leasehold hunt")

    def create(self) -> None:
        """Make the tables."""
        with closing(self._own()) as connection:
            connection.execute(f'CREATE SCHEMA "{self._schema}_rows"')
            for statement in self._tables:
                connection.execute(statement)

    def drop(self) -> None:
        """Remove them, and the store's."""
        with closing(self._own()) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(f'DROP SCHEMA IF EXISTS "{self._schema}_rows", "{self._schema}" CASCADE')

    def connect(self, isolation: str) -> Any:
        """Return a connection with that isolation."""
        connection = self._own()
        connection.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}")
        connection.autocommit = False
        return connection

    def begin(self, connection: Any) -> None:
        """Leave it to psycopg, which begins with the first statement, whichever that is."""

    def mark(self, connection: Any, job_id: str, epoch: int) -> tuple[int, int]:
        """Take the next place of a job."""
        place, before = connection.execute(self._mark, [job_id, epoch]).fetchone()
        return place, before

    def state_of(self, error: BaseException) -> str | None:
        """Return the SQLSTATE of psycopg's error."""
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        return LOST if error.sqlstate is None or error.sqlstate in _GONE else error.sqlstate

    def deadlocks(self) -> int:
        """Return the server's own count."""
        with closing(self._own()) as connection:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            return int(connection.execute(query).fetchone()[0])


class SqliteTables(_Written):
    """The tables in a SQLite file, under names that begin with the schema's."""

    pauses = 0.02  # an open write transaction blocks all other writers
    isolations: tuple[str, ...] = ("DEFERRED", "IMMEDIATE")
    deferred = False

    def __init__(self, url: str, schema: str) -> None:
        self._path = unquote(urlsplit(url).path[1:])
        self._schema = schema
        names = {"marks": f"{schema}_rows_marks", "effects": f"{schema}_rows_effects"}
        self._tables = [statement.format(**names) for statement in _TABLES]
        self._mark, self._write, self._read = (
            text.format(**names).replace("%s", "?") for text in (_MARK, _WRITE, _READ)
        )

    def create(self) -> None:
        """Make the tables."""
        self._run(self._tables)

    def drop(self) -> None:
        """Remove them, and the store's."""
        with closing(sqlite3.connect(self._path)) as connection:
            found = connection.execute(
                "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
        mine = [(kind, name) for kind, name in found if name.startswith(f"{self._schema}_")]
        self._run([f'DROP {kind} IF EXISTS "{name}"' for kind, name in sorted(mine, reverse=True)])

    def _own(self) -> Any:
        return sqlite3.connect(self._path, timeout=30)

    def _run(self, statements: Iterable[str]) -> None:
        with closing(self._own()) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def connect(self, isolation: str) -> Any:
        """Return a connection that begins its transactions so."""
        connection = self._own()
        connection.isolation_level = "IMMEDIATE" if isolation == "IMMEDIATE" else "DEFERRED"
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def begin(self, connection: Any) -> None:
        """Begin: a savepoint outside of a transaction would be one by itself, and its release the commit."""
        if not connection.in_transaction:
            connection.execute("BEGIN")

    def mark(self, connection: Any, job_id: str, epoch: int) -> tuple[int, int]:
        """Take the next place of a job."""
        [(place, before)] = connection.execute(self._mark, [job_id, epoch]).fetchall()
        return place, before

    def state_of(self, error: BaseException) -> str | None:
        """Return a SQLSTATE's like for sqlite3's error."""
        if isinstance(error, StaleSnapshot):
            return "40001"
        return str(error) if isinstance(error, sqlite3.Error) else None

    def deadlocks(self) -> int:
        """Return 0: with one lock there are none."""
        return 0


def tables_of(url: str, schema: str) -> Tables:
    """Return the tables for the database of *url*, or say why there can be none."""
    Router(url).close()  # which says what is wrong with it
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        return PostgresTables(url, schema)
    if scheme == "sqlite":
        return SqliteTables(url, schema)
    raise Unsupported(
        "a memory store cannot be hunted: it has no database that could also hold rows of yours, so there is no "
        "transaction to fence. Name a store that has a database: postgresql://host/database, or sqlite:///scratch.db."
    )
