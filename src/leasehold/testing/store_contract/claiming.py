"""C13, C15, C16, C18, C19: which job, for how long, why, and how to find a lease again."""

from __future__ import annotations

import pytest

from ...core import instants
from ...core.job import Progress, new_job
from ...core.ownership import Process, Reason
from ...errors import NoLease, UnknownJob
from ...store import Renewal, Store
from .support import (
    CLAIMS,
    SECOND,
    AlarmClock,
    Contract,
    claimed,
    completed,
    expire,
    failed,
    ids,
    one,
    released,
    settle,
)


class Claiming(Contract):
    """The best due job first, leased for as long as was asked."""

    def test_c13_larger_priority_then_earlier_time_then_insertion(self, store: Store, clock: AlarmClock) -> None:
        """Priority beats time, and time beats insertion, in one batch."""
        early, late = instants.aware(clock.now() - 2), instants.aware(clock.now() - 1)
        store.add(
            [
                new_job("late", run_at=late),
                new_job("low", priority=-1, run_at=early),
                new_job("early", run_at=early),
                new_job("late too", run_at=late),
                new_job("high", priority=10),
            ]
        )

        assert ids(store.claim("a", limit=10)) == ["high", "early", "late", "late too", "low"]

    def test_c13_one_at_a_time_is_the_same_order(self, store: Store) -> None:
        """The size of a batch changes nothing about who comes first."""
        store.add([new_job(f"job-{number}", priority=number % 3, queue=f"q{number % 2}") for number in range(9)])

        order = [one(store).spec.id for _ in range(9)]

        assert order == [f"job-{number}" for number in (2, 5, 8, 1, 4, 7, 0, 3, 6)]

    def test_c13_a_claim_takes_no_more_than_its_limit(self, store: Store) -> None:
        """The jobs that were not asked for stay, in their order."""
        store.add([new_job(f"job-{number}") for number in range(5)])

        assert ids(store.claim("a", limit=2)) == ["job-0", "job-1"]
        assert ids(store.claim("a")) == ["job-2"]
        assert ids(store.claim("a", limit=10)) == ["job-3", "job-4"]
        assert store.claim("a") == []

    def test_c13_a_job_is_not_claimed_before_its_time(self, store: Store, clock: AlarmClock) -> None:
        """A delayed job is due at its instant and not a microsecond earlier, whatever its priority."""
        store.add([new_job("delayed", delay_seconds=5, priority=9), new_job("now")])

        assert ids(store.claim("a", limit=10)) == ["now"]
        clock.advance(4.999_999)
        assert store.claim("a") == []
        clock.advance(0.000_001)
        assert ids(store.claim("a")) == ["delayed"]

    def test_c13_a_delayed_job_takes_its_place_once_due(self, store: Store, clock: AlarmClock) -> None:
        """Among due jobs the earlier instant comes first, not the earlier insertion."""
        store.add([new_job("third", delay_seconds=3), new_job("first", delay_seconds=1)])
        clock.advance(2)
        store.add([new_job("second")])
        clock.advance(8)
        store.add([new_job("fourth")])

        assert ids(store.claim("a", limit=10)) == ["first", "second", "third", "fourth"]

    def test_c13_a_time_in_the_past_comes_before_now(self, store: Store, clock: AlarmClock) -> None:
        """`run_at` orders also when it has long passed."""
        store.add([new_job("now"), new_job("past", run_at=instants.aware(clock.now() - 3600 * SECOND))])

        assert ids(store.claim("a", limit=2)) == ["past", "now"]

    def test_c13_a_reclaimed_or_released_job_keeps_its_place(self, store: Store, clock: AlarmClock) -> None:
        """The job that waited longest still comes first after it was claimed and released."""
        store.add([new_job("released")])
        clock.advance(1)
        store.add([new_job("reclaimed")])
        clock.advance(1)
        store.add([new_job("untouched")])
        first, _ = store.claim("a", limit=2)
        settle(store, released(first))

        expire(store, clock)

        assert ids(store.claim("b", limit=10)) == ["released", "reclaimed", "untouched"]

    def test_c13_only_the_queues_that_were_asked_for(self, store: Store) -> None:
        """A claim takes from its queues, in one order over all of them, and from every queue if it names none."""
        store.add([new_job(f"{queue}-{number}", queue=queue) for number in range(2) for queue in ("x", "y", "z")])

        assert store.claim("a", queues=["nowhere"]) == []
        assert ids(store.claim("a", limit=3, queues=["z", "x"])) == ["x-0", "z-0", "x-1"]
        assert ids(store.claim("a", limit=10)) == ["y-0", "y-1", "z-1"]

    def test_c13_many_jobs_of_another_queue_are_not_in_the_way(self, store: Store) -> None:
        """A queue's first job is found behind any number of others."""
        store.add([new_job(f"job-{number}", queue="long") for number in range(300)] + [new_job("mine", queue="short")])

        assert ids(store.claim("a", limit=10, queues=["short"])) == ["mine"]

    def test_c15_the_claims_lease_beats_the_jobs_beats_the_default(self, store: Store, clock: AlarmClock) -> None:
        """The lease lasts what the claim says, else what the job asks for, else the default."""
        store.add([new_job("plain"), new_job("asks", lease_seconds=7), new_job("named", lease_seconds=7)])

        grants = store.claim("a", limit=2, default_lease_us=11 * SECOND)
        grants += store.claim("a", lease_us=3 * SECOND, default_lease_us=11 * SECOND)

        assert [grant.lease_us for grant in grants] == [11 * SECOND, 7 * SECOND, 3 * SECOND]
        assert [grant.expires_us - clock.now() for grant in grants] == [11 * SECOND, 7 * SECOND, 3 * SECOND]
        assert store.job("asks").expires_us == clock.now() + 7 * SECOND

    def test_c16_the_reason_says_why_the_job_was_free(self, store: Store, clock: AlarmClock) -> None:
        """First `claim`; later what freed it: release, retry, timeout, stall, manual."""
        store.add([new_job("a", stall_seconds=40)])
        first = one(store)
        settle(store, released(first))
        second = one(store)
        settle(store, failed(second))
        third = one(store)
        expire(store, clock)
        fourth = one(store, lease_us=90 * SECOND)
        clock.advance(41)
        fifth = one(store)
        settle(store, completed(fifth))
        store.replay("a", fifth.epoch, by="ops")
        sixth = one(store)
        seventh = store.transfer("a", sixth.epoch, to="b", by="ops")

        grants = [first, second, third, fourth, fifth, sixth, seventh]
        assert [grant.reason for grant in grants] == [
            Reason.CLAIM,
            Reason.RELEASE,
            Reason.RETRY,
            Reason.TIMEOUT,
            Reason.STALL,
            Reason.MANUAL,
            Reason.MANUAL,
        ]
        assert [ownership.began for ownership in store.ownerships("a")] == [grant.reason for grant in grants]

    def test_c16_a_grant_has_what_the_owner_needs(self, store: Store, clock: AlarmClock) -> None:
        """Attempt counts the restarts, errors the errors, and the checkpoint is the last one."""
        store.add([new_job("a", {"page": 1})])
        first = one(store, "a")
        store.progress([Progress("a", first.epoch, checkpoint='{"page":4}')])
        settle(store, failed(first))

        second = one(store, "b")

        assert (first.attempt, first.errors, first.checkpoint) == (0, 0, None)
        assert (second.attempt, second.errors, second.checkpoint) == (1, 1, '{"page":4}')
        assert (second.owner, second.spec.payload) == ("b", {"page": 1})

    def test_c18_trap_10_an_owner_whose_reply_was_lost_finds_its_leases(self, store: Store) -> None:
        """By the id that it gave to its claim, and not by its name, which a namesake shares."""
        store.add([new_job(f"job-{number}") for number in range(4)])
        mine = store.claim("a", limit=2, claim_id="mine")
        store.claim("a", limit=1, claim_id="a namesake's")
        store.claim("a", limit=1)

        assert sorted(store.claimed("mine"), key=lambda grant: grant.epoch) == mine
        assert store.claimed("never sent") == []

    @pytest.mark.parametrize("path", CLAIMS)
    def test_c18_every_path_of_a_claim_keeps_what_it_was_given(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """However a job is claimed, its lease is found by the claim's id, with the owner, process and length."""
        process = Process("host", "boot", "namespace", 1, 2)

        grant = claimed(store, path, new_job("a", {"page": 1}), claim_id="mine", process=process, lease_us=7 * SECOND)

        assert (grant.spec.id, grant.owner, grant.claim_id, grant.process) == ("a", "worker", "mine", process)
        assert (grant.granted_us, grant.expires_us) == (clock.now(), clock.now() + 7 * SECOND)
        assert grant in store.claimed("mine")
        assert store.lease("a", "worker") == grant

    def test_c18_only_live_leases_are_found(self, store: Store, clock: AlarmClock) -> None:
        """What was settled, transferred or reclaimed since is no longer that claim's."""
        store.add([new_job(name) for name in ("kept", "settled", "transferred", "reclaimed")])
        kept, settled, transferred, _ = store.claim("a", limit=4, claim_id="mine")
        settle(store, completed(settled))
        store.transfer("transferred", transferred.epoch, to="b", by="ops")
        clock.advance(20)
        store.renew([Renewal("kept", kept.epoch)])
        expires_us = clock.now() + 30 * SECOND
        clock.advance(10)
        store.claim("c")

        assert store.claimed("mine") == [kept._replace(expires_us=expires_us)]

    def test_c18_a_second_store_finds_them_too(self, store: Store, another: Store) -> None:
        """The answer does not depend on who granted them."""
        store.add([new_job("a")])
        process = Process("host", "boot", "namespace", 1, 2)
        grants = store.claim("a", claim_id="mine", process=process)

        assert another.claimed("mine") == grants

    def test_c19_the_live_lease_of_an_owner(self, store: Store, clock: AlarmClock) -> None:
        """The owner of a transferred job gets its lease: the same epoch, the deadline and checkpoint of now."""
        store.add([new_job("a")])
        grant = one(store, "a")
        clock.advance(5)
        store.renew([Renewal("a", grant.epoch)])
        store.progress([Progress("a", grant.epoch, checkpoint="4")])
        before = store.job("a")

        found = store.lease("a", "a")

        assert found == grant._replace(expires_us=clock.now() + 30 * SECOND, checkpoint="4")
        assert store.job("a") == before

    def test_c19_a_transferred_lease_is_its_new_owners(self, store: Store) -> None:
        """After a transfer the new owner finds it, and the old one does not."""
        store.add([new_job("a")])
        grant = store.transfer("a", one(store, "a").epoch, to="b", by="ops")

        assert store.lease("a", "b") == grant
        with pytest.raises(NoLease, match="'b'"):
            store.lease("a", "a")

    def test_c19_no_lease_says_who_holds_it(self, store: Store) -> None:
        """An owner that asks for a lease that it does not have learns who has it, or that no owner does."""
        store.add([new_job("a")])

        with pytest.raises(NoLease, match="'a' is pending"):
            store.lease("a", "me")
        grant = one(store, "holder")
        with pytest.raises(NoLease, match=rf"'holder'.*{grant.epoch}"):
            store.lease("a", "me")
        settle(store, completed(grant))
        with pytest.raises(NoLease, match="'a' is done"):
            store.lease("a", "holder")
        with pytest.raises(UnknownJob):
            store.lease("unknown", "me")

    def test_c19_a_second_store_hands_out_the_lease_too(self, store: Store, another: Store) -> None:
        """An owner that lives in another process than the claim gets the same lease, and may write."""
        store.add([new_job("a")])
        grant = one(store, "a")

        assert another.lease("a", "a") == grant
        settle(another, completed(grant))
        assert store.job("a").status == "done"
