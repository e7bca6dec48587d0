"""C2, C14, C28: one running job per lock key, and no job forgotten behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import Grant, new_job
from ...core.retry import Retry
from ...store import Renewal, Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    a_process,
    completed,
    expire,
    failed,
    ids,
    in_threads,
    one,
    released,
    settle,
)

End = Callable[[Store, AlarmClock, Grant], object]


def _stall(store: Store, clock: AlarmClock, grant: Grant) -> None:
    clock.advance(20)
    store.renew([Renewal(grant.spec.id, grant.epoch)])
    clock.advance(20)
    assert [ended.ended for ended in store.reclaim()] == ["stall"]


# How a lease can end and leave its key free, with the job itself finished or not due.
ENDS: dict[str, End] = {
    "complete": lambda store, clock, grant: settle(store, completed(grant)),
    "fail": lambda store, clock, grant: settle(store, failed(grant, retry=False)),
    "retry": lambda store, clock, grant: settle(store, failed(grant, delay_us=SECOND)),
    "release": lambda store, clock, grant: settle(store, released(grant, delay_us=SECOND)),
    "cancel": lambda store, clock, grant: store.cancel(grant.spec.id, grant.epoch, by="ops"),
    "finish": lambda store, clock, grant: store.finish(grant.spec.id, grant.epoch, by="ops"),
    "exhaust": lambda store, clock, grant: expire(store, clock),
    "stall": _stall,
}


class Locking(Contract):
    """A lock key excludes, and never strands."""

    def test_c2_two_running_jobs_never_share_a_lock_key(self, store: Store) -> None:
        """A claim passes over the jobs whose key is held, also by a job of another queue or priority."""
        store.add(
            [
                new_job("first", lock="k"),
                new_job("second", lock="k", priority=0, queue="other"),
                new_job("third", lock="k", priority=-1),
                new_job("free", lock="another key", priority=-2),
            ]
        )

        assert ids(store.claim("a")) == ["first"]
        assert ids(store.claim("a", limit=10)) == ["free"]
        assert store.claim("b", limit=10, queues=["other"]) == []

    def test_c2_keys_exclude_over_threads(self, store: Store) -> None:
        """Claims at the same time never run two jobs of one key, and every job gets its turn."""
        store.add([new_job(f"job-{number}", lock=f"key-{number % 2}") for number in range(16)])
        holders: dict[str, list[str]] = {"key-0": [], "key-1": []}
        overlaps: list[str] = []

        def work() -> int:
            done = 0
            while grants := store.claim("a", limit=2):
                for grant in grants:
                    holding = holders[grant.spec.lock or ""]
                    holding.append(grant.spec.id)
                    if len(holding) != 1:
                        overlaps.append(grant.spec.id)
                    holding.remove(grant.spec.id)
                    settle(store, completed(grant))
                    done += 1
            return done

        in_threads(work, work, work)
        work()

        assert overlaps == []
        assert store.counts().done == 16

    def test_c14_trap_5_two_jobs_of_one_key_in_one_batch(self, store: Store) -> None:
        """A batch grants the first and parks the second, which is not lost: it comes once the key is free."""
        store.add([new_job("first", lock="k"), new_job("second", lock="k")])

        [grant] = store.claim("a", limit=2)
        assert (grant.spec.id, store.job("second").status) == ("first", "pending")
        assert store.verify() == []

        settle(store, completed(grant))
        assert ids(store.claim("a", limit=2)) == ["second"]

    @pytest.mark.parametrize("count", [50, 600])
    def test_c14_parked_jobs_hold_up_nobody(self, store: Store, count: int) -> None:
        """A claim sees past any number of jobs that cannot run, and fills its batch."""
        store.add([new_job("holder", lock="k")])
        one(store)
        store.add([new_job(f"parked-{number}", lock="k", priority=1) for number in range(count)])
        store.add([new_job("free-1"), new_job("free-2"), new_job("free-3")])

        assert ids(store.claim("a")) == ["free-1"]
        assert ids(store.claim("a", limit=2)) == ["free-2", "free-3"]

    def test_c14_parked_jobs_come_in_their_order(self, store: Store, clock: AlarmClock) -> None:
        """Behind a key, too, priority goes before time, and time before insertion."""
        store.add([new_job("holder", lock="k")])
        grant = one(store)
        store.add([new_job("second", lock="k"), new_job("third", lock="k"), new_job("first", lock="k", priority=1)])
        assert store.claim("a", limit=10) == []
        order = []

        for _ in range(3):
            settle(store, completed(grant))
            grant = one(store, limit=10)
            order.append(grant.spec.id)

        assert order == ["first", "second", "third"]

    def test_c14_a_parked_job_does_not_wait_for_another_queue(self, store: Store) -> None:
        """Once the key is free, each queue's first job behind it can be claimed: other queues may have no worker."""
        store.add([new_job("holder", lock="k")])
        grant = one(store)
        store.add([new_job("unserved", queue="unserved", lock="k"), new_job("mine", queue="mine", lock="k")])
        assert store.claim("a", limit=10) == []

        settle(store, completed(grant))

        assert ids(store.claim("a", queues=["mine"])) == ["mine"]

    @pytest.mark.parametrize("end", ENDS)
    def test_c28_whatever_ends_a_lease_frees_its_key(self, store: Store, clock: AlarmClock, end: str) -> None:
        """However the holder's lease ends, the first job parked behind the key can be claimed, and not the next."""
        budget = Retry(max_reclaims=0)
        store.add([new_job("holder", lock="k", retry=budget, stall_seconds=35)])
        grant = one(store)
        store.add([new_job("next", lock="k"), new_job("last", lock="k")])
        assert store.claim("b", limit=10) == []

        ENDS[end](store, clock, grant)

        assert ids(store.claim("b", limit=10)) == ["next"]
        assert store.claim("b", limit=10) == []

    @pytest.mark.parametrize("end", ["release", "retry", "reclaim"])
    def test_c28_a_holder_that_goes_back_keeps_its_place_before_those_behind_it(
        self, store: Store, clock: AlarmClock, end: str
    ) -> None:
        """A job that is due again at once comes first, and the one it kept waiting comes after it."""
        store.add([new_job("holder", lock="k")])
        grant = one(store)
        store.add([new_job("next", lock="k")])
        assert store.claim("b", limit=10) == []

        if end == "reclaim":
            expire(store, clock)
        else:
            settle(store, released(grant) if end == "release" else failed(grant))

        [again] = store.claim("b", limit=10)
        assert again.spec.id == "holder"
        settle(store, completed(again))
        assert ids(store.claim("b", limit=10)) == ["next"]

    def test_c28_a_claim_that_reclaims_the_holder_may_take_the_next(self, store: Store, clock: AlarmClock) -> None:
        """The sweep at the beginning of a claim frees keys for that very claim."""
        store.add([new_job("holder", lock="k", retry=Retry(max_reclaims=0)), new_job("next", lock="k")])
        store.claim("a", limit=2)
        clock.advance(31)

        assert ids(store.claim("b", limit=2)) == ["next"]

    def test_c28_the_death_of_the_holders_process_frees_its_key(self, store: Store) -> None:
        """Recovery wakes like every other end."""
        with a_process() as process:
            store.add([new_job("holder", lock="k", retry=Retry(max_reclaims=0)), new_job("next", lock="k")])
            store.claim("a", limit=2, process=process.name)
            process.die()

            store.reclaim()

        assert ids(store.claim("b", limit=2)) == ["next"]

    def test_c28_a_transfer_keeps_the_key_and_its_new_owner_frees_it(self, store: Store) -> None:
        """The job moves, its key stays held, and those behind it wait for the new owner."""
        store.add([new_job("holder", lock="k"), new_job("next", lock="k")])
        [grant] = store.claim("a", limit=2)

        moved = store.transfer("holder", grant.epoch, to="b", by="ops")
        assert store.claim("c", limit=10) == []

        settle(store, completed(moved))
        assert ids(store.claim("c", limit=10)) == ["next"]

    @pytest.mark.parametrize("reclaims", [False, True], ids=["at once", "after a reclaim"])
    @pytest.mark.parametrize("how", ["cancel", "finish", "transfer"])
    def test_c28_a_woken_job_that_leaves_before_its_claim_wakes_the_next(
        self, store: Store, how: str, reclaims: bool
    ) -> None:
        """The right to be next is handed on when its holder is cancelled, finished by hand, or run and settled."""
        store.add([new_job("holder", lock="k"), new_job("woken", lock="k"), new_job("last", lock="k")])
        [grant] = store.claim("a", limit=10)
        assert store.claim("a", limit=10) == []
        settle(store, completed(grant))
        if reclaims:  # a store may leave the waking to this, or to the next claim
            assert store.reclaim() == []

        if how == "cancel":
            store.cancel("woken", 0, by="ops")
        elif how == "finish":
            store.finish("woken", 0, by="ops")
        else:
            settle(store, completed(store.transfer("woken", 0, to="b", by="ops")))

        assert ids(store.claim("c", limit=10)) == ["last"]

    @pytest.mark.parametrize("how", ["cancel", "finish"])
    def test_c28_a_job_that_leaves_while_parked_is_not_woken(self, store: Store, how: str) -> None:
        """What was ended behind the key is passed over when the key becomes free."""
        store.add([new_job("holder", lock="k"), new_job("ended", lock="k"), new_job("last", lock="k")])
        [grant] = store.claim("a", limit=10)
        assert store.claim("a", limit=10) == []

        (store.cancel if how == "cancel" else store.finish)("ended", 0, by="ops")
        settle(store, completed(grant))

        assert ids(store.claim("a", limit=10)) == ["last"]

    def test_c28_a_better_job_may_come_before_the_woken_one(self, store: Store) -> None:
        """A woken job has its place and no more: a newcomer with a larger priority goes first, and both run."""
        store.add([new_job("holder", lock="k"), new_job("woken", lock="k")])
        [grant] = store.claim("a", limit=10)
        settle(store, completed(grant))
        store.add([new_job("better", lock="k", priority=1)])

        [better] = store.claim("a", limit=10)
        assert better.spec.id == "better"
        settle(store, completed(better))
        assert ids(store.claim("a", limit=10)) == ["woken"]

    def test_c28_a_delayed_job_is_not_woken_before_its_time(self, store: Store, clock: AlarmClock) -> None:
        """A free key does not make a job due, and time does not make a key free."""
        store.add([new_job("holder", lock="k"), new_job("later", lock="k", delay_seconds=10)])
        grant = one(store)
        clock.advance(11)
        assert store.claim("b") == []

        settle(store, released(grant, delay_us=60 * SECOND))
        [later] = store.claim("b", limit=10)
        assert later.spec.id == "later"
        clock.advance(61)
        store.renew([Renewal("later", later.epoch)])
        settle(store, completed(later))
        assert ids(store.claim("b", limit=10)) == ["holder"]

    def test_c1_trap_4_later_holders_of_a_key_have_greater_epochs(self, store: Store, clock: AlarmClock) -> None:
        """A holder's epoch is above all earlier ones of the key, so that a guard that saw those admits it."""
        store.add([new_job(f"job-{number}", lock="k") for number in range(6)])
        holders = []

        for number in range(6):
            [grant] = store.claim("a", limit=10)
            holders.append(grant.epoch)
            if number == 2:
                grant = store.transfer(grant.spec.id, grant.epoch, to="b", by="ops")
                holders.append(grant.epoch)
            if number == 4:
                expire(store, clock)
                [grant] = store.claim("c", limit=10)
                holders.append(grant.epoch)
            settle(store, completed(grant))

        assert holders == sorted(set(holders))
        assert store.counts().done == 6

    def test_c2_keys_exclude_over_two_stores(self, store: Store, another: Store) -> None:
        """A key that one store has granted is held for every store on the same data, and freed for them too."""
        store.add([new_job("first", lock="k"), new_job("second", lock="k")])
        grant = one(store)
        assert another.claim("b", limit=10) == []

        settle(store, completed(grant))

        assert ids(another.claim("b", limit=10)) == ["second"]
