"""Finds how values of an annotation are kept, one annotation inside the other."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal, Union

from .base import (
    PLAIN,
    Converter,
    Mismatch,
    UnsupportedAnnotation,
    in_order,
    only,
    refuse_annotation,
    same,
    shown,
    shown_annotation,
    within,
)
from .collections import COLLECTIONS, collection
from .models import model
from .records import filler
from .scalars import literal, scalar

_QUALIFIERS = (typing.Annotated, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))


def converter(annotation: Any) -> Converter:
    """Return how values of *annotation*, which is resolved, are kept; raise `UnsupportedAnnotation` if none can be."""
    return _Builder().build(annotation)


@functools.lru_cache(maxsize=256)
def _of_type(kind: Any) -> Converter:
    return converter(kind)


def dump_by_type(value: Any) -> Any:
    """Return *value* as JSON has it, by its own type and the types of what is in it; `Mismatch` if it has no form."""
    kind: Any = type(value)
    if value is None or kind in PLAIN:
        return value
    if kind is object:
        raise Mismatch("JSON has no form for object")  # which an annotation means otherwise
    if kind not in (dict, list, tuple, set, frozenset):
        try:
            return _of_type(kind).dump(value)
        except UnsupportedAnnotation as error:
            if not isinstance(value, (dict, list, tuple, *PLAIN)):
                raise Mismatch(f"JSON has no form for {error}") from None
    if isinstance(value, dict):
        return {key: within(dump_by_type, inner, key) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [within(dump_by_type, inner, index) for index, inner in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return in_order(dump_by_type(inner) for inner in value)
    return value


class _Builder:
    """Makes the converter of one annotation, and remembers the types on the way, which may contain themselves."""

    def __init__(self) -> None:
        self._known: dict[Any, Converter] = {}

    def build(self, annotation: Any) -> Converter:
        if annotation is None or annotation is types.NoneType:
            return Converter("None", only(types.NoneType, "None"))
        if annotation is Any or annotation is object:
            return Converter("Any", same)
        supertype = getattr(annotation, "__supertype__", None)  # NewType
        if supertype is not None:
            return self.build(supertype)
        if hasattr(annotation, "__value__") and not isinstance(annotation, type):  # type X = …, from Python 3.12 on
            return self._alias(annotation)
        origin = typing.get_origin(annotation)
        if origin in _QUALIFIERS:
            return self.build(typing.get_args(annotation)[0])
        if origin is Union or origin is types.UnionType:
            return _union(annotation, [self.build(member) for member in typing.get_args(annotation)])
        if origin is Literal:
            return literal(annotation)
        if origin is not None or any(annotation is one for one in COLLECTIONS):
            return collection(annotation, origin or annotation, self.build)
        if isinstance(annotation, type):
            return self._class(annotation)
        return refuse_annotation(annotation)

    def _alias(self, annotation: Any) -> Converter:
        if annotation not in self._known:
            itself = self._begun(annotation)
            inner = self.build(annotation.__value__)
            itself.dump, itself.load = inner.dump, inner.fetch
        return self._known[annotation]

    def _class(self, kind: type) -> Converter:
        if kind in self._known:
            return self._known[kind]
        if found := scalar(kind) or model(kind):
            return found
        fill = filler(kind)
        if fill is None:
            return refuse_annotation(kind)
        itself = self._begun(kind)
        fill(itself, kind, self.build)
        return itself

    def _begun(self, annotation: Any) -> Converter:
        """Return a converter that stands for itself while what it contains is built; its halves come later."""
        itself = self._known[annotation] = Converter(annotation.__name__, same, same)
        return itself


def _union(annotation: Any, members: list[Converter]) -> Converter:
    name = shown_annotation(annotation)

    def first(value: Any, dumping: bool) -> tuple[int, Any]:
        mismatches = []
        for index, member in enumerate(members):
            try:
                return index, member.dump(value) if dumping else member.fetch(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        # With one member beside None, what it says is worth more than the list of members.
        others = [one for one, member in zip(mismatches, members, strict=True) if member.shown != "None"]
        raise others[0] if len(others) == 1 else Mismatch(f"it must be {name}, not {shown(value)}")

    plain = all(member.load is None for member in members)
    certain = plain or sum(member.shown != "None" for member in members) == 1

    def dump(value: Any) -> Any:
        index, kept = first(value, True)
        if not certain:
            back, _ = first(kept, False)
            if back != index:
                raise Mismatch(
                    f"{shown(value)} would come back as {members[back].shown}: its JSON fits more than one member of "
                    f"the annotation {name}"
                )
        return kept

    return Converter(name, dump, None if plain else lambda kept: first(kept, False)[1])
