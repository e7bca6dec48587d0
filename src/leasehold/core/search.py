"""
Which jobs a reader looks for, and where a page of them ends.

A store lists candidates in an order that it has an index for, beginning behind a cursor: finished jobs of one status by
their end, jobs whose ids have a common beginning by id, all others by insertion. What no index knows is compared
candidate by candidate, and at most `LOOKS_AT` candidates are looked at for one page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ..errors import InvalidArgument
from . import checks, documents, inputs
from .job import Job, Status
from .wording import shown

LOOKS_AT = 10_000  # candidates for one page; 10,000 failed jobs among a million take 30 ms on PostgreSQL
_AT_ONCE = 1_000  # candidates that are read as whole jobs, to be compared in Python
_NUMBER = re.compile(r"[0-9]{1,18}")  # which every database takes for a whole number
_EXACT = ("status", "queue", "task", "parent", "lock", "owner")
_SCALARS = (str, int, float, bool, type(None))

Key = tuple[int | str, ...]  # where a job stands in its order


class Order(StrEnum):
    """What candidates are sorted by."""

    SEQ = "seq"  # insertion
    END = "end"  # (finished_at, seq)
    ID = "id"


@dataclass(frozen=True, slots=True)
class Search:
    """
    What a job must be to be listed; None leaves it open.

    `since_us` and `until_us` bound the end of a finished job, and the creation of any other. `meta` has top-level keys
    of a job's meta with scalar values, `payload` dotted paths into its payload.
    """

    status: Status | None = None
    queue: str | None = None
    task: str | None = None
    owner: str | None = None
    parent: str | None = None
    lock: str | None = None
    error_type: str | None = None
    id_prefix: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)
    newest: bool = True

    @property
    def order(self) -> Order:
        """What the candidates are sorted by."""
        if self.id_prefix is not None:
            return Order.ID
        return Order.END if self.status in (Status.DONE, Status.FAILED, Status.CANCELLED) else Order.SEQ

    def describes(self, job: Job) -> bool:
        """Return whether *job* is what it must be."""
        at = (job.finished_us if self.order is Order.END else job.created_us) or 0
        return (
            all(getattr(self, name) in (None, getattr(job, name)) for name in _EXACT)
            and job.id.startswith(self.id_prefix or "")
            and (self.since_us is None or at >= self.since_us)
            and (self.until_us is None or at < self.until_us)
            and has_meta(job, self.meta)
            and self.fits(job)
        )

    def fits(self, job: Job) -> bool:
        """Return whether *job* is what it must be, where only Python can tell: by its error type and its payload."""
        if self.error_type is not None and self.error_type != job.error_type:
            return False
        return all(_is_at(job, path.split("."), value) for path, value in self.payload.items())

    @property
    def needs_python(self) -> bool:
        """Whether `fits` has anything to compare."""
        return self.error_type is not None or bool(self.payload)


class Page(NamedTuple):
    """
    A part of the jobs that fit, and where the next part begins; *cursor* is None if there is no more.

    If not *complete*, the search stopped after `LOOKS_AT` candidates, and this page may have fewer jobs than asked for.
    """

    jobs: list[Job]
    cursor: str | None
    complete: bool


class Looked(NamedTuple):
    """What a store found among the next candidates: fitting jobs with their keys, in order, and how far it looked."""

    found: list[tuple[Key, Job]]
    last: Key | None  # of the last candidate that it looked at; None if there are no more


Look = Callable[[Key | None, int, int], Looked]  # behind a key: at so many candidates, for so many that fit


def collect(search: Search, limit: int, cursor: str | None, look: Look) -> Page:
    """Return a page of at most *limit* jobs, one at least; *look* reads the candidates."""
    key = decode_cursor(cursor, search.order)
    jobs: list[Job] = []
    # Few at first, since most pages are full with the first candidates; then more and more. Of whole jobs, which Python
    # compares, only portions.
    left, at_once = LOOKS_AT, min(2 * limit, LOOKS_AT)
    while True:
        candidates = min(left, at_once)
        found, last = look(key, candidates, candidates if search.needs_python else limit)
        few = not search.needs_python or len(found) <= candidates // 8
        at_once = min(10 * candidates, LOOKS_AT) if few else _AT_ONCE
        for at, job in found:
            if search.fits(job):
                jobs.append(job)
                if len(jobs) == limit:
                    return Page(jobs, _encode_cursor(search.order, at), True)
        if last is None:
            return Page(jobs, None, True)
        key, left = last, left - candidates
        if left <= 0:
            return Page(jobs, _encode_cursor(search.order, key), False)


def checked(
    *,
    status: Status | str | None = None,
    meta: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    newest: bool = True,
    since_us: int | None = None,
    until_us: int | None = None,
    **names: str | None,
) -> Search:
    """Return the search that these arguments of a reader describe; raise `InvalidArgument` for a wrong one."""
    found = None if status is None else inputs.status(status)
    if found is None and names.get("owner") is not None:
        found = Status.RUNNING  # no other job has an owner
    for name, value in names.items():
        if value is not None:
            checks.name(value, name)
    fields = {"meta": _scalars(meta, "meta"), "payload": _scalars(payload, "payload")}
    for key in fields["meta"]:
        if '"' in key or "\0" in key:
            raise InvalidArgument(
                f"meta cannot be searched by the key {key!r}, since it contains a quotation mark or NUL."
            )
    return Search(found, newest=bool(newest), since_us=since_us, until_us=until_us, **names, **fields)  # type: ignore[arg-type]  # by name


def _scalars(given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    found = {} if given is None else dict(given)
    for key, value in found.items():
        checks.text(key, f"a key of {what}")
        if not isinstance(value, _SCALARS):
            raise InvalidArgument(
                f"the value to search {what} for, under the key {key!r}, must be a string, number, bool or None, not "
                f"{shown(value)}."
            )
        documents.encode(value, f"{what} at {key!r}")
    return found


def has_meta(job: Job, meta: Mapping[str, Any]) -> bool:
    """Return whether the meta of *job* has these keys with these values."""
    found = job.meta if meta else {}
    return all(key in found and _is_same(found[key], value) for key, value in meta.items())


def _is_at(job: Job, path: list[str], value: Any) -> bool:
    """Return whether the payload of *job* has *value* at *path*; a payload of any other shape just does not."""
    found = job.payload
    for part in path:
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return False
    return _is_same(found, value)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON: 1 is 1.0 there, and is not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


# Cursors


def _encode_cursor(order: Order, key: Key) -> str:
    return ":".join([order.value, *map(str, key)])


def decode_cursor(cursor: str | None, order: Order) -> Key | None:
    """Return the key that *cursor* stands for; raise `InvalidArgument` if it is not one of this order."""
    if cursor is None:
        return None
    kind, _, rest = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if kind == order and rest:
        if order is Order.ID:
            with suppress(InvalidArgument):
                return (checks.name(rest, "an id"),)
        parts = rest.split(":")
        if len(parts) == (2 if order is Order.END else 1) and all(map(_NUMBER.fullmatch, parts)):
            return tuple(map(int, parts))
    raise InvalidArgument(
        f"{shown(cursor)} is not a cursor of this search: pass the cursor that a page of the same search returned."
    )
