"""C36, C37, C51: what the store takes back by itself, from whom, and who learns of it."""

from __future__ import annotations

import pytest

from ...core.job import Status, new_job
from ...core.ownership import Process, Reason
from ...core.retry import Retry
from ...liveness import this_process
from ...store import Renewal, Store
from .support import (
    CLAIMS,
    SECOND,
    AlarmClock,
    Contract,
    a_process,
    claimed,
    completed,
    expire,
    ids,
    one,
    settle,
)


class Reclaiming(Contract):
    """Taken back for a stated reason, counted, and due at once."""

    def test_c36_an_expired_lease_is_taken_back(self, store: Store, clock: AlarmClock) -> None:
        """The job waits again, without an owner, under a new epoch, one reclaim spent."""
        store.add([new_job("a")])
        grant = one(store, "a")

        [ended] = expire(store, clock)

        job = store.job("a")
        assert (job.status, job.owner, job.expires_us, job.reason) == (Status.PENDING, None, None, Reason.TIMEOUT)
        assert (job.reclaims, job.errors, job.attempt) == (1, 0, 1)
        assert job.epoch > grant.epoch
        assert job.last_error is not None
        assert "'a' expired" in job.last_error
        assert (ended.job_id, ended.epoch, ended.owner, ended.ended) == ("a", grant.epoch, "a", Reason.TIMEOUT)
        assert store.reclaim() == []

    def test_c36_a_stalled_job_is_taken_back_for_that_reason(self, store: Store, clock: AlarmClock) -> None:
        """Alive and not moving is another reason than silent."""
        store.add([new_job("a", stall_seconds=10)])
        grant = one(store, lease_us=3600 * SECOND)
        clock.advance(10)

        [ended] = store.reclaim()

        assert (ended.epoch, ended.ended) == (grant.epoch, Reason.STALL)
        assert store.job("a").reason == Reason.STALL
        assert store.job("a").reclaims == 1

    @pytest.mark.parametrize("path", CLAIMS)
    def test_c36_every_path_of_a_claim_sets_the_stall_deadline(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """However a job was claimed, it is taken back once it has not moved for its `stall_seconds`."""
        grant = claimed(store, path, new_job("a", stall_seconds=10), lease_us=3600 * SECOND)
        clock.advance(9.999_999)
        assert store.reclaim() == []
        clock.advance(0.000_001)

        ended = {one.job_id: one for one in store.reclaim()}

        assert (ended["a"].epoch, ended["a"].ended) == (grant.epoch, Reason.STALL)

    @pytest.mark.parametrize("path", CLAIMS)
    def test_c37_every_path_of_a_claim_records_the_process(self, store: Store, path: str) -> None:
        """However a job was claimed, it is taken back once the process of the claim is gone."""
        with a_process() as mortal:
            grant = claimed(store, path, new_job("a"), process=mortal.name)
            assert store.reclaim() == []
            mortal.die()

            ended = {one.job_id: one for one in store.reclaim()}

        assert ended.keys() == ({"a"} if path == "one" else {"a", "before"})
        assert (ended["a"].epoch, ended["a"].ended) == (grant.epoch, Reason.RECOVERY)

    @pytest.mark.parametrize("owner", ["worker-0", "o'brien", 'a "b"', 'it\'s "c"', "d\\e", "f\tg\nh\r"])
    def test_c36_the_error_names_the_owner_as_python_shows_it(
        self, store: Store, clock: AlarmClock, owner: str
    ) -> None:
        """Quoted, whatever is in its name, by every store alike."""
        store.add([new_job("a")])
        one(store, owner)

        expire(store, clock)

        assert store.job("a").last_error == f"the lease of {owner!r} expired; reclaimed"

    def test_c36_expired_and_stalled_is_one_reclaim(self, store: Store, clock: AlarmClock) -> None:
        """A lease ends once, whatever else is wrong with it."""
        store.add([new_job("a", stall_seconds=10)])
        one(store)
        clock.advance(60)

        assert [ended.ended for ended in store.reclaim()] == [Reason.TIMEOUT]
        assert store.job("a").reclaims == 1

    def test_c36_a_reclaimed_job_is_due_at_once(self, store: Store, clock: AlarmClock) -> None:
        """Back-off is for errors."""
        store.add([new_job("a", retry=Retry(delay_seconds=3600, jitter=False))])
        one(store)

        expire(store, clock)

        assert ids(store.claim("b")) == ["a"]

    def test_c36_also_one_that_was_run_before_its_time(self, store: Store, clock: AlarmClock) -> None:
        """An operator had it started early; when that owner dies, the job does not wait for the old `run_at`."""
        store.add([new_job("a", delay_seconds=3600)])
        store.transfer("a", 0, to="b", by="ops")

        expire(store, clock)

        assert ids(store.claim("c")) == ["a"]

    def test_c36_one_reclaim_more_than_the_budget_fails_the_job(self, store: Store, clock: AlarmClock) -> None:
        """Of a budget of three, the fourth reclaim is final, with its reason and a new epoch."""
        store.add([new_job("a")])
        statuses = []
        for _ in range(4):
            grant = one(store)
            expire(store, clock)
            statuses.append(store.job("a").status)

        assert statuses == [Status.PENDING] * 3 + [Status.FAILED]
        job = store.job("a")
        assert (job.reclaims, job.owner, job.reason) == (4, None, Reason.TIMEOUT)
        assert job.epoch > grant.epoch
        assert job.finished_us == clock.now()
        assert job.last_error is not None
        assert "max_reclaims is 3" in job.last_error
        assert store.ownerships("a")[-1].ended == Reason.TIMEOUT
        assert store.claim("b") == []

    def test_c36_each_kind_of_reclaim_spends_the_same_budget(self, store: Store, clock: AlarmClock) -> None:
        """A timeout and a stall are two reclaims."""
        store.add([new_job("a", stall_seconds=10, retry=Retry(max_reclaims=1))])
        one(store, lease_us=5 * SECOND)
        clock.advance(6)
        one(store)
        clock.advance(11)

        assert [ended.ended for ended in store.reclaim()] == [Reason.STALL]

        assert (store.job("a").status, store.job("a").reason) == (Status.FAILED, Reason.STALL)

    def test_c36_only_what_is_over_is_taken(self, store: Store, clock: AlarmClock) -> None:
        """A batch whose leases were renewed one by one ends one by one, the earliest first."""
        store.add([new_job(name) for name in ("renewed", "late", "early", "settled")])
        renewed, late, early, settled = store.claim("a", limit=4)
        store.renew([Renewal("early", early.epoch, 10 * SECOND), Renewal("late", late.epoch, 20 * SECOND)])
        settle(store, completed(settled))
        clock.advance(29)
        store.renew([Renewal("renewed", renewed.epoch)])

        assert [ended.job_id for ended in store.reclaim()] == ["early", "late"]
        assert store.check([("renewed", renewed.epoch)]) == [None]

    def test_c36_a_job_can_expire_under_each_of_its_owners(self, store: Store, clock: AlarmClock) -> None:
        """The deadline of an earlier lease does not end a later one, and is not the last."""
        store.add([new_job("a")])
        one(store, lease_us=5 * SECOND)
        clock.advance(5)
        second = one(store, lease_us=20 * SECOND)
        clock.advance(19)
        assert store.reclaim() == []

        clock.advance(1)

        assert [ended.epoch for ended in store.reclaim()] == [second.epoch]

    def test_c37_a_dead_process_loses_its_jobs_at_once(self, store: Store) -> None:
        """Once its death is proved, the job does not wait for the deadline."""
        with a_process() as process:
            store.add([new_job("a"), new_job("b")])
            grant = one(store, "a", process=process.name)
            one(store, "b")
            assert store.reclaim() == []

            process.die()
            [ended] = store.reclaim()

        job = store.job("a")
        assert (ended.job_id, ended.epoch, ended.ended) == ("a", grant.epoch, Reason.RECOVERY)
        assert (job.status, job.reason, job.reclaims) == (Status.PENDING, Reason.RECOVERY, 1)
        assert job.epoch > grant.epoch
        assert store.job("b").status == Status.RUNNING
        assert one(store).reason == Reason.RECOVERY

    def test_c37_a_live_process_keeps_its_jobs(self, store: Store, clock: AlarmClock) -> None:
        """Another process, and this one, until their deadline."""
        with a_process() as process:
            store.add([new_job("a"), new_job("b")])
            store.claim("a", process=process.name)
            store.claim("b", process=this_process())
            clock.advance(29)

            assert store.reclaim() == []

            clock.advance(1)
            assert [ended.ended for ended in store.reclaim()] == [Reason.TIMEOUT] * 2

    @pytest.mark.parametrize("part", ["host", "boot", "namespace"])
    def test_c37_trap_20_a_process_of_elsewhere_is_never_proved_dead(
        self, store: Store, clock: AlarmClock, part: str
    ) -> None:
        """Of another machine, another boot or another container we know nothing: there is only time."""
        with a_process() as process:
            name = process.name
        elsewhere = Process(
            *(("elsewhere" if field == part else value) for field, value in name._asdict().items())  # type: ignore[arg-type]  # the fields in their order
        )
        store.add([new_job("a")])
        one(store, process=elsewhere)

        assert store.reclaim() == []
        assert [ended.ended for ended in expire(store, clock)] == [Reason.TIMEOUT]

    def test_c37_trap_20_without_a_process_there_is_only_time(self, store: Store, clock: AlarmClock) -> None:
        """A claim for an owner elsewhere records no process, so no exit proves that owner dead."""
        store.add([new_job("a")])
        grant = one(store, process=None)

        assert grant.process is None
        assert store.reclaim() == []
        assert [ended.ended for ended in expire(store, clock)] == [Reason.TIMEOUT]

    def test_c37_trap_20_a_transfer_forgets_the_process(self, store: Store) -> None:
        """The death of the old owner's process does not take the job from the new owner."""
        with a_process() as process:
            store.add([new_job("a")])
            grant = one(store, "a", process=process.name)
            moved = store.transfer("a", grant.epoch, to="b", by="ops")
            process.die()

            assert store.reclaim() == []

        assert moved.process is None
        assert store.check([("a", moved.epoch)]) == [None]

    def test_c37_recovery_spends_the_budget_of_reclaims(self, store: Store) -> None:
        """A job that kills its worker each time does not do so for ever."""
        store.add([new_job("a", retry=Retry(max_reclaims=0))])
        with a_process() as process:
            one(store, process=process.name)
            process.die()
            store.reclaim()

        assert (store.job("a").status, store.job("a").reason) == (Status.FAILED, Reason.RECOVERY)

    def test_c37_a_settled_job_is_not_recovered(self, store: Store) -> None:
        """A process may end after its work."""
        store.add([new_job("a")])
        with a_process() as process:
            settle(store, completed(one(store, process=process.name)))
            process.die()

            assert store.reclaim() == []

        assert store.job("a").status == Status.DONE

    def test_c37_another_store_recovers_too(self, store: Store, another: Store) -> None:
        """The process is recorded with the lease, so the processes that survive can see that it is gone."""
        store.add([new_job("a")])
        with a_process() as process:
            grant = one(store, process=process.name)
            process.die()

            assert [ended.epoch for ended in another.reclaim()] == [grant.epoch]

    @pytest.mark.parametrize("path", ["reclaim", "claim", "waiting claim"])
    def test_c51_what_upkeep_has_ended_is_returned_once(self, store: Store, clock: AlarmClock, path: str) -> None:
        """Also where the call itself does not return it, and whether the job goes back or has failed."""
        store.add([new_job("back"), new_job("failed", retry=Retry(max_reclaims=0))])
        grants = {grant.spec.id: grant.epoch for grant in store.claim("a", limit=2, lease_us=SECOND)}
        assert store.take_reclaimed() == []
        clock.advance(2)

        if path == "reclaim":
            store.reclaim()
        else:
            [again] = store.claim("b", limit=2, wait_us=SECOND if path == "waiting claim" else 0)
            assert again.spec.id == "back"

        assert sorted(store.take_reclaimed()) == sorted(grants.items())
        assert store.take_reclaimed() == []
        assert store.job("failed").status is Status.FAILED

    def test_c51_what_was_taken_from_a_dead_process_is_returned_too(self, store: Store) -> None:
        """Its death is noticed by upkeep."""
        store.add([new_job("a", retry=Retry(max_reclaims=0))])
        with a_process() as process:
            [grant] = store.claim("dead", process=process.name)
            process.die()

            store.tend()

            assert store.take_reclaimed() == [("a", grant.epoch)]
            assert store.job("a").status is Status.FAILED
