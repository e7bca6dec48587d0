"""Models of pydantic and Structs of msgspec: kept and brought back by their own validators."""

from __future__ import annotations

import json
import sys
from typing import Any

from .base import Converter, Mismatch, refuse_annotation, shown


def model(kind: type) -> Converter | None:
    """Return how instances of a model or a Struct are kept; None for any other class."""
    if _is_of(kind, "pydantic", "BaseModel"):
        return _pydantic(kind)
    return _struct(kind) if _is_of(kind, "msgspec", "Struct") else None


def _is_of(kind: type, module: str, name: str) -> bool:
    # A class of such a library implies that it is imported. Importing it here would make it a dependency.
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and issubclass(kind, base)


def _pydantic(kind: Any) -> Converter:
    if not hasattr(kind, "model_validate_json"):
        refuse_annotation(kind, ", which is from a pydantic before version 2")
    from pydantic import ValidationError

    # From JSON, and not from a dict: a strict model takes the string of a date from JSON only.
    def load(kept: Any) -> Any:
        try:
            return kind.model_validate_json(json.dumps(kept))
        except ValidationError as error:
            raise Mismatch(f"{kind.__name__} refuses it: {_one_line(error)}") from None

    def dump(value: Any) -> Any:
        if type(value) is not kind:
            raise Mismatch(f"it must be {kind.__name__}, not {shown(value)}")
        kept = value.model_dump(mode="json", by_alias=True, round_trip=True)
        load(kept)  # aliases, or a changed model, may write what it would not read
        return kept

    return Converter(kind.__name__, dump, load)


def _struct(kind: Any) -> Converter:
    import msgspec

    def load(kept: Any) -> Any:
        try:
            return msgspec.convert(kept, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise Mismatch(f"{kind.__name__} refuses it: {_one_line(error)}") from None

    def dump(value: Any) -> Any:
        if type(value) is not kind:
            raise Mismatch(f"it must be {kind.__name__}, not {shown(value)}")
        try:
            kept = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        except TypeError as error:
            raise Mismatch(f"{kind.__name__} cannot be stored: {error}") from None
        load(kept)  # a Struct does not look at its fields when it is made
        return kept

    return Converter(kind.__name__, dump, load)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
