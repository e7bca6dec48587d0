"""
Connections of psycopg, sync and async.

Before the first statement of a transaction psycopg sends a BEGIN, and waits for its reply. Here the two are one
message, with the parameters as literals. That saves a round trip: a guard's fence takes 127 µs instead of 180 µs on one
idle machine, and on a network the time to the server and back. The ordinary way is a cursor. It stays for values that
are not plain literals, and for a psycopg without the parts that this needs, which are not all documented.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

from .connection import Connection, Row, is_a
from .drivers import is_piped

_IDLE, _ACTIVE = 0, 1  # of libpq's PGTransactionStatusType
_SUCCEEDED = (1, 2)  # of libpq's ExecStatusType: PGRES_COMMAND_OK, PGRES_TUPLES_OK
_CONSTANTS = {True: b"true", False: b"false", None: b"NULL"}


class Psycopg(Connection):
    """A connection of psycopg."""

    library = "psycopg"
    how_to_begin = "connection.transaction()"
    vendor = "postgresql"

    def enter(self) -> None:
        """In a pipeline, wait for what was sent, if only that tells whether a transaction is open."""
        self.is_piped = is_piped(self.handle)
        if self.is_piped and self._is_unsure():
            with self.handle.pipeline():
                pass

    def in_transaction(self) -> bool:
        """Return whether a transaction is open on it, or will be once the pipeline has begun it."""
        return super().in_transaction() or (is_piped(self.handle) and _knows(self.handle))

    def begins(self) -> bool:
        """Return whether it begins a transaction by itself with the next statement."""
        return not self.handle.autocommit

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        parts = _parts()
        if parts is not None and not several:
            with self.handle.lock:
                message = self._with_begin(parts, sql, params)
                if message is not None:
                    try:
                        self.handle.pgconn.send_query(message)
                        return self._rows(parts, self.handle.wait(parts.execute(self.handle.pgconn)))
                    except BaseException:
                        self._give_up()
                        raise
        cursor = self._cursor()
        if several:
            cursor.executemany(sql, params)
            return []
        cursor.execute(sql, params)
        if cursor.pgresult is None:  # in a pipeline: wait for it
            with self.handle.pipeline():
                pass
        # Rows of `tuple_row` are tuples already, and `cursor.description` makes an object of each column.
        return cursor.fetchall() if cursor.pgresult.nfields else []

    def send(self, sql: str, params: Any) -> None:
        """Run a statement and read no answer; in a pipeline its error is the pipeline's."""
        self._cursor().execute(sql, params)

    def _cursor(self) -> Any:
        return self.handle.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)

    def _with_begin(self, parts: _Parts, sql: str, params: Any) -> bytes | None:
        """Return the driver's BEGIN and a statement as one message; None if a cursor is to run the statement."""
        driver = self.handle
        if driver.pgconn.transaction_status != _IDLE or driver.autocommit or is_piped(driver):
            return None
        if type(params) not in (tuple, list):
            return None
        if driver.cursor_factory not in parts.cursors:
            return None  # a class of the caller's, which perhaps logs or counts what it runs
        encoding = driver.info.encoding
        if encoding == "ascii":  # SQL_ASCII: the server takes any bytes, and a cursor sends UTF-8
            return None
        escape = parts.escaping(driver.pgconn).escape_literal
        literals: list[bytes] = []
        for param in params:
            kind = type(param)  # not a subclass, for which the caller may have registered an adapter
            if kind is str and "\0" not in param:  # where libpq would end the literal; a cursor raises DataError
                literals.append(escape(param.encode(encoding)))
            elif kind is int and param >= 0:
                literals.append(b"%d" % param)
            elif kind is bool or param is None:
                literals.append(_CONSTANTS[param])
            else:
                return None
        begin: bytes = driver._get_tx_start_command()
        return begin + b"; " + sql.encode(encoding) % tuple(literals)

    def _give_up(self) -> None:
        """Close the connection if Ctrl-C came before the driver waited for the reply, which stays unread."""
        if self.handle.pgconn.transaction_status == _ACTIVE:
            self.handle.pgconn.finish()

    def _rows(self, parts: _Parts, results: list[Any]) -> list[Row]:
        """Return the rows of the last statement of a message, or raise its error."""
        result = results[-1]
        if result.status not in _SUCCEEDED:
            raise parts.error_from_result(result, self.handle.info.encoding)
        reader = parts.transformer(self.handle)
        reader.set_pgresult(result)
        rows: list[Row] = reader.load_rows(0, result.ntuples, tuple)
        return rows

    def _is_unsure(self) -> bool:
        """Return whether only the server knows if a transaction is open in this pipeline."""
        return bool(self.handle.autocommit) and not _knows(self.handle)


class AsyncPsycopg(Psycopg):
    """A connection of psycopg on an event loop."""

    is_async = True

    async def enter_async(self) -> None:
        """In a pipeline, wait for what was sent, if only that tells whether a transaction is open."""
        if is_piped(self.handle) and self._is_unsure():
            async with self.handle.pipeline():
                pass

    async def execute_async(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows."""
        parts = _parts()
        if parts is not None and not several:
            async with self.handle.lock:
                message = self._with_begin(parts, sql, params)
                if message is not None:
                    try:
                        self.handle.pgconn.send_query(message)
                        return self._rows(parts, await self.handle.wait(parts.execute(self.handle.pgconn)))
                    except BaseException:
                        self._give_up()
                        raise
        async with self._cursor() as cursor:
            if several:
                await cursor.executemany(sql, params)
                return []
            await cursor.execute(sql, params)
            if cursor.pgresult is None:
                async with self.handle.pipeline():
                    pass
            return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []


class _Parts(NamedTuple):
    """What of psycopg sends a message and reads its reply without a cursor."""

    execute: Any
    error_from_result: Any
    transformer: Any
    escaping: Any
    cursors: tuple[Any, ...]  # the classes that a message may bypass


@cache
def _parts() -> _Parts | None:
    """Return the parts; None where this psycopg does not have one of them. To be called with a connection at hand."""
    try:
        import psycopg
        from psycopg.adapt import Transformer
        from psycopg.errors import error_from_result
        from psycopg.generators import execute
        from psycopg.pq import Escaping
    except ImportError:
        return None
    if not hasattr(psycopg.Connection, "_get_tx_start_command"):
        return None
    cursors = (psycopg.Cursor, psycopg.ClientCursor, psycopg.AsyncCursor, psycopg.AsyncClientCursor)
    return _Parts(execute, error_from_result, Transformer, Escaping, cursors)


def find(connection: Any) -> Psycopg | None:
    """Return what *connection* is, if it is psycopg's."""
    if is_a(connection, "psycopg", "Connection"):
        return Psycopg(connection)
    return AsyncPsycopg(connection) if is_a(connection, "psycopg", "AsyncConnection") else None


def _knows(driver: Any) -> bool:
    # Inside `with connection.transaction()` psycopg itself knows. (It does not say so to others; if it keeps it
    # elsewhere one day, the server is asked.)
    return bool(getattr(driver, "_num_transactions", False))
