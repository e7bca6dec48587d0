"""C20 to C23: renewals, progress, checkpoints and children."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...core.children import new_child
from ...core.job import NewJob, Progress, Status, new_job
from ...core.search import Search
from ...errors import StaleEpoch
from ...store import Renewal, Store
from .support import SECOND, AlarmClock, Contract, expire, ids, one, released, settle


def child(name: str, nth: int = 1) -> NewJob:
    """A child of job "a", as its lease would ask for it."""
    return new_child("a", new_job(name, {"of": "a"}, queue="children"), nth)


class Owning(Contract):
    """What the current owner may say about its job while it works."""

    def test_c20_a_renewal_moves_the_deadline(self, store: Store, clock: AlarmClock) -> None:
        """To now plus the length that was granted, or plus what the renewal says."""
        store.add([new_job("a", lease_seconds=20)])
        grant = one(store)
        clock.advance(15)

        assert store.renew([Renewal("a", grant.epoch)]) == [clock.now() + 20 * SECOND]
        assert store.job("a").expires_us == clock.now() + 20 * SECOND
        assert store.renew([Renewal("a", grant.epoch, 90 * SECOND)]) == [clock.now() + 90 * SECOND]

        clock.advance(89)
        assert store.reclaim() == []
        assert store.renew([Renewal("a", grant.epoch)]) == [clock.now() + 20 * SECOND]
        clock.advance(20)
        assert [ended.ended for ended in store.reclaim()] == ["timeout"]

    def test_c20_a_renewal_may_shorten(self, store: Store, clock: AlarmClock) -> None:
        """The deadline is now plus the duration, also if that is earlier than before."""
        store.add([new_job("a")])
        grant = one(store)

        store.renew([Renewal("a", grant.epoch, 5 * SECOND)])
        clock.advance(5)

        assert [ended.epoch for ended in store.reclaim()] == [grant.epoch]

    def test_c20_a_renewal_moves_nothing_else(self, store: Store, clock: AlarmClock) -> None:
        """The job looks the same but for its deadline and when it was renewed: its progress is as old as before."""
        store.add([new_job("a")])
        grant = one(store)
        store.progress([Progress("a", grant.epoch, 0.5, "half", "5")])
        before = store.job("a")
        clock.advance(10)

        store.renew([Renewal("a", grant.epoch)])

        assert store.job("a") == replace(before, expires_us=clock.now() + 30 * SECOND, renewed_us=clock.now())

    def test_c20_a_reader_sees_when_a_lease_was_renewed(self, store: Store, clock: AlarmClock) -> None:
        """For however long it was renewed; before the first renewal, when it was granted; without an owner, never."""
        store.add([new_job("a", lease_seconds=20)])
        assert store.job("a").renewed_us is None
        grant = one(store)
        clock.advance(3)
        assert store.job("a").renewed_us == grant.granted_us

        store.renew([Renewal("a", grant.epoch, 90 * SECOND)])
        renewed = clock.now()
        clock.advance(3)
        store.progress([Progress("a", grant.epoch, 0.5)])

        assert store.job("a").renewed_us == renewed
        assert [job.renewed_us for job in store.search(Search(Status.RUNNING), limit=1).jobs] == [renewed]
        settle(store, released(grant))
        assert store.job("a").renewed_us is None
        assert store.transfer("a", grant.epoch, to="b", by="ops").granted_us == store.job("a").renewed_us == clock.now()

    def test_c20_a_renewal_does_not_hold_off_a_stall(self, store: Store, clock: AlarmClock) -> None:
        """An owner that is alive and makes no progress loses the job, however often it renews."""
        store.add([new_job("a", stall_seconds=25)])
        grant = one(store)
        for _ in range(2):
            clock.advance(12)
            store.renew([Renewal("a", grant.epoch)])
        assert store.reclaim() == []

        clock.advance(1)

        assert [ended.ended for ended in store.reclaim()] == ["stall"]

    def test_c20_a_batch_renews_each_by_its_own_length(self, store: Store, clock: AlarmClock) -> None:
        """Leases of different lengths keep them."""
        store.add([new_job("a"), new_job("b", lease_seconds=7)])
        grants = store.claim("worker", limit=2)
        clock.advance(6)

        renewed = store.renew([Renewal(grant.spec.id, grant.epoch) for grant in grants])

        assert renewed == [clock.now() + 30 * SECOND, clock.now() + 7 * SECOND]

    def test_c21_progress_moves_the_stall_deadline_and_not_the_leases(self, store: Store, clock: AlarmClock) -> None:
        """An owner that progresses does not stall; if it does not renew, its lease expires all the same."""
        store.add([new_job("a", stall_seconds=10)])
        grant = one(store)
        for _ in range(3):
            clock.advance(9)
            store.progress([Progress("a", grant.epoch)])
            assert store.reclaim() == []
        assert store.job("a").expires_us == grant.expires_us

        clock.advance(3)

        assert [ended.ended for ended in store.reclaim()] == ["timeout"]

    def test_c21_the_stall_deadline_begins_with_the_lease(self, store: Store, clock: AlarmClock) -> None:
        """Each owner has the whole time, whatever its predecessor used of it, also after a transfer."""
        store.add([new_job("a", stall_seconds=10)])
        first = one(store)
        clock.advance(9)
        settle(store, released(first))
        second = one(store)
        clock.advance(9)
        assert store.reclaim() == []
        store.transfer("a", second.epoch, to="b", by="ops")
        clock.advance(9)
        assert store.reclaim() == []

        clock.advance(1)

        assert [(ended.owner, ended.ended) for ended in store.reclaim()] == [("b", "stall")]

    def test_c22_what_is_none_stays_as_it_was(self, store: Store) -> None:
        """A report says only what it says."""
        store.add([new_job("a")])
        epoch = one(store).epoch

        store.progress([Progress("a", epoch, 0.25, "page 1", '{"page":1}')])
        store.progress([Progress("a", epoch, note="page 2")])
        store.progress([Progress("a", epoch, 0.0)])
        store.progress([Progress("a", epoch)])
        store.progress([Progress("a", epoch, checkpoint='{"page":2}')])

        job = store.job("a")
        assert (job.progress, job.note, job.checkpoint) == (0.0, "page 2", {"page": 2})

    def test_c22_the_next_owner_gets_the_checkpoint(self, store: Store, clock: AlarmClock) -> None:
        """However the job changes hands, its checkpoint goes along."""
        store.add([new_job("a")])
        first = one(store)
        store.progress([Progress("a", first.epoch, checkpoint='{"page":4}')])
        expire(store, clock)

        second = one(store)
        third = store.transfer("a", second.epoch, to="b", by="ops")
        settle(store, released(third))

        assert [first.checkpoint, second.checkpoint, third.checkpoint] == [None, '{"page":4}', '{"page":4}']
        assert one(store).checkpoint == '{"page":4}'

    def test_c22_a_stale_checkpoint_does_not_reach_the_next_owner(self, store: Store, clock: AlarmClock) -> None:
        """What a slow owner writes after it lost the job is not what its successor goes on from."""
        store.add([new_job("a")])
        old = one(store)
        store.progress([Progress("a", old.epoch, checkpoint="1")])
        expire(store, clock)
        store.progress([Progress("a", old.epoch, checkpoint="2")])

        assert one(store).checkpoint == "1"

    def test_c22_a_checkpoint_is_durable_on_return(self, store: Store, another: Store) -> None:
        """Another store on the same data has it at once."""
        store.add([new_job("a")])
        grant = one(store)

        store.progress([Progress("a", grant.epoch, 0.5, "half", '{"page":4}')])

        job = another.job("a")
        assert (job.progress, job.note, job.checkpoint) == (0.5, "half", {"page": 4})

    def test_c23_children_are_added_under_the_current_epoch(self, store: Store) -> None:
        """They know their parent, wait like any job, and are added in order."""
        store.add([new_job("a")])
        grant = one(store)

        added = store.add_children("a", grant.epoch, [child("resize"), child("mail")])

        assert [(job.id, job.parent, created) for job, created in added] == [
            ("a/resize", "a", True),
            ("a/mail", "a", True),
        ]
        assert [job.id for job in store.jobs(parent="a")] == ["a/resize", "a/mail"]
        assert ids(store.claim("b", limit=10)) == ["a/resize", "a/mail"]

    def test_c23_a_second_run_makes_no_duplicates(self, store: Store, clock: AlarmClock) -> None:
        """The next owner, which adds the same children, finds them, also those that are finished."""
        store.add([new_job("a")])
        first = one(store)
        store.add_children("a", first.epoch, [child("mail"), child("mail", 2)])
        store.finish("a/mail", 0, by="ops")
        expire(store, clock)
        second = one(store, queues=["default"])

        added = store.add_children("a", second.epoch, [child("mail"), child("mail", 2), child("mail", 3)])

        assert [(job.id, job.status, created) for job, created in added] == [
            ("a/mail", "done", False),
            ("a/mail#2", "pending", False),
            ("a/mail#3", "pending", True),
        ]

    def test_c23_a_refused_call_adds_none(self, store: Store, clock: AlarmClock) -> None:
        """Children of an owner that has lost the job never exist."""
        store.add([new_job("a")])
        old = one(store)
        expire(store, clock)

        with pytest.raises(StaleEpoch) as refused:
            store.add_children("a", old.epoch, [child("resize"), child("mail")])

        assert refused.value.presented == old.epoch
        assert [job.id for job in store.jobs()] == ["a"]
