"""C56: a job that was not claimed within its start_within_seconds."""

from __future__ import annotations

from typing import Any

import pytest

from ...core.children import new_child
from ...core.job import NewJob, Status, new_job
from ...core.lifecycle import NOT_STARTED
from ...core.ownership import Reason
from ...store import Store
from .support import SECOND, AlarmClock, Contract, completed, failed, ids, last_event, one, released, settle


def late(store: Store, job_id: str) -> bool:
    """Whether the job was cancelled for being late, with all that belongs to it."""
    job = store.job(job_id)
    if job.status is not Status.CANCELLED:
        return False
    event = last_event(store, "cancelled")
    assert (job.reason, job.owner, job.attempt) == (Reason.CANCELLATION, None, 0)
    assert job.last_error == NOT_STARTED
    assert job.epoch > 0
    assert job.finished_us is not None
    assert (event.job_id, event.epoch, event.facts) == (job_id, job.epoch, {"by": "leasehold", "note": NOT_STARTED})
    assert store.ownerships(job_id) == []
    return True


class Starting(Contract):
    """Only the first claim counts, and only until it has happened."""

    @pytest.mark.parametrize("how", ["claim", "reclaim"])
    def test_c56_a_job_that_nobody_claimed_in_time_is_cancelled(
        self, store: Store, clock: AlarmClock, how: str
    ) -> None:
        """A claim sees to it first, and takes the next job; so does a reclaim."""
        store.add([new_job("a", start_within_seconds=10), new_job("b")])
        clock.advance(10)

        if how == "claim":
            assert one(store).spec.id == "b"
        else:
            assert store.reclaim() == []

        assert late(store, "a")
        assert ids(store.claim("worker", limit=5)) == ([] if how == "claim" else ["b"])

    @pytest.mark.parametrize(
        "options", [{}, {"lock": "k"}, {"unique": "u"}, {"priority": 3}, {"queue": "mail"}], ids=str
    )
    def test_c56_until_then_it_is_claimed_as_ever(
        self, store: Store, clock: AlarmClock, options: dict[str, Any]
    ) -> None:
        """Whatever else it asks for: a microsecond earlier it is claimed, and another one like it is late."""
        store.add([new_job("a", start_within_seconds=10, **options)])
        clock.put(clock.now() + 10 * SECOND - 1)
        settle(store, completed(one(store)))
        store.add([new_job("b", start_within_seconds=10, **options)])
        clock.advance(10)

        assert store.claim("worker") == []
        assert late(store, "b")

    def test_c56_it_counts_from_when_the_job_is_due(self, store: Store, clock: AlarmClock) -> None:
        """A delay does not use it up."""
        store.add([new_job(name, delay_seconds=100, start_within_seconds=10) for name in "ab"])
        clock.advance(105)
        assert one(store).spec.id == "a"
        clock.advance(5)

        assert store.claim("worker") == []
        assert late(store, "b")

    def test_c56_the_deadline_of_a_pruned_job_is_that_of_no_other(self, store: Store, clock: AlarmClock) -> None:
        """A store may number the next job as the one that is gone."""
        store.add([new_job("a", start_within_seconds=10).made()])
        store.cancel("a", 0, by="ann")
        clock.advance(1)
        assert store.prune(0).jobs == 1
        store.add([new_job("b")])
        clock.advance(10)

        assert one(store).spec.id == "b"

    @pytest.mark.parametrize("how", ["fail", "release", "expire", "transfer", "replay"])
    def test_c56_once_it_was_claimed_the_deadline_is_void(self, store: Store, clock: AlarmClock, how: str) -> None:
        """It comes back after a failure, a release, a reclaim; it was moved by an operator; it was replayed."""
        store.add([new_job("a", start_within_seconds=10)])
        if how == "transfer":
            settle(store, released(store.transfer("a", 0, to="bob", by="ann")))
        elif how == "replay":
            cancelled = store.cancel("a", 0, by="ann")
            store.replay("a", cancelled.epoch, by="ann")
        else:
            grant = one(store, lease_us=5 * SECOND)
            if how != "expire":
                settle(store, failed(grant) if how == "fail" else released(grant))
        clock.advance(60)

        assert one(store).spec.id == "a"

    def test_c56_a_parked_job_is_cancelled_and_the_next_behind_the_key_goes_on(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """It does not delay the jobs behind it."""
        store.add([new_job("a", lock="k"), new_job("b", lock="k", start_within_seconds=10), new_job("c", lock="k")])
        grant = one(store, lease_us=100 * SECOND)
        assert store.claim("worker") == []
        clock.advance(10)
        assert store.claim("worker") == []
        assert late(store, "b")

        settle(store, completed(grant))

        assert one(store).spec.id == "c"

    def test_c56_a_unique_key_is_given_back(self, store: Store, clock: AlarmClock) -> None:
        """As by every other end."""
        store.add([new_job("a", unique="u", start_within_seconds=10)])
        clock.advance(10)
        store.reclaim()

        assert [created for _, created in store.add([new_job("b", unique="u")])] == [True]

    def test_c56_a_claim_that_takes_one_job_after_the_other_sees_to_it(self, store: Store, clock: AlarmClock) -> None:
        """Also a claim that goes on behind the one before it."""
        store.add([new_job(f"{n}") for n in range(5)])
        for _ in range(3):
            settle(store, completed(one(store)))
        store.add([new_job("late", start_within_seconds=10)])
        clock.advance(10)

        assert [one(store).spec.id for _ in range(2)] == ["3", "4"]
        assert store.claim("worker") == []
        assert late(store, "late")

    @pytest.mark.parametrize("how", ["add", "children", "then"])
    def test_c56_it_holds_however_the_job_is_added(self, store: Store, clock: AlarmClock, how: str) -> None:
        """Beside jobs that have none, and children too."""
        store.add([new_job("parent")])
        grant = one(store, lease_us=1000 * SECOND)
        wishes: list[NewJob] = [
            new_job("a", start_within_seconds=10),
            new_job("b"),
            new_job("c", start_within_seconds=20),
        ]
        if how == "add":
            store.add(wishes)
        else:
            wishes = [new_child("parent", wish, 1) for wish in wishes]
            if how == "children":
                store.add_children("parent", grant.epoch, wishes)
            else:
                settle(store, completed(grant)._replace(then=tuple(wishes)))
        clock.advance(15)

        assert ids(store.claim("worker", limit=5)) == [wishes[1].id, wishes[2].id]
        assert late(store, wishes[0].id)

    def test_c56_a_pruned_job_leaves_nothing_to_cancel(self, store: Store, clock: AlarmClock) -> None:
        """Its deadline comes after it is gone."""
        store.add([new_job("a", start_within_seconds=100)])
        settle(store, completed(one(store)))
        clock.advance(50)
        assert store.prune(0).jobs == 1
        clock.advance(100)

        assert store.reclaim() == []
        assert store.jobs() == []
