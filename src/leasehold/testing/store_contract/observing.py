"""C69 to C72: since when jobs wait, how fast they come and go, which leases last, and what upkeep has observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...core.backlog import Lately, Oldest
from ...core.job import Progress, new_job
from ...core.observations import Noted, Observation, ObservationKind, Observed
from ...core.ownership import Event, LiveLease
from ...store import Renewal, Store
from .support import SECOND, AlarmClock, Contract, all_of, completed, failed, in_threads, one, released, settle

_MANY = 3_000  # more than are counted one by one


def shown(lately: Lately) -> tuple[dict[str, float], dict[str, float]]:
    """What came in and went out, by queue."""
    return _rounded(lately.added), _rounded(lately.finished)


def _rounded(counts: Mapping[str, float]) -> dict[str, float]:
    return {queue: round(count, 6) for queue, count in sorted(counts.items())}


def stuck(lease: LiveLease | None = None, *, subject: str = "a", since_us: int = 7 * SECOND) -> Observation:
    """An observation of job "a", or of another subject."""
    kind = ObservationKind.NO_CONSUMER if lease is None else ObservationKind.NOT_MOVING
    return Observation(kind, subject, since_us, "It does not move.", "leasehold show a", held=lease and lease[:3])


def recorded(store: Store) -> list[Event]:
    """The events about observations."""
    return [event for event in store.events() if event.kind in ("observed", "cleared")]


class Observing(Contract):
    """What an operator sees at one glance, without a look at every job."""

    def test_c69_the_oldest_due_job_counts_from_when_it_became_due(self, store: Store, clock: AlarmClock) -> None:
        """Whatever its priority; one that was added earlier and is due later does not hide it."""
        began = clock.now()
        store.add([new_job("later", queue="x", delay_seconds=100), new_job("low", queue="x", priority=-1)])
        clock.advance(5)
        store.add([new_job("high", queue="x", priority=9), new_job("other", queue="y")])
        clock.advance(5)

        assert store.oldest() == [Oldest("x", None, began), Oldest("y", None, began + 5 * SECOND)]
        assert one(store, queues=["x"]).spec.id == "high"
        assert one(store, queues=["x"]).spec.id == "low"
        assert store.oldest() == [Oldest("y", None, began + 5 * SECOND)], "what is not due does not wait"

    def test_c69_a_delayed_job_waits_from_its_time_on(self, store: Store, clock: AlarmClock) -> None:
        """Also if no claim and no upkeep has looked since then."""
        began = clock.now()
        store.add([new_job("a", queue="x", delay_seconds=20), new_job("b", queue="x", delay_seconds=10)])
        store.add([new_job("c", queue="y", delay_seconds=30)])
        assert store.oldest() == []

        clock.advance(25)

        assert store.oldest() == [Oldest("x", None, began + 10 * SECOND)]
        clock.advance(5)
        both = [Oldest("x", None, began + 10 * SECOND), Oldest("y", None, began + 30 * SECOND)]
        assert store.oldest() == both
        store.tend()
        assert store.oldest() == both

    def test_c69_a_retry_waits_from_the_end_of_its_delay(self, store: Store, clock: AlarmClock) -> None:
        """Not from when the job was added."""
        store.add([new_job("a")])
        settle(store, failed(one(store), delay_us=10 * SECOND))
        assert store.oldest() == []

        clock.advance(15)

        assert store.oldest() == [Oldest("default", None, clock.now() - 5 * SECOND)]

    def test_c69_a_paused_queue_has_its_oldest_job_too(self, store: Store, clock: AlarmClock) -> None:
        """Whether it was paused before or after."""
        began = clock.now()
        store.add([new_job("a", queue="x")])
        store.pause("x", by="ops")
        store.pause("y", by="ops")
        clock.advance(1)
        store.add([new_job("b", queue="y")])

        assert store.oldest() == [Oldest("x", None, began), Oldest("y", None, began + SECOND)]

    def test_c69_parked_jobs_count_and_are_listed_by_task(self, store: Store, clock: AlarmClock) -> None:
        """Behind a lock key, which is held, or behind a task that no claim knew."""
        began = clock.now()
        store.add([new_job("holder", queue="x", lock="k"), new_job("behind", queue="x", lock="k")])
        assert len(store.claim("w", limit=10)) == 1
        clock.advance(1)
        store.add([new_job("slip", queue="x", task="chrge"), new_job("none", queue="y")])
        clock.advance(1)
        store.add([new_job("slip too", queue="x", task="chrge"), new_job("slip y", queue="y", task="chrge")])
        assert store.claim("w", limit=10, tasks=["charge"]) == []

        assert store.oldest() == [
            Oldest("x", None, began),
            Oldest("x", "chrge", began + SECOND),
            Oldest("y", None, began + SECOND),
            Oldest("y", "", began + SECOND),
            Oldest("y", "chrge", began + 2 * SECOND),
        ]

    def test_c70_jobs_of_the_last_five_minutes_are_counted_by_queue(self, store: Store, clock: AlarmClock) -> None:
        """However they finished; what is older is not."""
        assert shown(store.lately()) == ({}, {})
        store.add([new_job(f"old {n}", queue="x") for n in range(5)])
        for grant in store.claim("w", limit=2):
            settle(store, completed(grant))
        clock.advance(301)
        store.add([new_job(f"x{n}", queue="x") for n in range(3)])
        store.add([new_job("y", queue="y")])
        a, b, c = store.claim("w", limit=3)
        settle(store, completed(a))
        settle(store, failed(b, retry=False))
        settle(store, released(c))
        store.cancel("y", 0, by="ops")
        clock.advance(60)

        lately = store.lately()

        assert shown(lately) == ({"x": 3, "y": 1}, {"x": 2, "y": 1})
        assert lately.now_us == clock.now()
        assert lately.added_since_us == lately.finished_since_us == clock.now() - 300 * SECOND
        assert lately.added_per_minute("x") == 3 / 5
        assert lately.finished_per_minute("y") == 1 / 5
        assert lately.added_per_minute("z") == 0

    def test_c70_of_many_jobs_the_share_of_each_queue_is_about_right(self, store: Store, clock: AlarmClock) -> None:
        """Where queues take turns, too."""
        store.add([new_job(f"old {n}", queue="x") for n in range(100)])
        clock.advance(400)
        store.add([new_job(f"{n}", queue="xy"[n % 2], priority=1) for n in range(_MANY)])
        store.settle([completed(grant) for grant in store.claim("w", limit=_MANY)])
        clock.advance(100)

        lately = store.lately()

        for counts in (lately.added, lately.finished):
            assert sorted(counts) == ["x", "y"]
            assert abs(sum(counts.values()) - _MANY) <= 1
            assert abs(counts["x"] - _MANY / 2) < _MANY / 10, "more than eight standard deviations"

    def test_c70_pruned_jobs_do_not_count(self, store: Store, clock: AlarmClock) -> None:
        """Neither way, whether or not their ids are kept."""
        store.add([new_job("kept"), new_job("gone")._replace(chosen=False), new_job("stays")])
        store.settle([completed(grant) for grant in store.claim("w", limit=2)])
        clock.advance(10)
        assert store.prune(5 * SECOND).jobs == 2

        assert shown(store.lately()) == ({"default": 1}, {})

    def test_c71_leases_have_their_last_renewal_beside_their_last_progress(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """Of every job that runs, and of no other."""
        store.add([new_job("b"), new_job("a"), new_job("done"), new_job("waits")])
        b, a, done = store.claim("w", limit=3)
        settle(store, completed(done))
        clock.advance(3)
        store.renew([Renewal("b", b.epoch)])
        clock.advance(3)
        store.progress([Progress("a", a.epoch, 0.5)])
        transferred = store.transfer("a", a.epoch, to="v", by="ops")

        leases = store.leases()

        assert [lease[:3] for lease in leases] == [("b", b.epoch, "w"), ("a", transferred.epoch, "v")]
        for lease in leases:
            job = store.job(lease.job_id)
            assert lease[3:] == (job.granted_us, job.expires_us, job.renewed_us, job.updated_us)
        assert leases[0].renewed_us == leases[0].granted_us + 3 * SECOND
        assert leases[0].progressed_us == leases[0].granted_us

    def test_c72_an_observation_is_recorded_when_it_begins_and_when_it_ends(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """Once each, however often it is seen in between; the first words stay. No job changes."""
        assert store.observed() == Observed(clock.now(), 0, 0, [])
        store.add([new_job("a")])
        grant = one(store)
        [lease] = store.leases()
        before = all_of(store)

        assert store.observe(0, [stuck(lease)])
        began = clock.now()
        clock.advance(1)
        assert store.observe(1, [stuck(lease, since_us=9 * SECOND), stuck(subject="mail")])
        noted = [Noted("no-consumer", "mail", "", clock.now()), Noted("not-moving", "a", "", began)]
        assert store.observed() == Observed(clock.now(), 2, clock.now(), noted)
        clock.advance(1)
        assert store.observe(2, [stuck(subject="mail")])
        assert store.observe(3, [])

        facts = {"observation": "not-moving", "subject": "a", "since": "1970-01-01T00:00:07+00:00"}
        begun, other, ended, other_ended = recorded(store)
        assert (begun.kind, begun.at_us, begun.job_id) == ("observed", began, "a")
        assert (begun.epoch, begun.owner) == (grant.epoch, grant.owner)
        assert begun.facts == {**facts, "sentence": "It does not move."}
        assert (other.kind, other.job_id, other.facts["subject"]) == ("observed", None, "mail")
        assert (ended.kind, ended.at_us, ended.job_id, ended.facts) == ("cleared", began + 2 * SECOND, "a", facts)
        assert (ended.epoch, ended.owner) == (grant.epoch, grant.owner)
        assert (other_ended.kind, other_ended.facts["subject"]) == ("cleared", "mail")
        assert store.observed() == Observed(clock.now(), 4, clock.now(), [])
        assert all_of(store) == before

    def test_c72_what_comes_again_is_recorded_again(self, store: Store) -> None:
        """And so are tasks of one queue, each by itself."""
        a, b = (replace(stuck(subject="mail"), task=task) for task in ("a", "b"))
        for round, found in enumerate(([a], [b], [a, b], [])):
            assert store.observe(round, found)

        assert [(event.kind, event.facts["task"]) for event in recorded(store)] == [
            ("observed", "a"),
            ("cleared", "a"),
            ("observed", "b"),
            ("observed", "a"),
            ("cleared", "a"),
            ("cleared", "b"),
        ]

    def test_c72_a_look_that_began_before_another_was_recorded_changes_nothing(
        self, store: Store, another: Store, clock: AlarmClock
    ) -> None:
        """It may have seen what is no longer so."""
        assert store.observe(0, [])
        assert not another.observe(0, [stuck(subject="mail")])
        assert recorded(store) == []
        assert another.observe(1, [stuck(subject="mail")])
        clock.advance(1)
        assert not store.observe(1, [])
        assert [event.kind for event in recorded(store)] == ["observed"]
        assert store.observed().looked_us == clock.now() - SECOND

    def test_c72_of_many_looks_at_the_same_time_one_counts(self, store: Store, another: Store) -> None:
        """Over processes, which have a store object each."""
        for round in range(5):
            found = [] if round % 2 else [stuck(subject="mail")]
            counts = in_threads(*[partial(it.observe, round, found) for it in (store, another) * 4])
            assert sorted(counts) == [False] * 7 + [True]

        assert [event.kind for event in recorded(store)] == ["observed", "cleared"] * 2 + ["observed"]
