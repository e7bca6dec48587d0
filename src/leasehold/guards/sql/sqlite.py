"""Marks in SQLite: a conditional write in the caller's transaction, which holds the file's only write lock."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...connections import Program, Row, driver_error
from ...core import checks
from ...core.marks import Mark
from ...core.ownership import EPOCH_LIMIT
from ...errors import GuardUnavailable, InvalidArgument, LeaseholdError, StaleSnapshot
from .dialect import RECENT, Dialect, Fenced, Known, Request, known_of, mark_of

_FIELDS = ("epoch", "counter", "owner", "store", "recent")
_SEPARATOR = "\x1f"
_WIDTH = 20  # of a nonce as text, with the blank behind it


class Sqlite(Dialect):
    """Tables with a prefix in a SQLite file."""

    vendor = "sqlite"

    def __init__(self, schema: str, kind: str, file: str | None = None) -> None:
        checks.name(schema, "schema")
        self.file = file  # which the guard's own connections open; "" if that cannot be known, None if it is not yet
        # Of the main database: a temporary table of that name would hide it from the caller's connection.
        table = 'main."' + f"{schema}_marks".replace('"', '""') + '"'
        self._kind = kind
        self._table = (
            f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL, "
            "counter INTEGER NOT NULL, owner TEXT NOT NULL, store TEXT NOT NULL, recent TEXT NOT NULL, "
            "passed_from TEXT) WITHOUT ROWID"
        )
        # One statement: it compares and writes under the write lock, and opens the transaction where none is open yet.
        # A SELECT first would pin a snapshot, from which SQLite may let nothing be written.
        self._raise = (
            f"INSERT INTO {table} AS m (key, epoch, counter, owner, store, recent) VALUES (?, ?, 1, ?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, counter = m.counter + 1, owner = excluded.owner, "
            f"store = excluded.store, recent = substr(excluded.recent || m.recent, 1, {RECENT * _WIDTH}), "
            "passed_from = CASE WHEN m.store <> excluded.store THEN "
            "m.epoch || char(31) || m.counter || char(31) || m.owner || char(31) || m.store END "
            "WHERE typeof(m.epoch) = 'integer' AND typeof(m.counter) = 'integer' AND typeof(m.owner) = 'text' "
            f"AND typeof(m.store) = 'text' AND m.epoch > 0 AND m.counter > 0 AND m.counter < {EPOCH_LIMIT - 1} "
            "AND m.epoch <= excluded.epoch AND (m.store = excluded.store OR m.epoch < excluded.epoch) "
            "AND (m.store = excluded.store OR NOT ?) "
            "RETURNING counter, passed_from"  # of what it wrote, the rest is known
        )
        self._read = f"SELECT {', '.join(_FIELDS)} FROM {table} WHERE key = ?"
        self._exists = "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = ?"
        self._name = f"{schema}_marks"
        self._delete = f"DELETE FROM {table} WHERE key = ? AND key LIKE 'leasehold prove %'"

    def install(self, style: str) -> Program[None]:
        """Make the table."""
        yield self._table, (), False

    def version(self, style: str) -> Program[int]:
        """Return 1 if the table is there."""
        [(count,)] = yield self._exists, (self._name,), False
        return int(count)

    def fence(self, request: Request, style: str) -> Program[Fenced]:
        """Raise the marks now: they are committed, or rolled back, with the caller's rows."""
        if self.file:
            databases = yield "PRAGMA database_list", (), False  # which reads nothing from the file
            _check_file(self.file, str(databases[0][2] or ""), request.keys[0])
        before: dict[str, Mark] = {}
        refused: list[str] = []
        for key in request.keys:
            raised = yield from self._raised(key, request)
            if raised is None:
                before[key] = yield from self._standing(key)
                refused.append(key)
            elif (passed := raised[1]) is not None:
                before[key] = _passed(passed, f"{self._kind}:{key}")
        return Fenced(before, refused=frozenset(refused))

    def seal(self, request: Request, style: str, busy_seconds: float) -> Program[tuple[Mark | None, Mark | None]]:
        """Raise one mark; return it as it was only if it was another store's, or refuses."""
        [key] = request.keys
        raised = yield from self._raised(key, request)
        if raised is None:
            return (yield from self._standing(key)), None
        (counter, passed), writer, resource = raised, request.writer, f"{self._kind}:{key}"
        facts = {"epoch": writer.epoch, "counter": counter, "owner": writer.owner, "store": writer.store}
        return None if passed is None else _passed(passed, resource), mark_of(facts, resource)

    def _raised(self, key: str, request: Request) -> Program[Row | None]:
        """Raise a mark; return its counter, and as text the mark of another store that it was. None: it refuses."""
        epoch, owner, store, _ = request.writer
        params = (key, epoch, owner, store, str(request.nonce).ljust(_WIDTH), request.strict)
        try:
            rows = yield self._raise, params, False
        except Exception as error:
            if not is_missing(error):
                raise
            yield self._table, (), False
            rows = yield self._raise, params, False
        return rows[0] if rows else None

    def _standing(self, key: str) -> Program[Mark]:
        """Read a mark that has refused."""
        known = yield from self.known(key, style="?")
        if known is None:
            raise GuardUnavailable(
                f"{self._kind}:{key}: its mark was not raised, and does not exist afterwards; perhaps a trigger "
                "removed it. Nothing was written."
            )
        return known.mark

    def known(self, key: str, style: str) -> Program[Known | None]:
        """Read the mark."""
        try:
            rows = yield self._read, (key,), False
        except Exception as error:
            if not is_missing(error):
                raise
            return None
        if not rows:
            return None
        facts: dict[str, Any] = dict(zip(_FIELDS, rows[0], strict=True))
        recent = facts["recent"]
        facts["recent"] = [int(nonce) for nonce in recent.split()] if isinstance(recent, str) else recent
        return known_of(facts, f"{self._kind}:{key}")

    def end_proof(self, key: str, style: str) -> Program[None]:
        """Remove the mark of a proof."""
        yield self._delete, (key,), False

    def status(self, number: str, style: str) -> Program[str | None]:
        """Return None: a COMMIT in this process has a reply."""
        yield "SELECT 1", (), False
        return None


def _check_file(own: str, callers: str, key: str) -> None:
    """Raise `InvalidArgument` if a transaction to be fenced is of another file, where no seal is seen."""
    try:
        # Of one path, it is enough that the file is still there: the guard's own connections would make a new one.
        if own == callers:
            os.stat(own)
            return
        if callers and os.path.samefile(own, callers):
            return
    except OSError:
        pass
    raise InvalidArgument(
        f"that connection is to {callers or 'a database in memory'!r}, and this guard keeps its marks in {own!r}: a "
        f"stale write of {key!r} through it would not be refused, even after a seal. Make the guard with the URL of "
        "the database that you write to. It must be the connection's database `main`, not an attached one."
    )


def _passed(text: str, resource: str) -> Mark:
    epoch, counter, owner, store = text.split(_SEPARATOR, 3)
    return mark_of({"epoch": int(epoch), "counter": int(counter), "owner": owner, "store": store}, resource)


def is_missing(error: BaseException) -> bool:
    """Return whether the table is not there."""
    return "no such table" in str(driver_error(error))


def is_busy(error: BaseException) -> bool:
    """Return whether another connection was in the way for too long."""
    code = getattr(driver_error(error), "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def explained(error: BaseException, resource: str, file: Callable[[], str | None]) -> LeaseholdError | None:
    """Return SQLite's *error* about a guard in leasehold's words; None if it is another one."""
    inner = driver_error(error)
    if not isinstance(inner, sqlite3.Error):
        return None
    code = getattr(inner, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StaleSnapshot(
            "your transaction had read before another one wrote, so SQLite no longer lets it write (BUSY_SNAPSHOT). "
            "Nothing was changed: roll it back and run it again, beginning with BEGIN IMMEDIATE or with the fence."
        )
    if is_busy(inner):
        path = file()
        held = "another connection" if path is None else _holder(path)
        return GuardUnavailable(
            f"{resource}: {held} holds the only write lock of {path or 'the database'}, perhaps stopped inside a "
            "transaction. Nothing was written: try again, or end that process."
        )
    return GuardUnavailable(f"{resource}: SQLite failed: {inner}. Nothing was written.")


def _holder(path: str) -> str:
    """Return which process has *path* locked for writing, as far as the kernel tells."""
    inodes = set()
    for name in (path, f"{path}-shm", f"{path}-journal"):
        try:
            inodes.add(str(os.stat(name).st_ino))
        except OSError:
            continue
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    pids = set()
    for line in lines:
        fields = line.split()  # 1: POSIX ADVISORY WRITE 4711 08:01:131 120 120
        is_write = len(fields) >= 8 and fields[1] == "POSIX" and fields[3] == "WRITE"
        if is_write and fields[5].rpartition(":")[2] in inodes:
            pids.add(int(fields[4]))
    return f"process {', '.join(map(str, sorted(pids)))}" if pids else "another connection"
