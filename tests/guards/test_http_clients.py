"""Clients of a service behind a gate, and the service itself under signals: real servers in processes of their own."""

from __future__ import annotations

import asyncio
import http.server
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import (
    CredentialExpired,
    CredentialRefused,
    GuardUnavailable,
    InDoubt,
    InvalidArgument,
    Lease,
    NoLease,
    Router,
    StaleEpoch,
)
from leasehold.credentials import ENVIRONMENT, CredentialKey, KeyRing
from leasehold.guards import HttpGuard
from leasehold.guards.http import HEADER
from leasehold.testing import ManualClock, take_over

from .gates import Places
from .http_service import AUDIENCE, RING
from .services import Service

KEY = CredentialKey("tests", "hs256", b"a secret of the tests, 32 bytes at least")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One server; each test has a key of its own."""
    with Service(Places(tmp_path_factory.mktemp("service")), "memory", drain_seconds=0) as service:
        yield service


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """The key of this test."""
    return f"{request.node.originalname}{abs(hash(request.node.name))}"


@pytest.fixture
def lease() -> Iterator[Lease]:
    """A lease, whose job can be taken over."""
    with Router(clock=ManualClock()) as router:
        router.add("report-3")
        lease = router.claim("worker-0")
        assert lease is not None
        yield lease


def content(service: Service, key: str) -> bytes:
    """What is there."""
    return httpx.get(f"{service.url}/{key}").content


Put = Callable[[HttpGuard, str, Lease | None], Any]


def by_httpx(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    """With a client of the caller's own."""
    with httpx.Client(auth=guard.httpx_auth(lease=lease)) as client:
        return client.put(url, content=b"x")


def by_async_httpx(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    """On an event loop."""

    async def put() -> Any:
        async with httpx.AsyncClient(auth=guard.httpx_auth(lease=lease)) as client:
            return await client.put(url, content=b"x")

    return asyncio.run(put())


def by_requests(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    """With the other library."""
    with requests.Session() as session:
        session.auth = guard.requests_auth(lease=lease)
        return session.put(url, data=b"x", timeout=PATIENCE_SECONDS)


def by_guard_with_httpx(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    """By the guard itself, which knows the URL of a key."""
    with httpx.Client() as guard._client:
        return _request(guard, url, lease)


def by_guard_with_requests(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    """And with the other library below it."""
    with requests.Session() as guard._client:
        return _request(guard, url, lease)


def _request(guard: HttpGuard, url: str, lease: Lease | None) -> Any:
    key = guard.key_of(url)
    assert key is not None
    presented: dict[str, Any] = {} if lease is None else {"lease": lease}
    return guard.request("PUT", key, content=b"x", **presented)


AUTHS = [by_httpx, by_async_httpx, by_requests]
each_client = pytest.mark.parametrize("put", [*AUTHS, by_guard_with_httpx, by_guard_with_requests])
each_auth = pytest.mark.parametrize("put", AUTHS)


@each_client
def test_an_owner_writes_until_it_is_stale(service: Service, key: str, lease: Lease, put: Put) -> None:
    """Each request has a credential of its own; a 409 is `StaleEpoch`."""
    guard = HttpGuard(service.url, audience=AUDIENCE, ring=RING)
    url = f"{service.url}/{key}"
    assert put(guard, url, lease).status_code == 200
    assert content(service, key) == b"x"
    with guard_of(service) as newer:
        newer.seal(key, epoch=lease.epoch + 1, owner="worker-1", store="s")
    with pytest.raises(StaleEpoch) as refusal:
        put(guard, url, lease)
    assert (refusal.value.presented, refusal.value.current) == (lease.epoch, lease.epoch + 1)
    assert refusal.value.owner == "worker-1"


@contextmanager
def guard_of(service: Service) -> Iterator[HttpGuard]:
    """A guard with a client that is closed."""
    with httpx.Client(timeout=PATIENCE_SECONDS) as client:
        yield HttpGuard(service.url, audience=AUDIENCE, ring=RING, client=client)


@each_client
def test_the_current_lease_and_the_keys_of_the_environment_are_used(
    service: Service, key: str, lease: Lease, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be passed inside a handler; outside of one there is no lease."""
    monkeypatch.setenv(ENVIRONMENT, KEY.reveal())
    guard = HttpGuard(service.url, audience=AUDIENCE)
    with lease.active():
        assert put(guard, f"{service.url}/{key}", None).status_code == 200
    with pytest.raises(NoLease):
        put(guard, f"{service.url}/{key}", None)


@each_client
def test_a_lost_lease_sends_nothing(service: Service, key: str, lease: Lease, put: Put) -> None:
    """No credential is minted for it."""
    guard = HttpGuard(service.url, audience=AUDIENCE, ring=RING)
    take_over(lease)
    with pytest.raises(StaleEpoch):
        put(guard, f"{service.url}/{key}", lease)
    assert content(service, key) == b""


@each_client
def test_a_credential_is_fresh_for_each_request(service: Service, key: str, lease: Lease, put: Put) -> None:
    """So one that lasts for a moment is good all day."""
    clock = ManualClock()
    clock.advance(10 * 365 * 86_400)  # ahead of the service's clock
    ring = KeyRing([KEY], clock=clock)
    guard = HttpGuard(service.url, audience=AUDIENCE, ring=ring, seconds=1)
    for _ in range(3):
        assert put(guard, f"{service.url}/{key}", lease).status_code == 200
        clock.advance(3600)


@each_client
def test_what_the_service_does_not_believe_is_raised(service: Service, key: str, lease: Lease, put: Put) -> None:
    """Forged, for another audience, and expired: three errors."""
    url = f"{service.url}/{key}"
    forged = KeyRing([CredentialKey.generate("tests")])
    with pytest.raises(CredentialRefused) as refusal:
        put(HttpGuard(service.url, audience=AUDIENCE, ring=forged), url, lease)
    assert refusal.value.fault == "forged"
    with pytest.raises(CredentialRefused) as refusal:
        put(HttpGuard(service.url, audience="invoices", ring=RING), url, lease)
    assert refusal.value.fault == "audience"
    long_ago = KeyRing([KEY], clock=_Early())
    with pytest.raises(CredentialExpired):
        put(HttpGuard(service.url, audience=AUDIENCE, ring=long_ago), url, lease)
    assert content(service, key) == b""


class _Early(ManualClock):
    def now(self) -> int:
        """In 2001."""
        return 1_000_000_000 * 1_000_000


# Servers that answer as a proxy would


class Raw:
    """A server that answers every request alike, and remembers what came."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, *, hang_up: bool = False) -> None:
        self.requests: list[tuple[str, str | None]] = []
        raw = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                raw.requests.append((self.path, self.headers.get(HEADER)))
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if hang_up:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT

            def log_message(self, *args: Any) -> None:
                """Be quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/files"

    def __enter__(self) -> Raw:
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.mark.parametrize("status", [502, 503, 504])
@each_client
def test_a_write_is_never_sent_twice(lease: Lease, put: Put, status: int) -> None:
    """After 502, 503 and 504 the service may have handled it: the guard says so, and `auth=` leaves the response."""
    with Raw(status) as raw:
        guard = HttpGuard(raw.url, audience=AUDIENCE, ring=RING)
        if put in AUTHS:
            assert put(guard, f"{raw.url}/k", lease).status_code == status
        else:
            with pytest.raises(InDoubt, match=f"answered {status}"):
                put(guard, f"{raw.url}/k", lease)
        assert len(raw.requests) == 1


@pytest.mark.parametrize("put", [by_guard_with_httpx, by_guard_with_requests])
def test_a_lost_reply_is_in_doubt(lease: Lease, put: Put) -> None:
    """Without a connection, nothing was sent."""
    with Raw(200, hang_up=True) as raw:
        guard = HttpGuard(raw.url, audience=AUDIENCE, ring=RING)
        with pytest.raises(InDoubt) as doubt:
            put(guard, f"{raw.url}/k", lease)
        assert (doubt.value.resource, doubt.value.epoch) == ("http:k", lease.epoch)
        assert len(raw.requests) == 1
    with pytest.raises(GuardUnavailable, match="Nothing was written"):
        put(guard, f"{raw.url}/k", lease)


@each_auth
def test_no_other_host_gets_the_credential(lease: Lease, put: Put) -> None:
    """Neither by its own URL nor by a redirect."""
    with Raw(200) as other, Raw(307, {"Location": f"{other.url}/stolen"}) as raw:
        guard = HttpGuard(raw.url, audience=AUDIENCE, ring=RING)
        put(guard, f"{other.url}/k", lease)
        put(guard, f"{raw.url}/k", lease)
        put(guard, f"{raw.url}evil/k", lease)
        assert [presented for _, presented in other.requests if presented] == []
        assert [bool(presented) for _, presented in raw.requests] == [True, False]


def test_a_response_that_only_looks_like_a_problem_is_left(lease: Lease) -> None:
    """A 409 of the application itself is the caller's."""
    with Raw(409, {"Content-Type": "application/problem+json"}) as raw:
        assert by_httpx(HttpGuard(raw.url, audience=AUDIENCE, ring=RING), f"{raw.url}/k", lease).status_code == 409


@pytest.mark.parametrize("bad", ["../secret", "a//b", "a/./b", "/a", "a/", "", "x" * 256, 7])
def test_a_key_is_a_path_that_nothing_resolves(bad: Any) -> None:
    """Or the service would see another key than the credential covers."""
    with pytest.raises(InvalidArgument):
        HttpGuard("http://site", audience="x").url_of(bad)


def test_keys_and_urls_are_each_others_inverse() -> None:
    """Whatever a key contains."""
    guard = HttpGuard("http://site/files/", audience="x")
    for key in ("q3.csv", "a/b", "100%", "ä ö?#&=", "%2e%2e", "a+b"):
        assert guard.key_of(guard.url_of(key)) == key
        assert guard.key_of(guard.url_of(key) + "?page=2") == key
    assert guard.key_of("http://site/other/q3.csv") is None
    with pytest.raises(InvalidArgument):
        HttpGuard("ftp://site", audience="x")


def test_a_url_with_dots_is_not_the_key_that_it_looks_like(service: Service, lease: Lease) -> None:
    """The service might resolve them, and write to another key than it has compared."""
    guard = HttpGuard(service.url, audience=AUDIENCE, ring=RING)
    with pytest.raises(InvalidArgument):
        by_requests(guard, f"{service.url}/a/%2e%2e/b", lease)


# The service under signals


def write(service: Service, key: str, value: bytes, epoch: int, query: str = "") -> httpx.Response:
    """Put a file under an epoch, by hand."""
    credential = RING.mint(
        store="s", job_id="j", epoch=epoch, owner=f"owner-{epoch}", audience=AUDIENCE, keys=[key], seconds=600
    )
    url = f"{service.url}/{key}{query}"
    return httpx.put(url, content=value, headers={HEADER: credential}, timeout=PATIENCE_SECONDS)


class InHandler(threading.Thread):
    """A request whose handler stands still before it writes."""

    def __init__(self, service: Service, folder: Path, key: str = "k") -> None:
        super().__init__(daemon=True)
        self.service, self.folder, self.key = service, folder, key
        self.response: httpx.Response | None = None
        self.error: Exception | None = None
        self.start()
        until((folder / "old.here").exists)

    def run(self) -> None:
        """Send it."""
        try:
            self.response = write(self.service, self.key, b"old", 7, "?stop=old")
        except httpx.TransportError as error:
            self.error = error

    def go(self) -> None:
        """Let the handler write."""
        (self.folder / "old.go").touch()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Places, str]]:
    """Each home of the gate in turn."""
    found = Places(tmp_path)
    yield found, request.param
    found.close()


def test_a_new_owner_waits_for_the_handler_of_an_old_one(places: tuple[Places, str]) -> None:
    """It was admitted, stood still, and writes: before the new owner, and not over it."""
    place, home = places
    with Service(place, home, drain_seconds=10 * PATIENCE_SECONDS) as service, guard_of(service) as guard:
        old = InHandler(service, place.folder)
        new = threading.Thread(target=lambda: write(service, "k", b"new", 11))
        new.start()
        until(lambda: (mark := guard.mark("k")) is not None and mark.epoch == 11)
        assert new.is_alive()
        assert write(service, "k", b"older", 7).status_code == 409
        old.go()
        new.join(PATIENCE_SECONDS)
        assert old.response is not None
        assert old.response.status_code == 200
        assert content(service, "k") == b"new"
        assert guard.seal("k", epoch=11, owner="owner-11", store="s").doubts == ()


def test_a_seal_through_one_server_process_waits_for_a_handler_in_another(tmp_path: Path) -> None:
    """Uses are rows; a stopped server is in doubt after the drain, and a killed one at once."""
    place = Places(tmp_path)
    with (
        Service(place, "postgresql", name="a") as a,
        Service(place, "postgresql", drain_seconds=0.01, name="b") as b,
        guard_of(b) as guard,
    ):
        old = InHandler(a, tmp_path)
        a.process.send_signal(signal.SIGSTOP)
        os.waitpid(a.process.pid, os.WUNTRACED)
        [doubt] = guard.seal("k", epoch=11, owner="owner-11", store="s").doubts
        assert (doubt.epoch, doubt.owner) == (7, "owner-7")
        assert f"process {a.process.pid} " in doubt.note
        assert write(b, "k", b"new", 11).status_code == 200
        a.process.send_signal(signal.SIGCONT)
        old.go()
        assert write(a, "k", b"older", 7).status_code == 409
        assert len(guard.seal("k", epoch=11, owner="owner-11", store="s").doubts) == 1
    place.close()


def test_a_handler_of_a_killed_server_is_in_doubt_at_once(tmp_path: Path) -> None:
    """Its process is proved dead."""
    place = Places(tmp_path)
    with (
        Service(place, "postgresql", name="a") as a,
        Service(place, "postgresql", drain_seconds=10 * PATIENCE_SECONDS, name="b") as b,
        guard_of(b) as guard,
    ):
        InHandler(a, tmp_path)
        a.process.kill()
        a.process.wait()
        [doubt] = guard.seal("k", epoch=11, owner="owner-11", store="s").doubts
        assert f"process {a.process.pid} " in doubt.note
    place.close()


def test_a_client_that_has_gone_does_not_end_the_use(places: tuple[Places, str]) -> None:
    """The handler goes on, and so does its use."""
    place, home = places
    with Service(place, home, drain_seconds=10 * PATIENCE_SECONDS) as service, guard_of(service) as guard:
        credential = RING.mint(
            store="s", job_id="j", epoch=7, owner="owner-7", audience=AUDIENCE, keys=["k"], seconds=600
        )
        host, port = service.url.removeprefix("http://").removesuffix("/files").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = (
                f"PUT /files/k?stop=old HTTP/1.1\r\nHost: x\r\n{HEADER}: {credential}\r\nContent-Length: 3\r\n\r\nold"
            )
            client.sendall(head.encode())
            until((place.folder / "old.here").exists)
        found: list[Any] = []
        seal = threading.Thread(
            target=lambda: found.append(guard.seal("k", epoch=11, owner="owner-11", store="s").doubts)
        )
        seal.start()
        with guard_of(service) as other:
            until(lambda: (mark := other.mark("k")) is not None and mark.epoch == 11)
        assert seal.is_alive()
        (place.folder / "old.go").touch()
        seal.join(PATIENCE_SECONDS)
        assert found == [()]
        assert content(service, "k") == b"old"


def test_a_server_that_shuts_down_leaves_its_handlers_in_doubt(places: tuple[Places, str]) -> None:
    """It cancels them after its own grace time, and may not find the time to record it: its process has ended."""
    place, home = places
    with Service(place, home) as service:
        old = InHandler(service, place.folder)
        service.process.terminate()
        service.process.wait(PATIENCE_SECONDS)
        old.join(PATIENCE_SECONDS)
    with Service(place, home, name="next", drain_seconds=0) as service, guard_of(service) as guard:
        [doubt] = guard.seal("k", epoch=11, owner="owner-11", store="s").doubts
        assert doubt.epoch == 7


def test_a_server_that_shuts_down_at_rest_leaves_nothing_in_doubt(places: tuple[Places, str]) -> None:
    """uvicorn ends with the signal that it got, so nothing runs at the exit of its process."""
    place, home = places
    with Service(place, home) as service:
        assert write(service, "k", b"x", 7).status_code == 200
        service.process.terminate()
        assert service.process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    with Service(place, home, name="next", drain_seconds=0) as service, guard_of(service) as guard:
        assert guard.seal("k", epoch=11, owner="owner-11", store="s").doubts == ()
