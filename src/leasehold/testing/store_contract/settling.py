"""C24 to C27: how an owner ends its lease, what that costs, and what happens if it says so twice."""

from __future__ import annotations

import json

import pytest

from ...core.children import new_child
from ...core.failure import written
from ...core.job import Outcome, Settlement, Status, new_job
from ...core.ownership import Reason
from ...core.retry import Retry
from ...errors import Settled, StaleEpoch
from ...store import Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    all_of,
    completed,
    crashed,
    expire,
    failed,
    ids,
    one,
    refusal,
    released,
    settle,
)

THEN = (new_child("a", new_job("mail"), 1), new_child("a", new_job("audit", delay_seconds=5), 1))


class Settling(Contract):
    """The owner's last write, once."""

    def test_c24_a_completion_is_kept_with_its_result(self, store: Store, clock: AlarmClock) -> None:
        """The job is done, has no owner, and keeps the epoch under which it was done."""
        store.add([new_job("a")])
        grant = one(store)
        clock.advance(3)

        settle(store, completed(grant, '{"total":10}'))

        job = store.job("a")
        assert (job.status, job.result, job.epoch) == (Status.DONE, {"total": 10}, grant.epoch)
        assert (job.owner, job.expires_us, job.last_error) == (None, None, None)
        assert job.finished_us == job.updated_us == clock.now()

    @pytest.mark.parametrize("results", [("1", "1", "1"), ("1", "2", "3"), ("null", "null", "1")], ids=str)
    def test_c24_each_completion_of_a_batch_keeps_its_own_result(self, store: Store, results: tuple[str, ...]) -> None:
        """Whether the results are alike or not; and each is what a repetition is compared with."""
        store.add([new_job(name) for name in "abc"])
        grants = store.claim("worker", limit=3)
        settlements = [completed(grant, result) for grant, result in zip(grants, results, strict=True)]

        assert store.settle(settlements) == [None] * 3

        assert [store.job(name).result for name in "abc"] == [json.loads(result) for result in results]
        assert store.settle(settlements) == [None] * 3
        others = [completed(grant, "4") for grant in grants]
        assert [type(reply) for reply in store.settle(others)] == [Settled] * 3

    def test_c24_a_completion_and_what_it_sets_off_commit_together(self, store: Store, clock: AlarmClock) -> None:
        """The follow-up jobs are there with the completion, each due in its own time."""
        store.add([new_job("a")])

        settle(store, completed(one(store), then=THEN))

        assert [job.id for job in store.jobs(parent="a")] == ["a/mail", "a/audit"]
        assert ids(store.claim("b", limit=10)) == ["a/mail"]
        clock.advance(5)
        assert ids(store.claim("b", limit=10)) == ["a/audit"]

    def test_c24_what_a_refused_completion_would_set_off_never_exists(self, store: Store, clock: AlarmClock) -> None:
        """In a batch with an accepted one, too."""
        store.add([new_job("a"), new_job("b")])
        stale, good = store.claim("worker", limit=2)
        store.transfer("a", stale.epoch, to="other", by="ops")

        replies = store.settle(
            [completed(stale, then=THEN), completed(good, then=(new_child("b", new_job("mail"), 1),))]
        )

        assert [type(reply) for reply in replies] == [StaleEpoch, type(None)]
        assert [job.id for job in store.jobs()] == ["a", "b", "b/mail"]

    def test_c24_a_follow_up_may_have_the_unique_key_of_its_job(self, store: Store) -> None:
        """The completion gives the key back before its follow-ups are added."""
        store.add([new_job("a", unique="u")])

        settle(store, completed(one(store), then=(new_child("a", new_job("next", unique="u"), 1),)))

        assert [(job.id, job.status) for job in store.jobs()] == [("a", "done"), ("a/next", "pending")]
        assert store.add([new_job("b", unique="u")])[0].job.id == "a/next"

    def test_c24_a_follow_up_that_exists_is_left_as_it_is(self, store: Store, clock: AlarmClock) -> None:
        """The children of an earlier run are found, not doubled."""
        store.add([new_job("a")])
        first = one(store)
        store.add_children("a", first.epoch, THEN[:1])
        store.cancel("a/mail", 0, by="ops")

        settle(store, completed(first, then=THEN))

        assert [(job.id, job.status) for job in store.jobs(parent="a")] == [
            ("a/mail", "cancelled"),
            ("a/audit", "pending"),
        ]

    def test_c25_a_failure_goes_back_after_its_delay(self, store: Store, clock: AlarmClock) -> None:
        """It counts an error, keeps the message, and is due after the delay that the settlement says."""
        store.add([new_job("a")])
        grant = one(store)

        settle(store, failed(grant, "no route", delay_us=8 * SECOND))

        job = store.job("a")
        assert (job.status, job.errors, job.reclaims, job.attempt) == (Status.PENDING, 1, 0, 1)
        assert (job.last_error, job.epoch, job.owner) == ("no route", grant.epoch, None)
        assert job.run_us == clock.now() + 8 * SECOND
        clock.advance(7.999_999)
        assert store.claim("b") == []
        clock.advance(0.000_001)
        assert one(store).errors == 1

    @pytest.mark.parametrize("again", [True, False])
    def test_c25_an_error_is_kept_word_for_word(self, store: Store, again: bool) -> None:
        """So that its class and message can be separated from its frames, however it was settled."""
        store.add([new_job("a")])
        text = written("shop.OutOfInk: no ink:\\n\n  cyan\t", '  File "/srv/shop.py", line 3, in print\n    ink()')

        settle(store, failed(one(store), text, retry=again))

        job = store.job("a")
        assert (job.last_error, job.error_type, job.error_message) == (
            text,
            "shop.OutOfInk",
            "no ink:\\n\n  cyan\t",
        )

    def test_c25_the_last_error_of_the_budget_is_final(self, store: Store) -> None:
        """Of five errors, the fifth fails the job."""
        store.add([new_job("a")])
        statuses = []

        for number in range(5):
            settle(store, failed(one(store), f"error {number}"))
            statuses.append(store.job("a").status)

        assert statuses == [Status.PENDING] * 4 + [Status.FAILED]
        job = store.job("a")
        assert (job.errors, job.last_error) == (5, "error 4")
        assert job.finished_us is not None
        assert store.claim("b") == []

    def test_c25_a_budget_of_one_error_admits_no_second_run(self, store: Store) -> None:
        """The first error is the last."""
        store.add([new_job("a", retry=Retry(max_errors=1))])

        settle(store, failed(one(store)))

        assert store.job("a").status == Status.FAILED

    def test_c25_an_owner_may_say_not_to_retry(self, store: Store) -> None:
        """Then the first error is final, whatever is left of the budget."""
        store.add([new_job("a")])
        grant = one(store)

        settle(store, failed(grant, retry=False, delay_us=SECOND))

        job = store.job("a")
        assert (job.status, job.errors, job.epoch, job.last_error) == (Status.FAILED, 1, grant.epoch, "boom")

    def test_c25_a_later_success_clears_the_error(self, store: Store) -> None:
        """A job that is done has no last error, and remembers how many there were."""
        store.add([new_job("a")])
        settle(store, failed(one(store)))

        settle(store, completed(one(store)))

        assert (store.job("a").last_error, store.job("a").errors) == (None, 1)

    @pytest.mark.parametrize("how", ["one", "several", "then", "finish", "fail"])
    def test_c25_the_error_of_a_reclaim_lasts_until_the_next_end(
        self, store: Store, clock: AlarmClock, how: str
    ) -> None:
        """A release without a reason leaves it as it was; no later success or error does, and a replay has neither."""
        store.add([new_job("a"), new_job("b")])
        store.claim("owner", limit=2)
        expire(store, clock)
        error = "the lease of 'owner' expired; reclaimed"
        for grant in store.claim("other", limit=2):
            settle(store, released(grant))
        assert [store.job(name).last_error for name in "ab"] == [error, error]

        first, second = store.claim("other", limit=2)
        if how == "several":
            assert store.settle([completed(first), completed(second)]) == [None, None]
        elif how == "then":
            settle(store, completed(first, then=(new_job("c"),)))
        elif how == "finish":
            store.finish("a", first.epoch, by="ops")
        else:
            settle(store, completed(first) if how == "one" else failed(first, retry=False))

        job = store.job("a")
        assert (job.last_error, store.ownerships("a")[0].note) == ("boom" if how == "fail" else None, error)
        store.replay("a", job.epoch, by="ops")
        assert store.job("a").last_error == job.last_error

    def test_c25_reclaims_spend_another_budget_than_errors(self, store: Store, clock: AlarmClock) -> None:
        """Three reclaims and four errors together are still within both."""
        store.add([new_job("a")])
        for _ in range(3):
            one(store)
            expire(store, clock)
            settle(store, failed(one(store)))
        settle(store, failed(one(store)))

        job = store.job("a")
        assert (job.status, job.errors, job.reclaims, job.attempt) == (Status.PENDING, 4, 3, 7)

    def test_c26_a_release_counts_against_nothing(self, store: Store, clock: AlarmClock) -> None:
        """However often a job is handed back, both budgets are as they were; only its restarts are counted."""
        store.add([new_job("a", retry=Retry(max_errors=1, max_reclaims=0))])
        for _ in range(8):
            settle(store, released(one(store)))

        job = store.job("a")
        assert (job.status, job.errors, job.reclaims, job.attempt) == (Status.PENDING, 0, 0, 8)
        assert (job.last_error, job.owner) == (None, None)

    def test_c26_a_released_job_is_due_after_its_delay(self, store: Store, clock: AlarmClock) -> None:
        """Not before."""
        store.add([new_job("a")])

        settle(store, released(one(store), delay_us=5 * SECOND))

        assert store.claim("b") == []
        clock.advance(5)
        assert one(store).reason == "release"

    def test_c26_a_crash_counts_a_reclaim_and_says_how_the_process_ended(self, store: Store) -> None:
        """It is due at once, under the owner's epoch; the history and an event say the same."""
        store.add([new_job("a")])
        grant = one(store, "a")

        settle(store, crashed(grant, "the process was ended by SIGSEGV"))

        job = store.job("a")
        assert (job.status, job.errors, job.reclaims, job.attempt) == (Status.PENDING, 0, 1, 1)
        assert (job.last_error, job.epoch) == ("the process was ended by SIGSEGV; reclaimed", grant.epoch)
        [held] = store.ownerships("a")
        assert (held.ended, held.by, held.note) == (Reason.RECOVERY, "a", job.last_error)
        event = store.events(kind="crashed")[-1]
        assert (event.job_id, event.owner, event.facts["error"]) == ("a", "a", job.last_error)
        again = one(store, "b")
        assert (again.reason, again.attempt) == (Reason.RECOVERY, 1)

    def test_c26_a_crash_beyond_the_budget_is_final(self, store: Store) -> None:
        """With the budget of reclaims, whatever is left of the errors."""
        store.add([new_job("a", retry=Retry(max_reclaims=1, max_errors=100))])
        settle(store, crashed(one(store)))

        settle(store, crashed(one(store)))

        job = store.job("a")
        assert (job.status, job.errors, job.reclaims) == (Status.FAILED, 0, 2)
        assert job.last_error == "the process ended with exit code 3; that was reclaim 2, and max_reclaims is 1"
        assert store.events(kind="failed")[-1].facts["error"] == job.last_error

    @pytest.mark.parametrize("how", ["release", "retry"])
    def test_c26_a_job_that_was_run_before_its_time_is_due_when_it_goes_back(self, store: Store, how: str) -> None:
        """An operator had it started early; its old `run_at` does not count any more."""
        store.add([new_job("a", delay_seconds=3600)])
        grant = store.transfer("a", 0, to="b", by="ops")

        settle(store, released(grant) if how == "release" else failed(grant))

        assert ids(store.claim("c")) == ["a"]

    @pytest.mark.parametrize("how", ["complete", "fail", "retry", "release", "crash"])
    @pytest.mark.parametrize("since", ["nothing", "another owner", "a finish", "a replay", "a cancellation"])
    def test_c27_saying_the_same_again_changes_nothing(
        self, store: Store, clock: AlarmClock, how: str, since: str
    ) -> None:
        """An owner that did not hear the reply repeats itself and succeeds, whatever has happened since."""
        store.add([new_job("a")])
        settlement = _settlement_of(store, how)
        settle(store, settlement)
        goes_back = how in ("retry", "release", "crash")
        if since == "another owner":
            if not goes_back:
                store.replay("a", settlement.epoch, by="ops")
            one(store, "b")
            expire(store, clock)
            one(store, "c")
        elif since == "a finish" and how != "complete":
            store.finish("a", settlement.epoch, by="ops", result="1")
        elif since == "a replay" and not goes_back:
            store.replay("a", settlement.epoch, by="ops")
        elif since == "a cancellation" and goes_back:
            store.cancel("a", settlement.epoch, by="ops")
        clock.advance(1)
        before = all_of(store), store.events()

        # The delay is drawn anew each time, and is not part of the fingerprint.
        settle(store, settlement._replace(delay_us=settlement.delay_us + SECOND if settlement.delay_us else 0))

        assert (all_of(store), store.events()) == before

    @pytest.mark.parametrize("how", ["complete", "fail", "retry", "release"])
    @pytest.mark.parametrize("since", ["nothing", "another owner"])
    def test_c27_saying_something_else_is_refused(self, store: Store, how: str, since: str) -> None:
        """One ownership ends one way; a second word is `Settled`, also long after."""
        store.add([new_job("a")])
        settlement = _settlement_of(store, how)
        settle(store, settlement)
        if since == "another owner":
            if how in ("complete", "fail"):
                store.replay("a", settlement.epoch, by="ops")
            one(store, "b")
        before = all_of(store)

        for other in ("complete", "fail", "retry", "release", "crash"):
            if other != how:
                refused = refusal(store.settle([_settlement(settlement.epoch, other)])[0])
                assert type(refused) is Settled
                assert (refused.presented, refused.reason) == (settlement.epoch, None)

        assert all_of(store) == before

    def test_c27_another_result_or_another_error_is_something_else(self, store: Store) -> None:
        """The same verb with other words is not a repetition."""
        store.add([new_job("a"), new_job("b"), new_job("c")])
        a, b, c = store.claim("worker", limit=3)
        store.settle([completed(a, "1"), failed(b, "one"), completed(c, then=THEN[:1])])

        replies = store.settle([completed(a, "2"), failed(b, "two"), completed(c, then=THEN)])

        assert [type(reply) for reply in replies] == [Settled] * 3
        assert [job.id for job in store.jobs(parent="a")] == ["a/mail"]

    def test_c27_twice_in_one_batch_is_once(self, store: Store) -> None:
        """A settlement may meet its own repetition, or its contradiction, in the same call."""
        store.add([new_job("a")])
        grant = one(store)

        replies = store.settle([failed(grant), failed(grant), completed(grant)])

        assert [type(reply) for reply in replies] == [type(None), type(None), Settled]
        assert store.job("a").errors == 1

    def test_c27_an_owner_whose_job_was_taken_said_nothing(self, store: Store, clock: AlarmClock) -> None:
        """Its settlement is refused every time, even after its successor has made the same one."""
        store.add([new_job("a")])
        old = one(store)
        expire(store, clock)
        settle(store, completed(one(store), "1"))

        for _ in range(2):
            assert type(store.settle([completed(old, "1")])[0]) is StaleEpoch

    def test_c27_a_second_store_recognises_a_repetition(self, store: Store, another: Store) -> None:
        """The settlement is kept with the job, and not in the process that took it."""
        store.add([new_job("a"), new_job("b")])
        a, b = store.claim("worker", limit=2)
        store.settle([completed(a, "1", THEN), failed(b)])

        assert another.settle([completed(a, "1", THEN), failed(b)]) == [None, None]
        assert [type(reply) for reply in another.settle([completed(a), released(b)])] == [Settled, Settled]


def _settlement_of(store: Store, how: str) -> Settlement:
    """Claim job "a", and return how its owner settles it."""
    return _settlement(one(store, "a").epoch, how)


def _settlement(epoch: int, how: str) -> Settlement:
    return {
        "complete": Settlement("a", epoch, Outcome.COMPLETE, '"done"', THEN),
        "fail": Settlement("a", epoch, Outcome.FAIL, error="final", retry=False, delay_us=SECOND),
        "retry": Settlement("a", epoch, Outcome.FAIL, error="again"),
        "release": Settlement("a", epoch, Outcome.RELEASE),
        "crash": Settlement("a", epoch, Outcome.CRASH, error="killed"),
    }[how]
