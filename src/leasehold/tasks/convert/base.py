"""
What converters are made of: the two halves, and their errors.

A `Converter` has two halves: `dump` checks a value and returns it as JSON has it, `load` does the reverse.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

Half = Callable[[Any], Any]
PLAIN = frozenset({bool, int, float, str})  # what JSON has itself, beside None


class Mismatch(Exception):
    """A value does not fit its annotation; *where* is the way to it, from the outside in."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where

    def within(self, part: object) -> Mismatch:
        """Return the same, seen from one level further out."""
        named = isinstance(part, str) and part.isidentifier()
        return Mismatch(self.reason, (f".{part}" if named else f"[{part!r}]") + self.where)


class UnsupportedAnnotation(Exception):
    """No value of this annotation can be kept."""


@dataclasses.dataclass(slots=True, eq=False)
class Converter:
    """How values of one annotation are kept. Without `load`, JSON's own value is the value."""

    shown: str
    dump: Half
    load: Half | None = None

    def fetch(self, kept: Any) -> Any:
        """Return the value of what was kept; a plain one is looked at, and `load` alone would not."""
        return self.dump(kept) if self.load is None else self.load(kept)


Build = Callable[[Any], Converter]  # makes the converter of what an annotation contains


def shown(value: object) -> str:
    """Return *value* for people, not too long, with its type."""
    try:
        text = repr(value)
    except Exception:
        text = "a value without a repr"
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"


def shown_annotation(annotation: Any) -> str:
    """Return an annotation as a reader would write it."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def refuse_annotation(annotation: Any, why: str = "") -> NoReturn:
    """Raise `UnsupportedAnnotation` for *annotation*."""
    raise UnsupportedAnnotation(shown_annotation(annotation) + why)


# Halves


def same(value: Any) -> Any:
    """Return *value* unchanged; its contents are checked when the whole payload is encoded."""
    return value


def only(kinds: type | tuple[type, ...], name: str) -> Half:
    """Return a `dump` that lets values of *kinds* through, as JSON has them anyway."""

    def dump(value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        raise Mismatch(f"it must be {name}, not {shown(value)}")

    return dump


def within(half: Half, value: Any, part: object) -> Any:
    """Return what *half* makes of *value*, with an error that says in which *part* it was."""
    try:
        return half(value)
    except Mismatch as mismatch:
        raise mismatch.within(part) from None


def in_order(kept: Iterable[Any]) -> list[Any]:
    """Return what a set became, always in the same order."""
    # A set has another order in every process, and a child that was given no name is named by its payload.
    try:
        return sorted(kept, key=lambda one: json.dumps(one, sort_keys=True))
    except TypeError as error:
        raise Mismatch(f"its content cannot be stored as JSON: {error}") from None
