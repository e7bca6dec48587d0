"""Lists, sets, tuples and dictionaries."""

from __future__ import annotations

import collections.abc as abc
import typing
from collections.abc import Callable, Iterable
from typing import Any

from .base import Build, Converter, Mismatch, in_order, refuse_annotation, same, shown, shown_annotation, within

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
COLLECTIONS = frozenset({*_LISTS, *_SETS, *_DICTS, tuple})


def collection(annotation: Any, origin: Any, build: Build) -> Converter:
    """Return how values of a collection are kept; raise `UnsupportedAnnotation` for any other generic type."""
    arguments = typing.get_args(annotation)
    name = shown_annotation(annotation)
    if origin in _DICTS:
        return _dict(annotation, name, arguments, build)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed_tuple(name, [build(one) for one in arguments if one != ()])
    if origin not in COLLECTIONS:
        refuse_annotation(annotation)
    inner = build(arguments[0]) if arguments else Converter("Any", same)
    if origin in _LISTS:
        # A tuple is a Sequence, and comes back as one: as a list.
        return _many(name, list if origin is list else (list, tuple), inner, list)
    if origin in _SETS:
        back: Any = frozenset if origin in (frozenset, abc.Set) else set
        return _many(name, back if origin in (set, frozenset) else (set, frozenset), inner, back)
    return _many(name, tuple, inner, tuple)


def _many(
    name: str, kinds: type[Any] | tuple[type[Any], ...], inner: Converter, back: Callable[[Iterable[Any]], Any]
) -> Converter:
    unordered = back in (set, frozenset)

    def dump(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise Mismatch(f"it must be {name}, not {shown(value)}")
        if unordered:
            return in_order(inner.dump(one) for one in value)
        if inner.dump is same:
            return list(value)
        return [within(inner.dump, one, index) for index, one in enumerate(value)]

    def load(kept: Any) -> Any:
        if not isinstance(kept, list):
            raise Mismatch(f"{shown(kept)} is not a valid {name}")
        each = kept if inner.load is None else [within(inner.load, one, index) for index, one in enumerate(kept)]
        try:
            return back(each)
        except TypeError:
            raise Mismatch(f"{shown(kept)} is not a valid {name}") from None

    return Converter(name, dump, None if back is list and inner.load is None else load)


def _fixed_tuple(name: str, members: list[Converter]) -> Converter:
    def dump(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(members):
            raise Mismatch(f"it must be {name}, not {shown(value)}")
        return [within(each.dump, one, index) for index, (each, one) in enumerate(zip(members, value, strict=True))]

    def load(kept: Any) -> Any:
        if not isinstance(kept, list) or len(kept) != len(members):
            raise Mismatch(f"{shown(kept)} is not a valid {name}")
        return tuple(within(each.fetch, one, n) for n, (each, one) in enumerate(zip(members, kept, strict=True)))

    return Converter(name, dump, load)


def _dict(annotation: Any, name: str, arguments: tuple[Any, ...], build: Build) -> Converter:
    inner = Converter("Any", same)
    if arguments:
        key = arguments[0]
        while hasattr(key, "__supertype__"):
            key = key.__supertype__
        if key is not str and key is not Any:
            refuse_annotation(annotation, ", whose keys are not strings, as JSON's are")
        inner = build(arguments[1])

    def dump(value: Any) -> Any:
        if not isinstance(value, abc.Mapping):
            raise Mismatch(f"it must be {name}, not {shown(value)}")
        for key in value:
            if not isinstance(key, str):
                raise Mismatch(
                    f"its key {shown(key)} is not a string: JSON has only string keys, so the key would come back as "
                    "a string"
                )
        return {key: within(inner.dump, one, key) for key, one in value.items()}

    def load(kept: Any) -> Any:
        if not isinstance(kept, dict):
            raise Mismatch(f"{shown(kept)} is not a valid {name}")
        assert inner.load is not None
        return {key: within(inner.load, one, key) for key, one in kept.items()}

    return Converter(name, dump, None if inner.load is None else load)
