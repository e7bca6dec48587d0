"""
The statements of a search, for both databases: candidates in the order of an index, and those of them that fit.

Two statements. The first finds the key of the last candidate that may be looked at. The second reads the jobs up to
that key which fit, so that the cursor of the next page is right even if jobs come and go in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..core.search import Key, Order, Search

Mark = Callable[[str], str]  # how a statement names a parameter


class Candidates(NamedTuple):
    """Where candidates come from: a FROM clause, its conditions, and the columns that they are sorted by."""

    source: str
    where: tuple[str, ...]
    columns: tuple[str, ...]


def bound(candidates: Candidates, search: Search, key: Key | None, mark: Mark, params: dict[str, Any]) -> str:
    """Return the statement that finds the key of the last candidate behind *key* that may be looked at, if any."""
    where = " AND ".join([*candidates.where, *_behind(candidates, search, key, mark, params)]) or "true"
    columns = ", ".join(candidates.columns)
    return (
        f"SELECT {columns} FROM {candidates.source} WHERE {where} ORDER BY {ordered(candidates, search)} "
        f"LIMIT 1 OFFSET {mark('candidates')}"
    )


def within(
    candidates: Candidates, search: Search, key: Key | None, last: Key | None, mark: Mark, params: dict[str, Any]
) -> list[str]:
    """Return the conditions for candidates behind *key*, up to *last* or the end."""
    conditions = [*candidates.where, *_behind(candidates, search, key, mark, params)]
    if last is not None:
        params.update({f"last{number}": part for number, part in enumerate(last)})
        marks = ", ".join(mark(f"last{number}") for number in range(len(last)))
        conditions += _compared(candidates, ">=" if search.newest else "<=", marks, mark("last0"))
    return conditions


def ordered(candidates: Candidates, search: Search) -> str:
    """Return the ORDER BY of candidates."""
    return ", ".join(f"{column} {'DESC' if search.newest else 'ASC'}" for column in candidates.columns)


def _behind(candidates: Candidates, search: Search, key: Key | None, mark: Mark, params: dict[str, Any]) -> list[str]:
    if key is None:
        return []
    params.update({f"key{number}": part for number, part in enumerate(key)})
    marks = ", ".join(mark(f"key{number}") for number in range(len(key)))
    return _compared(candidates, "<" if search.newest else ">", marks, mark("key0"))


def _compared(candidates: Candidates, comparison: str, marks: str, first: str) -> list[str]:
    """Return the comparison with a key; the first column once more, since columns of two tables have no index."""
    whole = f"({', '.join(candidates.columns)}) {comparison} ({marks})"
    if len(candidates.columns) == 1:
        return [whole]
    return [whole, f"{candidates.columns[0]} {comparison[0]}= {first}"]


def by_column(search: Search, mark: Mark, params: dict[str, Any]) -> list[str]:
    """Return the conditions that are the same for both databases, on the columns of a job `j`."""
    conditions = []
    for name in ("queue", "task", "parent", "lock"):
        if (value := getattr(search, name)) is not None:
            params[name] = value
            conditions.append(f"j.{name} = {mark(name)}")
    if search.order is not Order.END:
        conditions += during("j.created_at", search, mark, params)
    return conditions


def during(column: str, search: Search, mark: Mark, params: dict[str, Any]) -> list[str]:
    """Return the conditions for the time that *column* is within."""
    conditions = []
    for name, comparison in (("since_us", ">="), ("until_us", "<")):
        if (value := getattr(search, name)) is not None:
            params[name] = value
            conditions.append(f"{column} {comparison} {mark(name)}")
    return conditions


def prefix_end(prefix: str) -> str | None:
    """Return the first text that sorts behind all that begin with *prefix*, by code points; None if there is none."""
    for length in range(len(prefix), 0, -1):
        following = ord(prefix[length - 1]) + 1
        if following == 0xD800:
            following = 0xE000  # no text has a lone surrogate
        if following <= 0x10FFFF:
            return prefix[: length - 1] + chr(following)
    return None


class Placed(Protocol):
    """What the place of a job in the order of a search depends on, beside its seq."""

    @property
    def id(self) -> str:
        """The id of the job."""
        ...

    @property
    def finished_us(self) -> int | None:
        """When it was done, failed or cancelled; None before."""
        ...


def key_of(search: Search, job: Placed, seq: int) -> Key:
    """Return where *job* stands in the order of the search."""
    if search.order is Order.ID:
        return (job.id,)
    return (job.finished_us or 0, seq) if search.order is Order.END else (seq,)
