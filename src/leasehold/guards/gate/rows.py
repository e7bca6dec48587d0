"""
Marks, uses and doubts as rows: in an SQLite file for the processes of one machine, or in PostgreSQL for several.

A use is admitted and recorded in one atomic step. On SQLite that is a transaction, which holds the file's only write
lock. On PostgreSQL it is one statement, so a process that is stopped in the middle holds no lock at the server.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any

from ...core import instants
from ...core.clock import Clock, SystemClock
from ...core.marks import Mark, unreadable
from ...core.ownership import EPOCH_LIMIT, Process
from ...errors import GuardUnavailable, StaleEpoch
from ...guard import Doubt
from ...logs import log
from .database import Database
from .home import Admit, Home, Running

TABLES = (
    """CREATE TABLE IF NOT EXISTS leasehold_gate_marks (
        key text PRIMARY KEY,
        epoch bigint NOT NULL,
        counter bigint NOT NULL,
        owner text NOT NULL,
        store text NOT NULL,
        session text NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS leasehold_gate_uses (
        id text PRIMARY KEY,
        key text NOT NULL,
        epoch bigint NOT NULL,
        owner text NOT NULL,
        process text NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS leasehold_gate_uses_by_key ON leasehold_gate_uses (key, epoch)",
    """CREATE TABLE IF NOT EXISTS leasehold_gate_doubts (
        key text NOT NULL,
        epoch bigint NOT NULL,
        owner text NOT NULL,
        note text NOT NULL,
        count bigint NOT NULL,
        noted_us bigint NOT NULL,
        resolved_by text,
        resolution text,
        PRIMARY KEY (key, epoch, owner, note))""",
)

MARK = "SELECT epoch, counter, owner, store FROM leasehold_gate_marks WHERE key = ?"
_RUNNING = (
    "SELECT id, key, epoch, owner, process FROM leasehold_gate_uses WHERE key = ? AND epoch < ? ORDER BY epoch, id"
)
_END = "DELETE FROM leasehold_gate_uses WHERE id = ?"
# A doubt that was resolved, and has come up again, is open again.
ADD_DOUBT = """
    INSERT INTO leasehold_gate_doubts (key, epoch, owner, note, count, noted_us) VALUES (?, ?, ?, ?, 1, ?)
    ON CONFLICT (key, epoch, owner, note) DO UPDATE SET
        count = CASE WHEN leasehold_gate_doubts.resolved_by IS NULL THEN leasehold_gate_doubts.count ELSE 0 END + 1,
        noted_us = excluded.noted_us, resolved_by = NULL, resolution = NULL"""
_MOVE_TO_DOUBT = f"""
    WITH gone AS (DELETE FROM leasehold_gate_uses WHERE id = ? RETURNING key, epoch, owner)
    {ADD_DOUBT.replace("VALUES (?, ?, ?, ?, 1, ?)", "SELECT key, epoch, owner, ?, 1, ? FROM gone")}"""
_DOUBTS = """
    SELECT key, epoch, owner, note, count, noted_us FROM leasehold_gate_doubts WHERE resolved_by IS NULL{}
    ORDER BY key, epoch, noted_us, owner, note"""
_RESOLVE = """
    UPDATE leasehold_gate_doubts SET resolved_by = ?, resolution = ? WHERE key = ? AND resolved_by IS NULL{}
    RETURNING count"""

# The mark of a key is written only over the one that was compared. With a WHERE on the counter too, two uses under one
# epoch would hinder each other; with none, a seal in between would be overwritten.
_FIRST_MARK = """
    INSERT INTO leasehold_gate_marks (key, epoch, counter, owner, store, session) VALUES (?, ?, ?, ?, ?, '')
    ON CONFLICT (key) DO NOTHING RETURNING counter"""
_NEXT_MARK = """
    UPDATE leasehold_gate_marks SET epoch = ?, counter = counter + 1, owner = ?, store = ?
    WHERE key = ? AND epoch = ? AND store = ? AND counter > 0 RETURNING counter"""
_WITH_USE = """
    WITH mark AS ({}), used AS (
        INSERT INTO leasehold_gate_uses (id, key, epoch, owner, process)
        SELECT ?, ?, ?, ?, ? FROM mark ON CONFLICT (id) DO NOTHING)
    SELECT counter FROM mark"""
_ADD_USE = (
    "INSERT INTO leasehold_gate_uses (id, key, epoch, owner, process) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


_KNOWN = 10_000  # marks that are remembered
_POLL_US = 10_000  # how often a seal looks whether older uses have ended


def read_mark(row: tuple[Any, ...], key: str) -> Mark:
    """Return the mark of a row; raise `GuardUnavailable` if it cannot be one."""
    mark = Mark(*row[:4])
    whole = all(type(count) is int and 0 < count < EPOCH_LIMIT for count in mark[:2])
    if not whole or not all(isinstance(text, str) for text in mark[2:]):
        raise unreadable(f"gate:{key}", f"its row is {row!r}")
    return mark


def doubt_of(row: tuple[Any, ...]) -> Doubt:
    """Return the doubt of a row."""
    key, epoch, owner, note, uses, noted_us = row
    return Doubt(key, epoch, owner, note, uses, instants.aware(noted_us))


def open_doubts(database: Database, key: str | None) -> list[Doubt]:
    """Return the doubts that are not resolved, of *key* or of all keys."""
    where, params = ("", ()) if key is None else (" AND key = ?", (key,))
    return [doubt_of(row) for row in database.run(_DOUBTS.format(where), params)]


def resolve_doubts(database: Database, key: str, epoch: int | None, by: str, note: str) -> int:
    """Resolve the doubts of *key*; return how many uses they were."""
    where, params = ("", ()) if epoch is None else (" AND epoch = ?", (epoch,))
    return sum(row[0] for row in database.run(_RESOLVE.format(where), (by, note, key, *params)))


class RowsHome(Home):
    """State that several processes share."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._wall = SystemClock()
        self._pause = threading.Condition()
        self._unended: set[str] = set()  # uses whose row could not be removed yet
        self._known: dict[str, Mark] = {}  # as they stood last, so that a use takes one round trip

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key*."""
        return self._read(self._database.run(MARK, (key,)), key)

    def _read(self, rows: list[tuple[Any, ...]], key: str) -> Mark | None:
        return read_mark(rows[0], key) if rows else None

    def begin(self, use: Running, admit: Admit) -> Mark | None:
        """Record *use* and the mark that *admit* returns; None if the key has to be sealed first."""
        self._sweep()
        if self._database.has_data_modifying_with:
            return self._begin_in_a_statement(use, admit)
        with self._database.transaction() as run:
            before = self._read(run(MARK, (use.key,)), use.key)
            if before is not None and before.epoch < use.epoch:
                return None
            after = admit(before)
            run(*_mark_statement(use.key, before, after))
            run(_ADD_USE, _row(use))
        return after

    def _begin_in_a_statement(self, use: Running, admit: Admit) -> Mark | None:
        known = self._known.get(use.key)
        before = known if known is not None and known.epoch == use.epoch else self.mark(use.key)
        sent = False
        try:
            while before is None or before.epoch >= use.epoch:
                after = admit(before)
                sent = True
                if (written := self._write(use.key, before, after, use)) is not None:
                    return written
                before = self.mark(use.key)
        except StaleEpoch:
            if sent:
                self.end(use)
            raise
        if sent:
            # Its reply may have been lost, and the mark was raised before it was sent again: then it is recorded.
            self.end(use)
        return None

    def seal(self, key: str, admit: Admit) -> Mark:
        """Set the mark of *key* to what *admit* returns."""
        self._sweep()
        if not self._database.has_data_modifying_with:
            with self._database.transaction() as run:
                before = self._read(run(MARK, (key,)), key)
                after = admit(before)
                run(*_mark_statement(key, before, after))
            return after
        while True:
            before = self.mark(key)
            if (written := self._write(key, before, admit(before), None)) is not None:
                return written

    def _write(self, key: str, before: Mark | None, after: Mark, use: Running | None) -> Mark | None:
        """Write the mark over the one that was compared, with the use, in one statement; None if that has changed."""
        self._known.pop(key, None)
        sql, params = _mark_statement(key, before, after)
        if use is not None:
            sql, params = _WITH_USE.format(sql), (*params, *_row(use))
        if not (rows := self._database.run(sql, params)):
            return None
        if len(self._known) >= _KNOWN:
            self._known.clear()
        written = self._known[key] = after._replace(counter=rows[0][0])
        return written

    def end(self, use: Running) -> None:
        """Remove the row of *use*, now or before the next use."""
        self._unended.add(use.id)
        with contextlib.suppress(GuardUnavailable):
            self._remove(use.id)
            return
        log.warning(
            "gate:%s: could not record that a request has ended; trying again at the next request. Until then, a seal "
            "may wait for it",
            use.key,
        )

    def _remove(self, use_id: str) -> None:
        self._database.run(_END, (use_id,))
        self._unended.discard(use_id)

    def _sweep(self) -> None:
        for use_id in [*self._unended]:
            self._remove(use_id)

    def running(self, key: str, below: int) -> list[Running]:
        """Return the uses of *key* that are running under an epoch below *below*."""
        rows = self._database.run(_RUNNING, (key, below))
        return [Running(use_id, key, epoch, owner, _process(text)) for use_id, key, epoch, owner, text in rows]

    def doubt(self, key: str, notes: Mapping[str, str]) -> None:
        """Turn running uses into doubts. Of two seals at once, one moves a use."""
        for use_id, note in sorted(notes.items()):
            if self._database.has_data_modifying_with:
                self._database.run(_MOVE_TO_DOUBT, (use_id, note, self._wall.now()))
            else:
                with self._database.transaction() as run:
                    for facts in run(f"{_END} RETURNING key, epoch, owner", (use_id,)):
                        run(ADD_DOUBT, (*facts, note, self._wall.now()))

    def doubts(self, key: str | None = None) -> list[Doubt]:
        """Return the doubts that are not resolved."""
        return open_doubts(self._database, key)

    def resolve(self, key: str, epoch: int | None, by: str, note: str) -> int:
        """Resolve doubts of *key*."""
        return resolve_doubts(self._database, key, epoch, by, note)

    def wait(self, key: str, below: int, micros: int) -> None:
        """Wait a little: other processes do not say when a use has ended."""
        with self._pause:
            self._clock.wait(self._pause, self._clock.now() + min(micros, _POLL_US))

    def rest(self) -> None:
        """Do nothing: the rows tell which uses are running."""

    def close(self) -> None:
        """Close the connections."""
        self._database.close()


def _mark_statement(key: str, before: Mark | None, after: Mark) -> tuple[str, tuple[Any, ...]]:
    if before is None:
        return _FIRST_MARK, (key, *after)
    return _NEXT_MARK, (after.epoch, after.owner, after.store, key, before.epoch, before.store)


def _row(use: Running) -> tuple[Any, ...]:
    return (*use[:4], json.dumps(use.process))


def _process(text: str) -> Process | None:
    with contextlib.suppress(ValueError, TypeError):
        facts = json.loads(text)
        return None if facts is None else Process(*facts)
    return None
