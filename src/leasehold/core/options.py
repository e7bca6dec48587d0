"""
The options of a job that no store compares: kept as one JSON document, so that a new one needs no column.

An option belongs here if only Python code reads it. What a statement compares, indexes or counts with is a column, as
the budgets `max_errors` and `max_reclaims` are.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

from .retry import DEFAULT_RETRY, Retry

_BACK_OFF = [each.name for each in fields(Retry) if each.name not in ("max_errors", "max_reclaims", "only")]


class Options(NamedTuple):
    """What a job may be given that only Python code reads, and its budgets."""

    retry: Retry = DEFAULT_RETRY
    run_us: int | None = None  # how long its handler may run in all; None: as long as its task says
    keep_us: int | None = None  # after its end; None: as the store's policy says. Stores read it from the document


DEFAULT_OPTIONS = Options()
_OTHERS = Options._fields[1:]  # all but the retry policy are kept under their own names


def encode(options: Options) -> str | None:
    """Return the document that a job keeps: each option that is not at its default. None if all are."""
    return None if options is DEFAULT_OPTIONS else _encode(options)


@lru_cache(maxsize=256)
def _encode(options: Options) -> str | None:
    kept: dict[str, Any] = {
        name: value for name in _BACK_OFF if (value := getattr(options.retry, name)) != getattr(DEFAULT_RETRY, name)
    }
    kept |= {name: value for name in _OTHERS if (value := getattr(options, name)) != getattr(DEFAULT_OPTIONS, name)}
    return json.dumps(kept) if kept else None


@lru_cache(maxsize=256)
def decode(document: str | None, max_errors: int, max_reclaims: int) -> Options:
    """Return the options of that document and those budgets; what a later release has put there is ignored."""
    kept = {} if document is None else json.loads(document)
    back_off = {name: kept[name] for name in _BACK_OFF if name in kept}
    others = {name: kept[name] for name in _OTHERS if name in kept}
    found = Options(Retry(max_errors=max_errors, max_reclaims=max_reclaims, **back_off), **others)
    return DEFAULT_OPTIONS if found == DEFAULT_OPTIONS else found
