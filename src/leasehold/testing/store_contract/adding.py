"""C10 to C12, C55: adding, what is not added twice, and what never changes."""

from __future__ import annotations

from typing import Any

import pytest

from ...core import documents, instants
from ...core.children import new_child
from ...core.job import Outcome, Settlement, Status, new_job
from ...core.retry import Retry
from ...store import Store
from .support import AlarmClock, Contract, completed, failed, ids, in_threads, one, settle


class Adding(Contract):
    """An id is for ever; a unique key is for as long as its job is unfinished."""

    def test_c10_a_new_job_is_kept_with_all_that_it_asks_for(self, store: Store, clock: AlarmClock) -> None:
        """What a producer passes is what a reader sees and an owner gets."""
        run_at = instants.aware(clock.now() + 7)
        wish = new_job(
            "invoice-42",
            {"total": 10, "lines": ["ä", None, 1.5, True]},
            task="send",
            queue="mail",
            priority=-3,
            run_at=run_at,
            lock="customer:7",
            unique="mail:7",
            retry=Retry(max_errors=2, max_reclaims=0, delay_seconds=0.5, factor=2, max_delay_seconds=9, jitter=False),
            lease_seconds=12.5,
            stall_seconds=3,
            start_within_seconds=60,
            run_seconds=600,
            meta={"tenant": "ä", "tags": [1.5, None, {"deep": True}]},
        )

        [(job, created)] = store.add([wish])
        clock.advance(1)
        grant = one(store)

        assert created
        assert job.spec == grant.spec == store.job("invoice-42").spec == wish._replace(run_us=None)
        assert (job.status, job.epoch, job.owner, job.attempt, job.errors, job.reclaims) == (
            "pending",
            0,
            None,
            0,
            0,
            0,
        )
        assert job.payload == {"total": 10, "lines": ["ä", None, 1.5, True]}
        assert job.run_at == run_at
        assert (job.reason, job.result, job.checkpoint, job.last_error, job.finished_us) == (None,) * 5

    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"task": "send"},
            {"queue": "mail"},
            {"priority": 1},
            {"lock": "customer:7"},
            {"unique": "mail:7"},
            {"lease_seconds": 12.5},
            {"stall_seconds": 3},
            {"start_within_seconds": 60},
            {"retry": Retry()},
            {"retry": Retry(max_errors=2)},
            {"retry": Retry(max_reclaims=0)},
            {"retry": Retry(factor=2)},
            {"run_seconds": 600},
            {"meta": {"tenant": "a"}},
        ],
        ids=str,
    )
    def test_c10_an_owner_gets_each_option_by_itself(self, store: Store, asked: dict[str, Any]) -> None:
        """A job that differs from most in one thing is not taken for one of them."""
        wish = new_job("a", **asked)
        store.add([wish])

        grant = one(store)

        assert grant.spec == wish
        assert store.lease("a", grant.owner) == grant
        assert [job.spec for job in store.jobs(status=Status.RUNNING)] == [wish]

    def test_c10_nothing_asked_for_is_nothing_added(self, store: Store) -> None:
        """An empty list is no mistake."""
        assert store.add([]) == []
        assert store.jobs() == []

    def test_c10_a_job_whose_id_exists_is_left_as_it_is(self, store: Store) -> None:
        """A second add of an id returns the first job, whatever it asks for."""
        store.add([new_job("a", {"total": 10})])

        [(job, created)] = store.add([new_job("a", {"total": 99}, queue="mail", priority=5)])

        assert not created
        assert job == store.job("a")
        assert (job.payload, job.queue, job.priority) == ({"total": 10}, "default", 0)

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_c10_an_id_is_for_ever(self, store: Store, outcome: Outcome) -> None:
        """Also a finished job, and a running one, keep their id."""
        store.add([new_job("a")])
        grant = one(store)

        [(running, created)] = store.add([new_job("a")])
        assert (running.status, created) == (Status.RUNNING, False)

        settle(store, Settlement("a", grant.epoch, outcome, "null", error="boom"))
        before = store.job("a")
        assert store.add([new_job("a")]) == [(before, False)]

    def test_c10_adds_at_the_same_time_make_one_job(self, store: Store) -> None:
        """Exactly one of several adds of an id made the job."""
        answers = in_threads(*[lambda: store.add([new_job("a")])[0].created] * 4)

        assert sorted(answers) == [False, False, False, True]
        assert ids(store.claim("a", limit=10)) == ["a"]

    def test_c11_a_unique_key_admits_one_unfinished_job(self, store: Store) -> None:
        """A second job with the key is not added: the reply has the first, pending or running."""
        store.add([new_job("a", unique="mail:7")])

        [(pending, created)] = store.add([new_job("b", unique="mail:7")])
        assert (pending.id, pending.status, created) == ("a", Status.PENDING, False)

        one(store)
        [(running, created)] = store.add([new_job("c", unique="mail:7")])
        assert (running.id, running.status, created) == ("a", Status.RUNNING, False)

        assert [job.id for job in store.jobs()] == ["a"]

    def test_c11_a_retried_job_keeps_its_unique_key(self, store: Store) -> None:
        """A job that goes back is unfinished still."""
        store.add([new_job("a", unique="mail:7")])
        settle(store, failed(one(store)))

        [(job, created)] = store.add([new_job("b", unique="mail:7")])

        assert (job.id, created) == ("a", False)

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel", "finish", "exhaust"])
    def test_c11_a_finished_job_gives_its_key_back(self, store: Store, clock: AlarmClock, end: str) -> None:
        """However it finished, the next job with the key is added."""
        store.add([new_job("a", unique="mail:7", retry=Retry(max_reclaims=0))])
        grant = one(store)
        if end == "complete":
            settle(store, completed(grant))
        elif end == "fail":
            settle(store, failed(grant, retry=False))
        elif end == "cancel":
            store.cancel("a", grant.epoch, by="ops")
        elif end == "finish":
            store.finish("a", grant.epoch, by="ops")
        else:
            clock.advance(31)
            store.reclaim()

        [(job, created)] = store.add([new_job("b", unique="mail:7")])

        assert (job.id, created) == ("b", True)
        [(job, created)] = store.add([new_job("c", unique="mail:7")])
        assert (job.id, created) == ("b", False)

    def test_c11_an_id_that_exists_beats_a_unique_key(self, store: Store) -> None:
        """The reply to an add has the job of that id, even if another job has the unique key."""
        store.add([new_job("a"), new_job("b", unique="mail:7")])

        [(job, created)] = store.add([new_job("a", unique="mail:7")])

        assert (job.id, job.unique, created) == ("a", None, False)

    def test_c11_different_keys_do_not_meet(self, store: Store) -> None:
        """A unique key, a lock key and an id may be spelled alike."""
        added = store.add([new_job("k"), new_job("b", unique="k"), new_job("c", lock="k"), new_job("d", unique="K")])

        assert all(created for _, created in added)

    def test_c12_the_same_id_twice_in_one_call_is_one_job(self, store: Store) -> None:
        """The first of a call wins, and the reply keeps the order of the call."""
        added = store.add([new_job("a", 1), new_job("b"), new_job("a", 2)])

        assert [(job.id, created) for job, created in added] == [("a", True), ("b", True), ("a", False)]
        assert added[2].job.payload == store.job("a").payload == 1
        assert sorted(ids(store.claim("a", limit=10))) == ["a", "b"]

    def test_c12_the_same_unique_key_twice_in_one_call_is_one_job(self, store: Store) -> None:
        """A later job of a call meets the keys of the earlier ones."""
        added = store.add([new_job("a", unique="k"), new_job("b", unique="k"), new_job("c"), new_job("c", unique="k")])

        assert [(job.id, created) for job, created in added] == [("a", True), ("a", False), ("c", True), ("c", False)]
        assert sorted(ids(store.claim("a", limit=10))) == ["a", "c"]

    def test_c12_a_job_refused_by_its_unique_key_does_not_take_its_id(self, store: Store) -> None:
        """What was not added left nothing behind: its id is still free, in the same call too."""
        added = store.add([new_job("a", unique="k"), new_job("b", unique="k"), new_job("b", "second")])

        assert [(job.id, created) for job, created in added] == [("a", True), ("a", False), ("b", True)]
        assert store.job("b").payload == "second"

    def test_c12_a_long_call_is_one_step(self, store: Store) -> None:
        """Many jobs in one call, some of them known, are all answered in order."""
        store.add([new_job("job-7")])

        added = store.add([new_job(f"job-{number}") for number in range(1200)])

        assert [job.id for job, _ in added] == [f"job-{number}" for number in range(1200)]
        assert [job.id for job, created in added if not created] == ["job-7"]
        assert len(store.claim("a", limit=2000)) == 1200

    def test_c55_meta_is_kept_over_every_owner_and_every_end(self, store: Store, clock: AlarmClock) -> None:
        """A retry, a reclaim, a transfer, a completion and a replay leave it as it was added."""
        meta = {"tenant": "a", "n": -0.0, "text": "\\u0000 is not NUL"}
        store.add([new_job("a", meta=meta)])
        seen = [store.job("a").meta]

        grant = one(store)
        settle(store, failed(grant))
        clock.advance(grant.lease_us)
        seen += [store.job("a").meta, documents.decode(one(store).spec.meta)]
        clock.advance(grant.lease_us)
        store.reclaim()
        moved = store.transfer("a", store.job("a").epoch, to="bob", by="ann")
        settle(store, completed(moved))
        replayed = store.replay("a", moved.epoch, by="ann")
        seen += [documents.decode(moved.spec.meta), replayed.meta, documents.decode(one(store).spec.meta)]

        assert [repr(one_of) for one_of in seen] == [repr(meta)] * 6

    def test_c55_an_add_of_an_existing_id_leaves_its_meta(self, store: Store) -> None:
        """Whatever the second one says; the same for a job with its unique key."""
        store.add([new_job("a", unique="u", meta={"tenant": "a"})])

        replies = store.add([new_job("a", meta={"tenant": "b"}), new_job("b", unique="u", meta={"tenant": "b"})])

        assert [(job.id, job.meta, created) for job, created in replies] == [("a", {"tenant": "a"}, False)] * 2

    @pytest.mark.parametrize("how", ["children", "then"])
    def test_c55_a_child_keeps_the_meta_that_it_is_added_with(self, store: Store, how: str) -> None:
        """Also where it is added beside others that have other meta, or none."""
        store.add([new_job("a")])
        grant = one(store)
        wishes = [
            new_child("a", new_job(name, meta=meta), 1) for name, meta in (("x", {"n": 1}), ("y", {}), ("z", {"n": 2}))
        ]

        if how == "children":
            store.add_children("a", grant.epoch, wishes)
        else:
            settle(store, completed(grant)._replace(then=tuple(wishes)))

        assert [job.meta for job in store.jobs(parent="a")] == [{"n": 1}, {}, {"n": 2}]
