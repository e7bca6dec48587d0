"""
The connections of this process: made when none is idle, and kept for the next use. Nothing here starts a thread.

The store's verbs and `lease.transaction()` blocks have a pool each. So however many blocks are open, they never count
against the connections that renewals need.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from psycopg import pq

from ...errors import StoreUnavailable
from .connection import Connection

ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Pool(Generic[ConnectionT]):
    """Connections of one kind to *where*, at most *limit* of them in use and *most_idle* idle."""

    def __init__(
        self,
        connect: Callable[[], ConnectionT],
        where: str,
        *,
        most_idle: int,
        limit: int | None = None,
        wait_seconds: float = 0,
    ) -> None:
        self._connect = connect
        self._where = where
        self._most_idle = most_idle
        self.limit = limit
        self.wait_seconds = wait_seconds
        self.closed = False
        self._begin()
        outlive_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._lent = 0  # how many connections are in use
        self.idle: list[ConnectionT] = []

    def borrow(self) -> ConnectionT:
        """
        Borrow a connection, waiting if all are in use. Return it with `give`.

        Raises `StoreUnavailable` if the pool is closed, if no connection is returned within `wait_seconds`, or if none
        can be made.
        """
        connection, taken = None, False
        try:
            with self._lock:
                self._make_sure_of_room()
                self._lent += 1
                taken = True
                connection = self.idle.pop() if self.idle else None
            while connection is not None and not connection.is_alive():
                connection.close()
                with self._lock:
                    connection = self.idle.pop() if self.idle else None
            return connection or self._connect()
        except BaseException:  # Ctrl-C too, which may come as soon as the lock is free
            if taken:
                self._take_back(None)
            if connection is not None:
                connection.close()
            raise

    def _make_sure_of_room(self) -> None:
        """Return once a connection may be lent; the lock is held."""
        self._check_open()
        if self._has_room():
            return
        try:
            room = self._room.wait_for(lambda: self._has_room() or self.closed, self.wait_seconds)
        except BaseException:
            self._room.notify()  # Ctrl-C may have met the one who was told of the room: then the next is to know
            raise
        self._check_open()
        if not room:
            raise StoreUnavailable(
                f"all {self.limit} connections to {self._where} have been in use for {self.wait_seconds:g} s "
                "(connections, wait_seconds): fewer threads, or more connections. Nothing was changed."
            )

    def _has_room(self) -> bool:
        return self.limit is None or self._lent < self.limit

    def give(self, connection: ConnectionT) -> None:
        """Return a borrowed connection; it is kept if nothing is open on it, else closed."""
        if connection.made_in != os.getpid():
            inherited.append(connection)
            return
        idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if not self._take_back(connection if idle else None):
            connection.close()

    def _take_back(self, connection: ConnectionT | None) -> bool:
        """Make room for the next; return whether *connection* is kept for it."""
        with self._lock:
            self._lent -= 1
            self._room.notify()
            if connection is None or self.closed or len(self.idle) >= self._most_idle:
                return False
            self.idle.append(connection)
            return True

    def drop(self, connection: ConnectionT) -> None:
        """Close a borrowed connection, and those that are idle."""
        with self._lock:
            dropped, self.idle = [connection, *self.idle], []
        for one in dropped:
            one.close()

    def close(self) -> None:
        """Close the idle connections; `borrow` raises `StoreUnavailable` from now on."""
        with self._lock:
            self.closed = True
            idle, self.idle = self.idle, []
            self._room.notify_all()
        for connection in idle:
            connection.close()

    def _check_open(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"this store ({self._where}) is closed.")

    def forked(self) -> None:
        """Begin anew, in a child process."""
        inherited.extend(self.idle)
        self._begin()


# The parent's connections are the parent's: to close them in a child would end its sessions. They stay open, unused.
inherited: list[Any] = []
_outliving: weakref.WeakSet[Any] = weakref.WeakSet()


def outlive_fork(part: Any) -> None:
    """Have *part* told, by `forked()`, that it is in a child process now, before anybody can use it there."""
    _outliving.add(part)


def _forked() -> None:
    for part in list(_outliving):
        part.forked()


if hasattr(os, "register_at_fork"):  # where a process can fork
    os.register_at_fork(after_in_child=_forked)
