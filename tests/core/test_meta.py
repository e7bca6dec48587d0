"""The producer's own JSON object: what it may hold, and what a child inherits."""

from __future__ import annotations

import re
from typing import Any

import pytest

from leasehold.core import meta
from leasehold.core.children import as_root, new_child
from leasehold.core.job import new_job
from leasehold.errors import InvalidArgument


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1], "meta= must be a dict with string keys, or None, not [1]."),
        ("{}", "meta= must be a dict with string keys, or None, not '{}'."),
        (
            {1: "a"},
            "meta has the key 1 (int): keys in JSON are strings, so this key would come back as a string. "
            "Convert it to a string first.",
        ),
        ({"at": object}, "meta cannot be stored as JSON: Object of type type is not JSON serializable."),
        ({"a": "x\0y"}, "meta= must not contain NUL in any key or value."),
        ({"a": [{"b\0": 1}]}, "meta= must not contain NUL in any key or value."),
        (
            {"leasehold.trace": 1},
            "meta has the key 'leasehold.trace': keys that begin with 'leasehold.' are reserved for leasehold. "
            "Rename it.",
        ),
        (
            {"a": "x" * 65_536},
            "meta has 65,544 bytes as JSON, and the limit is 65,536: store it elsewhere, and put only "
            "its name into meta.",
        ),
        (
            {"a": "ä" * 32_768},
            "meta has 65,544 bytes as JSON, and the limit is 65,536: store it elsewhere, and put only "
            "its name into meta.",
        ),
        ({"a": "\ud800"}, "meta contains half a character (a lone surrogate) at position"),
    ],
    ids=repr,
)
def test_what_cannot_be_kept_is_refused_with_the_reason(wrong: Any, message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
        new_job("a", meta=wrong)


@pytest.mark.parametrize(
    "right",
    [{}, {"a": None}, {"a": "\\u0000"}, {"": [1.5, {"x": True}]}, {"leasehold": 1}, {"a": "x" * 65_528}],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_kept_comes_back_as_it_was(right: dict[str, Any]) -> None:
    """An escaped backslash is no NUL, and the limit itself is within it."""
    assert meta.decode(new_job("a", meta=right).meta) == right


def test_each_look_decodes_it_anew() -> None:
    """What one reader changes in its copy, no other sees."""
    document = meta.encode({"tags": []})
    meta.decode(document)["tags"].append(1)

    assert meta.decode(document) == {"tags": []}


CONTEXT = {"traceparent": "00-1", "tracestate": "a=b", "baggage": "c=d"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"tenant": "a", "n": 1}),
        ({"meta": {}}, {"tenant": "a", "n": 1}),
        ({"meta": {"n": 2, "own": True}}, {"tenant": "a", "n": 2, "own": True}),
        ({"meta": {"traceparent": "00-2"}}, {"tenant": "a", "n": 1, "traceparent": "00-2"}),
        ({"meta": None}, {}),
    ],
    ids=str,
)
def test_a_child_inherits_all_keys_but_the_trace_context(given: dict[str, Any], kept: dict[str, Any]) -> None:
    """Its own keys override, and None detaches it."""
    parent = new_job("parent", meta={"tenant": "a", "n": 1, **CONTEXT})

    child = new_child("parent", new_job("child", **given), 1, parent.meta)

    assert meta.decode(child.meta) == kept
    assert child.meta != meta.DETACHED


def test_what_a_child_inherits_and_adds_is_bounded_too() -> None:
    """Each half is short enough, and both together are not."""
    with pytest.raises(InvalidArgument, match="the limit is 65,536"):
        meta.inherited(meta.encode({"a": "x" * 40_000}), meta.encode({"b": "x" * 40_000}))


def test_a_job_without_a_parent_has_nothing_to_detach_from() -> None:
    """No store gets to see the mark."""
    assert as_root(new_job("a", meta=None)).meta is None
    assert as_root(new_job("a", meta=None)._replace(parent="")) == new_job("a")
    kept = new_job("a", meta={"n": 1})
    assert as_root(kept) is kept
