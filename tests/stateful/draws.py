"""What a run is made of: jobs that often collide, and epochs that are often wrong."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from leasehold.core.job import NewJob, Outcome, new_job
from leasehold.core.retry import Retry

SECOND = 1_000_000
IDS = tuple("abcdefghijklmnop")
CHILDREN = ("x", "y")
POOL = (*IDS, *(f"{parent}/{child}" for parent in IDS for child in CHILDREN))
OWNERS = ("ann", "bob", "cy")
WORKERS = ("w1", "w2", "w3")
GIVEN = ("bob", "shop")  # names that workers are given; one of them is an owner's too
QUEUES = ("default", "mail")


TASKS = ("", "old"), ("new",), ("new", ""), ()  # of claims that do not know all of them


class Aim(NamedTuple):
    """Which job, under which epoch: resolved when the step runs, so that most steps hit something."""

    at: str
    n: int


class Saying(NamedTuple):
    """A settlement, but for whom it is about."""

    aim: Aim
    outcome: Outcome
    word: str
    then: tuple[NewJob, ...]
    retry: bool
    delay_us: int


def specs(ids: tuple[str, ...]) -> st.SearchStrategy[NewJob]:
    """Jobs that often collide: few ids, keys, queues and instants."""
    return st.builds(
        new_job,
        st.sampled_from(ids),
        st.sampled_from([None, 1]),
        task=st.sampled_from([None, None, "old", "new"]),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 5]),
        delay_seconds=st.sampled_from([None, None, None, None, 7, 40]),
        lock=st.sampled_from([None, None, "k", "l"]),
        unique=st.sampled_from([None, None, "u"]),
        retry=st.builds(Retry, max_errors=st.integers(1, 3), max_reclaims=st.integers(0, 3)),
        lease_seconds=st.sampled_from([None, 10]),
        stall_seconds=st.sampled_from([None, 4, 4]),
    )


def aims(*more: str) -> st.SearchStrategy[Aim]:
    """Mostly the current epoch; else one that ended, one from the future, another job's, none, or no job at all."""
    at = ["current"] * 10 + ["granted", "granted", "issued", "above", "crossed", "zero", "unknown", *more]
    return st.builds(Aim, st.sampled_from(at), st.integers(0, 7))


children = st.lists(specs(CHILDREN), max_size=2).map(tuple)
sayings = st.builds(
    Saying,
    aims("again", "again"),
    st.sampled_from([Outcome.COMPLETE, *Outcome]),
    st.sampled_from(["1", "2"]),
    children,
    st.booleans() | st.just(True),
    st.sampled_from([0, 0, 7 * SECOND]),
)
owners = st.sampled_from(OWNERS)
recipients = st.sampled_from([*OWNERS, *WORKERS, *GIVEN])
lasting = st.sampled_from([None, None, 3 * SECOND, 60 * SECOND])
notes = st.sampled_from([None, "because"])
effects = st.sampled_from(["charge", "charge", "mail"])
outcomes = st.sampled_from([None, "1", "null"])
