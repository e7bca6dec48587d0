"""The middleware for ASGI and WSGI: who is admitted, how a refusal is answered; and how long a use lasts in ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import fastapi
import fastapi.responses
import httpx
import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import GuardUnavailable, InvalidArgument, StaleEpoch, UnknownJob
from leasehold.credentials import CredentialKey, KeyRing
from leasehold.guards import FileGuard, Gate
from leasehold.guards.http import (
    HEADER,
    GateMiddleware,
    LeaseMiddleware,
    WsgiGateMiddleware,
    WsgiLeaseMiddleware,
)
from leasehold.guards.http.problems import error_of
from leasehold.testing import ManualClock

CLOCK = ManualClock()
RING = KeyRing([CredentialKey("tests", "hs256", b"a secret of the tests, 32 bytes at least")], clock=CLOCK)
OLD, NEW = 7, 11

Client = Callable[..., httpx.Response]


def credential(epoch: int = OLD, **facts: Any) -> str:
    """What an owner presents."""
    given: dict[str, Any] = {"store": "s", "job_id": "j", "owner": f"owner-{epoch}", "audience": "reports"}
    return RING.mint(**given | {"epoch": epoch, "keys": ["k"], "seconds": 60} | facts)


def under(epoch: int) -> dict[str, str]:
    """The headers of an owner's request."""
    return {HEADER: credential(epoch)}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate with uses in memory, that does not wait."""
    with Gate(f"sqlite:///{tmp_path / 'gate.db'}", drain_seconds=0, keys=RING, audience="reports") as gate:
        yield gate


class Site:
    """An application behind a gate, by ASGI or WSGI: `handle` is called in the request, and may be replaced."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.handled: list[Any] = []
        self.handle: Callable[[Any], bytes] = lambda place: b"done"
        self.middleware: dict[str, Any] = {"key": lambda place: place.get("path", place.get("PATH_INFO"))[1:] or None}

    def request(self, gate: Gate | None, method: str = "PUT", path: str = "/k", **options: Any) -> httpx.Response:
        """Send a request."""
        if self.kind == "asgi":
            return asyncio.run(self._by_asgi(gate, method, path, options))
        app: Any = (
            WsgiLeaseMiddleware(self._wsgi, keys=RING, audience="reports", **self.middleware)
            if gate is None
            else WsgiGateMiddleware(self._wsgi, gate, **self.middleware)
        )
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://site") as client:
            return client.request(method, path, **options)

    async def _by_asgi(self, gate: Gate | None, method: str, path: str, options: Any) -> httpx.Response:
        app: Any = (
            LeaseMiddleware(self._asgi, keys=RING, audience="reports", **self.middleware)
            if gate is None
            else GateMiddleware(self._asgi, gate, **self.middleware)
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://site") as client:
            return await client.request(method, path, **options)

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        self.handled.append(scope)
        body = await asyncio.to_thread(self.handle, scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def _wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        self.handled.append(environ)
        body = self.handle(environ)
        start_response("200 OK", [])
        return [body]


@pytest.fixture(params=["asgi", "wsgi"])
def site(request: pytest.FixtureRequest) -> Site:
    """Both kinds in turn."""
    return Site(request.param)


def problem(response: httpx.Response) -> dict[str, Any]:
    """The problem of a response."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    found: dict[str, Any] = response.json()
    assert found["status"] == response.status_code
    assert found["type"].startswith("urn:leasehold:")
    assert found["title"]
    assert found["detail"]
    return found


# Who is admitted


def test_an_owner_is_admitted_and_an_older_one_refused_with_the_facts(site: Site, gate: Gate) -> None:
    """409; the handler does not run."""
    assert site.request(gate, headers=under(NEW)).content == b"done"
    refused = site.request(gate, headers=under(OLD))

    assert refused.status_code == 409
    facts = problem(refused)
    assert facts | {"presented": OLD, "current": NEW, "owner": "owner-11", "resource": "gate:k"} == facts
    assert len(site.handled) == 1
    assert gate.refused == 1
    error = error_of(409, "application/problem+json", refused.content)
    assert isinstance(error, StaleEpoch)
    assert (error.presented, error.current, error.owner, error.verb) == (OLD, NEW, "owner-11", "use")


def test_a_request_without_a_lease_is_refused(site: Site, gate: Gate) -> None:
    """428, with the name of the header."""
    refused = site.request(gate)
    assert refused.status_code == 428
    assert HEADER in problem(refused)["detail"]
    assert site.handled == []


@pytest.mark.parametrize(
    ("presented", "status", "fault"),
    [
        (lambda: "nonsense", 401, "malformed"),
        (lambda: "", 401, "malformed"),
        (lambda: credential()[:-4] + "AAAA", 401, "forged"),
        (lambda: credential(audience="invoices"), 403, "audience"),
        (lambda: credential(keys=["other"]), 403, "scope"),
    ],
)
def test_a_bad_credential_is_refused(site: Site, gate: Gate, presented: Any, status: int, fault: str) -> None:
    """401 if it proves nothing, 403 if it proves something else."""
    refused = site.request(gate, headers={HEADER: presented()})
    assert (refused.status_code, problem(refused)["fault"]) == (status, fault)
    assert ("www-authenticate" in refused.headers) == (status == 401)
    assert site.handled == []
    assert gate.mark("k") is None


def test_an_expired_credential_is_not_stale(site: Site, gate: Gate) -> None:
    """401 with a type of its own."""
    old = credential()
    CLOCK.advance(61)
    refused = site.request(gate, headers={HEADER: old})
    assert (refused.status_code, problem(refused)["type"]) == (401, "urn:leasehold:credential-expired")
    assert site.request(gate, headers=under(OLD)).status_code == 200


def test_a_mark_that_cannot_be_read_refuses(site: Site, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, and the handler does not run."""

    def failing(*_: Any) -> None:
        raise GuardUnavailable("the disk is gone")

    monkeypatch.setattr(gate._home, "begin", failing)
    refused = site.request(gate, headers=under(OLD))
    assert refused.status_code == 503
    assert "disk is gone" in problem(refused)["detail"]
    assert refused.headers["retry-after"] == "1"
    assert site.handled == []


def test_a_key_that_cannot_be_one_is_refused(site: Site, gate: Gate) -> None:
    """400."""
    refused = site.request(gate, path="/" + "x" * 300, headers=under(OLD))
    assert refused.status_code == 400
    assert problem(refused)["type"] == "urn:leasehold:invalid-argument"


def test_a_header_that_is_there_twice_is_refused(gate: Gate) -> None:
    """Which of them counts would depend on who reads it. WSGI servers join the two, which is malformed."""
    site = Site("asgi")
    refused = site.request(gate, headers=[(HEADER, credential(NEW)), (HEADER, credential(OLD))])
    assert refused.status_code == 401
    assert site.handled == []


def test_safe_methods_and_requests_without_a_key_pass(site: Site, gate: Gate) -> None:
    """As they are; which methods are safe is a setting."""
    for method, path in (("GET", "/k"), ("HEAD", "/k"), ("OPTIONS", "/k"), ("PUT", "/")):
        assert site.request(gate, method, path).status_code == 200
    assert gate.mark("k") is None
    site.middleware["safe_methods"] = ()
    assert site.request(gate, "GET").status_code == 428
    assert site.request(gate, "GET", headers=under(OLD)).status_code == 200
    site.middleware["safe_methods"] = ("put",)
    assert site.request(gate, "PUT").status_code == 200


def test_an_error_in_a_request_that_is_not_guarded_is_the_applications(site: Site, gate: Gate) -> None:
    """It was answered as a mark that cannot be read, or a second time if the response had begun."""

    def fail(place: Any) -> bytes:
        raise UnknownJob("j")

    site.handle = fail
    for method, path in (("GET", "/k"), ("PUT", "/")):
        with pytest.raises(UnknownJob):
            site.request(gate, method, path)


def test_a_gate_without_keys_is_refused(tmp_path: Path, gate: Gate) -> None:
    """At start, and so is what is not a gate or not a function."""
    with Gate(f"sqlite:///{tmp_path / 'other.db'}") as bare, pytest.raises(InvalidArgument, match="keys=KeyRing"):
        GateMiddleware(Site("asgi")._asgi, bare, key=lambda scope: "k")
    with pytest.raises(InvalidArgument, match="needs a Gate"):
        WsgiGateMiddleware(Site("wsgi")._wsgi, "gate", key=lambda environ: "k")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="function"):
        GateMiddleware(Site("asgi")._asgi, gate, key="k")  # type: ignore[arg-type]


# What a handler gets


def test_guards_in_the_handler_write_as_the_owner_of_the_request(site: Site, gate: Gate, tmp_path: Path) -> None:
    """The stronger form: the resource compares in its own atomic step. Nothing is left behind for the next request."""
    files = FileGuard(tmp_path)

    def handle(place: Any) -> bytes:
        use = place["leasehold.use"]
        files.write("q3.csv", b"content")
        return f"{use.epoch} {use.owner} {use.writer.job_id}".encode()

    site.handle = handle
    assert site.request(gate, headers=under(OLD)).content == b"7 owner-7 j"
    mark = files.mark("q3.csv")
    assert mark is not None
    assert (mark.epoch, mark.owner, mark.store) == (OLD, "owner-7", "s")
    with pytest.raises(Exception, match="no lease is active"):
        files.write("q3.csv", b"content")


def test_a_fence_in_the_handler_that_refuses_is_a_409(site: Site, tmp_path: Path) -> None:
    """Also without a gate: then the fence is all that compares."""
    files = FileGuard(tmp_path)
    files.seal("q3.csv", epoch=NEW, owner="owner-11", store="s")

    def handle(place: Any) -> bytes:
        files.write("q3.csv", b"x")
        return str(place["leasehold.writer"].owner).encode()

    site.handle = handle
    refused = site.request(None, headers=under(OLD))

    assert refused.status_code == 409
    facts = problem(refused)
    assert facts | {"presented": OLD, "current": NEW, "resource": "file:q3.csv"} == facts
    assert site.request(None, headers=under(NEW)).content == b"owner-11"
    assert site.request(None).status_code == 428


def test_a_refusal_in_the_handler_ends_its_use(site: Site, gate: Gate) -> None:
    """The handler is over; nothing is in doubt."""

    def refuse(place: Any) -> bytes:
        raise StaleEpoch("late", resource="row:7", presented=OLD, current=NEW)

    site.handle = refuse
    assert site.request(gate, headers=under(OLD)).status_code == 409
    assert gate.seal("k", epoch=NEW, owner="o", store="s").doubts == ()


# Actions


def test_a_key_is_sealed_and_its_mark_shown_over_http(site: Site, gate: Gate) -> None:
    """By a header, at the URL of the key; no handler runs."""
    sealed = site.request(gate, "POST", headers={**under(NEW), "Leasehold-Action": "seal"})
    assert sealed.status_code == 200
    assert sealed.json()["mark"]["epoch"] == NEW
    assert sealed.json()["doubts"] == []
    late = site.request(gate, "POST", headers={**under(OLD), "Leasehold-Action": "seal"})
    assert late.status_code == 409

    assert site.request(gate, "GET", headers={"Leasehold-Action": "mark"}).status_code == 428
    shown = site.request(gate, "GET", headers={**under(OLD), "Leasehold-Action": "mark"})
    assert shown.json()["mark"]["owner"] == "owner-11"
    site.middleware["public_marks"] = True
    assert site.request(gate, "GET", headers={"Leasehold-Action": "mark"}).json() == shown.json()
    assert site.request(gate, "POST", headers={**under(OLD), "Leasehold-Action": "unseal"}).status_code == 400
    del site.middleware["public_marks"]
    assert site.request(None, "POST", headers={**under(OLD), "Leasehold-Action": "seal"}).status_code == 400
    assert site.handled == []


# How long a use lasts: ASGI


class Exchange:
    """One request of an ASGI application that is driven by hand."""

    def __init__(self, gate: Gate, app: Any) -> None:
        self.app = GateMiddleware(app, gate, key=lambda scope: "k")
        self.sent: list[Any] = []

    async def run(self) -> None:
        """Run it to its end."""
        headers = [(HEADER.lower().encode(), credential().encode())]
        scope = {"type": "http", "method": "PUT", "path": "/k", "headers": headers}
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> Any:
        return {"type": "http.request", "body": b""}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


START = {"type": "http.response.start", "status": 200, "headers": []}


def doubts(gate: Gate) -> list[str]:
    """What a newer owner is told, which does not wait."""
    return [doubt.note for doubt in gate.seal("k", epoch=NEW, owner="o", store="s").doubts]


def test_a_streaming_response_is_in_use_to_its_end(gate: Gate) -> None:
    """And what the handler does after it, until it returns."""
    used: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (START, *({"type": "http.response.body", "body": b"x", "more_body": True} for _ in range(3))):
            await send(message)
            used.append(len(gate._home.running("k", NEW)))
        await send({"type": "http.response.body", "body": b""})
        used.append(len(gate._home.running("k", NEW)))  # tasks in the background, for example

    asyncio.run(Exchange(gate, app).run())
    assert used == [1, 1, 1, 1, 1]
    assert doubts(gate) == []


@pytest.mark.parametrize("kind", ["pathsend", "trailers"])
def test_other_ends_of_a_response_count(gate: Gate, kind: str) -> None:
    """A file that the server sends, and trailers, which come after the body."""
    parts: dict[str, list[dict[str, Any]]] = {
        "pathsend": [START, {"type": "http.response.pathsend", "path": "/x"}],
        "trailers": [
            {**START, "trailers": True},
            {"type": "http.response.body", "body": b""},
            {"type": "http.response.trailers", "headers": []},
        ],
    }
    for count in range(1, len(parts[kind]) + 1):

        async def app(scope: Any, receive: Any, send: Any, count: int = count) -> None:
            for message in parts[kind][:count]:
                await send(message)

        asyncio.run(Exchange(gate, app).run())
    assert [doubt.uses for doubt in gate.doubts("k")] == [len(parts[kind]) - 1]


def test_a_handler_that_raises_before_its_response_has_ended_its_use(gate: Gate) -> None:
    """The server answers 500. Nothing of it goes on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Exchange(gate, app).run())
    assert doubts(gate) == []


def test_a_response_that_breaks_off_is_in_doubt(gate: Gate) -> None:
    """The handler raised in the middle, or came back without an end."""

    async def raising(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        raise ZeroDivisionError

    async def returning(scope: Any, receive: Any, send: Any) -> None:
        await send(START)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Exchange(gate, raising).run())
    asyncio.run(Exchange(gate, returning).run())
    assert sorted(doubts(gate)) == [
        "its handler raised ZeroDivisionError in the middle of the response",
        "its handler returned before the response had ended",
    ]


def test_a_handler_that_raises_after_its_response_has_ended(gate: Gate) -> None:
    """As the framework does that answers 500 itself."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b""})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Exchange(gate, app).run())
    assert doubts(gate) == []


def test_a_handler_that_is_cancelled_is_in_doubt(gate: Gate) -> None:
    """A thread that it has started may go on: here it does."""
    writing, go_on = threading.Event(), threading.Event()

    def write() -> None:
        writing.set()
        go_on.wait(PATIENCE_SECONDS)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(write)

    async def run() -> None:
        task = asyncio.create_task(Exchange(gate, app).run())
        await asyncio.to_thread(writing.wait, PATIENCE_SECONDS)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        try:
            assert doubts(gate) == ["its handler was cancelled before the response had ended"]
        finally:
            go_on.set()

    asyncio.run(run())


def test_a_websocket_is_a_use_until_its_handler_returns(gate: Gate) -> None:
    """And is closed if its owner is refused."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        seen.append(len(gate._home.running("k", NEW)))

    async def run(epoch: int) -> list[Any]:
        exchange = Exchange(gate, app)
        headers = [(HEADER.lower().encode(), credential(epoch).encode())]
        await exchange.app({"type": "websocket", "path": "/k", "headers": headers}, exchange._receive, exchange._send)
        return exchange.sent

    asyncio.run(run(OLD))
    assert doubts(gate) == []
    assert seen == [1]
    assert asyncio.run(run(OLD)) == [{"type": "websocket.close", "code": 1008, "reason": "leasehold: 409"}]


def test_the_lifespan_of_an_application_passes(gate: Gate) -> None:
    """It is no request."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(GateMiddleware(app, gate, key=lambda scope: "k")({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_fastapi_handlers_are_guarded(gate: Gate, tmp_path: Path) -> None:
    """A plain one on its thread, and a streaming one; an error of a handler is the framework's to answer."""
    app = fastapi.FastAPI()
    app.add_middleware(GateMiddleware, gate=gate, key=lambda scope: scope["path"][1:])
    files = FileGuard(tmp_path)

    @app.put("/k")
    def plain() -> str:
        files.write("k", b"x")
        return "written"

    @app.post("/k")
    async def stream() -> fastapi.responses.StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield f"{len(gate._home.running('k', NEW))}".encode()

        return fastapi.responses.StreamingResponse(parts())

    @app.patch("/k")
    def broken() -> str:
        raise ZeroDivisionError

    async def run() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://site", headers=under(OLD)) as client:
            assert (await client.put("/k")).json() == "written"
            assert (await client.post("/k")).text == "111"
            assert (await client.patch("/k")).status_code == 500

    asyncio.run(run())
    assert doubts(gate) == []
    mark = files.mark("k")
    assert mark is not None
    assert mark.owner == "owner-7"
