"""
An HTTP proxy between a guard and its object store, which does to a request what a test has armed it with.

It takes whole requests and replies, so a reply is lost only after the server has done what was asked.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.patience import PATIENCE_SECONDS


class Reply(NamedTuple):
    """What a server has answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Request:
    """A request on its way: `forward` sends it to the server, and may be called again."""

    def __init__(self, target: str, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self._target = target

    @property
    def is_conditional(self) -> bool:
        """Whether it replaces a pointer."""
        return self.method == "PUT" and any(name.lower() in ("if-match", "if-none-match") for name, _ in self.headers)

    def without(self, *names: str) -> Self:
        """Remove headers."""
        self.headers = [(name, value) for name, value in self.headers if name.lower() not in names]
        return self

    def forward(self) -> Reply:
        """Let the server do it, and return its reply."""
        connection = http.client.HTTPConnection(self._target, timeout=PATIENCE_SECONDS)
        try:
            connection.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers:
                connection.putheader(name, value)
            connection.endheaders(self.body)
            response = connection.getresponse()
            body = response.read()
            kept = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP]
            return Reply(response.status, kept, body)
        finally:
            connection.close()


_HOP = ("connection", "keep-alive", "transfer-encoding")

Act = Callable[[Request], Reply | None]  # None: the connection is closed without a reply


def lose_reply(meanwhile: Callable[[], object] = lambda: None) -> Act:
    """Return an act: the server does it, *meanwhile* is called, and no reply arrives."""

    def act(request: Request) -> None:
        assert request.forward().status < 300
        meanwhile()

    return act


def lose_request(request: Request) -> None:
    """An act: the server never sees it."""


def twice(request: Request) -> Reply:
    """An act: it is sent twice, as by a client or a balancer that has lost the first reply."""
    request.forward()
    return request.forward()


def answer(status: int, text: str = "") -> Act:
    """Return an act: this is the reply, and the server never sees the request."""
    return lambda request: Reply(status, [("Content-Length", str(len(text)))], text.encode())


@dataclass(eq=False)
class _Armed:
    where: Callable[[Request], bool]
    act: Act
    times: int


class Proxy:
    """A port of this machine that leads to an endpoint."""

    def __init__(self, endpoint: str) -> None:
        self.requests: list[str] = []  # those that were seen: methods, with "?" if conditional
        self._acts: list[_Armed] = []
        self._lock = threading.Lock()
        proxy, target = self, urlsplit(endpoint).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = PATIENCE_SECONDS

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Request(target, self.command, self.path, list(self.headers.items()), body)
                reply = proxy._act(request)(request)
                if reply is None:
                    self.close_connection = True
                    with suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response_only(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                if self.command != "HEAD" and not any(name.lower() == "content-length" for name, _ in reply.headers):
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, address: Any) -> None:
                """A client that has gone is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The URL of the same server, through this proxy."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def arm(self, act: Act, *, times: int = 1, where: Callable[[Request], bool] | None = None) -> None:
        """Do *act* to the next *times* requests for which *where* is true, by default those that replace a pointer."""
        with self._lock:
            self._acts.append(_Armed(where or (lambda request: request.is_conditional), act, times))

    @property
    def is_armed(self) -> bool:
        """Whether a request is still to come to which something will be done."""
        with self._lock:
            return bool(self._acts)

    def disarm(self) -> None:
        """Pass everything on from now on."""
        with self._lock:
            self._acts.clear()

    def close(self) -> None:
        """Take no more connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_SECONDS)

    def _act(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request.method + "?" * request.is_conditional)
            for armed in self._acts:
                if armed.where(request):
                    armed.times -= 1
                    if not armed.times:
                        self._acts.remove(armed)
                    return armed.act
        return Request.forward


@contextmanager
def proxy_to(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy for as long as the block lasts."""
    proxy = Proxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
