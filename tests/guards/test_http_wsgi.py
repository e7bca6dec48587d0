"""The WSGI middleware: how long a use lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold import StaleEpoch
from leasehold.guards import Gate
from leasehold.guards.http import (
    HEADER,
    WsgiGateMiddleware,
)

from .test_http_middleware import NEW, OLD, credential, doubts, gate

__all__ = ["gate"]  # fixtures


def wsgi(gate: Gate, app: Any) -> Any:
    """Call an application behind a gate; the caller is the server, and ends it."""
    environ = {"REQUEST_METHOD": "PUT", f"HTTP_{HEADER.upper().replace('-', '_')}": credential()}
    return WsgiGateMiddleware(app, gate, key=lambda environ: "k")(environ, lambda *_: None)


def running(gate: Gate) -> int:
    """How many uses a newer owner would wait for."""
    return len(gate._home.running("k", NEW))


def test_a_wsgi_response_is_in_use_until_it_is_closed(gate: Gate) -> None:
    """Also while the application closes it."""
    seen: list[int] = []

    class Parts:
        def __iter__(self) -> Iterator[bytes]:
            yield from (b"a", b"b")

        def close(self) -> None:
            seen.append(running(gate))

    def app(environ: Any, start_response: Any) -> Parts:
        start_response("200 OK", [])
        return Parts()

    body = wsgi(gate, app)
    assert list(body) == [b"a", b"b"]
    assert running(gate) == 1
    body.close()
    assert seen == [1]
    assert running(gate) == 0
    assert doubts(gate) == []


def test_a_wsgi_response_that_is_closed_early_is_in_doubt(gate: Gate) -> None:
    """The client has gone: servers close the response then."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield from (b"a", b"b")

    body = wsgi(gate, app)
    assert next(body) == b"a"
    body.close()
    assert doubts(gate) == ["its response was closed before it had ended"]


def test_a_wsgi_handler_that_raises(gate: Gate) -> None:
    """Before its response it has ended; in the middle, or while it is closed, it is in doubt."""

    def before(environ: Any, start_response: Any) -> Any:
        raise ZeroDivisionError

    def within(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"a"
        raise ZeroDivisionError

    class Closing:
        def __iter__(self) -> Iterator[bytes]:
            return iter((b"a",))

        def close(self) -> None:
            raise KeyError

    def closing(environ: Any, start_response: Any) -> Closing:
        start_response("200 OK", [])
        return Closing()

    with pytest.raises(ZeroDivisionError):
        wsgi(gate, before)
    assert running(gate) == 0
    body = wsgi(gate, within)
    with pytest.raises(ZeroDivisionError):
        list(body)
    body.close()
    body = wsgi(gate, closing)
    list(body)
    with pytest.raises(KeyError):
        body.close()
    assert sorted(doubts(gate)) == [
        "its handler raised KeyError when its response was closed",
        "its handler raised ZeroDivisionError in the middle of the response",
    ]


def test_a_refusal_in_a_wsgi_generator_is_a_409(gate: Gate) -> None:
    """Its first line runs when the server asks for the first part."""
    started: list[Any] = []

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        if environ:
            raise StaleEpoch("late", resource="row:7", presented=OLD, current=NEW)
        yield b""

    environ = {"REQUEST_METHOD": "PUT", "HTTP_LEASEHOLD_LEASE": credential()}
    middleware = WsgiGateMiddleware(app, gate, key=lambda environ: "k")
    body = middleware(environ, lambda *args: started.append(args))
    [part] = list(body)
    body.close()  # type: ignore[attr-defined]
    assert started[0][0] == "409 Conflict"
    assert json.loads(part)["current"] == NEW
    assert doubts(gate) == []
