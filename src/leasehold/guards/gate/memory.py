"""
Uses in the memory of this process, with marks and doubts in an SQLite file that it alone has open.

A use under the epoch of the mark takes no I/O. The file is written when the epoch goes up, for the first use of a key
in a process, and for doubts. The counter of a mark goes up in memory. The file has an upper bound of it, so that it
does not fall after a crash.

If the process ends without `close`, its uses are forgotten. The file knows which keys it has used, so the next process
records for each of them, at its first seal, that a use may not have ended.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import ClassVar

from ...core.clock import Clock, SystemClock
from ...core.marks import Mark
from ...core.ownership import EPOCH_LIMIT
from ...errors import Conflict, GuardUnavailable
from ...guard import Doubt
from . import rows
from .database import SqliteDatabase
from .forks import generation
from .home import Admit, Home, Running

TABLES = (
    *rows.TABLES,
    "CREATE TABLE IF NOT EXISTS leasehold_gate_sessions (session text PRIMARY KEY)",  # of processes that did not close
)
RESERVED = 1_000_000  # counts of a mark that the file is ahead of memory
_ENTRIES = 100_000  # keys in memory; those without uses are forgotten beyond it, and read again
_BUSY_SECONDS = 1.0  # for one process that ends while the next one starts
_CLOSED = "it was running when its process closed the gate"
_CRASHED = "the process that had the gate open ended without closing it, and a use of the key may not have ended"

_SET_MARK = """
    INSERT INTO leasehold_gate_marks (key, epoch, counter, owner, store, session) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, counter = excluded.counter, owner = excluded.owner,
        store = excluded.store, session = excluded.session"""
_FORGET = "DELETE FROM leasehold_gate_sessions WHERE session = ?"
_SESSION = """
    SELECT epoch, counter, owner, store,
        (SELECT session FROM leasehold_gate_sessions s WHERE s.session = m.session AND s.session <> ?)
    FROM leasehold_gate_marks m WHERE key = ?"""


class _Entry:
    """What is known of a key."""

    __slots__ = ("limit", "mark", "uses")

    def __init__(self, mark: Mark, limit: int) -> None:
        self.mark = mark
        self.limit = limit  # the counter in the file
        self.uses: dict[str, Running] = {}


class MemoryHome(Home):
    """State of one process. Gates on the same file in this process share it."""

    _open: ClassVar[weakref.WeakValueDictionary[str, MemoryHome]] = weakref.WeakValueDictionary()
    _opening: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, path: str, clock: Clock) -> MemoryHome:
        """Return the home in the file at *path*, opened if this process has not."""
        name = os.path.realpath(path)
        with cls._opening:
            found = cls._open.get(name)
            if found is None or found._closed or found._generation != generation():
                found = cls._open[name] = cls(name, clock)
            found._users += 1
            return found

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._wall = SystemClock()
        self._database = SqliteDatabase(path, TABLES, busy_seconds=_BUSY_SECONDS, exclusive=True)
        self._generation = generation()
        self._users = 0
        self._closed = False
        self._session = uuid.uuid4().hex
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.RLock()  # guards the entries; to take it through the condition costs 0.4 µs more
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for the end of a use
        self._writing = threading.RLock()  # held by the one thread that raises a mark
        self._resting = True  # until the first use
        # At the end of the process, too: then the next one need not doubt the uses of this one.
        self._shut = weakref.finalize(self, _shut, self._database, self._session, self._entries, self._wall)

    @property
    def waits(self) -> bool:
        """Ending a use only takes a lock."""
        return False

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key*."""
        self._check()
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None:
            return entry.mark
        found = self._database.run(rows.MARK, (key,))
        return rows.read_mark(found[0], key) if found else None

    def try_begin(self, use: Running, store: str) -> bool:
        """Record *use*, if the key stands at its very ownership."""
        if self._generation != generation():
            return False  # before the lock, which a thread of the parent may have held; `begin` refuses
        with self._lock:
            if self._closed or self._resting:
                return False  # then `begin` writes to the file, or refuses
            entry = self._entries.get(use.key)
            if entry is None:
                return False
            mark = entry.mark
            if mark.epoch != use.epoch or mark.owner != use.owner or mark.store != store:
                return False
            if mark.counter >= entry.limit:
                return False
            # `_replace` takes 1 µs
            entry.mark = Mark(mark.epoch, mark.counter + 1, mark.owner, mark.store)
            entry.uses[use.id] = use
            return True

    def begin(self, use: Running, admit: Admit) -> Mark | None:
        """Record *use*; the file is written first if its key was not used here before, or the ownership changes."""
        with self._turn():
            before = self._load(use.key)
            if before is not None and before.epoch < use.epoch:
                return None
            after = admit(before)
            self._wake()
            if self.try_begin(use, after.store):
                return self._entries[use.key].mark
            return self._write(use.key, after, use)

    def _wake(self) -> None:
        if self._resting:
            self._database.run("INSERT INTO leasehold_gate_sessions (session) VALUES (?)", (self._session,))
            self._resting = False

    def rest(self) -> None:
        """Record that no use is running, so that an end of the process before the next one is not called a crash."""
        with self._turn(), self._lock:
            # Held while the file is written: no use may begin between the two.
            if not self._resting and not any(entry.uses for entry in self._entries.values()):
                self._database.run(_FORGET, (self._session,))
                self._resting = True

    def seal(self, key: str, admit: Admit) -> Mark:
        """Set the mark in the file, then in memory: an older use that is admitted in between is seen by the drain."""
        with self._turn():
            return self._write(key, admit(self._load(key)), None)

    def _load(self, key: str) -> Mark | None:
        """Return the mark, and record a doubt if an earlier process may have left a use of the key behind."""
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                return entry.mark
        found = self._database.run(_SESSION, (self._session, key))
        if not found:
            return None
        mark, crashed = rows.read_mark(found[0], key), found[0][4] is not None
        if crashed:
            with self._database.transaction() as run:
                run(rows.ADD_DOUBT, (key, mark.epoch, mark.owner, _CRASHED, self._wall.now()))
                run("UPDATE leasehold_gate_marks SET session = '' WHERE key = ?", (key,))
        return mark

    def _write(self, key: str, after: Mark, use: Running | None) -> Mark:
        limit = min(after.counter + RESERVED, EPOCH_LIMIT - 1)
        # After a crash the limit is the mark, so no count comes twice.
        self._database.run(_SET_MARK, (key, after.epoch, limit, after.owner, after.store, self._session))
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._make_room()
                entry = self._entries[key] = _Entry(after, limit)
            else:  # uses may have been counted while the file was written
                entry.mark, entry.limit = after._replace(counter=max(after.counter, entry.mark.counter + 1)), limit
            if use is not None:
                entry.uses[use.id] = use
            return entry.mark

    def _make_room(self) -> None:
        if len(self._entries) >= _ENTRIES:
            for key in [key for key, entry in self._entries.items() if not entry.uses]:
                del self._entries[key]

    def end(self, use: Running) -> None:
        """Forget *use*."""
        with self._lock:
            entry = self._entries.get(use.key)
            if entry is not None and entry.uses.pop(use.id, None) is not None and self._waiting:
                self._changed.notify_all()

    def running(self, key: str, below: int) -> list[Running]:
        """Return the uses of *key* that are running under an epoch below *below*."""
        with self._lock:
            entry = self._entries.get(key)
            return [] if entry is None else [use for use in entry.uses.values() if use.epoch < below]

    def doubt(self, key: str, notes: Mapping[str, str]) -> None:
        """Record the doubts in the file, then forget the uses. Of two seals at once, one records a use."""
        with self._turn():
            with self._lock:
                entry = self._entries.get(key)
                found = [use for use in entry.uses.values() if use.id in notes] if entry else []
            with self._database.transaction() as run:
                for use in found:
                    run(rows.ADD_DOUBT, (use.key, use.epoch, use.owner, notes[use.id], self._wall.now()))
            for use in found:
                self.end(use)

    def doubts(self, key: str | None = None) -> list[Doubt]:
        """Return the doubts that are not resolved."""
        self._check()
        return rows.open_doubts(self._database, key)

    def resolve(self, key: str, epoch: int | None, by: str, note: str) -> int:
        """Resolve doubts of *key*."""
        self._check()
        return rows.resolve_doubts(self._database, key, epoch, by, note)

    def wait(self, key: str, below: int, micros: int) -> None:
        """Wait until a use of this process ends, unless those that are waited for have."""
        with self._lock:
            if self.running(key, below):
                self._waiting += 1
                try:
                    self._clock.wait(self._changed, self._clock.now() + micros)
                finally:
                    self._waiting -= 1

    def close(self) -> None:
        """Record running uses as doubts, and let another process have the file, once no gate uses it."""
        with self._opening:
            self._users -= 1
            if self._users == 0:
                # Held while the file is written: a use that began in between would not be in doubt.
                with self._writing, self._lock:
                    self._closed = True
                    self._shut()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock of the thread that writes, unless the gate is closed, also in the meantime."""
        self._check()
        with self._writing:
            self._check()
            yield

    def _check(self) -> None:
        if self._closed:
            raise Conflict(f"the gate at {self._database.path} is closed: open another one.")
        self._database.check_process()


def _shut(database: SqliteDatabase, session: str, entries: dict[str, _Entry], clock: Clock) -> None:
    """Record what is running as in doubt, and that this process has closed the gate."""
    if database.is_of_another_process():
        return
    with suppress(GuardUnavailable), database.transaction() as run:
        for use in [use for entry in entries.values() for use in entry.uses.values()]:
            run(rows.ADD_DOUBT, (use.key, use.epoch, use.owner, _CLOSED, clock.now()))
        run(_FORGET, (session,))
    entries.clear()
    database.close()
