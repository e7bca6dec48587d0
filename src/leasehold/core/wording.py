"""How messages show values and counts."""

from __future__ import annotations


def shown(value: object) -> str:
    """Return *value* as a message shows it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def counted(count: int, one: str, more: str) -> str:
    """Return *count* with the words for one, or for more."""
    return f"{count} {one if count == 1 else more}"
