"""Errors carry facts, say the next step, and survive a journey."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeGuard

import pytest

import leasehold.errors
from leasehold.core.job import Status, new_job
from leasehold.core.ownership import Ending, Reason
from leasehold.errors import (
    Conflict,
    InDoubt,
    InvalidArgument,
    JobFailed,
    LeaseholdError,
    NoLease,
    NotFinished,
    NotInTransaction,
    Settled,
    StaleEpoch,
    StaleSnapshot,
    StoreUnavailable,
    UnknownJob,
    Unsupported,
)
from leasehold.lease import Lease
from leasehold.stores.memory import MemoryStore

STALE = StaleEpoch.of_job("a", presented=41, current=42, owner="w", reason=Reason.TIMEOUT, verb="renew")
GUARDED = StaleEpoch("file 'q3.csv' is sealed at 42", resource="file:q3.csv", presented=41, current=42, owner="w")
FAILED = JobFailed("a", status=Status.FAILED, error="ValueError: no", errors=1)
DONE = Ending(None, None, Status.DONE, "worker-2", datetime(2026, 11, 16, 15, 4, 5, tzinfo=UTC))
SETTLED = Settled.of_job("a", presented=41, current=42, owner=None, reason=None, verb="fail")


def is_error(thing: object) -> TypeGuard[type[Exception]]:
    """Whether *thing* is a class of exceptions."""
    return isinstance(thing, type) and issubclass(thing, Exception)


def test_the_tree_is_as_drawn() -> None:
    """Catching the root catches everything that leasehold raises on purpose."""
    drawn = re.findall(r"[├└]── (\w+)", leasehold.errors.__doc__ or "")
    raised = {kind.__name__ for kind in vars(leasehold.errors).values() if is_error(kind)}

    assert {*drawn, "LeaseholdError"} == raised
    assert all(issubclass(getattr(leasehold.errors, name), LeaseholdError) for name in drawn)
    assert issubclass(UnknownJob, LookupError)
    assert issubclass(InvalidArgument, ValueError)
    assert not issubclass(Conflict, ValueError)
    assert not issubclass(Unsupported, ValueError)
    assert issubclass(StaleSnapshot, StoreUnavailable)
    assert issubclass(NotFinished, TimeoutError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            STALE,
            "job 'a': renew with epoch 41 is refused: the current epoch is 42 (owner 'w', moved by timeout). "
            "Stop working on it; its current owner will settle it.",
        ),
        (
            StaleEpoch.of_job("a", presented=41, current=42),
            "job 'a': write with epoch 41 is refused: the current epoch is 42 (no owner). "
            "Stop working on it; no owner holds it now.",
        ),
        (
            StaleEpoch.of_job(
                "a", presented=41, current=42, owner="b", reason=Reason.MANUAL, ending=Ending("ops", "it hangs")
            ),
            "job 'a': write with epoch 41 is refused: the current epoch is 42 (owner 'b', moved by 'ops': 'it hangs'). "
            "Stop working on it; its current owner will settle it.",
        ),
        (
            StaleEpoch.of_job("a", presented=41, current=42, reason=Reason.TIMEOUT, ending=DONE),
            "job 'a': write with epoch 41 is refused: the current epoch is 42, and the job is finished: it was "
            "completed by 'worker-2' at 2026-11-16T15:04:05+00:00. Epoch 41 was ended by timeout. Stop working on it.",
        ),
        (
            StaleEpoch.of_job("a", presented=41, current=42, verb="cancel", ending=DONE),
            "job 'a': cancel with epoch 41 is refused: the current epoch is 42, and the job is finished: it was "
            "completed by 'worker-2' at 2026-11-16T15:04:05+00:00. Read the job again and decide.",
        ),
        (
            StaleEpoch.of_job(
                "a",
                presented=1,
                current=42,
                reason=Reason.RETRY,
                verb="transfer",
                ending=DONE._replace(status=Status.FAILED),
            ),
            "job 'a': transfer with epoch 1 is refused: the current epoch is 42, and the job is finished: it failed "
            "at 2026-11-16T15:04:05+00:00, reported by 'worker-2'. Read the job again and decide.",
        ),
        (
            StaleEpoch.of_job("a", presented=41, current=42, owner="w", reason=Reason.TIMEOUT, verb="transfer"),
            "job 'a': transfer with epoch 41 is refused: the current epoch is 42 (owner 'w', moved by timeout). "
            "Read the job again and decide.",
        ),
        (
            Settled.of_job("a", presented=42, current=42, verb="fail", ending=DONE),
            "job 'a': fail with epoch 42 is refused: its owner has already settled the job under this epoch, "
            "so no other write under it is accepted; it was completed by 'worker-2' at 2026-11-16T15:04:05+00:00.",
        ),
        (
            Settled.of_job("a", presented=41, current=42, verb="prune"),
            "job 'a': prune with epoch 41 is refused: its owner settled the job under this epoch, and the job has "
            "moved since: the current epoch is 42 (no owner). Read the job again and decide.",
        ),
        (
            StaleEpoch.of_job("a", presented=43, current=42),
            "job 'a': write with epoch 43 is refused: the store has no record of this claim; the job's current epoch "
            "is 42. It was restored to an earlier state, or failed over to a server that had not received the claim. "
            "Stop working on the job. If the store has recorded no `advanced` event since, run `leasehold store "
            "advance URL --above 43`.",
        ),
        (
            StaleEpoch.of_missing_job("a", presented=41, verb="fence"),
            "job 'a': fence with epoch 41 is refused: the store no longer has this job, so no epoch of it is current. "
            "It has ended and was pruned, or the store was restored to an earlier state. Stop working on it.",
        ),
        (
            StaleEpoch.of_job("a", presented=43, current=0, verb="cancel"),
            "job 'a': cancel with epoch 43 is refused: the store has not issued that epoch for this job; the job was "
            "never claimed. Check its digits, the job and the store. If all are right, the store was restored to an "
            "earlier state and has forgotten the epoch: run `leasehold store advance URL --above 43`, then read the "
            "job again.",
        ),
        (
            SETTLED,
            "job 'a': fail with epoch 41 is refused: its owner has already settled the job under this epoch, "
            "so no other write under it is accepted.",
        ),
        (
            UnknownJob("a", pruned="done"),
            "job 'a' was pruned, and its result with it: it was done. Keep such jobs for longer with keep_seconds, or "
            "with the Retention of every router on this store.",
        ),
        (UnknownJob("a"), "no job has the id 'a': it was never added to this store, or has been pruned."),
        (
            FAILED,
            "job 'a' has no result: it is failed after 1 error. router.replay(router.job('a'), by=…) or "
            "`leasehold replay 'a'` puts it back. "
            "Its last error: ValueError: no",
        ),
        (
            NotFinished("a", status=Status.PENDING),
            "job 'a' has no result yet: it is pending. Ask again later, or pass a longer wait_seconds; a pending job "
            "needs a worker.",
        ),
        (
            InDoubt("a", "charge", key="k-1", epoch=41),
            "job 'a': effect 'charge' was begun under epoch 41 and its outcome is not known. Look it up by its key "
            "'k-1', then call router.resolve(job, 'charge', by=…, outcome=…); or pass in_doubt=\"retry\" if repeating "
            "it with the same key is harmless.",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_says_what_happened_and_what_to_do(error: LeaseholdError, message: str) -> None:
    """With the values, word for word."""
    assert str(error) == message


def test_facts_are_attributes() -> None:
    """So that a program need not read the message."""
    assert (STALE.resource, STALE.job_id, STALE.presented, STALE.current) == ("job:a", "a", 41, 42)
    assert (STALE.owner, STALE.reason, STALE.verb) == ("w", Reason.TIMEOUT, "renew")
    done = copy.copy(StaleEpoch.of_job("a", presented=41, current=42, ending=DONE))
    assert (done.status, done.finished_by, done.finished_at) == DONE[2:]
    assert (STALE.moved_by, STALE.note, STALE.status, STALE.finished_by, STALE.finished_at) == (None,) * 5
    doubt = InDoubt("a", "charge", key="k-1", epoch=41)
    assert (doubt.job_id, doubt.name, doubt.key, doubt.epoch) == ("a", "charge", "k-1", 41)
    assert UnknownJob("a").job_id == "a"


def test_a_refusal_can_speak_of_any_guarded_resource() -> None:
    """In the words of whoever raises it, and it names no job then."""
    assert (GUARDED.resource, GUARDED.job_id, str(GUARDED)) == ("file:q3.csv", None, "file 'q3.csv' is sealed at 42")
    assert StaleEpoch.find(caused(GUARDED)) is GUARDED
    assert StaleEpoch.of_job("job:a", presented=1, current=2).job_id == "job:a"


def test_only_a_store_takes_an_epoch_above_the_current_one_for_an_alarm() -> None:
    """It has issued every epoch; to a guard, another store's or a newer owner's is nothing special."""
    assert "leasehold store advance" in str(StaleEpoch.of_job("a", presented=43, current=42))
    assert str(StaleEpoch("sealed", resource="file:a", presented=43, current=42)) == "sealed"


def test_an_outcome_is_known_unless_the_error_says_otherwise() -> None:
    """And of a stale snapshot it always is."""
    assert not StoreUnavailable("no").outcome_unknown
    assert StoreUnavailable("no", outcome_unknown=True).outcome_unknown
    assert not StaleSnapshot("no").outcome_unknown
    with pytest.raises(TypeError):
        StaleSnapshot("no", outcome_unknown=True)  # type: ignore[call-arg]  # that is the point


def test_words_and_attribute_of_an_unknown_outcome_agree_everywhere() -> None:
    """Wherever the source says "may or may not", it says so to a program too; and "nothing was …" nowhere there."""
    said = []
    for path in Path(leasehold.errors.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "StoreUnavailable":
                text = " ".join(str(part.value) for part in ast.walk(call) if isinstance(part, ast.Constant))
                unknown = any(keyword.arg == "outcome_unknown" for keyword in call.keywords)
                said.append(unknown)
                assert unknown or "may or may not" not in text, f"{path}:{call.lineno}"
                assert not (unknown and "othing was" in text), f"{path}:{call.lineno}"
    assert True in said


class Own(StaleEpoch):
    """As a user of a guard derives one."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is another's", resource=f"file:{path}", presented=1, current=2)
        self.path = path


def test_notes_travel_too() -> None:
    """They are part of what was said."""
    error = InvalidArgument("no")
    error.add_note("in line 7")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["in line 7"]


@pytest.mark.parametrize(
    "error",
    [
        STALE,
        SETTLED,
        GUARDED,
        Own("q3.csv"),
        StoreUnavailable("no", outcome_unknown=True),
        StoreUnavailable("no"),
        Conflict("no"),
        Unsupported("no"),
        UnknownJob("a"),
        InDoubt("a", "charge", key="k-1", epoch=41),
        InDoubt.of_resource("file:q3.csv", epoch=41, why="the reply was lost"),
        FAILED,
        NotFinished("a", status=Status.RUNNING),
        InvalidArgument("no"),
        NoLease("no"),
        NotInTransaction("no"),
        StaleSnapshot("no"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("how", ["pickle", "copy"])
def test_an_error_survives_a_journey(error: LeaseholdError, how: str) -> None:
    """To another process, with its type, its message and its facts."""
    arrived = pickle.loads(pickle.dumps(error)) if how == "pickle" else copy.copy(error)

    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


class Wrapped(Exception):
    """As an ORM wraps the exception of its driver."""

    def __init__(self, orig: object) -> None:
        super().__init__("wrapped")
        self.orig = orig


def caused(cause: BaseException) -> Exception:
    """An exception that was raised from another."""
    error = RuntimeError("outer")
    error.__cause__ = cause
    return error


def in_context(context: BaseException) -> Exception:
    """An exception that was raised while another was handled, which it hides."""
    error = RuntimeError("outer")
    error.__context__ = context
    error.__suppress_context__ = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        STALE,
        caused(STALE),
        in_context(STALE),
        Wrapped(STALE),
        ExceptionGroup("several", [ValueError("no"), STALE]),
        BaseExceptionGroup("several", [KeyboardInterrupt(), ExceptionGroup("inner", [caused(Wrapped(STALE))])]),
        caused(in_context(Wrapped(ExceptionGroup("g", [STALE])))),
    ],
    ids=repr,
)
def test_a_refusal_is_found_wherever_it_is(error: BaseException) -> None:
    """Through causes, contexts, groups and an ORM's `orig`."""
    assert StaleEpoch.find(error) is STALE


def test_a_settled_one_is_found_too() -> None:
    """It is a refusal."""
    assert StaleEpoch.find(caused(SETTLED)) is SETTLED


def test_nothing_is_found_where_nothing_is() -> None:
    """Not in None, not in another error, and not for ever in one that causes itself."""
    loop = ValueError("a")
    loop.__cause__ = caused(loop)

    assert StaleEpoch.find(None) is None
    assert StaleEpoch.find(ValueError("no")) is None
    assert StaleEpoch.find(Wrapped("no exception")) is None
    assert StaleEpoch.find(loop) is None


def test_with_a_lease_the_store_is_asked() -> None:
    """A server that only hung up has told nothing."""
    store = MemoryStore()
    store.add([new_job("a")])
    [grant] = store.claim("w")
    lease = Lease(store, grant)

    assert StaleEpoch.find(OSError("closed"), lease) is None
    store.cancel("a", grant.epoch, by="ops")
    found = StaleEpoch.find(OSError("closed"), lease)

    assert found is not None
    assert (found.presented, found.reason) == (grant.epoch, Reason.CANCELLATION)
    assert StaleEpoch.find(caused(found), lease) is found
    other = StaleEpoch.find(caused(STALE), lease)  # which is the refusal of another lease
    assert other is not None
    assert other.presented == grant.epoch


def test_a_doubt_can_speak_of_a_guarded_resource() -> None:
    """It names no job and no effect then, and says what to do."""
    doubt = InDoubt.of_resource("file:q3.csv", epoch=41, verb="append", why="the reply was lost")

    assert (doubt.resource, doubt.epoch, doubt.job_id, doubt.name, doubt.key) == ("file:q3.csv", 41, None, None, None)
    assert str(doubt).startswith(
        "file:q3.csv: append with epoch 41 was sent and its outcome is not known: the reply was"
    )
    assert InDoubt("a", "charge", key="k-1", epoch=41).resource == "job:a"
