"""
Instants: whole microseconds since 1970 (UTC).

So they are exact in every store, and ordered like the integers that they are.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ..errors import InvalidArgument
from .wording import shown

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


def instant(value: object, what: str) -> int:
    """Return an aware datetime as microseconds since 1970; a naive one is refused."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {shown(value)} ({type(value).__name__}).")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidArgument(
            f"{what} must have a time zone, and {value.isoformat()} has none: use datetime.now(UTC) or "
            ".replace(tzinfo=…)."
        )
    return (value - _EPOCH_START) // timedelta(microseconds=1)


def aware(micros: int) -> datetime:
    """Return the aware UTC datetime of a stored instant."""
    return _EPOCH_START + timedelta(microseconds=micros)


def as_datetime(micros: int | None) -> datetime | None:
    """Return the aware UTC datetime of a stored instant, or None for None."""
    return None if micros is None else aware(micros)
