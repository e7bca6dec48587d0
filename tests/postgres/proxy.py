"""
A proxy between a store and its server, which cuts connections where a test says so.

It forwards bytes, and knows just enough of PostgreSQL's protocol to tell where a reply ends. A cut is armed for
requests that contain some bytes, such as the name of a function.
"""

from __future__ import annotations

import enum
import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

READY = b"Z\x00\x00\x00\x05"  # and one byte: the end of each reply


class Where(enum.Enum):
    """Where a connection is cut."""

    BEFORE = "before the request reaches the server"
    AFTER = "after the server has answered, and before a byte of it is delivered"
    WITHIN = "in the middle of the reply"
    NEVER = "not at all, and nothing more is forwarded: a black hole"


@dataclass
class Cut:
    """What is to be done to requests that contain *what*, and how often."""

    where: Where
    what: bytes
    times: int


class Proxy:
    """A port of this machine that leads to a server's socket."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._socket_path = f"{parse_qs(self._target.query)['host'][0]}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._cut: Cut | None = None
        self._open: list[socket.socket] = []
        self._closed = threading.Event()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._listener.close()
        with self._lock:
            left, self._open = self._open, []
        for one in left:
            _close(one)

    @property
    def url(self) -> str:
        """The URL of the same database, through this proxy."""
        host, port = self._listener.getsockname()
        user = self._target.username
        return f"postgresql://{user}@{host}:{port}{self._target.path}?sslmode=disable&gssencmode=disable"

    def cut(self, where: Where, what: str, *, times: int = 1) -> None:
        """Arm a cut for the next *times* requests that contain *what*."""
        with self._lock:
            self._cut = Cut(where, what.encode(), times)
            self.cuts = 0

    def heal(self) -> None:
        """Cut nothing more; whatever is in a black hole is closed."""
        with self._lock:
            self._cut = None
            left, self._open = self._open, []
        for one in left:
            _close(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._socket_path)
            except OSError:  # it is down: nobody answers here either
                _close(client, server)
                continue
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while not self._closed.is_set():
                readable, _, _ = select.select([client, server], [], [])
                for one in readable:
                    data = one.recv(65536)
                    if not data:
                        return
                    if one is client and (where := self._struck(data)) is not None:
                        self._strike(where, data, client, server)
                        return
                    (server if one is client else client).sendall(data)
        except (OSError, ValueError):  # closed by somebody else
            pass
        finally:
            _close(client, server)

    def _struck(self, request: bytes) -> Where | None:
        with self._lock:
            if self._cut is None or self._cut.what not in request:
                return None
            where = self._cut.where
            self._cut.times -= 1
            if self._cut.times == 0:
                self._cut = None
            self.cuts += 1
            return where

    def _strike(self, where: Where, request: bytes, client: socket.socket, server: socket.socket) -> None:
        if where is Where.BEFORE:
            return
        if where is Where.NEVER:
            self._closed.wait()
            return
        server.sendall(request)
        reply = b""
        # Until the server has said all: so it has committed, and the test knows it.
        while reply[-6:-1] != READY:
            if select.select([client], [], [], 0)[0]:
                server.sendall(client.recv(65536))  # the rest of a long request
            if select.select([server], [], [], 0.01)[0]:
                data = server.recv(65536)
                if not data:
                    return
                reply += data
        if where is Where.WITHIN:
            client.sendall(reply[: len(reply) // 2])


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
