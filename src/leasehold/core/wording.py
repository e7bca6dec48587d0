"""How messages show values and counts."""

from __future__ import annotations


def shown(value: object) -> str:
    """Return *value* as a message shows it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def printable(text: str) -> str:
    """
    Return *text* as a line of a log shows it: as it is, or as `repr` does if it has a line break or the like.

    Such a text would otherwise look like a line of its own, which the program that logs has never written.
    """
    return text if text.isprintable() else repr(text)


def counted(count: int, one: str, more: str) -> str:
    """Return *count* with the words for one, or for more."""
    return f"{count} {one if count == 1 else more}"
