"""
A connection, and the fast path to ask on it, below psycopg's cursor.

It needs `psycopg.generators`, which is not part of psycopg's documented interface, so the extra `postgres` has an upper
bound. Where the generators are missing all the same, an ordinary cursor is used.
"""

from __future__ import annotations

import os
import select
import zlib
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from ...core.clock import patience
from .rows import Row, numbers

try:
    from psycopg.errors import error_from_result
    from psycopg.generators import execute
except ImportError:  # a psycopg that has moved them
    execute = None  # then `Connection.ask` uses a cursor

T = TypeVar("T")

_NAMES = 200  # of prepared statements, at most


class Unanswered(psycopg.OperationalError):
    """The server has said nothing for too long, and the connection was given up."""


class Connection(psycopg.Connection[Any]):
    """A connection that waits for a reply as long as its store wants to, and in the process that made it."""

    reply_seconds: float | None = None  # None: for ever

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made_in = os.getpid()
        self._asked: dict[str, int] = {}  # how often, of what is not prepared
        self._names: dict[str, bytes] = {}  # of what is prepared
        self._named = 0  # how many names the server may know: one whose answer Ctrl-C has met too
        self._reader = Transformer(self)

    def ask(self, query: str, params: Sequence[object]) -> list[Row]:
        """
        Return the rows of one statement, in which $1, $2, … stand for *params*.

        With a cursor, 0.87 times as many jobs per second are claimed and completed one by one
        (`python benchmarks/postgres.py --only "one at a time"`).
        """
        self._check_process()
        sent = [_sent(param) for param in params]
        if execute is None:
            with psycopg.RawCursor(self) as cursor:
                return cursor.execute(query.encode(), [text.decode() for text in sent]).fetchall()
        name = self._names.get(query) or self._prepare(query)
        if name is not None:
            self.pgconn.send_query_prepared(name, sent)
        else:
            self.pgconn.send_query_params(query.encode(), sent)
        result = self._result(pq.ExecStatus.TUPLES_OK)
        self._reader.set_pgresult(result)
        rows: list[Row] = self._reader.load_rows(0, result.ntuples, tuple)
        self._reader.set_pgresult(None)  # an answer may be long, and the next question far away
        return rows

    def _prepare(self, query: str) -> bytes | None:
        """Return the name of the prepared statement; None, as long as it is asked rarely."""
        asked = self._asked[query] = self._asked.get(query, 0) + 1
        if self.prepare_threshold is None or asked <= self.prepare_threshold or len(self._names) >= _NAMES:
            return None
        text = query.encode()
        self._named += 1
        # The text is part of it: where a pooler that nobody noticed leads to another session, this name means nothing
        # there, and never another statement.
        name = b"leasehold_%d_%08x" % (self._named, zlib.crc32(text))
        self.pgconn.send_prepare(name, text)
        self._result(pq.ExecStatus.COMMAND_OK)
        self._names[query] = name
        del self._asked[query]
        return name

    def _result(self, wanted: pq.ExecStatus) -> Any:
        [*_, result] = self.wait(execute(self.pgconn))
        if result.status != wanted:
            raise error_from_result(result, self.info.encoding)
        return result

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Drive one of the driver's generators to its end."""
        self._check_process()
        if self.reply_seconds is not None:
            gen = self._impatient(gen, self.reply_seconds)
        return super().wait(gen, *args, **options)

    def _check_process(self) -> None:
        if self.made_in != os.getpid():
            raise psycopg.InterfaceError("this connection belongs to the process that this one was forked from")

    def _impatient(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        # The driver comes by at least ten times a second, also if nothing could be read or written.
        left = None
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    left = None
                elif left is None:
                    left = patience(seconds)
                elif left() <= 0:
                    self.pgconn.finish()  # what comes later would be taken for the answer to something else
                    raise Unanswered(f"no reply within {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as the generator is

    def is_alive(self) -> bool:
        """Return whether the server has not hung up while the connection was idle; asks the socket, not the server."""
        if self.closed:
            return False
        try:
            poll = select.poll()
            poll.register(self.pgconn.socket, select.POLLIN)
            for _ in range(8):  # the server's last words come before the end, and each read takes only what is there
                if not poll.poll(0):
                    return not self.closed
                self.pgconn.consume_input()
            return False
        except (OSError, ValueError, psycopg.Error):
            return False


def _sent(param: object) -> bytes:
    """Return *param* as text, which is how it is sent."""
    if isinstance(param, int):
        return b"%d" % param
    text = numbers(param) if isinstance(param, list) else str(param)
    if "\0" in text:  # where it would end
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text.encode()


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler stands between us and the server, which gives us another session for each transaction."""
    # It makes up the number of the backend that it greets a client with.
    [(backend,)] = connection.execute("SELECT pg_catalog.pg_backend_pid()", prepare=False).fetchall()
    return bool(backend != connection.info.backend_pid)
