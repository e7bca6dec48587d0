"""C53, C54: upkeep takes back what is overdue, and prunes by policy in portions."""

from __future__ import annotations

import pytest

from ...core.children import new_child
from ...core.job import NewJob, Settlement, new_job
from ...core.ownership import Reason
from ...core.retention import Retention
from ...errors import UnknownJob
from ...store import Store
from .support import AlarmClock, Contract, a_process, completed, failed, one, settle

_DAY = 86_400


class Tending(Contract):
    """What a store does for itself."""

    def test_c53_what_is_overdue_is_taken_back(self, store: Store, clock: AlarmClock) -> None:
        """What expired, and what stalled; nothing else moves."""
        store.add([new_job("a"), new_job("b", stall_seconds=5, lease_seconds=60), new_job("c", lease_seconds=60)])
        store.claim("w", limit=3)
        clock.advance(31)

        assert store.tend() is False

        assert [store.job(name).status for name in "abc"] == ["pending", "pending", "running"]
        assert [store.job(name).reclaims for name in "abc"] == [1, 1, 0]

    def test_c53_what_a_dead_process_held_is_taken_back(self, store: Store) -> None:
        """By upkeep; a claim by hand looks at deadlines alone."""
        store.add([new_job("a")])
        with a_process() as process:
            one(store, process=process.name)
            process.die()

            assert store.claim("w") == []
            store.tend()

        assert one(store).reason == Reason.RECOVERY

    def test_c54_each_status_is_kept_for_its_time(self, store: Store, clock: AlarmClock) -> None:
        """A week if done, a month otherwise; then a chosen id is left, for three months in all."""
        _finished(store)
        clock.advance(7 * _DAY)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["done", "failed", "cancelled"]

        clock.advance(60)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["failed", "cancelled"]
        assert store.job("done").pruned

        clock.advance(23 * _DAY)
        _tend(store)
        assert store.jobs() == []
        clock.advance(59 * _DAY)
        _tend(store)
        assert store.job("done").pruned
        clock.advance(1 * _DAY)
        _tend(store)
        for name in ("done", "failed", "cancelled"):
            with pytest.raises(UnknownJob):
                store.job(name)
        assert store.verify() == []

    def test_c54_the_policy_is_the_callers(self, store: Store, clock: AlarmClock) -> None:
        """None keeps for ever; nothing at all is a time like any other."""
        _finished(store)
        clock.advance(1000 * _DAY)
        _tend(store, Retention(None, None, 0, None, None))

        assert [job.id for job in store.jobs()] == ["done", "failed"]
        assert store.job("cancelled").pruned
        assert len(store.events()) == 2

    def test_c54_a_job_may_say_itself_how_long_it_is_kept(self, store: Store, clock: AlarmClock) -> None:
        """Shorter or longer than the policy, or for ever; however it ended, and also if it was settled with others."""
        keep = {"short": 10.0, "long": 100.0 * _DAY, "ever": None, "failed": 10.0, "cancelled": 10.0}
        store.add([new_job(name, keep_seconds=seconds) for name, seconds in keep.items()])
        store.add([new_job("usual")])
        store.cancel("cancelled", 0, by="ops")
        grants = {grant.spec.id: grant for grant in store.claim("w", limit=9)}
        settle(store, failed(grants.pop("failed"), retry=False))
        settle(store, completed(grants.pop("long")))
        _all(store, [completed(grant) for grant in grants.values()])
        clock.advance(10)
        _tend(store)
        assert len(store.jobs()) == 6

        clock.advance(60)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["long", "ever", "usual"]
        clock.advance(40 * _DAY)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["long", "ever"]
        clock.advance(1000 * _DAY)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["ever"]
        assert store.verify() == []

    def test_c54_what_is_still_needed_stays(self, store: Store, clock: AlarmClock) -> None:
        """An unfinished job, a child whose parent is kept, and a job with an effect in doubt."""
        store.add([new_job("a", keep_seconds=None), new_job("doubt"), new_job("known"), new_job("pending")])
        parent, doubt, known = store.claim("w", limit=3)
        store.begin_effect("doubt", doubt.epoch, "charge")
        store.begin_effect("known", known.epoch, "charge")
        store.end_effect("known", known.epoch, "charge", "1")
        _all(store, [completed(parent, then=(_child("a"),)), completed(doubt), completed(known)])
        store.cancel("a/child", 0, by="ops")
        clock.advance(100 * _DAY)

        _tend(store)

        assert [job.id for job in store.jobs()] == ["a", "doubt", "pending", "a/child"]
        store.resolve("doubt", doubt.epoch, "charge", by="ops", outcome="1")
        clock.advance(60)
        _tend(store)
        assert [job.id for job in store.jobs()] == ["a", "pending", "a/child"]

    def test_c54_a_replayed_job_is_kept_from_its_next_end_on(self, store: Store, clock: AlarmClock) -> None:
        """While it is unfinished it is kept whatever its age."""
        _finished(store)
        clock.advance(6 * _DAY)
        store.replay("done", store.job("done").epoch, by="ops")
        clock.advance(6 * _DAY)
        _tend(store)
        assert store.job("done").status == "pending"
        settle(store, completed(one(store)))
        clock.advance(6 * _DAY)
        _tend(store, Retention(cancelled_seconds=10 * _DAY))
        assert not store.job("done").pruned
        assert store.job("cancelled").pruned
        clock.advance(2 * _DAY)
        _tend(store)

        assert store.job("done").pruned

    def test_c54_old_events_go_but_for_those_of_unfinished_jobs(self, store: Store, clock: AlarmClock) -> None:
        """A month after they were recorded; their numbers are not given again."""
        store.add([new_job("a"), new_job("b")])
        settle(store, failed(one(store)))
        store.cancel("b", 0, by="ops")
        store.advance()
        last = store.events()[-1].number
        clock.advance(31 * _DAY)
        store.advance()

        _tend(store)

        assert [(event.kind, event.job_id) for event in store.events()] == [("retried", "a"), ("advanced", None)]
        assert [event.number > last for event in store.events()] == [False, True]
        assert [event.kind for event in store.events(after=last)] == ["advanced"]

    def test_c54_many_go_in_portions(self, store: Store, clock: AlarmClock) -> None:
        """Each call removes a bounded number and says that more is due, also behind many that have to stay."""
        store.add([new_job("a", keep_seconds=None)])
        children = [new_child("a", new_job(f"child-{n}"), 1) for n in range(1_200)]
        store.add_children("a", one(store).epoch, children)
        store.add([new_job(f"job-{n}") for n in range(1_200)])
        for _ in range(2):
            _all(store, [completed(grant) for grant in store.claim("w", limit=1_200)])
            clock.advance(1)
        clock.advance(8 * _DAY)

        left = []
        for _ in range(9):
            more = store.tend()
            left.append(len(store.jobs()))
            if not more:
                break

        assert left[-1] == 1_201
        assert all(before - after <= 1_200 for before, after in zip([2_401, *left], left, strict=False))
        assert store.verify() == []

    def test_c54_no_other_verb_prunes(self, store: Store, clock: AlarmClock) -> None:
        """A claim by hand least of all."""
        _finished(store)
        clock.advance(1000 * _DAY)
        store.claim("w")
        store.reclaim()
        store.add([new_job("b")])

        assert len(store.jobs()) == 4


def _finished(store: Store) -> None:
    store.add([new_job("done"), new_job("failed"), new_job("cancelled")])
    done, fails = store.claim("w", limit=2)
    _all(store, [completed(done), failed(fails, retry=False)])
    store.cancel("cancelled", 0, by="ops")


def _all(store: Store, settlements: list[Settlement]) -> None:
    assert store.settle(settlements) == [None] * len(settlements)


def _tend(store: Store, retention: Retention | None = None) -> None:
    while store.tend() if retention is None else store.tend(retention):
        pass


def _child(parent: str) -> NewJob:
    return new_child(parent, new_job("child"), 1)
