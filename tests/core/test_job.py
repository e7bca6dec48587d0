"""From the wish to add a job to the job that a reader sees."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.core.children import child_name, new_child
from leasehold.core.job import PRIORITY_LIMIT, Grant, Job, NewJob, Outcome, Settlement, Status, new_job
from leasehold.core.options import Options
from leasehold.core.ownership import Reason
from leasehold.core.retry import DEFAULT_RETRY, Retry
from leasehold.errors import InvalidArgument


def test_a_job_that_asks_for_nothing_has_the_defaults() -> None:
    """Due at once, in the queue "default", at priority 0."""
    assert new_job("a") == NewJob("a", "null")
    assert NewJob("a").retry is DEFAULT_RETRY
    assert (NewJob("a").queue, NewJob("a").priority, NewJob("a").payload) == ("default", 0, None)
    assert NewJob("a").due(now=7) == 7


def test_a_wish_like_another_differs_in_id_and_payload_alone() -> None:
    """No field is forgotten, also one that is added some day."""
    said: dict[str, Any] = {"task": "t", "queue": "q", "priority": 1, "run_us": 2, "delay_us": 3, "lock": "l"}
    said |= {"unique": "u", "lease_us": 4, "stall_us": 5, "start_within_us": 6, "parent": "p", "meta": "{}"}
    wish = NewJob("a", "1", **said, options=Options(Retry(max_errors=1)))
    wish = wish.made()
    plain = NewJob("a")

    assert all(getattr(wish, name) != getattr(plain, name) for name in NewJob._fields if name != "id")
    assert wish.like("b", "2") == wish._replace(id="b", document="2")


def test_what_is_asked_for_is_kept_in_the_form_of_stores() -> None:
    """Seconds become microseconds, instants too, and the payload JSON."""
    job = new_job("a", {"n": [1]}, delay_seconds=1.5, lease_seconds=2, stall_seconds=0.5, priority=-1, unique="u")

    assert (job.document, job.delay_us, job.lease_us, job.stall_us) == ('{"n":[1]}', 1_500_000, 2_000_000, 500_000)
    assert (job.priority, job.unique, job.payload) == (-1, "u", {"n": [1]})
    assert job.due(now=10) == 1_500_010
    assert new_job("a", run_at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).due(now=10) == 1_000_000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"id": ""}, "a job's id must have 1 to 255 characters, and this one has 0."),
        ({"id": 42}, "a job's id must be a string, not 42 (int)."),
        ({"payload": {1: 2}}, "payload has the key 1 (int): "),
        ({"task": 7}, "task must be a string, not 7 (int)."),
        ({"queue": ""}, "queue must have 1 to 255 characters, and this one has 0."),
        ({"queue": None}, "queue must be a string, not None (NoneType)."),
        ({"priority": 1.5}, "priority must be a whole number, not 1.5 (float)."),
        ({"priority": 2**31}, f"priority must be from -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}, not {2**31}."),
        ({"delay_seconds": -1}, "delay_seconds must be zero or more, not -1."),
        ({"run_at": datetime(2030, 1, 1)}, "run_at must have a time zone, and 2030-01-01T00:00:00 has none: "),
        ({"run_at": 5}, "run_at must be a datetime, not 5 (int)."),
        (
            {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_seconds": 0},
            "a job takes delay_seconds or run_at, not both.",
        ),
        ({"lock": "a\0"}, r"lock= must not contain NUL: 'a\x00'."),
        ({"unique": 7}, "unique= must be a string, not 7 (int)."),
        ({"retry": 5}, "retry= must be a Retry(…), not 5."),
        ({"lease_seconds": 0}, "lease_seconds must be above zero, not 0."),
        ({"stall_seconds": 0}, "stall_seconds must be above zero, not 0."),
    ],
    ids=str,
)
def test_what_is_refused_is_said(wrong: dict[str, Any], message: str) -> None:
    """Every argument, by its name."""
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}"):
        new_job(**{"id": "a", **wrong})


def test_a_child_is_named_by_its_parent() -> None:
    """The same each time: so a second run of the parent finds it."""
    wish = new_job("mail", {"to": 7}, queue="mail")

    assert new_child("a", wish, 1) == wish._replace(id="a/mail", parent="a", chosen=False)
    assert new_child("a", wish, 2).id == "a/mail#2"
    assert new_child("a", wish, 3) == new_child("a", wish, 3)


def test_a_long_childs_name_still_fits() -> None:
    """It becomes a digest, as different as the names were."""
    parent = "p" * 253
    names = {new_child(parent, new_job(name), nth).id for name in ("mail", "other") for nth in (1, 2)}

    assert len(names) == 4
    assert all(len(name) <= 255 and name.startswith("child:") for name in names)
    assert new_child("p" * 248, new_job("abcdef"), 1).id == "p" * 248 + "/abcdef"


def test_a_child_without_a_name_is_named_by_what_it_does() -> None:
    """By its task and its payload."""
    assert child_name("send", "1") == child_name("send", "1") != child_name("send", "2")
    assert child_name("send", "1").startswith("send:")
    assert child_name(None, "1").startswith("job:")


SAID = Settlement("a", 7, Outcome.COMPLETE, "1", (new_job("x", 1),), None, True, 5)


def test_saying_the_same_has_the_same_fingerprint() -> None:
    """Whatever the delay, which is drawn anew each time."""
    assert SAID.fingerprint() == SAID._replace(delay_us=99).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        SAID._replace(outcome=Outcome.RELEASE),
        SAID._replace(result="2"),
        SAID._replace(result=None),
        SAID._replace(then=()),
        SAID._replace(then=(new_job("x", 2),)),
        SAID._replace(then=(new_job("y", 1),)),
        SAID._replace(error="boom"),
        SAID._replace(retry=False),
    ],
)
def test_saying_something_else_has_another(other: Settlement) -> None:
    """Each part of what is said counts."""
    assert other.fingerprint() != SAID.fingerprint()


def test_words_do_not_run_together_in_a_fingerprint() -> None:
    """Two texts that are one when joined are still two."""
    one, two = (Settlement("a", 1, Outcome.FAIL, result, error=error) for result, error in (("ab", "c"), ("a", "bc")))

    assert one.fingerprint() != two.fingerprint()


def a_job(**changes: Any) -> Job:
    """A pending job as a store would return it."""
    pending = Job(
        new_job("a", {"n": 1}, retry=Retry(max_errors=2), lease_seconds=5, lock="k"),
        Status.PENDING,
        0,
        None,
        None,
        0,
        0,
        0,
        1_000_000,
        None,
        None,
        None,
        None,
        "[1]",
        "2",
        None,
        1_000_000,
        2_000_000,
        None,
    )
    return replace(pending, **changes)


def test_a_job_shows_what_was_asked_for_and_what_became_of_it() -> None:
    """Documents decoded, instants as datetimes, durations in seconds."""
    job = a_job()

    assert (job.id, job.payload, job.checkpoint, job.result) == ("a", {"n": 1}, [1], 2)
    assert (job.queue, job.priority, job.task, job.parent, job.unique, job.lock) == (
        "default",
        0,
        None,
        None,
        None,
        "k",
    )
    assert (job.lease_seconds, job.stall_seconds, job.retry.max_errors) == (5.0, None, 2)
    assert job.run_at == job.created_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert job.updated_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert (job.granted_at, job.expires_at, job.finished_at) == (None, None, None)
    assert repr(job) == "<Job 'a' pending epoch=0 attempt=0>"


def test_a_running_job_has_an_owner_and_a_deadline_and_no_other_has() -> None:
    """The value refuses to be anything else."""
    running = a_job(status=Status.RUNNING, epoch=7, owner="w", reason=Reason.CLAIM, granted_us=0, expires_us=0)

    assert repr(running) == "<Job 'a' running epoch=7 attempt=0 owner='w'>"
    assert running.expires_at == running.granted_at == datetime(1970, 1, 1, tzinfo=UTC)
    with pytest.raises(AssertionError, match="job 'a' is done with owner 'w'"):
        replace(running, status=Status.DONE)
    with pytest.raises(AssertionError, match="job 'a' is running with owner None"):
        replace(running, owner=None)


def test_what_a_reader_changes_is_its_own() -> None:
    """The payload is decoded anew at each look."""
    job = a_job()

    job.payload["n"] = 2

    assert job.payload == {"n": 1}


def test_a_grant_is_in_the_order_that_it_is_unpacked_in() -> None:
    """Stores make thousands of them by position."""
    assert Grant._fields == (
        "spec",
        "epoch",
        "owner",
        "reason",
        "attempt",
        "errors",
        "checkpoint",
        "claim_id",
        "process",
        "granted_us",
        "expires_us",
        "lease_us",
    )
