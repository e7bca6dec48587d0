"""
Validates names, texts, numbers and durations.

Each function returns the value in the form that stores keep, or raises `InvalidArgument` with the value received,
the reason and what is accepted.
"""

from __future__ import annotations

from math import isfinite

from ..errors import InvalidArgument
from .wording import shown

NAME_LIMIT = 255
TEXT_LIMIT = 1024 * 1024
SECONDS_LIMIT = 100 * 365 * 86_400  # a century: longer is a unit mistake, and overflows a datetime soon after


def name(value: object, what: str) -> str:
    """Return *value* if it can name a thing: 1 to 255 characters, no NUL."""
    if type(value) is str and 0 < len(value) <= NAME_LIMIT and value.isascii() and "\0" not in value:
        return value  # nearly every name
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {shown(value)} ({type(value).__name__}).")
    if not 0 < len(value) <= NAME_LIMIT:
        raise InvalidArgument(
            f"{what} must have 1 to {NAME_LIMIT} characters, and this one has {len(value)}"
            + (f": {value[:40]!r}…" if value else ".")
        )
    if "\0" in value:
        raise InvalidArgument(f"{what} must not contain NUL: {shown(value)}.")
    encodable(value, what)
    return str.__str__(value)  # a plain string, even for a member of a string enumeration


def optional_name(value: object, what: str) -> str | None:
    """Return *value* as `name` does, or None for None."""
    return None if value is None else name(value, what)


def text(value: object, what: str) -> str:
    """Return *value* if it is text that every store can keep; a note may be empty, and long."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {shown(value)} ({type(value).__name__}).")
    encodable(value, what)
    # PostgreSQL keeps no NUL in text; an error message that carries one must still be recordable.
    return value.replace("\0", "\\x00")[:TEXT_LIMIT]


def whole(value: object, what: str, *, least: int, most: int) -> int:
    """Return *value* if it is a whole number from *least* to *most*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{what} must be a whole number, not {shown(value)} ({type(value).__name__}).")
    if not least <= value <= most:
        raise InvalidArgument(f"{what} must be from {least} to {most}, not {shown(value)}.")
    return int(value)


def microseconds(seconds: object, what: str, *, zero: bool = False) -> int:
    """Return a duration in whole microseconds; it must be finite and positive; *zero* admits zero."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(f"{what} must be a number of seconds, not {shown(seconds)} ({type(seconds).__name__}).")
    if not isfinite(seconds) or seconds > SECONDS_LIMIT:
        raise InvalidArgument(f"{what} must be a finite number of seconds, at most a century, not {shown(seconds)}.")
    if seconds < 0 or (seconds == 0 and not zero):
        raise InvalidArgument(f"{what} must be {'zero or more' if zero else 'above zero'}, not {shown(seconds)}.")
    return max(round(seconds * 1_000_000), 0 if zero else 1)


def exception_classes(value: object, what: str) -> tuple[type[BaseException], ...]:
    """Return *value*, a tuple of exception classes."""
    if not isinstance(value, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in value):
        got = f"{shown(value)} ({type(value).__name__})"
        raise InvalidArgument(f"{what} must be a tuple of exception classes, such as (ValueError,), not {got}.")
    return value


def encodable(value: str, what: str) -> bytes:
    """Return *value* as UTF-8; half a character is refused."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what} contains half a character (a lone surrogate) at position {error.start}, which cannot be "
            "stored: remove it."
        ) from None
