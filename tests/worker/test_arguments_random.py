"""Whatever the annotation and the value: it comes back as it was, or it was refused when it was passed."""

from __future__ import annotations

import enum
import json
import operator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import reduce
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold import InvalidArgument, Router
from leasehold.tasks.task import AnyTask

Case = tuple[Any, st.SearchStrategy[Any]]


class Colour(enum.Enum):
    """By value."""

    RED = "red"
    DAY = "2026-11-16"
    ONE = 1


class Shape(enum.Enum):
    """By name."""

    SQUARE = (1, 1)


@dataclass(frozen=True)
class Point:
    """A record."""

    x: int
    on: date | str = "never"


@dataclass(frozen=True)
class Spot:
    """Another that looks alike."""

    x: int
    on: date | str = "never"


class Pair(NamedTuple):
    """A third."""

    x: Decimal
    y: bool


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ["red", "2026-11-16", "1", "", "01:00:00", "1.5", "SQUARE"]
)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# A string that reads as a date is refused beside one, also within a record.
days = st.dates() | st.text("abc", max_size=3)
LEAVES: list[Case] = [
    (int, st.integers()),
    (float, numbers),
    (bool, st.booleans()),
    (str, texts),
    (None, st.none()),
    (datetime, st.datetimes(timezones=offsets | st.just(UTC))),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-40_000), timedelta(days=40_000))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary(max_size=20)),
    (PurePosixPath, st.text("abc/.", min_size=1).map(PurePosixPath)),
    (Colour, st.sampled_from(Colour)),
    (Shape, st.sampled_from(Shape)),
    (Literal["red", 1, None], st.sampled_from(["red", 1, None])),
    (Point, st.builds(Point, st.integers(), days)),
    (Spot, st.builds(Spot, st.integers(), days)),
    (Pair, st.builds(Pair, st.decimals(allow_nan=False, allow_infinity=False), st.booleans())),
]


lists: Any = list
tuples: Any = tuple
dicts: Any = dict


def union(some: list[Case]) -> Case:
    """Any of these."""
    return reduce(operator.or_, (kind for kind, _ in some), None | int), st.one_of(*(values for _, values in some))


def larger(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Collections and unions of what there is."""
    return st.one_of(
        inner.map(lambda one: (lists[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (tuples[one[0], ...], st.lists(one[1], max_size=3).map(tuple))),
        inner.map(lambda one: (dicts[str, one[0]], st.dictionaries(texts, one[1], max_size=3))),
        st.tuples(inner, inner).map(lambda two: (tuples[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))),
        st.lists(inner, min_size=2, max_size=3).map(union),
    )


cases = st.recursive(st.sampled_from(LEAVES), larger, max_leaves=4).flatmap(
    lambda case: case[1].map(lambda value: (case[0], value))
)


def task_of(annotation: Any) -> AnyTask:
    """A task whose only argument, x, has this annotation."""

    def handle(x: Any) -> Any: ...

    handle.__annotations__ = {"x": annotation, "return": annotation}
    return Router().task(handle)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down; an int may stand for a float."""
    if type(one) is not type(other):
        return {type(one), type(other)} <= {int, float, bool} and one == other
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(max_examples=80, deadline=None)
@given(cases)
def test_an_argument_comes_back_as_it_was_or_is_refused(case: tuple[Any, Any]) -> None:
    """Also from unions whose members look alike in JSON."""
    annotation, value = case
    task = task_of(annotation)
    said, document = "", "{}"
    try:
        document = task.job(value).document
    except InvalidArgument as error:
        said = str(error)

    if said:
        assert "would come back as" in said
    else:
        assert same(task.arguments(document)["x"], value)


@settings(max_examples=30, deadline=None)
@given(cases)
def test_a_result_is_always_kept(case: tuple[Any, Any]) -> None:
    """And where it would be refused as an argument, it is kept by its own type."""
    annotation, value = case
    json.loads(task_of(annotation).encode_result(value))
