"""
What may be stored: names, durations, instants and documents.

Each function returns the value in the form that stores keep, or raises `InvalidArgument` with what it got,
why that is refused and what would do. Instants are kept as whole microseconds since 1970 (UTC): exact in every
store, and ordered like the integers they are.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from ..errors import InvalidArgument

NAME_LIMIT = 255
DOCUMENT_LIMIT = 1024 * 1024
SECONDS_LIMIT = 100 * 365 * 86_400  # a century: longer is a unit mistake, and overflows a datetime soon after

# From the first ":" behind the user to the last "@" of all: libpq takes a "?" or "#" of a password as it stands, and
# people write "@" and "/" as they stand too. A file's path begins with a "/", and has no user.
_BEFORE_HOST = re.compile(r"\A(?:(?:sqlite|memory)://[^/:]*:|postgres(?:ql)?:/*[^:]*:)(.*)@", re.DOTALL)
# Among the settings of a URL. A value with a "&" is hidden as a whole, unless what follows may be another setting.
_SETTING = re.compile(r"\w*(?:pass|secret|client_key)\w*\s*=(.*?)(?=&[a-z_]{4,}=|\Z)", re.IGNORECASE | re.DOTALL)

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_NESTS = (dict, list, tuple)  # what a document may have documents in
# json.dumps would make one at each call, as these are not its defaults.
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def name(value: object, what: str) -> str:
    """Return *value* if it can name a thing: 1 to 255 characters, no NUL."""
    if type(value) is str and 0 < len(value) <= NAME_LIMIT and value.isascii() and "\0" not in value:
        return value  # nearly every name
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {shown(value)} ({type(value).__name__}).")
    if not 0 < len(value) <= NAME_LIMIT:
        raise InvalidArgument(
            f"{what} must have 1 to {NAME_LIMIT} characters, this one has {len(value)}"
            + (f": {value[:40]!r}…" if value else ".")
        )
    if "\0" in value:
        raise InvalidArgument(f"{what} must not contain NUL: {shown(value)}.")
    _encodable(value, what)
    return str.__str__(value)  # a plain string, also for a member of a string enumeration


def optional_name(value: object, what: str) -> str | None:
    """Return *value* as `name` does, or None for None."""
    return None if value is None else name(value, what)


def text(value: object, what: str) -> str:
    """Return *value* if it is text that every store can keep; a note may be empty, and long."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {shown(value)} ({type(value).__name__}).")
    _encodable(value, what)
    # PostgreSQL keeps no NUL in text; an error message that carries one must still be recordable.
    return value.replace("\0", "\\x00")[:DOCUMENT_LIMIT]


def whole(value: object, what: str, *, least: int, most: int) -> int:
    """Return *value* if it is a whole number from *least* to *most*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{what} must be a whole number, not {shown(value)} ({type(value).__name__}).")
    if not least <= value <= most:
        raise InvalidArgument(f"{what} must be from {least} to {most}, not {shown(value)}.")
    return int(value)


def microseconds(seconds: object, what: str, *, zero: bool = False) -> int:
    """Return a duration in whole microseconds; it must be finite and positive (or zero, where *zero* says so)."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(f"{what} must be a number of seconds, not {shown(seconds)} ({type(seconds).__name__}).")
    if not isfinite(seconds) or seconds > SECONDS_LIMIT:
        raise InvalidArgument(f"{what} must be a finite number of seconds, at most a century, not {shown(seconds)}.")
    if seconds < 0 or (seconds == 0 and not zero):
        raise InvalidArgument(f"{what} must be {'zero or more' if zero else 'above zero'}, not {shown(seconds)}.")
    return max(round(seconds * 1_000_000), 0 if zero else 1)


def instant(value: object, what: str) -> int:
    """Return an aware datetime as microseconds since 1970; a naive one is refused."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {shown(value)} ({type(value).__name__}).")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidArgument(
            f"{what} must say its time zone, and {value.isoformat()} does not: "
            "use datetime.now(UTC) or .replace(tzinfo=…)."
        )
    return (value - _EPOCH_START) // timedelta(microseconds=1)


def aware(micros: int) -> datetime:
    """Return the aware UTC datetime of a stored instant."""
    return _EPOCH_START + timedelta(microseconds=micros)


def as_datetime(micros: int | None) -> datetime | None:
    """Return the aware UTC datetime of a stored instant, or None for None."""
    return None if micros is None else aware(micros)


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
        raise InvalidArgument(f"{what} cannot be kept as JSON: {error}. Got {shown(value)}.") from None
    if not encoded.isascii() or len(encoded) > DOCUMENT_LIMIT:
        size = len(_encodable(encoded, what))
        if size > DOCUMENT_LIMIT:
            raise InvalidArgument(
                f"{what} has {size:,} bytes as JSON, and at most {DOCUMENT_LIMIT:,} are kept: "
                "store it elsewhere and pass its name."
            )
    return encoded


def decode(encoded: str | None) -> Any:
    """Return the value of a stored document; None for none."""
    return None if encoded is None else json.loads(encoded)


def exception_classes(value: object, what: str) -> tuple[type[BaseException], ...]:
    """Return *value*, a tuple of exception classes."""
    if not isinstance(value, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in value):
        got = f"{shown(value)} ({type(value).__name__})"
        raise InvalidArgument(f"{what} is a tuple of exception classes, such as (ValueError,), not {got}.")
    return value


def new_id(now: int) -> str:
    """Return a fresh UUID, version 7: ids made later sort later, to the millisecond."""
    raw = (now // 1000).to_bytes(6, "big") + os.urandom(10)
    bits = int.from_bytes(raw, "big") & ~(0xF << 76) & ~(0x3 << 62) | (0x7 << 76) | (0x2 << 62)
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def counted(count: int, one: str, more: str) -> str:
    """Return *count* with the words for one, or for more."""
    return f"{count} {one if count == 1 else more}"


def shown_url(url: str) -> str:
    """Return the *url* of a store for people: without its password."""
    shown, done = "", 0
    for start, end in _secret(url):
        if end > done:
            shown, done = shown + (f"{url[done:start]}…" if start > done or not done else ""), end
    return shown + url[done:]


def secrets_of(url: str) -> list[str]:
    """Return what `shown_url` leaves out of *url*."""
    return [url[start:end] for start, end in _secret(url)]


def _secret(url: str) -> list[tuple[int, int]]:
    """Return where the parts of *url* are that nobody may see, by where they begin; they may overlap."""
    found = [_BEFORE_HOST.match(url), *_SETTING.finditer(url)]
    return sorted(match.span(1) for match in found if match)


def _only_string_keys(value: object, what: str) -> None:
    # json.dumps would turn {1: …} into {"1": …} and say nothing.
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"{what} has the key {shown(key)} ({type(key).__name__}): "
                    "keys in JSON are strings, so it would not come back as it was."
                )
            if isinstance(inner, _NESTS):
                _only_string_keys(inner, what)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if isinstance(inner, _NESTS):
                _only_string_keys(inner, what)


def _encodable(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what} contains half a character (a lone surrogate) at position {error.start}."
        ) from None


def shown(value: object) -> str:
    """Return *value* as a message shows it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
