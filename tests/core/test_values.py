"""What may be stored, and what a caller is told about the rest."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core import checks, documents, ids, instants
from leasehold.errors import InvalidArgument


class Color(StrEnum):
    """A string that is not a plain one."""

    RED = "red"


class NoOffset(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize("good", ["a", "ä", "x" * 255, "with space", "a/b#2"])
def test_a_name_has_1_to_255_characters(good: str) -> None:
    """Any of them, but for NUL."""
    assert checks.name(good, "queue") == good


def test_a_name_is_a_plain_string() -> None:
    """A member of a StrEnum becomes one, since drivers refuse it."""
    assert type(checks.name(Color.RED, "queue")) is str


def test_an_optional_name_may_be_none() -> None:
    """And is checked otherwise."""
    assert checks.optional_name(None, "lock") is None
    assert checks.optional_name("k", "lock") == "k"
    with pytest.raises(InvalidArgument, match="lock must have 1 to 255"):
        checks.optional_name("", "lock")


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: checks.name(7, "queue"), "queue must be a string, not 7 (int)."),
    (lambda: checks.name(None, "queue"), "queue must be a string, not None (NoneType)."),
    (lambda: checks.name(b"a", "queue"), "queue must be a string, not b'a' (bytes)."),
    (lambda: checks.name("", "queue"), "queue must have 1 to 255 characters, and this one has 0."),
    (
        lambda: checks.name("x" * 256, "queue"),
        f"queue must have 1 to 255 characters, and this one has 256: '{'x' * 40}'…",
    ),
    (lambda: checks.name("a\0b", "queue"), r"queue must not contain NUL: 'a\x00b'."),
    (
        lambda: checks.name("a\ud800", "id"),
        "id contains half a character (a lone surrogate) at position 1, which cannot be stored: remove it.",
    ),
    (lambda: checks.text(7, "note"), "note must be a string, not 7 (int)."),
    (
        lambda: checks.text("\udfff", "note"),
        "note contains half a character (a lone surrogate) at position 0, which cannot be stored: remove it.",
    ),
    (lambda: checks.whole("7", "priority", least=0, most=9), "priority must be a whole number, not '7' (str)."),
    (lambda: checks.whole(True, "priority", least=0, most=9), "priority must be a whole number, not True (bool)."),
    (lambda: checks.whole(1.0, "priority", least=0, most=9), "priority must be a whole number, not 1.0 (float)."),
    (lambda: checks.whole(10, "priority", least=0, most=9), "priority must be from 0 to 9, not 10."),
    (lambda: checks.whole(-1, "priority", least=0, most=9), "priority must be from 0 to 9, not -1."),
    (lambda: checks.microseconds("5", "lease_seconds"), "lease_seconds must be a number of seconds, not '5' (str)."),
    (lambda: checks.microseconds(True, "seconds"), "seconds must be a number of seconds, not True (bool)."),
    (
        lambda: checks.microseconds(timedelta(seconds=1), "seconds"),
        "seconds must be a number of seconds, not datetime.timedelta(seconds=1) (timedelta).",
    ),
    (
        lambda: checks.microseconds(float("nan"), "seconds"),
        "seconds must be a finite number of seconds, at most a century, not nan.",
    ),
    (
        lambda: checks.microseconds(float("inf"), "seconds"),
        "seconds must be a finite number of seconds, at most a century, not inf.",
    ),
    (
        lambda: checks.microseconds(10**10, "seconds"),
        "seconds must be a finite number of seconds, at most a century, not 10000000000.",
    ),
    (lambda: checks.microseconds(0, "seconds"), "seconds must be above zero, not 0."),
    (lambda: checks.microseconds(-1, "seconds", zero=True), "seconds must be zero or more, not -1."),
    (lambda: instants.instant("now", "run_at"), "run_at must be a datetime, not 'now' (str)."),
    (
        lambda: instants.instant(datetime(2030, 1, 1), "run_at"),
        "run_at must have a time zone, and 2030-01-01T00:00:00 has none: use datetime.now(UTC) or .replace(tzinfo=…).",
    ),
    (
        lambda: instants.instant(datetime(2030, 1, 1, tzinfo=NoOffset()), "run_at"),
        "run_at must have a time zone, and 2030-01-01T00:00:00 has none: use datetime.now(UTC) or .replace(tzinfo=…).",
    ),
    (
        lambda: documents.encode({1: "a"}, "payload"),
        "payload has the key 1 (int): keys in JSON are strings, so this key would come back as a string. "
        "Convert it to a string first.",
    ),
    (
        lambda: documents.encode([{"a": ({None: 1},)}], "payload"),
        "payload has the key None (NoneType): keys in JSON are strings, so this key would come back as a string. "
        "Convert it to a string first.",
    ),
    (
        lambda: documents.encode({"a": {1, 2}}, "payload"),
        "payload cannot be stored as JSON: Object of type set is not JSON serializable. Got {'a': {1, 2}}.",
    ),
    (
        lambda: documents.encode("\ud800", "payload"),
        "payload contains half a character (a lone surrogate) at position 1, which cannot be stored: remove it.",
    ),
    (
        lambda: documents.encode("x" * (1024 * 1024 - 1), "payload"),
        "payload has 1,048,577 bytes as JSON, and the limit is 1,048,576: store it elsewhere and pass its name.",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_refused_is_said(call: Callable[[], object], message: str) -> None:
    """The message has what was received, why it is refused, and what would do."""
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}$"):
        call()


def test_a_mistake_is_a_value_error_too() -> None:
    """Who does not know leasehold catches it all the same."""
    with pytest.raises(ValueError, match="must be a string"):
        checks.name(7, "queue")


def test_a_long_value_is_shown_in_part() -> None:
    """A message is not a dump."""
    with pytest.raises(InvalidArgument) as refused:
        checks.whole("x" * 1000, "priority", least=0, most=9)

    assert len(str(refused.value)) < 130
    assert "…" in str(refused.value)


def test_nan_is_refused() -> None:
    """JSON has no form for it, whatever Python writes."""
    with pytest.raises(InvalidArgument, match="payload cannot be stored as JSON"):
        documents.encode([float("nan")], "payload")


def test_what_contains_itself_is_refused() -> None:
    """And so is what is nested too deeply."""
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(InvalidArgument, match=r"^payload is nested too deeply, or contains itself\.$"):
        documents.encode(loop, "payload")


def test_text_keeps_what_an_error_says() -> None:
    """A NUL is spelled out, since some stores keep none; a note may be empty; a long one is cut."""
    assert checks.text("", "note") == ""
    assert checks.text("a\0b", "note") == r"a\x00b"
    assert len(checks.text("x" * 2_000_000, "note")) == documents.DOCUMENT_LIMIT


@pytest.mark.parametrize(("seconds", "micros"), [(1, 1_000_000), (0.5, 500_000), (1e-9, 1), (2.000_000_4, 2_000_000)])
def test_a_duration_is_whole_microseconds(seconds: float, micros: int) -> None:
    """At least one, where zero is not allowed."""
    assert checks.microseconds(seconds, "seconds") == micros


def test_a_duration_may_be_zero_where_that_makes_sense() -> None:
    """And then rounds to zero."""
    assert checks.microseconds(0, "seconds", zero=True) == checks.microseconds(1e-9, "seconds", zero=True) == 0


def test_an_instant_is_exact_and_in_utc() -> None:
    """To the microsecond, whatever time zone it came in."""
    there = datetime(2030, 1, 1, 2, 0, 0, 123_457, tzinfo=timezone(timedelta(hours=2)))

    micros = instants.instant(there, "run_at")

    assert instants.aware(micros) == there
    assert instants.aware(micros).tzinfo is UTC
    assert instants.as_datetime(None) is None
    assert instants.as_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_instants_come_back_as_they_were(moment: datetime) -> None:
    """And are ordered like the integers that they are."""
    assert instants.aware(instants.instant(moment, "run_at")) == moment


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(DOCUMENTS)
def test_documents_come_back_as_they_were(document: object) -> None:
    """What is kept decodes to an equal value."""
    assert documents.decode(documents.encode(document, "payload")) == document


def test_a_tuple_becomes_a_list() -> None:
    """JSON has only one of them."""
    assert documents.decode(documents.encode({"a": (1, 2)}, "payload")) == {"a": [1, 2]}


def test_no_document_is_none() -> None:
    """Nothing stored, and JSON's null, read the same."""
    assert documents.decode(None) is documents.decode("null") is None
    assert documents.encode(None, "payload") == json.dumps(None)


def test_a_document_of_the_largest_size_is_kept() -> None:
    """The limit counts bytes of JSON, not characters."""
    assert len(documents.encode("x" * (documents.DOCUMENT_LIMIT - 2), "payload")) == documents.DOCUMENT_LIMIT
    with pytest.raises(InvalidArgument, match=r"payload has 1,100,002 bytes as JSON"):
        documents.encode("ä" * 550_000, "payload")


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    """Ids made later sort later, and no two are the same."""
    first, second = ids.new_id(1_893_456_000_000_000), ids.new_id(1_893_456_000_001_000)

    assert uuid.UUID(first).version == 7
    assert uuid.UUID(first).variant == uuid.RFC_4122
    assert first < second
    assert len({ids.new_id(0) for _ in range(100)}) == 100
