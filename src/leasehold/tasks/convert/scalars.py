"""Single values: plain ones, instants, numbers, bytes, paths, enumerations and literals."""

from __future__ import annotations

import base64
import binascii
import enum
import functools
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any
from uuid import UUID

from .base import PLAIN, Converter, Half, Mismatch, only, refuse_annotation, shown, shown_annotation


def _checked(kind: type, dump: Half) -> Half:
    """Return *dump* for values of *kind* alone."""

    def checked(value: Any) -> Any:
        if isinstance(value, kind):
            return dump(value)
        raise Mismatch(f"it must be {kind.__name__}, not {shown(value)}")

    return checked


def _read(kind: type, load: Half) -> Half:
    """Return *load* for what was kept as a string, with an error that says so."""

    def read(kept: Any) -> Any:
        if isinstance(kept, str):
            try:
                return load(kept)
            except (ValueError, InvalidOperation):
                pass
        raise Mismatch(f"{shown(kept)} is not a valid {kind.__name__}")

    return read


def _dump_datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        raise Mismatch(
            f"a datetime must have a time zone, and {value.isoformat()} has none: use datetime.now(UTC) or "
            ".replace(tzinfo=…)"
        )
    return value.isoformat()


def _load_datetime(kept: str) -> datetime:
    value = datetime.fromisoformat(kept)
    if value.utcoffset() is None:
        raise Mismatch(f"{kept!r} has no time zone")
    return value


def _dump_date(value: date) -> str:
    if isinstance(value, datetime):
        raise Mismatch(f"it must be a date, and {shown(value)} would lose its time: pass its .date()")
    return value.isoformat()


def _dump_time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Mismatch(f"the offset of its time zone depends on the day, so {shown(value)} could not be restored")
    return value.isoformat()


def _dump_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Mismatch(f"it must be finite, not {shown(value)}")
    return str(value)


def _load_decimal(kept: str) -> Decimal:
    value = Decimal(kept)
    if not value.is_finite():
        raise Mismatch(f"{kept!r} is not finite")
    return value


def _dump_timedelta(value: timedelta) -> float:
    seconds = value.total_seconds()
    try:
        exact = timedelta(seconds=seconds) == value
    except OverflowError:  # rounded up, over the longest there is
        exact = False
    if not exact:
        raise Mismatch(f"{shown(value)} is too long: stored as a number of seconds, it would lose its microseconds")
    return seconds


def _load_timedelta(kept: Any) -> timedelta:
    if isinstance(kept, bool) or not isinstance(kept, int | float):
        raise Mismatch(f"{shown(kept)} is not a number of seconds")
    try:
        return timedelta(seconds=kept)
    except OverflowError:
        raise Mismatch(f"{kept!r} seconds are too long for a timedelta") from None


def _load_bytes(kept: str) -> bytes:
    try:
        return base64.b64decode(kept, validate=True)
    except binascii.Error:
        raise ValueError from None


_SCALARS: dict[type, tuple[Half, Half]] = {
    datetime: (_dump_datetime, _load_datetime),
    date: (_dump_date, date.fromisoformat),
    time: (_dump_time, time.fromisoformat),
    UUID: (str, UUID),
    Decimal: (_dump_decimal, _load_decimal),
    bytes: (lambda value: base64.b64encode(value).decode(), _load_bytes),
}


def scalar(kind: type) -> Converter | None:
    """Return how values of a class that stand alone are kept; None if it is not such a class."""
    name = kind.__name__
    if kind in PLAIN:
        return Converter(name, only((int, float) if kind is float else kind, name))
    if kind in _SCALARS:
        dump, load = _SCALARS[kind]
        return Converter(name, _checked(kind, dump), _read(kind, load))
    if kind is timedelta:
        return Converter(name, _checked(timedelta, _dump_timedelta), _load_timedelta)
    if issubclass(kind, PurePath):
        return Converter(name, _checked(kind, str), _read(kind, kind))
    return _enumeration(kind) if issubclass(kind, enum.Enum) else None


def _enumeration(kind: type[enum.Enum]) -> Converter:
    # By value, as other libraries do; by name where JSON would change the value.
    by_value = all(type(member.value) in PLAIN for member in kind)

    def dump(member: enum.Enum) -> Any:
        return member.value if by_value else member.name

    def load(kept: Any) -> enum.Enum:
        try:
            return kind(kept) if by_value else kind[kept]
        except (ValueError, KeyError, TypeError):
            raise Mismatch(f"{shown(kept)} is not a valid {kind.__name__}") from None

    return Converter(kind.__name__, _checked(kind, dump), load)


def literal(annotation: Any) -> Converter:
    """Return how values of a `Literal` are kept: members of an enumeration by their values."""
    allowed = typing.get_args(annotation)
    kept = {(type(one), one): one.value if isinstance(one, enum.Enum) else one for one in allowed}
    if not all(one is None or type(one) in PLAIN for one in kept.values()):
        refuse_annotation(annotation)
    back = {(type(form), form): key[1] for key, form in kept.items()}
    if len(back) < len(kept):
        refuse_annotation(annotation, ", of which two look alike in JSON")
    name = shown_annotation(annotation)

    def look(table: dict[Any, Any], value: Any) -> Any:
        try:
            return table[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch(f"it must be {name}, not {shown(value)}") from None

    return Converter(name, functools.partial(look, kept), functools.partial(look, back))
