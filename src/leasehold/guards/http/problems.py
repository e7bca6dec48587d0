"""Errors as problem+json (RFC 9457), and a problem as the error that it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from ...core.marks import Mark
from ...errors import (
    CredentialExpired,
    CredentialRefused,
    GuardUnavailable,
    InvalidArgument,
    LeaseholdError,
    NoLease,
    StaleEpoch,
)
from ...guard import Doubt, Seal

HEADER = "Leasehold-Lease"
ACTION = "Leasehold-Action"  # "seal" or "mark": done by the middleware itself, for the key of the request
MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:leasehold:"

_FORBIDDEN = ("audience", "scope")


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def status_line(self) -> str:
        """The status with its reason, as WSGI has it."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"


def problem(error: LeaseholdError) -> Answer:
    """Return *error* as a response with a problem."""
    status, name, title = _kind(error)
    facts: dict[str, Any] = {"type": _TYPE + name, "title": title, "status": status, "detail": str(error)}
    headers = []
    if isinstance(error, StaleEpoch):
        facts |= {name: getattr(error, name) for name in ("resource", "presented", "current", "owner", "verb")}
    if isinstance(error, CredentialRefused):
        facts["fault"] = error.fault
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", HEADER))  # which a 401 must have
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", "1"))
    return answer(status, facts, MEDIA_TYPE, headers)


def _kind(error: LeaseholdError) -> tuple[HTTPStatus, str, str]:
    match error:
        case StaleEpoch():
            return HTTPStatus.CONFLICT, "stale-epoch", "A newer owner exists"
        case NoLease():
            return HTTPStatus.PRECONDITION_REQUIRED, "lease-required", f"The header {HEADER} is missing"
        case CredentialExpired():
            return HTTPStatus.UNAUTHORIZED, "credential-expired", "The credential has expired; mint another"
        case CredentialRefused() if error.fault in _FORBIDDEN:
            return HTTPStatus.FORBIDDEN, "credential-refused", "The credential does not cover this request"
        case CredentialRefused():
            return HTTPStatus.UNAUTHORIZED, "credential-refused", "The credential is not valid"
        case InvalidArgument():
            return HTTPStatus.BAD_REQUEST, "invalid-argument", "The request names no valid key or action"
    return HTTPStatus.SERVICE_UNAVAILABLE, "guard-unavailable", "The mark cannot be read now; nothing was written"


def answer(status: int, facts: Any, media_type: str, headers: list[tuple[str, str]]) -> Answer:
    """Return *facts* as a response in JSON."""
    body = json.dumps(facts, ensure_ascii=False).encode()
    base = [("Content-Type", media_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    return Answer(int(status), base + headers, body)


def described(seal: Seal | Mark | None) -> Answer:
    """Return what a seal did, or the mark of a key, as a response."""
    mark = seal.mark if isinstance(seal, Seal) else seal
    doubts = [
        {"key": doubt.key, "epoch": doubt.epoch, "owner": doubt.owner, "note": doubt.note, "uses": doubt.uses}
        for doubt in (seal.doubts if isinstance(seal, Seal) else ())
    ]
    facts = {"mark": None if mark is None else mark._asdict(), "doubts": doubts}
    return answer(HTTPStatus.OK, facts, "application/json", [])


def error_of(status: int, media_type: str, body: bytes) -> LeaseholdError | None:
    """Return the error that a response reports, if a gate made it; else None."""
    if not media_type.startswith(MEDIA_TYPE):
        return None
    try:
        facts = json.loads(body)
        name, detail = facts["type"].removeprefix(_TYPE), str(facts["detail"])
        if not facts["type"].startswith(_TYPE) or facts["status"] != status:
            return None
        return _error(name, detail, facts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _error(name: str, detail: str, facts: Mapping[str, Any]) -> LeaseholdError | None:
    match name:
        case "stale-epoch":
            return StaleEpoch(
                detail,
                resource=str(facts["resource"]),
                presented=int(facts["presented"]),
                current=int(facts["current"]),
                owner=facts["owner"],
                verb=str(facts["verb"]),
            )
        case "lease-required":
            return NoLease(detail)
        case "credential-expired":
            return CredentialExpired(detail, fault="expired")
        case "credential-refused":
            return CredentialRefused(detail, fault=str(facts["fault"]))
        case "guard-unavailable":
            return GuardUnavailable(detail)
        case "invalid-argument":
            return InvalidArgument(detail)
    return None


def sealed(key: str, body: bytes) -> Seal | Mark | None:
    """Return what `described` has written: a `Seal`, whose mark is None for a key without one."""
    facts = json.loads(body)
    mark = None if facts["mark"] is None else Mark.decode(json.dumps(facts["mark"]), key)
    if mark is None:
        return None
    return Seal(key, mark, tuple(Doubt(**doubt) for doubt in facts["doubts"]))
