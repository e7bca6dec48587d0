"""The middleware for WSGI applications."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...core.marks import Writer
from ...errors import LeaseholdError, StaleEpoch
from ...guard import Verifier, request_writer
from ..gate import Gate, Use
from .problems import ACTION, HEADER, Answer, described, problem
from .requests import SAFE, Asked, Policy, Verified, check_gate

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_HEADER, _ACTION = (f"HTTP_{name.upper().replace('-', '_')}" for name in (HEADER, ACTION))


class _Middleware:
    """What both kinds share."""

    acts = False

    def __init__(self, app: App, policy: Policy[Environ]) -> None:
        self._app = app
        self._policy = policy

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request."""
        try:
            asked = self._policy.asked(
                environ,
                environ.get("REQUEST_METHOD", "GET"),
                [environ[_HEADER]] if _HEADER in environ else [],
                [environ[_ACTION]] if _ACTION in environ else [],
                acts=self.acts,
            )
            if asked is not None and asked.action is not None:
                return _answered(start_response, self._act(asked))
            admitted = None if asked is None else self._admit(environ, asked)
        except LeaseholdError as error:
            return _answered(start_response, problem(error))
        if admitted is None:  # outside of it: an error of the application is not one of the gate
            return self._app(environ, start_response)
        writer, use = admitted
        return _Body(self._app, environ, start_response, writer, use)

    def _admit(self, environ: Environ, asked: Asked) -> tuple[Writer, Use | None]:
        raise NotImplementedError

    def _act(self, asked: Asked) -> Answer:
        raise NotImplementedError


class WsgiGateMiddleware(_Middleware):
    """
    Admits requests through a `Gate`, as `GateMiddleware` does for ASGI.

    *key* gets the WSGI environment; the handler finds the `Use` in `environ["leasehold.use"]`. A use lasts until the
    server calls `close()` on the response. If the body has not been sent to its end by then, it is in doubt.
    """

    acts = True

    def __init__(
        self,
        app: App,
        gate: Gate,
        *,
        key: Callable[[Environ], str | None],
        safe_methods: Iterable[str] = SAFE,
        public_marks: bool = False,
    ) -> None:
        super().__init__(app, Policy(key, safe_methods, public_marks=public_marks))
        self._gate = check_gate(gate)

    def _admit(self, environ: Environ, asked: Asked) -> tuple[Writer, Use]:
        use = environ["leasehold.use"] = self._gate.begin(asked.key, credential=asked.presented())
        return use.writer, use

    def _act(self, asked: Asked) -> Answer:
        if asked.action == "seal":
            return described(self._gate.seal(asked.key, credential=asked.presented()))
        if not self._policy.public_marks:
            self._gate.writer(asked.key, {"credential": asked.presented()})
        return described(self._gate.mark(asked.key))


class WsgiLeaseMiddleware(_Middleware):
    """
    Verifies credentials and hands the owner to the handler, which must fence its own transaction.

    It is `LeaseMiddleware` for WSGI. The handler finds the `Writer` in `environ["leasehold.writer"]`.
    """

    def __init__(
        self,
        app: App,
        *,
        keys: Verifier,
        audience: str,
        key: Callable[[Environ], str | None],
        safe_methods: Iterable[str] = SAFE,
    ) -> None:
        super().__init__(app, Policy(key, safe_methods))
        self._verified = Verified(keys, audience)

    def _admit(self, environ: Environ, asked: Asked) -> tuple[Writer, None]:
        writer = environ["leasehold.writer"] = self._verified.writer(asked)
        return writer, None


class _Body:
    """
    The response of one request: runs the application in a context of its own, and ends the use when it is closed.

    A server may make the parts of a body on another thread than the call, and several requests in turn on one.
    """

    def __init__(
        self, app: App, environ: Environ, start_response: StartResponse, writer: Writer, use: Use | None
    ) -> None:
        self._context = contextvars.copy_context()
        self._context.run(request_writer.set, writer)
        self._start_response = start_response
        self._use = use
        self._has_begun = self._has_ended = False
        self._doubt = "its response was closed before it had ended"
        self._inner: Iterable[bytes] = self._guarded(app, environ, self._start)
        self._parts: Iterator[bytes] = self._guarded(iter, self._inner)

    def _start(self, *args: Any, **kwargs: Any) -> Any:
        self._has_begun = True
        return self._start_response(*args, **kwargs)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part: bytes = self._guarded(next, self._parts)
        except StopIteration:
            self._has_ended = True
            raise
        return part

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a part of the application; a refusal that a fence raises before the response begins is a 409."""
        try:
            return self._context.run(call, *args)
        except StopIteration:
            raise
        except BaseException as error:
            refusal = StaleEpoch.find(error) if isinstance(error, Exception) else None
            if refusal is not None and not self._has_begun:
                self._has_begun = True
                answer = _answered(self._start_response, problem(refusal))
                if call is not next:
                    return answer if call is not iter else iter(answer)
                self._parts = iter(())
                return answer[0]
            name = type(error).__name__
            # Before the response begins it is the server's to answer, and nothing of the handler goes on.
            self._doubt = f"its handler raised {name} in the middle of the response" if self._has_begun else ""
            if call is not next:
                self._finish()  # the server gets no response that it could close
            raise

    def close(self) -> None:
        """End the use, once the application has closed its response."""
        try:
            if (close := getattr(self._inner, "close", None)) is not None:
                self._context.run(close)
        except BaseException as error:
            self._has_ended = False
            self._doubt = f"its handler raised {type(error).__name__} when its response was closed"
            raise
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._use is None:
            return
        if self._has_ended or not self._doubt:
            self._use.end()
        else:
            self._use.doubt(self._doubt)


def _answered(start_response: StartResponse, answer: Answer) -> list[bytes]:
    start_response(answer.status_line, answer.headers)
    return [answer.body]
