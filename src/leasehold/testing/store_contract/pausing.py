"""C49 and C50: claims take nothing from a paused queue, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import Progress, Status, new_job
from ...core.ownership import Reason
from ...core.queues import Queue
from ...store import Renewal, Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    Waiter,
    completed,
    expire,
    failed,
    ids,
    last_event,
    one,
    released,
    settle,
)

WAYS_BACK: dict[str, Callable[[Store, AlarmClock], object]] = {
    "added": lambda store, clock: store.add([new_job("b", queue="mail")]),
    "due": lambda store, clock: clock.advance(60),
    "released": lambda store, clock: settle(store, released(store.lease("a", "worker"))),
    "retried": lambda store, clock: settle(store, failed(store.lease("a", "worker"))),
    "reclaimed": expire,
    "requeued": lambda store, clock: store.requeue("a", store.job("a").epoch, by="ops"),
    "replayed": lambda store, clock: store.replay("done", store.job("done").epoch, by="ops"),
}


class Pausing(Contract):
    """A paused queue is passed over."""

    @pytest.mark.parametrize("queues", [None, ["mail"], ["mail", "other"]], ids=["any", "its own", "several"])
    @pytest.mark.parametrize("limit", [1, 10])
    @pytest.mark.parametrize("before", [0, 1, 2])
    def test_c49_a_claim_takes_nothing_from_a_paused_queue(
        self, store: Store, limit: int, before: int, queues: list[str] | None
    ) -> None:
        """Whether or not it names the queue, also if earlier claims have taken from it; the others get their jobs."""
        store.add([new_job(f"mail-{n}", queue="mail") for n in range(9)] + [new_job("b", queue="other", priority=-1)])
        for _ in range(before):
            one(store, queues=queues)

        store.pause("mail", by="ops")

        assert ids(store.claim("w", limit=limit, queues=queues)) == ([] if queues == ["mail"] else ["b"])
        assert store.claim("w", limit=limit, queues=queues) == []
        store.resume("mail", by="ops")
        assert one(store, queues=queues).spec.id == f"mail-{before}"

    def test_c49_another_store_takes_nothing_either(self, store: Store, another: Store) -> None:
        """Whatever it remembers of its own claims."""
        store.add([new_job(f"mail-{n}", queue="mail") for n in range(5)])
        one(another), one(another)

        store.pause("mail", by="ops")
        assert another.claim("w") == []
        another.resume("mail", by="ops")

        assert ids(store.claim("w")) == ["mail-2"]

    def test_c49_the_only_queue_may_be_one_of_several_that_are_paused(self, store: Store) -> None:
        """Between paused ones, before and behind them."""
        store.add([new_job(name, queue=name) for name in ("a", "b", "c", "d", "e")])
        for name in ("a", "c", "e"):
            store.pause(name, by="ops")

        assert ids(store.claim("w", limit=1)) == ["b"]
        store.add([new_job("b2", queue="b")])
        assert ids(store.claim("w", limit=1)) == ["d"]
        assert ids(store.claim("w", limit=1)) == ["b2"]
        assert store.claim("w", limit=10) == []
        store.resume("c", by="ops")
        assert ids(store.claim("w", limit=10)) == ["c"]

    @pytest.mark.parametrize("way", WAYS_BACK)
    def test_c49_what_comes_to_wait_in_a_paused_queue_waits(self, store: Store, clock: AlarmClock, way: str) -> None:
        """Added, due, handed back, failed, taken back or replayed: it is claimed once the queue is resumed."""
        store.add([new_job("done", queue="mail", priority=1), new_job("a", queue="mail")])
        settle(store, completed(one(store, "worker")))
        one(store, "worker")
        store.add([new_job("later", queue="mail", delay_seconds=60)])
        store.pause("mail", by="ops")

        WAYS_BACK[way](store, clock)

        assert store.claim("w", limit=10) == []
        waiting = {job.id for job in store.jobs(status=Status.PENDING) if job.run_us <= clock.now()}
        assert waiting
        store.resume("mail", by="ops")
        assert set(ids(store.claim("w", limit=10))) == waiting

    def test_c49_leases_on_its_jobs_go_on(self, store: Store) -> None:
        """Their owners renew, progress and complete."""
        store.add([new_job("a", queue="mail")])
        grant = one(store)

        store.pause("mail", by="ops")

        assert isinstance(store.renew([Renewal("a", grant.epoch)])[0], int)
        assert store.progress([Progress("a", grant.epoch, 0.5)]) == [None]
        settle(store, completed(grant))
        assert store.job("a").status is Status.DONE

    def test_c49_operators_verbs_work_on_its_jobs(self, store: Store) -> None:
        """A transfer gives a pending job to an owner although the queue is paused."""
        store.add([new_job(name, queue="mail") for name in ("a", "b", "c")])
        store.pause("mail", by="ops")

        moved = store.transfer("a", 0, to="agent", by="ops")
        store.cancel("b", 0, by="ops")
        store.finish("c", 0, by="ops", result="1")

        settle(store, completed(moved))
        assert [job.status for job in store.jobs()] == [Status.DONE, Status.CANCELLED, Status.DONE]

    @pytest.mark.parametrize("paused_first", [True, False])
    def test_c49_a_paused_head_of_a_lock_holds_up_no_other_queue(self, store: Store, paused_first: bool) -> None:
        """It does not hold the key; nor does it once it is the next behind a key that becomes free."""
        store.add([new_job("head", queue="mail", lock="k", priority=1)])
        store.add([new_job(f"other-{n}", queue="other", lock="k") for n in range(3)])
        if paused_first:
            store.pause("mail", by="ops")
            grant = one(store)
        else:
            settle(store, released(one(store), delay_us=0))
            grant = store.transfer("other-0", 0, to="w", by="ops")
            assert store.claim("w", limit=10) == []  # which parks the others behind the key
            store.pause("mail", by="ops")

        assert grant.spec.id == "other-0"
        for expected in ("other-1", "other-2"):
            assert store.claim("w", limit=10) == []
            settle(store, completed(grant))
            grant = one(store)
            assert grant.spec.id == expected
        store.resume("mail", by="ops")
        assert store.claim("w", limit=10) == []
        settle(store, completed(grant))
        assert ids(store.claim("w", limit=10)) == ["head"]

    def test_c49_a_waiting_claim_wakes_when_a_queue_is_resumed(self, store: Store, clock: AlarmClock) -> None:
        """And not for a job that is added to a paused one."""
        store.pause("mail", by="ops")
        waiter = Waiter(store, clock)
        store.add([new_job("a", queue="mail")])
        assert waiter.is_waiting()

        store.resume("mail", by="ops")

        assert ids(waiter.result()) == ["a"]

    def test_c49_a_waiting_claim_goes_on_beside_a_paused_queue(self, store: Store, clock: AlarmClock) -> None:
        """Until a job of another queue is there, or its time is over."""
        store.add([new_job("a", queue="mail"), new_job("b", queue="mail", delay_seconds=2)])
        store.pause("mail", by="ops")
        waiter = Waiter(store, clock, wait_seconds=5)
        clock.advance(2)
        store.add([new_job("c", queue="other")])
        assert ids(waiter.result()) == ["c"]

        waiter = Waiter(store, clock, wait_seconds=5)
        clock.advance(5)
        assert waiter.result() == []

    def test_c49_a_grant_after_the_pause_has_the_reason_from_before(self, store: Store) -> None:
        """To be paused and resumed leaves no trace on a job."""
        store.add([new_job("a", queue="mail")])
        settle(store, failed(one(store)))
        before = store.job("a")

        store.pause("mail", by="ops")
        assert store.job("a") == before
        store.resume("mail", by="ops")

        assert store.job("a") == before
        assert one(store).reason is Reason.RETRY

    def test_c50_a_pause_says_who_when_and_why(self, store: Store, clock: AlarmClock) -> None:
        """The last one counts; a queue that never had a job can be paused."""
        assert store.queues() == []
        store.pause("mail", by="ann")
        clock.advance(1)

        paused = store.pause("mail", by="bob", note="the relay is down")
        other = store.pause("empty", by="ann")

        assert paused == Queue("mail", clock.now(), "bob", "the relay is down")
        assert store.queues() == [other, paused]
        assert (paused.paused, Queue("mail").paused) == (True, False)
        assert paused.paused_at is not None
        assert store.resume("mail", by="bob") == Queue("mail")
        assert store.queues() == [other]

    def test_c50_both_are_recorded(self, store: Store, clock: AlarmClock) -> None:
        """With the queue, who and why; to resume what is not paused is not."""
        store.pause("mail", by="ann", note="the relay is down")
        paused = last_event(store, "paused")
        clock.advance(1)
        store.resume("mail", by="bob")
        resumed = last_event(store, "resumed")
        store.resume("mail", by="bob")
        store.resume("never paused", by="bob")

        assert (paused.job_id, paused.at_us) == (None, clock.now() - SECOND)
        assert paused.facts == {"queue": "mail", "by": "ann", "note": "the relay is down"}
        assert resumed.facts == {"queue": "mail", "by": "bob"}
        assert [event.kind for event in store.events()] == ["paused", "resumed"]

    def test_c50_a_pause_outlives_the_process(self, store: Store, another: Store, clock: AlarmClock) -> None:
        """A second store on the same data sees the same."""
        store.pause("mail", by="ann", note="why")

        assert another.queues() == [Queue("mail", clock.now(), "ann", "why")]
