"""A job's `meta`: a JSON object of the producer's and of integrations, which leasehold carries and does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import InvalidArgument
from . import documents, wording

LIMIT: Final = 64 * 1024  # bytes of JSON
RESERVED: Final = "leasehold."
TRACE_CONTEXT: Final = frozenset({"traceparent", "tracestate", "baggage"})  # it names one span, which is the parent's
DETACHED: Final = ""  # stands for "nothing, and nothing of the parent's"; no store gets to see it


class _Absent:
    def __repr__(self) -> str:
        return "<the parent's, if there is one>"


ABSENT: Final[Any] = _Absent()


def encode(meta: object) -> str | None:
    """
    Return *meta* as a `NewJob` has it: a JSON object; None if it is absent or has no keys, `DETACHED` for None.

    Its keys are strings, and none begins with "leasehold."; NUL occurs nowhere, so that PostgreSQL can index it.
    """
    if meta is ABSENT:
        return None
    if meta is None:
        return DETACHED
    if not isinstance(meta, Mapping):
        raise InvalidArgument(f"meta= must be a dict with string keys, or None, not {wording.shown(meta)}.")
    own = dict(meta)
    for key in own:
        if isinstance(key, str) and key.startswith(RESERVED):
            raise InvalidArgument(
                f"meta has the key {key!r}: keys that begin with {RESERVED!r} are reserved for leasehold. Rename it."
            )
    return _document(own)


def inherited(parent: str | None, own: str | None) -> str | None:
    """Return the meta of a child: that of its *parent* without the trace context, overridden by its *own* keys."""
    if own == DETACHED:
        return None
    if parent is None:
        return own
    kept = {key: value for key, value in decode(parent).items() if key not in TRACE_CONTEXT}
    return _document({**kept, **decode(own)})


def decode(document: str | None) -> dict[str, Any]:
    """Return the meta of a document, anew at each call; empty for none."""
    return {} if not document else documents.decode(document)


def _document(meta: dict[str, Any]) -> str | None:
    if not meta:
        return None
    document = documents.encode(meta, "meta")
    if "\\u0000" in document and _has_nul(meta):
        raise InvalidArgument("meta= must not contain NUL in any key or value.")
    if len(document) > LIMIT // 4 and (size := len(document.encode())) > LIMIT:
        raise InvalidArgument(
            f"meta has {size:,} bytes as JSON, and the limit is {LIMIT:,}: store it elsewhere, and put only "
            "its name into meta."
        )
    return document


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(_has_nul, value))
