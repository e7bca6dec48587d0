"""C7, C8, C38, C52: nothing is lost, a mistake changes nothing, and only what is finished is forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from ...core.children import new_child
from ...core.instants import as_datetime
from ...core.job import Grant, NewJob, Outcome, Progress, Settlement, Status, new_job
from ...core.retry import Retry
from ...errors import Conflict, LeaseholdError, NoLease, Settled, StaleEpoch, UnknownJob
from ...store import Renewal, Store
from .support import SECOND, AlarmClock, Contract, all_of, completed, failed, ids, one, released, settle


class Walk:
    """Does whatever anybody might do, in an order drawn by *seed*, and watches the promises while it does."""

    def __init__(self, store: Store, clock: AlarmClock, seed: int) -> None:
        self.store, self.clock, self.chance = store, clock, random.Random(seed)
        self.leases: list[Grant] = []  # all that were ever granted, so that old ones are tried too
        self.added = 0
        self.newest: dict[str, int] = {}  # the last epoch of each job and of each key

    def step(self) -> None:
        """Do something."""
        acts: list[Callable[[], object]] = [
            self.add,
            self.claim,
            self.settle,
            self.say,
            self.operate,
            self.wait,
            self.pause,
        ]
        self.chance.choices(acts, [4, 8, 8, 4, 4, 2, 1])[0]()

    def add(self) -> None:
        """Add a job with some lock, some queue, some priority."""
        self.added += 1
        self.store.add(
            [
                new_job(
                    f"job-{self.added}",
                    queue=self.chance.choice(["x", "y"]),
                    priority=self.chance.choice([0, 0, 1]),
                    delay_seconds=self.chance.choice([0, 0, 20]),
                    lock=self.chance.choice([None, "k", "l"]),
                    unique=self.chance.choice([None, None, "u"]),
                    stall_seconds=self.chance.choice([None, 25]),
                    retry=Retry(max_errors=2, max_reclaims=1),
                )
            ]
        )

    def claim(self) -> None:
        """Claim some jobs of some queue."""
        queues = self.chance.choice([None, ["x"], ["y"]])
        for grant in self.store.claim("worker", limit=self.chance.choice([1, 3]), queues=queues):
            self.granted(grant)

    def granted(self, grant: Grant) -> None:
        """Remember a lease, which must outrank all earlier ones of its job and of its key."""
        for what in (f"job {grant.spec.id}", f"key {grant.spec.lock}"):
            assert grant.epoch > self.newest.get(what, 0) or what == "key None"
            self.newest[what] = grant.epoch
        self.leases.append(grant)

    def settle(self) -> None:
        """End some lease, live or not, somehow."""
        if self.leases:
            grant = self.chance.choice(self.leases[-8:])
            delay_us = self.chance.choice([0, 10 * SECOND])
            child = new_child(grant.spec.id, new_job("child", lock="k"), 1)
            outcomes = [
                completed(grant, then=self.chance.choice([(), (child,)])),
                failed(grant, delay_us=delay_us),
                released(grant, delay_us=delay_us),
            ]
            self.store.settle([self.chance.choice(outcomes)])

    def say(self) -> None:
        """Renew, or report progress on, some lease, live or not."""
        if self.leases:
            grant = self.chance.choice(self.leases[-8:])
            self.store.renew([Renewal(grant.spec.id, grant.epoch)])
            self.store.progress([Progress(grant.spec.id, grant.epoch, 0.5)])

    def operate(self) -> None:
        """Move some job by hand, under the epoch that it has or an older one."""
        jobs = self.store.jobs()
        if not jobs:
            return
        job = self.chance.choice(jobs)
        epoch = self.chance.choice([job.epoch, job.epoch, job.epoch - 1])
        verb = self.chance.choice(["transfer", "cancel", "replay", "requeue", "finish"])
        try:
            if verb == "transfer":
                self.granted(self.store.transfer(job.id, epoch, to="other", by="ops"))
            else:
                getattr(self.store, verb)(job.id, epoch, by="ops")
        except (Conflict, StaleEpoch):
            pass

    def wait(self) -> None:
        """Let some time pass, and maybe sweep."""
        self.clock.advance(self.chance.choice([1, 12, 31]))
        if self.chance.random() < 0.5:
            self.store.reclaim()

    def pause(self) -> None:
        """Pause a queue, or resume one."""
        verb = self.chance.choice([self.store.pause, self.store.resume, self.store.resume])
        verb(self.chance.choice(["x", "y"]), by="ops")

    def watch(self) -> None:
        """Ask the store, and count the running jobs of each key."""
        assert self.store.verify() == []
        keys = [job.lock for job in self.store.jobs(status=Status.RUNNING) if job.lock]
        assert len(keys) == len(set(keys))

    def drain(self) -> None:
        """Serve until nothing is left: whatever was lost on the way would be left over."""
        for queue in self.store.queues():
            self.store.resume(queue.name, by="ops")
        for _ in range(200):
            self.clock.advance(40)
            grants = self.store.claim("drain", limit=100)
            assert self.store.settle([completed(grant) for grant in grants]) == [None] * len(grants)
            if not any(self.store.counts()[:2]):
                return


class Keeping(Contract):
    """Every unfinished job is in exactly one place, whatever happens."""

    @pytest.mark.parametrize("seed", range(4))
    def test_c7_nothing_is_lost_whatever_happens(self, store: Store, clock: AlarmClock, seed: int) -> None:
        """After every step the store is whole, and in the end every job can still be brought to its end."""
        walk = Walk(store, clock, seed)

        for _ in range(120):
            walk.step()
            walk.watch()
        walk.drain()

        counts = store.counts()
        assert (counts.pending, counts.running) == (0, 0)
        assert counts.done + counts.failed + counts.cancelled == len(store.jobs())

    def test_c7_an_empty_store_is_whole(self, store: Store) -> None:
        """Good news is an empty list."""
        assert store.verify() == []

    def test_c7_every_place_is_whole(self, store: Store, clock: AlarmClock) -> None:
        """Waiting, delayed, parked, woken, leased and finished jobs at once are nothing to complain about."""
        store.add([new_job("first", lock="k"), new_job("woken", lock="k"), new_job("parked", lock="k")])
        [first] = store.claim("a", limit=10)
        assert store.verify() == []

        settle(store, completed(first))
        store.add([new_job("leased"), new_job("delayed", delay_seconds=5), new_job("waiting", queue="other")])
        store.claim("a", limit=1, queues=["default"])

        assert store.verify() == []

    @pytest.mark.parametrize(
        "verb", ["transfer", "cancel", "replay", "requeue", "finish", "resolve", "effect", "child", "lease"]
    )
    def test_c8_a_verb_that_raises_has_changed_nothing(self, store: Store, verb: str) -> None:
        """Whether the job is unknown, the epoch stale or the transition not listed."""
        store.add([new_job("a"), new_job("b")])
        grant = one(store)
        settle(store, completed(grant))
        current = one(store)
        before = all_of(store)
        calls: dict[str, Callable[[str, int], object]] = {
            "transfer": lambda job_id, epoch: store.transfer(job_id, epoch, to="b", by="ops"),
            "cancel": lambda job_id, epoch: store.cancel(job_id, epoch, by="ops"),
            "replay": lambda job_id, epoch: store.replay(job_id, epoch - (job_id == "a"), by="ops"),
            "requeue": lambda job_id, epoch: store.requeue(job_id, epoch, by="ops"),
            "finish": lambda job_id, epoch: store.finish(job_id, epoch, by="ops"),
            "resolve": lambda job_id, epoch: store.resolve(job_id, epoch, "charge", by="ops", outcome="1"),
            "effect": lambda job_id, epoch: store.end_effect(job_id, epoch, "charge", "1"),
            "child": lambda job_id, epoch: store.add_children(job_id, epoch, [new_job("child")]),
            "lease": lambda job_id, epoch: store.lease(job_id, "stranger"),
        }

        for job_id, epoch in (("unknown", 0), ("a", grant.epoch), ("b", current.epoch - 1)):
            with pytest.raises(LeaseholdError):
                calls[verb](job_id, epoch)

        assert all_of(store) == before

    def test_c38_what_finished_long_ago_is_removed(self, store: Store, clock: AlarmClock) -> None:
        """With all that was kept of it: the job, its ownerships, its effects, its old events."""
        store.add([new_job("a")])
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        settle(store, failed(grant, retry=False))
        clock.advance(10)

        assert store.prune(10 * SECOND, keep_ids_us=0) == (0, 0, 0)
        clock.advance(0.000_001)
        assert store.prune(10 * SECOND, keep_ids_us=0) == (1, 1, 0)

        for reader in (store.job, store.ownerships, store.effects):
            with pytest.raises(UnknownJob):
                reader("a")
        assert (store.jobs(), store.events()) == ([], [])
        assert sum(store.counts()[:5]) == 0
        assert isinstance(store.settle([completed(grant)])[0], UnknownJob)

    def test_c38_an_unfinished_job_is_never_removed(self, store: Store, clock: AlarmClock) -> None:
        """However old: pending, running, parked, or finished once and replayed."""
        store.add([new_job(name, lock="k" if name in "bc" else None) for name in "abcd"])
        store.cancel("d", 0, by="ops")
        store.replay("d", store.job("d").epoch, by="ops")
        store.claim("worker", limit=2)
        clock.advance(10**6)

        assert store.prune(0).jobs == 0

        assert [job.id for job in store.jobs()] == ["a", "b", "c", "d"]

    def test_c38_a_child_stays_as_long_as_its_parent(self, store: Store, clock: AlarmClock) -> None:
        """So that a second run of the parent, or a replay, finds it; then the parent goes first."""
        store.add([new_job("a"), new_job("other")])
        grant = one(store)
        store.add_children("a", grant.epoch, [_child("a")])
        store.finish("a/child", 0, by="ops")
        store.cancel("other", 0, by="ops")
        clock.advance(10)

        assert store.prune(0).jobs == 1
        assert [job.id for job in store.jobs()] == ["a", "a/child"]

        settle(store, completed(grant))
        clock.advance(10)
        assert store.prune(0).jobs == 1
        assert [job.id for job in store.jobs()] == ["a/child"]
        assert store.prune(0).jobs == 1
        assert store.jobs() == []

    def test_c38_a_child_whose_parent_is_gone_is_removed(self, store: Store, clock: AlarmClock) -> None:
        """A parent may be pruned first."""
        store.add([new_job("a")])
        settle(store, completed(one(store), then=(_child("a"),)))
        clock.advance(1)
        assert store.prune(0).jobs == 1
        settle(store, completed(one(store)))
        clock.advance(1)

        assert store.prune(0).jobs == 1

    def test_c38_the_oldest_go_first_and_no_more_than_asked(self, store: Store, clock: AlarmClock) -> None:
        """A large store is pruned in portions."""
        store.add([new_job(f"job-{number}") for number in range(5)])
        for number in (3, 0, 4, 1, 2):
            store.cancel(f"job-{number}", 0, by="ops")
            clock.advance(1)

        assert store.prune(0, limit=2).jobs == 2
        assert [job.id for job in store.jobs()] == ["job-1", "job-2", "job-4"]
        assert store.prune(0, limit=10).jobs == 3

    def test_c38_a_pruned_id_and_key_can_be_used_again(self, store: Store, clock: AlarmClock) -> None:
        """As if they had never been, but for the epochs (C1)."""
        store.add([new_job("a", "old", unique="u", lock="k")])
        settle(store, completed(one(store)))
        clock.advance(1)
        store.prune(0, keep_ids_us=0)

        [(job, created)] = store.add([new_job("a", "new", unique="u", lock="k")])

        assert (job.payload, created) == ("new", True)
        assert ids(store.claim("b")) == ["a"]

    def test_c38_the_number_of_an_event_is_not_given_again(self, store: Store, clock: AlarmClock) -> None:
        """A reader that remembers where it was reads on behind it after a prune."""
        store.add([new_job("a"), new_job("b")])
        store.cancel("a", 0, by="ops")
        [seen] = store.events()
        clock.advance(1)
        store.prune(0)

        store.cancel("b", 0, by="ops")

        assert [event.job_id for event in store.events(after=seen.number)] == ["b"]

    def test_c38_recent_events_stay(self, store: Store, clock: AlarmClock) -> None:
        """Only what is as old as the jobs that go, goes with them."""
        store.add([new_job("old"), new_job("young")])
        store.cancel("old", 0, by="ops")
        clock.advance(100)
        store.cancel("young", 0, by="ops")
        clock.advance(1)

        assert store.prune(50 * SECOND) == (1, 1, 0)

        assert [(event.kind, event.job_id) for event in store.events()] == [("cancelled", "young")]

    @pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
    def test_c52_a_chosen_id_stays_with_status_epoch_and_end(
        self, store: Store, clock: AlarmClock, status: str
    ) -> None:
        """And nothing else: it reads as a job without payload and result, and is not listed or counted."""
        pruned, epoch = self._pruned(store, clock, status)

        job = store.job("a")

        assert (job.pruned, job.id, job.status, job.epoch, job.finished_us) == (True, "a", status, epoch, pruned)
        assert (job.payload, job.result, job.last_error, job.task, job.lock, job.unique) == (None,) * 6
        assert (store.ownerships("a"), store.effects("a"), store.jobs()) == ([], [], [])
        assert sum(store.counts()[:5]) == 0
        assert store.verify() == []

    def test_c52_a_second_add_of_the_id_does_nothing(self, store: Store, clock: AlarmClock) -> None:
        """Alone, among others, and with the unique key that the job had."""
        self._pruned(store, clock, "done")
        again, other = new_job("a", "new", unique="u"), new_job("b", unique="u")

        [(job, created)] = store.add([again])
        assert (job.pruned, created) == (True, False)
        assert [added.created for added in store.add([again, other, new_job("c"), again])] == [False, True, True, False]

        assert ids(store.claim("w", limit=9)) == ["b", "c"]
        assert store.verify() == []

    def test_c52_a_late_owner_is_refused_with_the_facts(self, store: Store, clock: AlarmClock) -> None:
        """Whatever it writes: of the epoch that ended the job it is `Settled`, of an earlier one stale."""
        store.add([new_job("a")])
        first = one(store)
        settle(store, Settlement("a", first.epoch, Outcome.RELEASE))
        last = one(store)
        settle(store, completed(last))
        ended = store.job("a").finished_us
        clock.advance(1)
        store.prune(0)

        for verb in (
            lambda epoch: store.settle([Settlement("a", epoch, Outcome.COMPLETE, "null")])[0],
            lambda epoch: store.renew([Renewal("a", epoch)])[0],
            lambda epoch: store.progress([Progress("a", epoch, 0.5)])[0],
            lambda epoch: store.check([("a", epoch)])[0],
        ):
            for epoch, kind in ((first.epoch, StaleEpoch), (last.epoch, Settled)):
                refusal = verb(epoch)
                assert type(refusal) is kind
                assert (refusal.current, refusal.status, refusal.owner) == (last.epoch, "done", None)
                assert refusal.finished_at == as_datetime(ended)
        with pytest.raises(Settled):
            store.add_children("a", last.epoch, [_child("a")])
        with pytest.raises(NoLease):
            store.lease("a", "w")

    @pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
    def test_c52_every_operators_verb_is_a_conflict(self, store: Store, clock: AlarmClock, status: str) -> None:
        """There is nothing to work on any more; with another epoch than the job's it is refused, as ever."""
        _, epoch = self._pruned(store, clock, status)

        for verb in (store.replay, store.finish, store.cancel, store.requeue, partial(store.transfer, to="b")):
            with pytest.raises(Conflict):
                verb("a", epoch, by="ops")
            with pytest.raises(StaleEpoch):
                verb("a", epoch - 1, by="ops")
        with pytest.raises(Conflict):
            store.resolve("a", epoch, "charge", by="ops", outcome="1")

        assert store.job("a").pruned

    def test_c52_the_id_goes_in_its_time(self, store: Store, clock: AlarmClock) -> None:
        """Counted from the end of the job; a job that finished before that leaves no row at all."""
        self._pruned(store, clock, "done")
        store.add([new_job("later")])
        store.cancel("later", 0, by="ops")
        clock.advance(9)

        assert store.prune(0, keep_ids_us=10 * SECOND) == (1, 1, 0)
        clock.advance(1)
        assert store.prune(0, keep_ids_us=None).ids == 0
        assert store.prune(0, keep_ids_us=10 * SECOND).ids == 1
        assert store.job("later").pruned
        with pytest.raises(UnknownJob):
            store.job("a")

        assert store.add([new_job("a")])[0].created
        store.cancel("a", 0, by="ops")
        clock.advance(10.000_001)
        assert store.prune(0, keep_ids_us=10 * SECOND)[::2] == (1, 1)
        with pytest.raises(UnknownJob):
            store.job("a")
        assert store.verify() == []

    def test_c52_an_id_that_leasehold_made_goes_with_its_job(self, store: Store, clock: AlarmClock) -> None:
        """No caller can ask for it again; a child's id is such a one, and its parent has gone before it."""
        store.add([new_job("a"), new_job("made").made()])
        grant = one(store)
        settle(store, completed(grant, then=(_child("a"),)))
        for name in ("made", "a/child"):
            store.cancel(name, 0, by="ops")
        clock.advance(1)

        assert [store.prune(0).jobs, store.prune(0).jobs] == [2, 1]

        assert store.job("a").pruned
        for name in ("made", "a/child"):
            with pytest.raises(UnknownJob):
                store.job(name)

    def test_c52_a_pruned_job_is_no_parent(self, store: Store, clock: AlarmClock) -> None:
        """Its children may go, since it can never be replayed."""
        store.add([new_job("a")])
        settle(store, completed(one(store), then=(_child("a"),)))
        clock.advance(1)
        assert store.prune(0).jobs == 1
        store.cancel("a/child", 0, by="ops")
        clock.advance(1)

        assert store.prune(0).jobs == 1

    def _pruned(self, store: Store, clock: AlarmClock, status: str) -> tuple[int | None, int]:
        """Prune the job "a", which ended so; return when it ended, and its epoch."""
        store.add([new_job("a", "old", task="t", unique="u", lock="k", delay_seconds=0)])
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        store.progress([Progress("a", grant.epoch, 0.5, checkpoint="1")])
        if status == "cancelled":
            store.cancel("a", grant.epoch, by="ops")
        else:
            settle(store, completed(grant) if status == "done" else failed(grant, retry=False))
        job = store.job("a")
        clock.advance(1)
        assert store.prune(0).jobs == 1
        return job.finished_us, job.epoch


def _child(parent: str) -> NewJob:
    return new_child(parent, new_job("child"), 1)
