"""What the readers of a store promise: the same job, however it is asked for."""

from __future__ import annotations

from contextlib import closing

import pytest

from ...core.children import new_child
from ...core.counts import Counts
from ...core.job import Status, new_job
from ...errors import UnknownJob
from ...store import Store
from .support import AlarmClock, Contract, completed, expire, failed, one, settle


class Reading(Contract):
    """Looking changes nothing."""

    def test_a_job_can_be_read(self, store: Store) -> None:
        """By its id; one that is not there is unknown."""
        [(added, _)] = store.add([new_job("a", {"total": 10})])

        assert store.job("a") == added
        with pytest.raises(UnknownJob):
            store.job("b")
        with pytest.raises(UnknownJob):
            store.ownerships("b")

    def test_jobs_are_listed_in_the_order_of_their_insertion(self, store: Store) -> None:
        """Whatever their priority; page after page."""
        store.add([new_job(name, priority=number) for number, name in enumerate("dbca")])

        assert [job.id for job in store.jobs()] == ["d", "b", "c", "a"]
        assert [job.id for job in store.jobs(limit=2)] == ["d", "b"]
        assert [job.id for job in store.jobs(after="b", limit=1)] == ["c"]
        assert store.jobs(after="a") == store.jobs(limit=0) == []

    def test_jobs_can_be_asked_for_by_what_they_are(self, store: Store) -> None:
        """By status, queue, owner, task and parent, and by several of them at once."""
        store.add(
            [
                new_job("a", queue="x", task="send"),
                new_job("b", queue="y", task="send"),
                new_job("c", queue="y"),
                new_child("a", new_job("child"), 1),
            ]
        )
        one(store, "me", queues=["x"])
        settle(store, completed(one(store, "you", queues=["y"])))

        assert [job.id for job in store.jobs(status=Status.PENDING)] == ["c", "a/child"]
        assert [job.id for job in store.jobs(status=Status.RUNNING)] == ["a"]
        assert [job.id for job in store.jobs(queue="y")] == ["b", "c"]
        assert [job.id for job in store.jobs(owner="me")] == ["a"]
        assert store.jobs(owner="you") == []
        assert [job.id for job in store.jobs(task="send")] == ["a", "b"]
        assert [job.id for job in store.jobs(parent="a")] == ["a/child"]
        assert [job.id for job in store.jobs(task="send", status=Status.DONE)] == ["b"]

    def test_counts_are_those_of_the_jobs(self, store: Store, clock: AlarmClock) -> None:
        """In all and, for the unfinished, by queue."""
        assert store.counts() == Counts(0, 0, 0, 0, 0, {})
        store.add([new_job(f"job-{number}", queue="x") for number in range(5)] + [new_job("y", queue="y")])
        first, second = store.claim("a", limit=2, queues=["x"])
        store.settle([completed(first), failed(second, retry=False)])
        store.cancel("job-2", 0, by="ops")
        one(store, queues=["x"])

        assert store.counts() == Counts(
            pending=2,
            running=1,
            done=1,
            failed=1,
            cancelled=1,
            queues={"x": {"pending": 1, "running": 1}, "y": {"pending": 1, "running": 0}},
        )
        expire(store, clock)
        assert store.counts().queues == {"x": {"pending": 2, "running": 0}, "y": {"pending": 1, "running": 0}}

    def test_c63_the_id_of_a_store_stays(self, store: Store) -> None:
        """Whatever happens in it."""
        found = store.identity()

        store.add([new_job("a")])
        store.advance()

        assert found == store.identity() != ""

    def test_c63_a_store_has_the_same_id_after_a_restart(self, store: Store, clock: AlarmClock) -> None:
        """And another one has another."""
        found = store.identity()

        with closing(self.reopen(store, clock)) as restarted:
            assert restarted.identity() == found

    def test_what_is_read_does_not_change_afterwards(self, store: Store) -> None:
        """A job is a value of one moment."""
        store.add([new_job("a", {"list": [1]})])
        before = store.job("a")
        before.payload["list"].append(2)

        one(store)

        assert before.status == Status.PENDING
        assert store.job("a").payload == {"list": [1]}
