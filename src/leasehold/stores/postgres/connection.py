"""
A connection, the fast path to ask on it, below psycopg's cursor, the pool of connections, and the URL that names them.

The fast path needs `psycopg.generators`, which is not part of psycopg's documented interface, so the extra `postgres`
has an upper bound. Where the generators are missing all the same, an ordinary cursor is used.

A pool makes a connection when none is idle, and keeps it for the next use. Nothing here starts a thread. The store's
verbs and `lease.transaction()` blocks have a pool each. So however many blocks are open, they never count against the
connections that renewals need.
"""

from __future__ import annotations

import difflib
import os
import select
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import unquote_plus

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict

from ...core import checks
from ...core.clock import patience
from ...core.redaction import shown_url
from ...errors import InvalidArgument, StoreUnavailable
from .errors import ENCODE, without_secrets
from .rows import Row, numbers

try:
    from psycopg.errors import error_from_result
    from psycopg.generators import execute
except ImportError:  # a psycopg that has moved them
    execute = None  # then `Connection.ask` uses a cursor

T = TypeVar("T")

CONNECTIONS_LIMIT = 1_000
_LIBPQ = ("application_name", "connect_timeout", "host", "hostaddr", "options", "passfile", "port", "sslmode", "user")
_NAMES = 200  # of prepared statements, at most
_ROWS = pq.ExecStatus.TUPLES_OK  # in Python 3.11 an enum's member is found through its metaclass, ten times slower


class Unanswered(psycopg.OperationalError):
    """The server sent no reply for too long, and the connection was closed."""


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

    def read(self, query: str, params: Any) -> list[Row]:
        """Return the rows of one statement, in which %s or %(name)s stand for *params*."""
        return self.execute(query.encode(), params).fetchall()

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
        [*_, result] = self.wait(execute(self.pgconn))
        if result.status != _ROWS:
            raise error_from_result(result, self.info.encoding)
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
        # The text is part of it: where a pooler that was not noticed leads to another session, this name means nothing
        # there, and never another statement.
        name = b"leasehold_%d_%08x" % (self._named, zlib.crc32(text))
        self.pgconn.send_prepare(name, text)
        [*_, result] = self.wait(execute(self.pgconn))
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise error_from_result(result, self.info.encoding)
        self._names[query] = name
        del self._asked[query]
        return name

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
            self._room.notify()  # Ctrl-C may have met the thread that was notified: then the next one has to be
            raise
        self._check_open()
        if not room:
            raise StoreUnavailable(
                f"all {self.limit} connections to {self._where} have been in use for {self.wait_seconds:g} s "
                "(wait_seconds): use fewer threads, or raise the setting `connections` in the URL. Nothing was "
                "changed."
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
    """Have `part.forked()` called in a child process, before anything can use *part* there."""
    _outliving.add(part)


def _forked() -> None:
    for part in list(_outliving):
        part.forked()


if hasattr(os, "register_at_fork"):  # where a process can fork
    os.register_at_fork(after_in_child=_forked)


# URLs


class Settings(TypedDict, total=False):
    """What the store itself takes."""

    connections: int
    wait_seconds: float


def split_url(url: str) -> tuple[str, Settings]:
    """Return *url* as libpq takes it, and the settings in it that are the store's own; refuse values that cannot be."""
    scheme, slashes, _ = url.partition("://")
    if not slashes or ":" in scheme:
        raise InvalidArgument(
            "the URL of a PostgreSQL store must look like postgresql://user:password@host/database, and this one has "
            f"no '://' after {scheme.partition(':')[0]!r}."
        )
    before, query = _halves(url)
    theirs, ours = list[str](), Settings()
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        match name:
            case "connections":
                ours["connections"] = _whole(value, name, url, least=1, most=CONNECTIONS_LIMIT)
            case "wait_seconds":
                ours["wait_seconds"] = _seconds(value, name, url)
            case _:
                theirs.append(part)
    bare = f"{before}?{'&'.join(theirs)}" if theirs else before
    try:
        settings = conninfo_to_dict(bare)
    except psycopg.ProgrammingError as error:
        names = [part.partition("=")[0] for part in theirs]
        near = [
            found
            for name in names
            for found in difflib.get_close_matches(name, (*Settings.__annotations__, *_LIBPQ), 1)
        ]
        meant = f" Did you mean {near[0]!r}?" if near and near[0] not in names else ""
        message = without_secrets(str(error).strip(), url)
        raise InvalidArgument(f"{shown_url(url)} is not a URL that PostgreSQL understands: {message}.{meant}") from None
    if (timeout := settings.get("connect_timeout")) is not None:
        _whole(str(timeout), "connect_timeout", url, least=0, most=86_400)
    for port in str(settings.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            # It may be the first part of a password, which ends at the first "/" for libpq: so it is not shown.
            raise InvalidArgument(
                "the port in a PostgreSQL URL must be a whole number from 1 to 65535: check what follows the ':' "
                f"after the host.{f' {ENCODE}' if '@' in url else ''}"
            )
    return bare, ours


def _halves(url: str) -> tuple[str, str]:
    """Return what is before the settings in *url*, and the settings; a "?" of the user or the password is no start."""
    at = url.find("@")
    start = at if at >= 0 and "/" not in url[:at].partition("://")[2] else 0
    mark = url.find("?", start)
    return (url, "") if mark < 0 else (url[:mark], url[mark + 1 :])


def _whole(value: str, name: str, url: str, *, least: int, most: int) -> int:
    try:
        number = int(unquote_plus(value))
    except ValueError:
        got = without_secrets(repr(unquote_plus(value)), url)
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a whole number, not {got}.") from None
    return checks.whole(number, name, least=least, most=most)


def _seconds(value: str, name: str, url: str) -> float:
    try:
        number = float(unquote_plus(value))
    except ValueError:
        got = without_secrets(repr(unquote_plus(value)), url)
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a number of seconds, not {got}.") from None
    return checks.microseconds(number, name, zero=True) / 1_000_000
