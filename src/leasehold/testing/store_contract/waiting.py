"""C17, C19, C45: a claim sweeps before it looks; what waits wakes when there is something to look for."""

from __future__ import annotations

import functools

import pytest

from ...core.job import new_job
from ...errors import NoLease, StoreUnavailable, UnknownJob
from ...store import Renewal, Store
from .support import SECOND, AlarmClock, Contract, Waiter, completed, failed, ids, one, released, settle


class Waiting(Contract):
    """A claim that waits sleeps through nothing that it waits for."""

    def test_c17_a_claim_first_takes_back_what_expired(self, store: Store, clock: AlarmClock) -> None:
        """Without a call of `reclaim`: the next claim gets an expired job at once."""
        store.add([new_job("a")])
        old = one(store, "a")
        clock.advance(30)

        new = one(store, "b")

        assert (new.spec.id, new.owner, new.reason) == ("a", "b", "timeout")
        assert new.epoch > old.epoch

    def test_c17_a_claim_first_takes_back_what_stalled(self, store: Store, clock: AlarmClock) -> None:
        """A renewed lease whose job does not progress goes to the next claim."""
        store.add([new_job("a", stall_seconds=10)])
        one(store, "a", lease_us=3600 * SECOND)
        clock.advance(10)

        assert one(store, "b").reason == "stall"

    def test_c17_a_claim_of_one_queue_takes_back_from_all(self, store: Store, clock: AlarmClock) -> None:
        """Dead leases end even in a queue that no worker serves."""
        store.add([new_job("a", queue="unserved")])
        one(store)
        clock.advance(31)

        assert store.claim("b", queues=["other"]) == []

        assert (store.job("a").status, store.job("a").reclaims) == ("pending", 1)

    def test_c17_a_claim_that_does_not_wait_returns(self, store: Store) -> None:
        """Nothing there is an empty list."""
        assert store.claim("a", limit=5) == []

    def test_c17_a_claim_waits_no_longer_than_told(self, store: Store, clock: AlarmClock) -> None:
        """At the end of its time it returns with nothing."""
        waiter = Waiter(store, clock, wait_seconds=5)

        clock.advance(5)

        assert waiter.result() == []

    def test_c17_a_claim_with_something_to_take_does_not_wait(self, store: Store) -> None:
        """It waits for the first job only, not for a full batch."""
        store.add([new_job("a")])

        assert ids(store.claim("a", limit=10, wait_us=1000 * SECOND)) == ["a"]

    def test_c17_a_waiting_claim_wakes_for_an_add(self, store: Store, clock: AlarmClock) -> None:
        """Without the clock's help."""
        waiter = Waiter(store, clock)

        store.add([new_job("a")])

        assert ids(waiter.result()) == ["a"]

    def test_c17_a_waiting_claim_wakes_for_a_child(self, store: Store, clock: AlarmClock) -> None:
        """A job that an owner adds, by hand or with its completion, is an add."""
        store.add([new_job("a", queue="parents")])
        grant = one(store)
        waiter = Waiter(store, clock)
        store.add_children("a", grant.epoch, [new_job("child")])
        assert ids(waiter.result()) == ["child"]

        waiter = Waiter(store, clock)
        settle(store, completed(grant, then=(new_job("then"),)))

        assert ids(waiter.result()) == ["then"]

    @pytest.mark.parametrize("how", ["release", "retry", "replay", "requeue"])
    def test_c17_a_waiting_claim_wakes_for_a_job_that_comes_back(
        self, store: Store, clock: AlarmClock, how: str
    ) -> None:
        """What an owner hands back, or an operator replays or requeues, can be claimed."""
        store.add([new_job("a")])
        grant = one(store)
        if how == "replay":
            settle(store, completed(grant))
        waiter = Waiter(store, clock)

        if how == "replay":
            store.replay("a", grant.epoch, by="ops")
        elif how == "requeue":
            store.requeue("a", grant.epoch, by="ops")
        else:
            settle(store, released(grant) if how == "release" else failed(grant))

        assert ids(waiter.result()) == ["a"]

    def test_c17_a_waiting_claim_wakes_when_a_key_is_freed(self, store: Store, clock: AlarmClock) -> None:
        """A job parked behind a key is granted to the claim that waits, as soon as the key is free."""
        store.add([new_job("holder", lock="k"), new_job("next", lock="k")])
        grant = one(store)
        waiter = Waiter(store, clock)

        settle(store, completed(grant))

        assert ids(waiter.result()) == ["next"]

    def test_c17_a_waiting_claim_wakes_for_a_job_that_becomes_due(self, store: Store, clock: AlarmClock) -> None:
        """A delayed job is claimed at its time, although nothing is written then."""
        store.add([new_job("a", delay_seconds=5)])
        waiter = Waiter(store, clock)

        clock.advance(5)

        [grant] = waiter.result()
        assert grant.granted_us == clock.now()

    def test_c17_a_waiting_claim_wakes_for_the_next_deadline(self, store: Store, clock: AlarmClock) -> None:
        """A dead owner's job is claimed when its lease expires, although nothing is written then."""
        store.add([new_job("a")])
        one(store)
        waiter = Waiter(store, clock)

        clock.advance(30)

        [grant] = waiter.result()
        assert (grant.reason, grant.granted_us) == ("timeout", clock.now())

    def test_c17_a_waiting_claim_wakes_for_the_next_stall(self, store: Store, clock: AlarmClock) -> None:
        """The same for a job that makes no progress."""
        store.add([new_job("a", stall_seconds=10)])
        one(store)
        waiter = Waiter(store, clock)

        clock.advance(10)

        assert [grant.reason for grant in waiter.result()] == ["stall"]

    def test_c17_a_waiting_claim_learns_of_an_earlier_time(self, store: Store, clock: AlarmClock) -> None:
        """A job added while it waits, due before anything else, is claimed at its time."""
        store.add([new_job("later", delay_seconds=500)])
        waiter = Waiter(store, clock)
        store.add([new_job("sooner", delay_seconds=5)])

        clock.advance(5)

        assert ids(waiter.result()) == ["sooner"]

    @pytest.mark.parametrize("how", ["renew", "transfer"])
    def test_c17_a_waiting_claim_learns_of_an_earlier_deadline(self, store: Store, clock: AlarmClock, how: str) -> None:
        """A lease that is made shorter while it waits is taken back at its new deadline."""
        store.add([new_job("a")])
        grant = one(store, lease_us=500 * SECOND)
        waiter = Waiter(store, clock)
        if how == "renew":
            store.renew([Renewal("a", grant.epoch, 5 * SECOND)])
        else:
            store.transfer("a", grant.epoch, to="b", by="ops", lease_us=5 * SECOND)

        clock.advance(5)

        assert ids(waiter.result()) == ["a"]

    def test_c17_one_job_wakes_one_of_two_claims(self, store: Store, clock: AlarmClock) -> None:
        """Both may look; one gets it, and the other waits on."""
        first, second = Waiter(store, clock, wait_seconds=50), Waiter(store, clock, wait_seconds=50)

        store.add([new_job("a")])
        clock.advance(29)
        clock.advance(21)

        granted = first.result() + second.result()
        assert sorted(grant.reason for grant in granted) in (["claim"], ["claim", "timeout"])
        assert len({grant.epoch for grant in granted}) == len(granted)

    def test_c17_an_add_to_another_queue_does_not_end_the_wait(self, store: Store, clock: AlarmClock) -> None:
        """A claim that looked in vain goes on waiting for its own queues."""
        waiter = Waiter(store, clock, queues=["mine"])

        store.add([new_job("a", queue="other")])
        store.add([new_job("b", queue="mine")])

        assert ids(waiter.result()) == ["b"]
        assert store.job("a").status == "pending"

    def test_c45_a_waiting_claim_can_be_told_to_return(self, store: Store, clock: AlarmClock) -> None:
        """With nothing, before its time; the next claim waits as ever."""
        waiter = Waiter(store, clock)

        store.wake()

        assert waiter.result() == []
        again = Waiter(store, clock)
        store.add([new_job("a")])
        assert ids(again.result()) == ["a"]

    @pytest.mark.parametrize("how", ["a transfer", "a claim"])
    def test_c19_a_call_that_waits_for_a_lease_wakes_when_it_is_granted(
        self, store: Store, clock: AlarmClock, how: str
    ) -> None:
        """Without the clock's help, and not for what another owner is granted."""
        store.add([new_job("a"), new_job("b")])
        first = one(store, "agent-a")
        waiter = Waiter(store, clock, call=functools.partial(store.lease, "a", "agent-b"))
        one(store, "agent-c")
        store.wake()
        assert waiter.is_waiting()

        if how == "a transfer":
            grant = store.transfer("a", first.epoch, to="agent-b", by="ops")
        else:
            settle(store, released(first))
            grant = one(store, "agent-b")

        assert waiter.result() == grant

    def test_c19_a_call_that_waits_for_a_lease_ends_with_who_holds_it(self, store: Store, clock: AlarmClock) -> None:
        """At the end of its time, and not before; a job that does not exist is not waited for."""
        store.add([new_job("a")])
        waiter = Waiter(store, clock, wait_seconds=5, call=functools.partial(store.lease, "a", "agent-b"))
        grant = one(store, "agent-a")
        clock.advance(4)
        assert waiter.is_waiting()

        clock.advance(1)

        with pytest.raises(NoLease, match=rf"leased to 'agent-a' \(epoch {grant.epoch}\), not to 'agent-b'"):
            waiter.result()
        with pytest.raises(UnknownJob):
            store.lease("unknown", "agent-b", wait_us=1000 * SECOND)

    def test_c19_a_second_store_waits_for_a_lease_too(self, store: Store, another: Store, clock: AlarmClock) -> None:
        """The new owner is usually another process than the one that transfers the job."""
        store.add([new_job("a")])
        waiter = Waiter(another, clock, call=functools.partial(another.lease, "a", "agent-b"))

        grant = store.transfer("a", 0, to="agent-b", by="ops")

        assert waiter.result() == grant

    def test_c19_closing_ends_the_wait_for_a_lease(self, clock: AlarmClock) -> None:
        """As it ends that of a claim."""
        store = self.open(clock)
        store.add([new_job("a")])
        waiter = Waiter(store, clock, call=functools.partial(store.lease, "a", "agent-b"))

        store.close()

        with pytest.raises(StoreUnavailable):
            waiter.result()

    def test_c17_closing_ends_the_wait(self, clock: AlarmClock) -> None:
        """A claim that waits on a store that is closed raises, and so does every later verb."""
        store = self.open(clock)
        store.add([new_job("a")])
        one(store)
        waiter = Waiter(store, clock)

        store.close()

        for verb in (waiter.result, lambda: store.job("a"), lambda: store.add([new_job("b")])):
            with pytest.raises(StoreUnavailable) as refused:
                verb()
            assert not refused.value.outcome_unknown
