"""The table of transitions, and the two judgements."""

from __future__ import annotations

import re

import pytest

from leasehold.core.job import Status
from leasehold.core.lifecycle import (
    FINISHED,
    FREED_BY,
    MOVED_BY,
    TRANSITIONS,
    Verb,
    after,
    judge_error,
    judge_reclaim,
    judge_taken_back,
)
from leasehold.core.ownership import Reason
from leasehold.core.retry import Retry
from leasehold.errors import Conflict

PAIRS = [(verb, status) for verb in Verb for status in Status]


@pytest.mark.parametrize(("verb", "status"), PAIRS, ids=str)
def test_what_the_table_does_not_list_is_refused(verb: Verb, status: Status) -> None:
    """And what it lists leads where it says."""
    if status in TRANSITIONS[verb]:
        assert after(verb, status, "a") is TRANSITIONS[verb][status]
    else:
        with pytest.raises(Conflict, match=f"^job 'a' is {status} and "):
            after(verb, status, "a")


@pytest.mark.parametrize(
    ("verb", "status", "message"),
    [
        (Verb.TRANSFER, Status.DONE, "job 'a' is done and cannot be transferred: replay it first."),
        (Verb.CANCEL, Status.FAILED, "job 'a' is failed and cannot be cancelled: it is finished already."),
        (Verb.REPLAY, Status.RUNNING, "job 'a' is running and cannot be replayed: cancel it first, or let it finish."),
        (Verb.REQUEUE, Status.PENDING, "job 'a' is pending and cannot be requeued: only a running job can."),
        (Verb.FINISH, Status.CANCELLED, "job 'a' is cancelled and cannot be completed by hand: replay it first."),
        (Verb.CLAIM, Status.DONE, "job 'a' is done and does not allow claim."),
    ],
)
def test_a_refusal_says_the_next_step(verb: Verb, status: Status, message: str) -> None:
    """An operator is told what would do."""
    with pytest.raises(Conflict, match=f"^{re.escape(message)}$"):
        after(verb, status, "a")


def test_every_verb_has_a_row_and_leads_somewhere() -> None:
    """The table is whole: each verb is there, each status can be reached and, if it is the end, replayed."""
    assert set(TRANSITIONS) == set(Verb)
    assert {status for row in TRANSITIONS.values() for status in row.values()} == set(Status)
    assert set(TRANSITIONS[Verb.REPLAY]) == FINISHED
    assert {Status.PENDING, Status.RUNNING} | FINISHED == set(Status)


def test_a_running_job_is_left_only_by_its_owner_or_by_a_recorded_transfer() -> None:
    """The verbs that lead out of `running`, each of which an owner, an operator or the store answers for."""
    assert {verb for verb, row in TRANSITIONS.items() if Status.RUNNING in row} == {
        Verb.COMPLETE,
        Verb.FAIL,
        Verb.RETRY,
        Verb.RELEASE,
        Verb.RECLAIM,
        Verb.EXHAUST,
        Verb.TRANSFER,
        Verb.CANCEL,
        Verb.REQUEUE,
        Verb.FINISH,
    }


def test_every_way_back_says_why() -> None:
    """What puts a job back has the reason that the next claim shows; a reclaim by the store brings its own."""
    back = {verb for verb, row in TRANSITIONS.items() if Status.PENDING in row.values()}

    assert back == set(FREED_BY)
    assert FREED_BY[Verb.RECLAIM] is Reason.RECOVERY
    assert set(MOVED_BY) == {Verb.TRANSFER, Verb.CANCEL, Verb.REPLAY, Verb.REQUEUE, Verb.FINISH}
    assert MOVED_BY[Verb.CANCEL] is Reason.CANCELLATION


def test_the_last_error_of_the_budget_is_final() -> None:
    """The fifth of five; or the first, if the owner says so."""
    retry = Retry(max_errors=5)

    assert [judge_error(errors, retry, again=True) for errors in (1, 4, 5, 6)] == [
        Verb.RETRY,
        Verb.RETRY,
        Verb.FAIL,
        Verb.FAIL,
    ]
    assert judge_error(1, retry, again=False) is Verb.FAIL


def test_one_reclaim_more_than_the_budget_is_final() -> None:
    """The fourth of three; the first of none."""
    retry = Retry(max_reclaims=3)

    assert [judge_reclaim(reclaims, retry) for reclaims in (1, 3, 4)] == [Verb.RECLAIM, Verb.RECLAIM, Verb.EXHAUST]
    assert judge_reclaim(1, Retry(max_reclaims=0)) is Verb.EXHAUST


@pytest.mark.parametrize(
    ("reclaims", "reason", "message"),
    [
        (2, Reason.TIMEOUT, "the lease of 'w' expired; reclaimed"),
        (2, Reason.STALL, "'w' made no progress in time; reclaimed"),
        (2, Reason.RECOVERY, "the process of 'w' is gone; reclaimed"),
        (3, Reason.TIMEOUT, "the lease of 'w' expired; that was reclaim 4, and max_reclaims is 3"),
    ],
)
def test_a_reclaimed_job_keeps_a_sentence(reclaims: int, reason: Reason, message: str) -> None:
    """Who had it, what happened, and whether that was the end."""
    judged = judge_taken_back(reason, "w", reclaims, Retry(max_reclaims=3), picked_up=True)

    assert judged == (Verb.EXHAUST if reclaims == 3 else Verb.RECLAIM, reclaims + 1, message)


def test_a_transfer_that_was_never_picked_up_costs_nothing() -> None:
    """Whatever is left of the budget."""
    judged = judge_taken_back(Reason.TIMEOUT, "w", 3, Retry(max_reclaims=3), picked_up=False)

    assert judged == (Verb.RECLAIM, 3, "the lease of 'w' expired; it was never picked up")
