"""
Values that JSON has no form for, kept by their annotation and brought back by it.

What comes back equals what was passed, or it is refused when it is passed.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union

from .foreign import foreign
from .scalars import (
    PLAIN,
    Converter,
    Half,
    Mismatch,
    UnsupportedAnnotation,
    in_order,
    literal,
    only,
    refuse_annotation,
    same,
    scalar,
    shown,
    shown_annotation,
    within,
)

_MISSING: Any = dataclasses.MISSING
_QUALIFIERS = (typing.Annotated, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))


def converter(annotation: Any) -> Converter:
    """Return how values of *annotation*, which is resolved, are kept; raise `UnsupportedAnnotation` if none can be."""
    return _build(annotation, {})


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
        return [within(dump_by_type, inner, place) for place, inner in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return in_order(dump_by_type(inner) for inner in value)
    return value


@functools.lru_cache(maxsize=256)
def _of_type(kind: Any) -> Converter:
    return converter(kind)


# One annotation after the other


def _build(annotation: Any, known: dict[Any, Converter]) -> Converter:
    """*known* are the classes that are being looked at, for those that contain themselves."""
    if annotation is None or annotation is types.NoneType:
        return Converter("None", only(types.NoneType, "None"))
    if annotation is Any or annotation is object:
        return Converter("Any", same)
    supertype = getattr(annotation, "__supertype__", None)  # NewType
    if supertype is not None:
        return _build(supertype, known)
    if hasattr(annotation, "__value__") and not isinstance(annotation, type):  # type X = …, from Python 3.12 on
        return _alias(annotation, known)
    origin = typing.get_origin(annotation)
    if origin in _QUALIFIERS:
        return _build(typing.get_args(annotation)[0], known)
    if origin is Union or origin is types.UnionType:
        return _union(annotation, [_build(member, known) for member in typing.get_args(annotation)])
    if origin is Literal:
        return literal(annotation)
    if origin is not None or any(annotation is one for one in _COLLECTIONS):
        return _collection(annotation, origin or annotation, known)
    if isinstance(annotation, type):
        return _class(annotation, known)
    return refuse_annotation(annotation)


def _begun(name: str) -> Converter:
    """Return a converter that stands for itself while what it contains is looked at; its halves come later."""
    return Converter(name, same, same)


def _alias(annotation: Any, known: dict[Any, Converter]) -> Converter:
    if annotation not in known:
        itself = known[annotation] = _begun(annotation.__name__)
        inner = _build(annotation.__value__, known)
        itself.dump, itself.load = inner.dump, inner.fetch
    return known[annotation]


def _class(kind: type, known: dict[Any, Converter]) -> Converter:
    if kind in known:
        return known[kind]
    if found := scalar(kind) or foreign(kind):
        return found
    if typing.is_typeddict(kind):
        return _typed_dict(kind, known)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, known)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind, known)
    return refuse_annotation(kind)


def _union(annotation: Any, members: list[Converter]) -> Converter:
    name = shown_annotation(annotation)

    def first(value: Any, dumping: bool) -> tuple[int, Any]:
        said = []
        for place, member in enumerate(members):
            try:
                return place, member.dump(value) if dumping else member.fetch(value)
            except Mismatch as mismatch:
                said.append(mismatch)
        # With one member beside None, what it says is worth more than the list of members.
        others = [one for one, member in zip(said, members, strict=True) if member.shown != "None"]
        raise others[0] if len(others) == 1 else Mismatch(f"it must be {name}, not {shown(value)}")

    plain = all(member.load is None for member in members)
    certain = plain or sum(member.shown != "None" for member in members) == 1

    def dump(value: Any) -> Any:
        place, kept = first(value, True)
        if not certain:
            back, _ = first(kept, False)
            if back != place:
                raise Mismatch(
                    f"{shown(value)} would come back as {members[back].shown}: as {name} the two look alike in JSON"
                )
        return kept

    return Converter(name, dump, None if plain else lambda kept: first(kept, False)[1])


# Collections

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_COLLECTIONS = frozenset({*_LISTS, *_SETS, *_DICTS, tuple})


def _collection(annotation: Any, origin: Any, known: dict[Any, Converter]) -> Converter:
    arguments = typing.get_args(annotation)
    name = shown_annotation(annotation)
    if origin in _DICTS:
        return _dict(annotation, name, arguments, known)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed_tuple(name, [_build(one, known) for one in arguments if one != ()])
    if origin not in _COLLECTIONS:
        refuse_annotation(annotation)
    inner = _build(arguments[0], known) if arguments else Converter("Any", same)
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
        return [within(inner.dump, one, place) for place, one in enumerate(value)]

    def load(kept: Any) -> Any:
        if not isinstance(kept, list):
            raise Mismatch(f"{shown(kept)} is no {name}")
        each = kept if inner.load is None else [within(inner.load, one, place) for place, one in enumerate(kept)]
        try:
            return back(each)
        except TypeError:
            raise Mismatch(f"{shown(kept)} is no {name}") from None

    return Converter(name, dump, None if back is list and inner.load is None else load)


def _fixed_tuple(name: str, members: list[Converter]) -> Converter:
    def dump(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(members):
            raise Mismatch(f"it must be {name}, not {shown(value)}")
        return [within(each.dump, one, place) for place, (each, one) in enumerate(zip(members, value, strict=True))]

    def load(kept: Any) -> Any:
        if not isinstance(kept, list) or len(kept) != len(members):
            raise Mismatch(f"{shown(kept)} is no {name}")
        return tuple(within(each.fetch, one, n) for n, (each, one) in enumerate(zip(members, kept, strict=True)))

    return Converter(name, dump, load)


def _dict(annotation: Any, name: str, arguments: tuple[Any, ...], known: dict[Any, Converter]) -> Converter:
    inner = Converter("Any", same)
    if arguments:
        key = arguments[0]
        while hasattr(key, "__supertype__"):
            key = key.__supertype__
        if key is not str and key is not Any:
            refuse_annotation(annotation, ", whose keys are not strings, as JSON's are")
        inner = _build(arguments[1], known)

    def dump(value: Any) -> Any:
        if not isinstance(value, abc.Mapping):
            raise Mismatch(f"it must be {name}, not {shown(value)}")
        for key in value:
            if not isinstance(key, str):
                raise Mismatch(f"its key {shown(key)} is no string, as JSON's are, so it would not come back as it was")
        return {key: within(inner.dump, one, key) for key, one in value.items()}

    def load(kept: Any) -> Any:
        if not isinstance(kept, dict):
            raise Mismatch(f"{shown(kept)} is no {name}")
        assert inner.load is not None
        return {key: within(inner.load, one, key) for key, one in kept.items()}

    return Converter(name, dump, None if inner.load is None else load)


# Records


def _typed_dict(kind: Any, known: dict[Any, Converter]) -> Converter:
    itself = known[kind] = _begun(kind.__name__)
    hints = _hints(kind, extras=True)
    fields = {name: _build(hint, known) for name, hint in hints.items()}
    # Python itself overlooks these two where annotations are strings.
    optional = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
    required = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required}
    needed = (kind.__required_keys__ - optional) | required
    itself.dump = _record_dump(itself, dict, fields, needed, lambda value: value)
    itself.load = _record_load(itself, fields, needed, dict)
    return itself


def _dataclass(kind: Any, known: dict[Any, Converter]) -> Converter:
    own = [field for field in dataclasses.fields(kind) if field.init]
    hints = _hints(kind)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        refuse_annotation(kind, ", which takes an InitVar that nobody can read back")
    itself = known[kind] = _begun(kind.__name__)
    fields = {field.name: _build(hints[field.name], known) for field in own}
    needed = frozenset(f.name for f in own if f.default is _MISSING and f.default_factory is _MISSING)
    itself.dump = _record_dump(
        itself, kind, fields, frozenset(fields), lambda one: {n: getattr(one, n) for n in fields}
    )
    itself.load = _record_load(itself, fields, needed, kind)
    return itself


def _named_tuple(kind: Any, known: dict[Any, Converter]) -> Converter:
    itself = known[kind] = _begun(kind.__name__)
    hints = _hints(kind)
    fields = {name: _build(hints.get(name, Any), known) for name in kind._fields}
    itself.dump = _record_dump(itself, kind, fields, frozenset(fields), lambda one: one._asdict())
    itself.load = _record_load(itself, fields, frozenset(fields) - kind._field_defaults.keys(), kind)
    return itself


def _hints(kind: Any, *, extras: bool = False) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=extras)
    except NameError as error:
        raise UnsupportedAnnotation(f"{kind.__qualname__}, whose annotations cannot be resolved: {error}") from None


def _record_dump(
    itself: Converter, kind: type, fields: dict[str, Converter], needed: frozenset[str], items: Callable[[Any], Any]
) -> Half:
    def dump(value: Any) -> Any:
        # Exactly: one of a subclass would come back as one of this class, without what the subclass adds.
        if type(value) is not kind:
            raise Mismatch(f"it must be {itself.shown}, not {shown(value)}")
        parts = items(value)
        _check_names(itself, parts, fields, needed)
        return {name: within(fields[name].dump, part, name) for name, part in parts.items()}

    return dump


def _record_load(
    itself: Converter, fields: dict[str, Converter], needed: frozenset[str], make: Callable[..., Any]
) -> Half:
    def load(kept: Any) -> Any:
        if not isinstance(kept, dict):
            raise Mismatch(f"{shown(kept)} is no {itself.shown}")
        _check_names(itself, kept, fields, needed)
        parts = {name: within(fields[name].fetch, part, name) for name, part in kept.items()}
        try:
            return make(**parts)
        except Exception as error:  # whatever its own code raises
            raise Mismatch(f"{itself.shown} refuses it: {type(error).__name__}: {error}") from None

    return load


def _check_names(itself: Converter, parts: Any, fields: dict[str, Converter], needed: frozenset[str]) -> None:
    if missing := needed - parts.keys():
        raise Mismatch(f"{itself.shown} needs {', '.join(map(repr, sorted(missing)))}")
    if unknown := parts.keys() - fields.keys():
        raise Mismatch(f"{itself.shown} has no {', '.join(sorted(map(repr, unknown)))}")
