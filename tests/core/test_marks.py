"""The rule of every guard: which writer a mark admits, and what a refusal says."""

from __future__ import annotations

import json

import pytest

from leasehold import GuardUnavailable, StaleEpoch
from leasehold.core.marks import Mark, Writer, admit

STORE, OTHER = "store-1", "store-2"


def test_the_first_writer_of_a_key_is_admitted() -> None:
    """Whatever its epoch: there is no owner before it."""
    assert admit(None, Writer(7, "a", STORE), resource="file:x") == Mark(7, 1, "a", STORE)


@pytest.mark.parametrize("epoch", [7, 8])
def test_an_equal_or_greater_epoch_is_admitted_and_changes_the_mark(epoch: int) -> None:
    """The counter goes up even under the same epoch, so that no two marks are equal."""
    mark = Mark(7, 3, "a", STORE)

    assert admit(mark, Writer(epoch, "b", STORE), resource="file:x") == Mark(epoch, 4, "b", STORE)


def test_a_lower_epoch_is_refused_with_the_facts() -> None:
    """The loser learns who is in its place."""
    with pytest.raises(StaleEpoch, match=r"epoch 6 is refused.*stands at epoch 7 .owner 'b'") as refusal:
        admit(Mark(7, 1, "b", STORE), Writer(6, "a", STORE), resource="file:x", verb="delete")

    found = refusal.value
    assert (found.resource, found.presented, found.current, found.owner) == ("file:x", 6, 7, "b")
    assert (found.verb, found.job_id) == ("delete", None)


def test_an_epoch_of_another_store_is_compared_all_the_same() -> None:
    """Above the mark it takes the key over; if not, it is refused, and both stores are named."""
    mark = Mark(7, 1, "b", STORE)

    assert admit(mark, Writer(8, "a", OTHER), resource="file:x").store == OTHER
    for epoch in (6, 7):
        with pytest.raises(StaleEpoch, match=f"(?s){STORE}.*{OTHER}.*--above 7"):
            admit(mark, Writer(epoch, "a", OTHER), resource="file:x")


@pytest.mark.parametrize("epoch", [6, 7, 8])
def test_a_strict_guard_refuses_every_other_store(epoch: int) -> None:
    """Even one whose epoch is above the mark."""
    with pytest.raises(StaleEpoch, match=OTHER):
        admit(Mark(7, 1, "b", STORE), Writer(epoch, "a", OTHER), resource="file:x", strict_store=True)


def test_a_mark_survives_its_encoding() -> None:
    """Names in any script."""
    mark = Mark(2**53 - 1, 9, "wörker \u2028 'x'", STORE)

    assert Mark.decode(mark.encode(), "file:x") == mark
    assert Mark.decode(mark.encode().encode(), "file:x") == mark


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        b"\xff\xfe",
        json.dumps({"epoch": "7", "counter": 1, "owner": "a", "store": "s"}),
        json.dumps({"epoch": True, "counter": 1, "owner": "a", "store": "s"}),
        json.dumps({"epoch": 0, "counter": 1, "owner": "a", "store": "s"}),
        json.dumps({"epoch": -1, "counter": 1, "owner": "a", "store": "s"}),
        json.dumps({"epoch": 2**53, "counter": 1, "owner": "a", "store": "s"}),
        json.dumps({"epoch": 7, "counter": 1, "owner": None, "store": "s"}),
        json.dumps({"epoch": 7, "counter": 1, "owner": "a"}),
    ],
)
def test_what_is_not_a_mark_refuses_the_write(text: str | bytes) -> None:
    """A mark that cannot be read might be above every epoch."""
    with pytest.raises(GuardUnavailable, match="file:x: its mark cannot be read"):
        Mark.decode(text, "file:x")
