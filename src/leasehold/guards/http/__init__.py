"""
A gate in front of HTTP handlers, and the clients that pass it.

    asgi       `GateMiddleware` and `LeaseMiddleware` for ASGI: FastAPI, Starlette, Litestar, Django under ASGI
    wsgi       `WsgiGateMiddleware` and `WsgiLeaseMiddleware`: Flask, Django, Pyramid
    requests   what a request asks for, and how it is answered, for both
    problems   errors as problem+json (RFC 9457), and back
    client     `HttpGuard`: the credential in the header `Leasehold-Lease`, for httpx and requests

A request needs the header `Leasehold-Lease` with a credential. It is refused with one of:

    409  a newer owner has been here
    428  the header is missing
    401  the credential is malformed, forged or expired
    403  it is for another audience, or does not cover the key
    503  the mark cannot be read
    400  the key or the action is not a valid one
"""

from .asgi import GateMiddleware, LeaseMiddleware
from .client import HttpGuard
from .problems import HEADER
from .wsgi import WsgiGateMiddleware, WsgiLeaseMiddleware

__all__ = [
    "HEADER",
    "GateMiddleware",
    "HttpGuard",
    "LeaseMiddleware",
    "WsgiGateMiddleware",
    "WsgiLeaseMiddleware",
]
