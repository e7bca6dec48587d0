"""The connection that `lease.transaction()` lends: the end of its transaction is the lease's affair."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

from ...errors import Conflict, NotInTransaction

ROLLED_BACK = (
    "SQLite has rolled this transaction back before its block ended, as it does after some errors (INSERT OR ROLLBACK, "
    "a full disk): nothing was committed. Let such an error leave the block."
)


class LockedCursor(sqlite3.Cursor):
    """
    A cursor that takes the lock of its connection's statements.

    Two threads that prepare and bind statements at once stop the process: the one holds SQLite's mutex and waits for
    Python's lock, which the authorizer needs, and the other holds that and waits for the mutex.
    """

    connection: FencedConnection

    def execute(self, *args: Any) -> Any:
        """Run a statement."""
        with self.connection.statements:
            return super().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Run a statement for each set of parameters."""
        with self.connection.statements:
            return super().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Run several statements."""
        with self.connection.statements:
            return super().executescript(*args)

    def fetchone(self) -> Any:
        """Return the next row."""
        with self.connection.statements:
            return super().fetchone()

    def fetchmany(self, *args: Any, **options: Any) -> Any:
        """Return the next rows."""
        with self.connection.statements:
            return super().fetchmany(*args, **options)

    def fetchall(self) -> Any:
        """Return the rows that are left."""
        with self.connection.statements:
            return super().fetchall()

    def __next__(self) -> Any:
        """Return the next row."""
        with self.connection.statements:
            return super().__next__()


class FencedConnection(sqlite3.Connection):
    """A connection whose transaction is the lease's to end, and not its user's."""

    turn: AbstractContextManager[None] | None = None  # to write, as long as the block lasts
    file: tuple[int, ...] | None = None  # which file it is to: see `Database.file`

    def __init__(self, *args: Any, **options: Any) -> None:
        self.statements = threading.RLock()  # held for each statement, and for all of a verb
        self.made_in = os.getpid()
        super().__init__(*args, **options)

    def cursor(self, factory: Any = LockedCursor) -> Any:
        """Return a cursor that other threads inside the block do not disturb."""
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        """Run a statement on such a cursor; sqlite3's own would make another."""
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Run a statement for each set of parameters, likewise."""
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Run several statements, likewise."""
        return self.cursor().executescript(*args)

    def commit(self) -> None:
        """Refuse: the end of `with lease.transaction()` commits."""
        self._not_yours("commit")

    def rollback(self) -> None:
        """Refuse: raise an exception inside `with lease.transaction()` instead."""
        self._not_yours("rollback")

    def __exit__(self, *_: object) -> Any:
        """Refuse what sqlite3 does here, which is to commit."""
        self._not_yours("`with connection`")

    def close(self) -> None:
        """Refuse: the end of `with lease.transaction()` closes it."""
        self._not_yours("close")

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """Open a blob, unless SQLite has rolled back: what is written to one is asked of no authorizer."""
        if not self.in_transaction:
            raise NotInTransaction(ROLLED_BACK)
        return super().blobopen(*args, **kwargs)

    def end(self) -> None:
        """
        Roll back what is not committed, close, and give the turn back.

        To do it again is no harm: Ctrl-C may have come in between. In a child process that was forked inside the block
        it does nothing: the file's write-ahead log and its index are shared with the parent, which is still writing.
        """
        if self.made_in != os.getpid():
            return
        try:
            with suppress(sqlite3.Error):  # it is closed already, or its file is in a state that closing has to settle
                self.set_authorizer(None)
                # Closing alone does not roll back as long as somebody has a cursor.
                _end(self, "ROLLBACK")
            super().close()
        finally:
            if self.turn is not None:
                self.turn.__exit__(None, None, None)
                self.turn = None

    def _not_yours(self, what: str) -> None:
        raise Conflict(
            f"{what} inside lease.transaction(): the end of the block commits, and an exception in it rolls back. "
            "What followed a commit of your own would be unfenced."
        )


def _end(connection: sqlite3.Connection, how: str) -> None:
    if connection.in_transaction:
        connection.execute(how)
