"""
How a claim waits: for a notification, and for the next poll whatever happens.

No thread is started. Of the claims that wait in this process, one listens on a connection of its own and wakes the
others. The server notifies only while somebody is registered, since NOTIFY takes a lock over all databases at commit.
Behind a pooler nobody listens, since the session that would be notified is the pooler's.
"""

from __future__ import annotations

import logging
import os
import random
import threading

import psycopg
from psycopg import sql

from ...core.clock import SystemClock
from ...errors import LeaseholdError
from .connection import Connection
from .database import Database
from .pool import inherited, outlive_fork

log = logging.getLogger("leasehold")

POLL_SECONDS = 0.5
_REGISTERED_US = 10_000_000  # who has found work since is notified for nothing until then, and does not take it back
_timer = SystemClock()  # how long to wait is the caller's affair; nothing is decided by it


class _Pooled(Exception):
    """The session on the server is not this connection's own."""


class Waiting:
    """The claims of one process that wait on one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begin()
        outlive_fork(self)

    def _begin(self) -> None:
        self._name = os.urandom(8).hex()
        self._listens = threading.Lock()
        self._changed = threading.Condition()
        self._listener: Connection | None = None
        self._registered_us = 0
        self._pooled = False

    def forked(self) -> None:
        """Begin anew, in a child process."""
        inherited.append(self._listener)
        self._begin()

    def wait(self, us: int) -> None:
        """Return when a claim may find something: after a notification, a poll, or *us*; or at once, to look again."""
        seconds = min(POLL_SECONDS * random.uniform(0.75, 1.25), us / 1_000_000)
        if self._pooled or not self._listens.acquire(blocking=False):
            self.pause(seconds)
            return
        try:
            if not self._register():
                self._listen(seconds)
        except _Pooled:
            log.info("a pooler stands before PostgreSQL, so claims that wait poll every %g s", POLL_SECONDS)
            self._pooled = True
            self._hang_up()
        except (psycopg.Error, LeaseholdError) as error:
            log.debug("cannot listen for notifications, so this polls: %s", error)
            self._hang_up()
            self.pause(seconds)
        finally:
            self._listens.release()
            self.wake()  # the others too; and one of them listens next

    def _register(self) -> bool:
        """Make sure that somebody notifies us; return whether it was not so until now, and so one must look again."""
        if self._listener is not None and not self._listener.closed and _timer.now() < self._registered_us:
            return False
        if self._listener is None or self._listener.closed:
            self._listener = self._database.connect(Connection)
            if self._database.pooled:
                raise _Pooled
        statement = self._database.calls.statement("await_jobs", [self._name, _REGISTERED_US / 1_000_000])
        [(channel,)] = self._listener.ask(*statement)
        self._listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._registered_us = _timer.now() + _REGISTERED_US // 2
        return True

    def _listen(self, seconds: float) -> None:
        assert self._listener is not None
        for _ in self._listener.notifies(timeout=seconds, stop_after=1):
            pass

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def pause(self, seconds: float) -> None:
        """Wait until somebody of this process says that something has changed, or for *seconds*."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Wake the claims of this process that wait and do not listen."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Hang up, once whoever listens has noticed that the store is closed."""
        self.wake()
        with self._listens:
            self._hang_up()
