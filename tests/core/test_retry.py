"""Two budgets and a back-off."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.retry import DEFAULT_RETRY, Retry
from leasehold.errors import InvalidArgument


def test_the_defaults_are_those_of_the_documentation() -> None:
    """Five errors, three reclaims, one second times four up to an hour, full jitter."""
    assert Retry() == DEFAULT_RETRY
    assert (DEFAULT_RETRY.max_errors, DEFAULT_RETRY.max_reclaims, DEFAULT_RETRY.jitter) == (5, 3, True)
    assert [DEFAULT_RETRY.delay(errors, 1.0) for errors in range(1, 9)] == [1, 4, 16, 64, 256, 1024, 3600, 3600]


def test_without_jitter_chance_does_not_count() -> None:
    """The whole delay, each time."""
    retry = Retry(delay_seconds=2, factor=3, max_delay_seconds=10, jitter=False)

    assert [retry.delay(errors, 0.1) for errors in (1, 2, 3)] == [2, 6, 10]


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_a_delay_is_between_nothing_and_the_most(errors: int, chance: float) -> None:
    """However many errors there were: no overflow, nothing negative."""
    assert 0 <= Retry(max_delay_seconds=60).delay(errors, chance) <= 60


def test_a_factor_below_one_shortens() -> None:
    """Nobody is forced to back off further."""
    assert Retry(delay_seconds=8, factor=0.5, jitter=False).delay(3, 1) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_errors": 0}, "max_errors must be from 1 to 1000000, not 0."),
        ({"max_errors": True}, "max_errors must be a whole number, not True (bool)."),
        ({"max_reclaims": -1}, "max_reclaims must be from 0 to 1000000, not -1."),
        (
            {"max_reclaims": None},
            "max_reclaims must be a whole number, not None. For practically no limit, pass 1_000_000.",
        ),
        (
            {"max_errors": None},
            "max_errors must be a whole number, not None. For practically no limit, pass 1_000_000.",
        ),
        ({"max_reclaims": 1.5}, "max_reclaims must be a whole number, not 1.5 (float)."),
        ({"delay_seconds": -1}, "delay_seconds must be zero or more, not -1."),
        ({"delay_seconds": "1"}, "delay_seconds must be a number of seconds, not '1' (str)."),
        ({"factor": 0}, "factor must be above zero, not 0."),
        (
            {"max_delay_seconds": float("inf")},
            "max_delay_seconds must be a finite number of seconds, at most a century, not inf.",
        ),
        ({"jitter": 1}, "jitter must be True or False, not 1."),
    ],
    ids=str,
)
def test_what_is_refused_is_said(wrong: dict[str, Any], message: str) -> None:
    """At construction, naming the field."""
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}$"):
        Retry(**wrong)
