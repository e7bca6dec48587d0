"""The middleware for ASGI applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ...core.marks import Writer
from ...errors import LeaseholdError, StaleEpoch
from ...guard import Verifier, request_writer
from ..gate import Gate, Use
from .problems import ACTION, HEADER, Answer, described, problem
from .requests import SAFE, Asked, Policy, Verified, check_gate

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADER, _ACTION = HEADER.lower().encode(), ACTION.lower().encode()
_BEGINS = {"http.response.start", "websocket.accept", "websocket.close"}
_ENDS = {"http.response.body", "http.response.pathsend", "http.response.zerocopysend"}
_REFUSED = 1008  # how a websocket is closed by a policy (RFC 6455)


class _Middleware:
    """What both kinds share: which requests are guarded, and how a refusal is answered."""

    acts = False  # whether it seals and shows marks by itself

    def __init__(self, app: App, policy: Policy[Scope]) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, self._watched(send))
            return None
        try:
            asked = self._asked(scope)
            acted = await self._act(asked) if asked is not None and asked.action is not None else None
            admitted = self._try_admit(asked) if asked is not None and acted is None else None
            if admitted is None and asked is not None and acted is None:
                admitted = await self._admit(asked)
        except LeaseholdError as error:
            return await _answered(scope, receive, send, problem(error))
        # Outside of it: an error of the application is not one of the gate, and its response may have begun.
        if asked is None:
            return await self._app(scope, receive, send)
        if acted is not None:
            return await _answered(scope, receive, send, acted)
        return await self._handle(scope, receive, send, admitted)

    def _watched(self, send: Send) -> Send:
        return send

    def _asked(self, scope: Scope) -> Asked | None:
        credentials, actions = [], []
        for name, value in scope["headers"]:
            if name == _HEADER:
                credentials.append(value.decode("latin-1"))
            elif name == _ACTION:
                actions.append(value.decode("latin-1"))
        method = scope.get("method", "WEBSOCKET")
        return self._policy.asked(scope, method, credentials, actions, acts=self.acts and scope["type"] == "http")

    def _try_admit(self, asked: Asked) -> Any:
        """Admit without waiting, if that can be; else None. Most requests need no task, thread or coroutine for it."""
        return None

    async def _admit(self, asked: Asked) -> Any:
        raise NotImplementedError

    async def _act(self, asked: Asked) -> Answer:
        raise NotImplementedError

    async def _handle(self, scope: Scope, receive: Receive, send: Send, admitted: Any) -> None:
        raise NotImplementedError

    async def _run(self, scope: Scope, receive: Receive, watch: _Response, writer: Writer) -> None:
        """Run the application; a refusal that a fence raises before the response begins is a 409."""
        token = request_writer.set(writer)
        try:
            await self._app(scope, receive, watch.send)
        except Exception as error:
            refusal = StaleEpoch.find(error)
            if refusal is None or watch.has_begun:
                raise
            await _answered(scope, receive, watch.send, problem(refusal))
        finally:
            request_writer.reset(token)


class GateMiddleware(_Middleware):
    """
    Admits requests through a `Gate`: a use lasts from before the handler begins until its response has ended.

    *key* returns the key that a request writes to, from its ASGI scope, or None if the request is not guarded. Requests
    with one of *safe_methods* pass as they are. The others need the header `Leasehold-Lease` with a credential for the
    gate's audience that covers the key; else they are answered with a problem (RFC 9457) and the handler does not run.

    The handler finds the `Use` in `scope["leasehold.use"]`. Guards that it calls without a lease write as the owner of
    the request, so `SqlGuard.fence(connection, key)` refuses a stale one in the handler's own transaction, which is
    stronger than the gate. A `StaleEpoch` that leaves the handler before its response begins is a 409 too.

    A response that did not end leaves its use in doubt: the handler was cancelled, or raised in the middle of it.

    A request with the header `Leasehold-Action: seal` seals its key and runs no handler. `Leasehold-Action: mark` shows
    the mark, without a credential if *public_marks*.
    """

    acts = True

    def __init__(
        self,
        app: App,
        gate: Gate,
        *,
        key: Callable[[Scope], str | None],
        safe_methods: Iterable[str] = SAFE,
        public_marks: bool = False,
    ) -> None:
        super().__init__(app, Policy(key, safe_methods, public_marks=public_marks))
        self._gate = check_gate(gate)
        self._aio = gate.aio

    def _watched(self, send: Send) -> Send:
        async def rest(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete":
                # A server may end its process with a signal right after it.
                await self._gate.aio.rest()
            await send(message)

        return rest

    def _try_admit(self, asked: Asked) -> Use | None:
        return self._gate.begin_at_once(asked.key, asked.presented())

    async def _admit(self, asked: Asked) -> Use:
        return await self._aio.begin(asked.key, credential=asked.presented())

    async def _act(self, asked: Asked) -> Answer:
        if asked.action == "seal":
            return described(await self._gate.aio.seal(asked.key, credential=asked.presented()))
        if not self._policy.public_marks:
            self._gate.writer(asked.key, {"credential": asked.presented()})
        return described(await self._gate.aio.mark(asked.key))

    async def _handle(self, scope: Scope, receive: Receive, send: Send, admitted: Use) -> None:
        watch = _Response(send)
        doubt = "its handler was cancelled before the response had ended"
        try:
            await self._run({**scope, "leasehold.use": admitted}, receive, watch, admitted.writer)
            # A websocket has no end of its own: its handler returns when the client has gone.
            doubt = "its handler returned before the response had ended" if scope["type"] == "http" else ""
        except Exception as error:
            # Before the response begins it is the server's to answer, and nothing of the handler goes on.
            doubt = (
                f"its handler raised {type(error).__name__} in the middle of the response" if watch.has_begun else ""
            )
            raise
        finally:
            if watch.has_ended and self._gate.ends_at_once:
                admitted.end()
            else:
                await self._aio.end(admitted, "" if watch.has_ended else doubt)


class LeaseMiddleware(_Middleware):
    """
    Verifies credentials and hands the owner to the handler, which must fence its own transaction: it admits by no mark.

    It is for handlers whose writes all go through `SqlGuard.fence(connection, key)`, which needs no gate. A handler
    that writes anything else needs `GateMiddleware`. *key* and *safe_methods* as there. The handler finds the `Writer`
    in `scope["leasehold.writer"]`. A `StaleEpoch` that leaves the handler, at its COMMIT too, is answered with a 409.
    """

    def __init__(
        self,
        app: App,
        *,
        keys: Verifier,
        audience: str,
        key: Callable[[Scope], str | None],
        safe_methods: Iterable[str] = SAFE,
    ) -> None:
        super().__init__(app, Policy(key, safe_methods))
        self._verified = Verified(keys, audience)

    async def _admit(self, asked: Asked) -> Writer:
        return self._verified.writer(asked)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, admitted: Writer) -> None:
        watch = _Response(send)
        await self._run({**scope, "leasehold.writer": admitted}, receive, watch, admitted)


class _Response:
    """Passes on what a handler sends, and sees whether its response has begun and ended."""

    __slots__ = ("_send", "_trailers", "has_begun", "has_ended")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._trailers = False
        self.has_begun = False
        self.has_ended = False

    async def send(self, message: Message) -> None:
        """Send *message*; the response has ended once its last part was taken."""
        kind = message["type"]
        if kind in _BEGINS:
            self.has_begun = True
            self._trailers = bool(message.get("trailers"))
        await self._send(message)
        if kind in _ENDS:
            self.has_ended = not message.get("more_body") and not self._trailers
        elif kind == "http.response.trailers":
            self.has_ended = not message.get("more_trailers")
        elif kind == "websocket.close":
            self.has_ended = True


async def _answered(scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _REFUSED, "reason": f"leasehold: {answer.status}"})
        return
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
