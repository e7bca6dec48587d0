"""The options that no store compares, as one JSON document."""

from __future__ import annotations

import json

import pytest

from leasehold.core.options import DEFAULT_OPTIONS, Options, decode, encode
from leasehold.core.retry import Retry

RETRY = Retry(max_errors=2, max_reclaims=1, delay_seconds=0.5, factor=2, max_delay_seconds=9, jitter=False)
ALL = Options(RETRY, run_us=7)


def test_the_defaults_need_no_document() -> None:
    """Most jobs have none, and what they are read back as is the very same object."""
    assert encode(DEFAULT_OPTIONS) is None
    assert encode(Options(Retry())) is None
    assert decode(None, 5, 3) is DEFAULT_OPTIONS


@pytest.mark.parametrize(
    "options", [ALL, Options(Retry(max_errors=7)), Options(Retry(factor=1.5)), Options(run_us=7)], ids=str
)
def test_what_is_kept_is_what_comes_back(options: Options) -> None:
    """Together with the budgets, which are columns."""
    retry = options.retry
    assert decode(encode(options), retry.max_errors, retry.max_reclaims) == options


def test_budgets_are_columns_and_not_in_the_document() -> None:
    """Statements compare them."""
    assert encode(Options(Retry(max_errors=7, max_reclaims=0))) is None
    back_off = {"delay_seconds": 0.5, "factor": 2, "max_delay_seconds": 9, "jitter": False}
    assert json.loads(encode(ALL) or "") == {**back_off, "run_us": 7}


def test_what_a_later_release_has_kept_is_ignored() -> None:
    """Its schema may say that this release goes on working."""
    assert decode('{"factor": 2, "not_known_yet": [1]}', 5, 3) == Options(Retry(factor=2))
