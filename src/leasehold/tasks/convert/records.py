"""Values with named fields: dataclasses, named tuples and typed dictionaries."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from .base import Build, Converter, Half, Mismatch, UnsupportedAnnotation, refuse_annotation, shown, within

_MISSING: Any = dataclasses.MISSING


Fill = Callable[[Converter, Any, Build], None]


def filler(kind: type) -> Fill | None:
    """Return what completes the converter of a record, whose fields may be of its own type; None for other classes."""
    if typing.is_typeddict(kind):
        return _typed_dict
    if dataclasses.is_dataclass(kind):
        return _dataclass
    return _named_tuple if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _typed_dict(itself: Converter, kind: Any, build: Build) -> None:
    hints = _hints(kind, extras=True)
    fields = {name: build(hint) for name, hint in hints.items()}
    # Python itself overlooks these two where annotations are strings.
    optional = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
    required = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required}
    needed = (kind.__required_keys__ - optional) | required
    itself.dump = _record_dump(itself, dict, fields, needed, lambda value: value)
    itself.load = _record_load(itself, fields, needed, dict)


def _dataclass(itself: Converter, kind: Any, build: Build) -> None:
    own = [field for field in dataclasses.fields(kind) if field.init]
    hints = _hints(kind)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        refuse_annotation(kind, ", which takes an InitVar, whose value cannot be read back")
    fields = {field.name: build(hints[field.name]) for field in own}
    needed = frozenset(f.name for f in own if f.default is _MISSING and f.default_factory is _MISSING)
    itself.dump = _record_dump(
        itself, kind, fields, frozenset(fields), lambda one: {n: getattr(one, n) for n in fields}
    )
    itself.load = _record_load(itself, fields, needed, kind)


def _named_tuple(itself: Converter, kind: Any, build: Build) -> None:
    hints = _hints(kind)
    fields = {name: build(hints.get(name, Any)) for name in kind._fields}
    itself.dump = _record_dump(itself, kind, fields, frozenset(fields), lambda one: one._asdict())
    itself.load = _record_load(itself, fields, frozenset(fields) - kind._field_defaults.keys(), kind)


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
            raise Mismatch(f"{shown(kept)} is not a valid {itself.shown}")
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
