"""Epochs only go up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core import instants
from leasehold.core.ownership import CLOCK_LIMIT, EPOCH_LIMIT, Event, Ownership, Reason, draw_epochs, sane
from leasehold.errors import StoreUnavailable

INSTANTS = st.integers(0, 2**51)


@given(INSTANTS, st.integers(1, 1000), INSTANTS)
def test_every_epoch_drawn_is_above_the_last(last: int, count: int, now: int) -> None:
    """All of them, wherever the clock stands."""
    drawn = draw_epochs(last, count, now)

    assert drawn - count >= last
    assert drawn >= now


def test_with_a_clock_that_stands_still_they_count_by_one() -> None:
    """Or steps back: no clock is involved in between."""
    assert draw_epochs(1000, 1, 1000) == 1001
    assert draw_epochs(1000, 3, 5) == 1003


def test_a_store_that_forgot_goes_on_at_the_clock() -> None:
    """So what it forgot is below, as long as the clock is not behind it."""
    assert draw_epochs(0, 1, 1_893_456_000_000_000) == 1_893_456_000_000_000


@given(st.lists(st.tuples(st.integers(1, 5), INSTANTS), max_size=30))
def test_no_epoch_is_drawn_twice(draws: list[tuple[int, int]]) -> None:
    """Over any sequence of draws and clocks."""
    last = 0
    issued: list[int] = []
    for count, now in draws:
        last = draw_epochs(last, count, now)
        issued += range(last - count + 1, last + 1)

    assert issued == sorted(set(issued))


@pytest.mark.parametrize(("last", "count"), [(EPOCH_LIMIT - 1, 1), (EPOCH_LIMIT - 5, 5)])
def test_no_epoch_is_left_above_what_json_keeps(last: int, count: int) -> None:
    """The store says so, and issues none that JavaScript would round."""
    with pytest.raises(StoreUnavailable, match=rf"^no epoch is left below 2\*\*53: the last one was {last}\.$"):
        draw_epochs(last, count, 0)

    assert draw_epochs(EPOCH_LIMIT - 2, 1, 0) == EPOCH_LIMIT - 1


def test_a_clock_that_would_use_up_the_epochs_is_refused() -> None:
    """Once epochs have followed it, nothing could follow them; the message says that nothing was changed."""
    with pytest.raises(StoreUnavailable, match=rf"says {CLOCK_LIMIT} .* after the year 2112.* Nothing was changed\.$"):
        draw_epochs(0, 1, CLOCK_LIMIT)

    assert sane(CLOCK_LIMIT - 1) == CLOCK_LIMIT - 1
    assert instants.aware(CLOCK_LIMIT).year in (2112, 2113)
    assert CLOCK_LIMIT < EPOCH_LIMIT


def test_instants_are_aware_datetimes() -> None:
    """Of ownerships and events alike."""
    start = datetime(2030, 1, 1, tzinfo=UTC)
    micros = 1_893_456_000_000_000
    ownership = Ownership("a", 1, "w", Reason.CLAIM, micros, micros, "done", micros)

    assert ownership.granted_at == ownership.expires_at == ownership.ended_at == start
    assert Ownership("a", 1, "w", Reason.CLAIM, micros, micros).ended_at is None
    assert Event(1, micros, "advanced", None, None, None, {}).at == start
