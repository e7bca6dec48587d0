"""Runs a batch of which some items may wait for another transaction's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...errors import StoreUnavailable
from .faults import sqlstate_of

T = TypeVar("T")


def in_parts(
    items: Sequence[Any], verb: Callable[[Sequence[Any], int], list[T]], batch_ms: int, last_ms: int
) -> list[T]:
    """
    Run *verb* over *items*, in ever smaller parts as long as one waits for another transaction's lock.

    A part may wait *batch_ms*; the items that collide come last, one by one, and may each wait *last_ms*.
    """
    reply: dict[int, T] = {}
    parts, late = [range(len(items))], list[range]()
    failure: StoreUnavailable | None = None
    while parts or late:
        patience_ms = batch_ms if parts and len(items) > 1 else last_ms
        part = parts.pop() if parts else late.pop(0)
        try:
            if len(part) == len(items):
                return verb(items, patience_ms) if items else []
            answers = verb([items[number] for number in part], patience_ms)
        except StoreUnavailable as error:
            if sqlstate_of(error.__cause__) != "55P03":
                raise _of_a_part(error, len(reply), len(items)) from error.__cause__
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif patience_ms == last_ms:
                failure = error
            else:
                late.append(part)
            continue
        reply.update(zip(part, answers, strict=True))
    if failure is not None:
        raise _of_a_part(failure, len(reply), len(items)) from failure.__cause__
    return [reply[number] for number in range(len(items))]


def _of_a_part(error: StoreUnavailable, done: int, count: int) -> StoreUnavailable:
    """Return *error*, which speaks of a part of a batch, for the whole of it."""
    if not done:
        return error
    return StoreUnavailable(
        f"{done} of {count} are done. Of the others: {error} To say the same again is safe.", outcome_unknown=True
    )
