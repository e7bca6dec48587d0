"""`HttpGuard`: the client side of a gate behind HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from importlib import import_module
from typing import Any, ClassVar, Unpack
from urllib.parse import quote, unquote

from ...core import checks
from ...core.marks import Mark, Writer
from ...credentials import KeyRing, ring_of_environment, unverified
from ...errors import (
    GuardUnavailable,
    InDoubt,
    InvalidArgument,
    LeaseholdError,
    NoLease,
    StaleEpoch,
    Unfenced,
    Unsupported,
)
from ...guard import Guard, Presented, Seal
from ...lease import Lease
from ...lease.current import current_lease, lease_here
from .problems import ACTION, HEADER, MEDIA_TYPE, error_of, sealed

_UNKNOWN = (502, 503, 504)  # of a proxy: the request may have been passed on
SECONDS = 3600.0  # how long a credential is good for: each request gets one of its own
_CANARY = "leasehold:prove:"


class HttpGuard(Guard):
    """
    Writes to a service behind a `GateMiddleware`, with a fresh credential in each request.

    *url* is where the service has its keys: the key `q3.csv` is at `<url>/q3.csv`. *client* is an `httpx.Client` or a
    `requests.Session`; without one, httpx is used, or requests. *ring* signs the credentials for *audience*; without
    one, the keys of `LEASEHOLD_CREDENTIAL_KEYS` do. Redirects are not followed, and nothing is sent twice.

    `request` writes. `httpx_auth` and `requests_auth` return what a client of your own takes as `auth=`.
    """

    kind = "http"
    STEPS: ClassVar[tuple[str, ...]] = ("send", "answered")

    def __init__(
        self,
        url: str,
        *,
        audience: str,
        client: Any = None,
        ring: KeyRing | None = None,
        seconds: float | None = SECONDS,
    ) -> None:
        super().__init__(audience=checks.name(audience, "audience"))
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"url must begin with http:// or https://, not {url!r:.80}.")
        self._base = url.rstrip("/") + "/"
        self._ring = ring
        self._seconds = seconds
        self._client = client
        self._for = audience

    # Keys and URLs

    def canonical(self, key: str) -> str:
        """Return *key*, which must be a name: 1 to 255 characters, without `.` or `..` as a part of its path."""
        key = checks.name(key, "key")
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise InvalidArgument(
                f"the key {key!r} cannot be part of a URL: clients and servers rewrite empty parts, '.' and '..', so "
                "the request would reach another key. Use a key without them."
            )
        return key

    def url_of(self, key: str) -> str:
        """Return the URL of *key*."""
        return self._base + quote(self.canonical(key), safe="/")

    def key_of(self, url: str) -> str | None:
        """Return the key at *url*, or None if it is not below this guard's own."""
        path = str(url).partition("?")[0].partition("#")[0]
        return unquote(path[len(self._base) :]) or None if path.startswith(self._base) else None

    # Requests

    def request(
        self,
        method: str,
        key: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **presented: Unpack[Presented],
    ) -> Any:
        """
        Send a request for *key* under a lease, and return the response of the client library.

        It is sent once. Raises `StaleEpoch` if a newer owner has been there, `CredentialRefused` if the service does
        not take the credential, `GuardUnavailable` if nothing was written, and `InDoubt` if the connection broke or a
        proxy answered (502, 503, 504): the service may have handled it. Other responses are returned, errors too.
        """
        key = self.canonical(key)
        with self._attempt(key, method, presented) as writer:
            credential = self._credential(key, writer, presented)
            self.at("send")
            response = self._send(method, key, {**(headers or {}), HEADER: credential}, content, writer)
            self.at("answered")
            return response

    def writer(self, key: str, presented: Presented | dict[str, Any]) -> Writer:
        """Return who writes, as `Guard.writer` does; of a credential, what it says, since the service verifies it."""
        credential = presented.get("credential")
        if credential is not None and not any(presented.get(name) for name in ("lease", "epoch", "owner", "store")):
            return unverified(credential)
        return super().writer(key, presented)

    def _credential(self, key: str, writer: Writer, presented: Presented) -> str:
        if (credential := presented.get("credential")) is not None:
            return credential
        lease = presented.get("lease") or (lease_here() if presented.get("epoch") is None else None)
        if lease is not None and lease.epoch == writer.epoch:
            return lease.credential(self._for, keys=[key], seconds=self._seconds, ring=self._ring)
        return self._minter().mint(
            store=writer.store,
            job_id=writer.job_id or f"of {writer.owner}"[:255],
            epoch=writer.epoch,
            owner=writer.owner,
            audience=self._for,
            keys=[key],
            seconds=self._seconds,
        )

    def _minter(self) -> KeyRing:
        return ring_of_environment() if self._ring is None else self._ring

    def _send(
        self, method: str, key: str, headers: Mapping[str, str], content: bytes | None, writer: Writer | None
    ) -> Any:
        """Send once; raise what a gate has answered, or what is known of a broken connection."""
        if self._client is None:
            self._client = _default_client()
        options: dict[str, Any] = {"headers": dict(headers)}
        if type(self._client).__module__.startswith("requests"):
            options |= {"data": content, "allow_redirects": False}
        else:
            options |= {"content": content, "follow_redirects": False}
        epoch = writer.epoch if writer else 0
        try:
            response = self._client.request(method, self.url_of(key), **options)
        except Exception as error:
            if not _is_transport(error):
                raise
            text = f"{type(error).__name__}: {error}"
            if _is_unsent(error):
                raise GuardUnavailable(
                    f"{self.resource(key)} cannot be reached ({text}). Nothing was written."
                ) from error
            raise InDoubt.of_resource(self.resource(key), epoch=epoch, verb=method, why=text) from error
        found = error_of(response.status_code, response.headers.get("content-type", ""), response.content)
        if found is not None:
            raise _located(found, self.resource(key))
        if response.status_code in _UNKNOWN:
            why = f"a proxy or the server answered {response.status_code}"
            raise InDoubt.of_resource(self.resource(key), epoch=epoch, verb=method, why=why)
        return response

    # Every guard has these

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key*, if the service shows marks (`public_marks=True`); else raise `NoLease`."""
        key = self.canonical(key)
        seal = sealed(key, self._send("GET", key, {ACTION: "mark"}, None, None).content)
        return seal.mark if isinstance(seal, Seal) else None

    def _seal(self, key: str, writer: Writer) -> Seal:
        raise NotImplementedError  # `seal` sends the credential that it was given

    def seal(self, key: str, **presented: Unpack[Presented]) -> Seal:
        """Have the service seal *key*, and raise, as `Guard.seal` does. It waits for older requests there."""
        key = self.canonical(key)
        with self._attempt(key, "seal", presented) as writer:
            headers = {HEADER: self._credential(key, writer, presented), ACTION: "seal"}
            try:
                seal = sealed(key, self._send("POST", key, headers, None, writer).content)
            except InDoubt as error:  # a seal may be repeated
                raise GuardUnavailable(
                    f"{self.resource(key)}: the reply to the seal was lost, so it may or may not have taken effect. "
                    f"Seal again. The error was: {error}"
                ) from error
            assert isinstance(seal, Seal)
            return seal

    def _prove(self) -> None:
        """Seal a key of this guard's own at the service, and try a request under an older epoch."""
        key = f"{_CANARY}{id(self):x}"
        try:
            before = self.mark(key)
        except NoLease as error:
            raise GuardUnavailable(
                f"prove() cannot test {self!r}: {self._base} shows no marks without a credential. Make its middleware "
                "with public_marks=True, or register the guard with prove=False."
            ) from error
        old = before.epoch + 1 if before else 1
        self.seal(key, epoch=old + 1, owner="prove", store="prove")
        refused, at = self.refused, self.at
        try:
            self.request("PUT", key, epoch=old, owner="prove", store="prove")
        except StaleEpoch:
            return
        finally:
            self.refused, self.at = refused, at
        raise Unfenced(
            f"prove() failed: {self._base} handled a test request under epoch {old} after a seal at epoch {old + 1}, "
            "so it would handle the requests of older owners too. Check that every request to it passes through the "
            "gate's middleware."
        )

    # For clients of the caller's own

    def httpx_auth(self, *, lease: Lease | None = None, credential: Callable[[str], str] | None = None) -> Any:
        """
        Return what httpx takes as `auth=`: a fresh credential for each request below this guard's URL.

        Requests to other URLs get none. The lease is *lease*, or the current one when a request is sent; or
        *credential* returns one for a key. A problem of the gate is raised as its error: `StaleEpoch` for a 409.
        """
        return _httpx_auth(self, lease, credential)

    def requests_auth(self, *, lease: Lease | None = None, credential: Callable[[str], str] | None = None) -> Any:
        """
        Return what requests takes as `auth=`, as `httpx_auth` does for httpx.

        A redirect is followed without the credential. Do not mount an adapter that retries by status: after a 502, 503
        or 504 the service may have handled the request.
        """
        return _RequestsAuth(self, lease, credential)

    def _fresh(self, key: str, lease: Lease | None, credential: Callable[[str], str] | None) -> str:
        key = self.canonical(key)
        if credential is not None:
            return credential(key)
        held = lease if lease is not None else current_lease()
        return held.credential(self._for, keys=[key], seconds=self._seconds, ring=self._ring)


def _located(error: LeaseholdError, resource: str) -> LeaseholdError:
    if isinstance(error, StaleEpoch):
        error.resource = resource
    return error


def _default_client() -> Any:
    for library, client in (("httpx", "Client"), ("requests", "Session")):
        try:
            return getattr(import_module(library), client)()
        except ImportError:
            continue
    raise Unsupported("HttpGuard needs httpx or requests: pip install httpx, or pass client=….")


def _is_transport(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "RequestException"})


def _is_unsent(error: Exception) -> bool:
    """Return whether the request has certainly not been sent: no connection was made."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"ConnectTimeout", "UnsupportedProtocol", "PoolTimeout"}:
        return True
    if "TransportError" in names:
        return "ConnectError" in names
    # requests calls every broken connection a ConnectionError; only urllib3's own error says that none was made.
    return "NewConnectionError" in repr(error)


def _is_problem(response: Any) -> bool:
    return response.status_code >= 400 and str(response.headers.get("content-type", "")).startswith(MEDIA_TYPE)


def _raise_problem(response: Any) -> None:
    error = error_of(response.status_code, response.headers.get("content-type", ""), response.content)
    if error is not None:
        raise error


def _httpx_auth(guard: HttpGuard, lease: Lease | None, credential: Callable[[str], str] | None) -> Any:
    try:
        import httpx
    except ImportError:
        raise Unsupported("httpx_auth needs httpx: pip install httpx.") from None

    class Auth(httpx.Auth):
        """Adds the header, and raises the problem of a response."""

        def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
            key = guard.key_of(str(request.url))
            if key is not None:
                request.headers[HEADER] = guard._fresh(key, lease, credential)
            response = yield request
            if key is not None and _is_problem(response):
                response.read()
                _raise_problem(response)

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            key = guard.key_of(str(request.url))
            if key is not None:
                # With the caller's context, where the current lease is.
                request.headers[HEADER] = await asyncio.to_thread(guard._fresh, key, lease, credential)
            response = yield request
            if key is not None and _is_problem(response):
                await response.aread()
                _raise_problem(response)

    return Auth()


class _RequestsAuth:
    """Adds the header to a request of requests, and raises the problem of its response."""

    def __init__(self, guard: HttpGuard, lease: Lease | None, credential: Callable[[str], str] | None) -> None:
        self._guard = guard
        self._lease = lease
        self._credential = credential

    def __call__(self, request: Any) -> Any:
        key = self._guard.key_of(request.url)
        if key is not None:
            request.headers[HEADER] = self._guard._fresh(key, self._lease, self._credential)
            request.register_hook("response", self._answered)
        return request

    @staticmethod
    def _answered(response: Any, **_: Any) -> None:
        if response.is_redirect:
            response.request.headers.pop(HEADER, None)  # which requests would copy, to another host too
        if _is_problem(response):
            _raise_problem(response)
