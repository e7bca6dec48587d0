"""Documents: payloads, results and checkpoints as JSON text that decodes to an equal value."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidArgument
from .checks import encodable
from .wording import shown

DOCUMENT_LIMIT = 1024 * 1024

_NESTS = (dict, list, tuple)  # what a document may have documents in
# json.dumps would make one at each call, as these are not its defaults.
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: object, what: str) -> str:
    """
    Return *value* as JSON text that decodes to an equal value.

    NaN, non-string keys and objects that JSON has no form for are refused. Tuples become lists.
    """
    if value is None:
        return "null"
    try:
        _only_string_keys(value, what)
        encoded = _to_json(value)
    except InvalidArgument:
        raise
    except RecursionError:
        raise InvalidArgument(f"{what} is nested too deeply, or contains itself.") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} cannot be stored as JSON: {error}. Got {shown(value)}.") from None
    if not encoded.isascii() or len(encoded) > DOCUMENT_LIMIT:
        size = len(encodable(encoded, what))
        if size > DOCUMENT_LIMIT:
            raise InvalidArgument(
                f"{what} has {size:,} bytes as JSON, and the limit is {DOCUMENT_LIMIT:,}: store it elsewhere and pass "
                "its name."
            )
    return encoded


def decode(encoded: str | None) -> Any:
    """Return the value of a stored document; None for none."""
    return None if encoded is None else json.loads(encoded)


def _only_string_keys(value: object, what: str) -> None:
    # json.dumps would turn {1: …} into {"1": …} and say nothing.
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"{what} has the key {shown(key)} ({type(key).__name__}): keys in JSON are strings, so this key "
                    "would come back as a string. Convert it to a string first."
                )
            if isinstance(inner, _NESTS):
                _only_string_keys(inner, what)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if isinstance(inner, _NESTS):
                _only_string_keys(inner, what)
