"""
The clauses of the owners' verbs on every path that a store may have for them.

A store is free to treat one item, several that are alike, and several that are not, each in its own way; and a claim
behind another one in a way of its own. What a verb does is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ...core.children import new_child
from ...core.job import Grant, NewJob, Progress, Settlement, Status, new_job
from ...core.ownership import Reason
from ...core.retry import Retry
from ...errors import Settled, StaleEpoch
from ...store import Renewal, Store
from .fencing import WRITES
from .support import (
    CLAIMS,
    SECOND,
    AlarmClock,
    Contract,
    claimed,
    companion,
    completed,
    crashed,
    failed,
    ids,
    one,
    released,
    settle,
)

# The items of one call: alone; behind another that asks for the same, or for something else; behind its own repetition.
PATHS = ("one", "several alike", "several unlike", "twice")
ADDS = ("one", "several alike", "several unlike", "with a unique key")

ASKED: dict[str, Any] = {
    "task": "send",
    "queue": "mail",
    "priority": -3,
    "lock": "customer:7",
    "retry": Retry(max_errors=2, max_reclaims=0, delay_seconds=0.5, factor=2, max_delay_seconds=9, jitter=False),
    "lease_seconds": 12.5,
    "stall_seconds": 3,
}

SAYS: dict[str, Callable[[Grant], Settlement]] = {
    "complete": lambda grant: completed(grant, '"done"'),
    "fail": lambda grant: failed(grant, retry=False),
    "retry": lambda grant: failed(grant, delay_us=5 * SECOND),
    "release": lambda grant: released(grant, delay_us=5 * SECOND),
    "crash": crashed,
}
# What each makes of a job's first run: the status, what it has counted, and the reason that the next claim gives.
SETTLED: dict[str, tuple[Status, int, int, int, Reason]] = {
    "complete": (Status.DONE, 0, 0, 0, Reason.CLAIM),
    "fail": (Status.FAILED, 0, 1, 0, Reason.CLAIM),
    "retry": (Status.PENDING, 1, 1, 0, Reason.RETRY),
    "release": (Status.PENDING, 1, 0, 0, Reason.RELEASE),
    "crash": (Status.PENDING, 1, 0, 1, Reason.RECOVERY),
}


def beside(path: str, wish: NewJob) -> list[NewJob]:
    """The other jobs of a call that adds *wish* on that *path*."""
    return {
        "several alike": [wish.like("other", '"another payload"')],
        "several unlike": [new_job("other", queue="another")],
        "with a unique key": [new_job("other", unique="u")],
    }.get(path, [])


class Paths(Contract):
    """However many there are, and whatever stands beside it: an item is treated as if it were alone."""

    @pytest.mark.parametrize("path", ADDS)
    @pytest.mark.parametrize("due", ["now", "in 7 s", "since 7 s"])
    def test_c10_every_path_of_an_add_keeps_all_that_is_asked_for(
        self, store: Store, clock: AlarmClock, path: str, due: str
    ) -> None:
        """What a producer asked for is what a reader sees and an owner gets."""
        wish = new_job("a", {"total": 10}, **ASKED)
        run_us = clock.now() + {"now": 0, "in 7 s": 7, "since 7 s": -7}[due] * SECOND
        if due != "now":
            wish = wish._replace(run_us=run_us)
        kept = wish._replace(run_us=None)

        added = store.add([wish, *beside(path, wish)])

        assert all(created for _, created in added)
        assert (added[0].job.spec, added[0].job.run_us) == (kept, run_us)
        assert store.job("a") == added[0].job
        assert ids(store.claim("early", queues=["mail"])) == ([] if due == "in 7 s" else ["a"])
        clock.advance(7)  # by which what was claimed has stalled
        grant = one(store, queues=["mail"]) if due == "in 7 s" else store.lease("a", "early")
        assert (grant.spec, grant.lease_us) == (kept, 12_500_000)
        assert [ended.job_id for ended in store.reclaim()] == ([] if due == "in 7 s" else ["a"])

    @pytest.mark.parametrize("path", ADDS)
    def test_c10_every_path_of_an_add_leaves_what_exists(self, store: Store, path: str) -> None:
        """The others are added all the same, and the one that exists is shown as it is."""
        store.add([new_job("a", {"total": 10})])
        first = store.job("a")
        wish = new_job("a", {"total": 11}, **ASKED)

        added = store.add([*beside(path, wish), wish])

        assert [(job.id, created) for job, created in added] == [
            *((job.id, True) for job in beside(path, wish)),
            ("a", False),
        ]
        assert added[-1].job == store.job("a") == first

    @pytest.mark.parametrize("path", ["the next one", "several alike"])
    @pytest.mark.parametrize("taken", [False, True], ids=["current", "stale"])
    @pytest.mark.parametrize("write", WRITES)
    def test_c3_a_lease_of_every_path_of_a_claim_is_compared(
        self, store: Store, path: str, taken: bool, write: str
    ) -> None:
        """Whichever path has granted it, its owner may write until the job is taken over, and not after that."""
        grant = claimed(store, path, new_job("a"))
        store.begin_effect("a", grant.epoch, "charge")
        if taken:
            store.transfer("a", grant.epoch, to="b", by="ops")
        before = store.job("a"), store.effects("a")

        answer = WRITES[write](store, "a", grant.epoch)

        assert isinstance(answer, StaleEpoch) == taken
        if taken:
            assert (store.job("a"), store.effects("a")) == before
        assert store.check([("before", store.job("before").epoch)]) == [None]

    @pytest.mark.parametrize("path", CLAIMS)
    @pytest.mark.parametrize("says", ["the claim", "the job", "the default"])
    def test_c15_every_path_of_a_claim_grants_the_length_that_counts(
        self, store: Store, clock: AlarmClock, path: str, says: str
    ) -> None:
        """The claim's, else the job's, else the default; and a renewal is for the same."""
        wish = new_job("a") if says == "the default" else new_job("a", lease_seconds=7)
        options = {"lease_us": 3 * SECOND} if says == "the claim" else {}
        lasts = {"the claim": 3, "the job": 7, "the default": 11}[says] * SECOND

        grant = claimed(store, path, wish, default_lease_us=11 * SECOND, **options)

        assert (grant.lease_us, grant.expires_us) == (lasts, clock.now() + lasts)
        for job in store.jobs():  # what was claimed beside it has its own
            counts = options.get("lease_us") or job.spec.lease_us or 11 * SECOND
            assert job.expires_us == clock.now() + counts
        clock.advance(1)
        assert store.renew([Renewal("a", grant.epoch)]) == [clock.now() + lasts]

    @pytest.mark.parametrize("path", CLAIMS)
    def test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """What was asked for, why the job was free, how often it was run, its errors, and the checkpoint."""
        job = new_job("a", {"page": 1}, task="send", unique="u", lease_seconds=7, stall_seconds=9)
        store.add([job])
        first = one(store)
        store.progress([Progress("a", first.epoch, checkpoint='{"page":4}')])
        settle(store, failed(first, delay_us=SECOND))
        store.add(companion(path, job._replace(unique=None)))
        clock.advance(1)  # what stands beside it was due before

        grant = claimed(store, path, job)

        assert grant.spec == job
        assert (grant.reason, grant.attempt, grant.errors) == (Reason.RETRY, 1, 1)
        assert grant.checkpoint == '{"page":4}'
        assert grant.epoch > first.epoch
        assert store.lease("a", "worker") == grant

    @pytest.mark.parametrize("path", PATHS)
    def test_c20_every_path_of_a_renewal_moves_its_deadline_and_nothing_else(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """To its own instant; of two renewals of one lease the later counts; a stale one moves no deadline."""
        store.add([new_job(name, stall_seconds=25) for name in "abc"])
        a, b, _ = store.claim("worker", limit=3)
        before = {job.id: job for job in store.jobs()}
        clock.advance(6)
        mine, now = Renewal("a", a.epoch, 7 * SECOND), clock.now()
        others = {
            "several alike": [Renewal("b", b.epoch, 7 * SECOND)],
            "several unlike": [Renewal("b", b.epoch), Renewal("c", a.epoch, 90 * SECOND)],
            "twice": [Renewal("a", a.epoch, 90 * SECOND)],
        }.get(path, [])

        replies = store.renew([*others, mine])

        lengths: dict[str, list[int | None]] = {
            "one": [7],
            "several alike": [7, 7],
            "several unlike": [30, None, 7],
            "twice": [90, 7],
        }
        assert [None if isinstance(reply, StaleEpoch) else reply for reply in replies] == [
            None if lasts is None else now + lasts * SECOND for lasts in lengths[path]
        ]
        deadlines = {"a": now + 7 * SECOND}
        if path in ("several alike", "several unlike"):
            deadlines["b"] = now + (7 if path == "several alike" else 30) * SECOND
        for name, job in before.items():
            renewed = now if name in deadlines else job.renewed_us
            assert store.job(name) == replace(job, expires_us=deadlines.get(name, job.expires_us), renewed_us=renewed)
        clock.advance(19)
        assert {ended.job_id: ended.ended for ended in store.reclaim()}["c"] == Reason.STALL

    @pytest.mark.parametrize("path", PATHS)
    def test_c21_every_path_of_a_report_keeps_it_and_holds_off_the_stall(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """Its own words for its own job; of two reports of one lease the later counts; a stale one is not kept."""
        store.add([new_job(name, stall_seconds=10) for name in "abc"])
        a, b, _ = store.claim("worker", limit=3)
        clock.advance(6)
        mine = Progress("a", a.epoch, 0.5, "half", '{"row":5}')
        others = {
            "several alike": [mine._replace(job_id="b", epoch=b.epoch)],
            "several unlike": [Progress("b", b.epoch, note="first"), Progress("c", a.epoch, 0.9, "last", "9")],
            "twice": [Progress("a", a.epoch, 0.25, "quarter", '{"row":2}')],
        }.get(path, [])

        replies = store.progress([*others, mine])

        assert [type(reply) for reply in replies] == [
            *(StaleEpoch if report.job_id == "c" else type(None) for report in others),
            type(None),
        ]
        kept = {job.id: (job.progress, job.note, job.checkpoint, job.updated_us) for job in store.jobs()}
        full = (0.5, "half", {"row": 5}, clock.now())
        none = (None, None, None, a.granted_us)
        of_b = {"several alike": full, "several unlike": (None, "first", None, clock.now())}.get(path, none)
        assert kept == {"a": full, "b": of_b, "c": none}
        clock.advance(9)
        assert [ended.job_id for ended in store.reclaim()] == (["b", "c"] if of_b == none else ["c"])

    @pytest.mark.parametrize("path", [*PATHS, "with a unique key"])
    def test_c23_every_path_of_adding_children_keeps_all_that_is_asked_for(
        self, store: Store, clock: AlarmClock, path: str
    ) -> None:
        """Each child as if it were the only one, and once."""
        store.add([new_job("a")])
        parent = one(store)
        wish = new_child("a", new_job("child", {"of": "a"}, delay_seconds=7, **ASKED), 1)
        if path == "with a unique key":
            wish = wish._replace(unique="k")
        others = {
            "several alike": [wish._replace(id="a/other")],
            "several unlike": [new_child("a", new_job("other", unique="u"), 1)],
            "twice": [wish],
        }.get(path, [])

        added = store.add_children("a", parent.epoch, [wish, *others])

        assert [created for _, created in added] == [True, *(path != "twice" for _ in others)]
        assert [job.id for job in store.jobs(parent="a")] == list(dict.fromkeys(job.id for job in [wish, *others]))
        child = store.job("a/child")
        assert child == added[0].job
        assert (child.spec, child.run_us) == (wish.stored(), clock.now() + 7 * SECOND)
        assert child.parent == "a"

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("how", SAYS)
    def test_c24_every_path_of_a_settlement_ends_its_lease_alike(
        self, store: Store, clock: AlarmClock, how: str, path: str
    ) -> None:
        """The job, its history, its lock key and its unique key are as they are if it is settled alone."""
        store.add([new_job(name, lock=f"key of {name}", unique=f"mail of {name}") for name in "abc"])
        store.add([new_job("next", lock="key of a")])
        a, b, c = store.claim("worker", limit=4)
        clock.advance(3)
        mine = SAYS[how](a)
        unlike = "release" if how == "complete" else "complete"
        others = {
            "several alike": [SAYS[how](b)],
            "several unlike": [SAYS[unlike](b), SAYS[how](c._replace(epoch=b.epoch))],
            "twice": [mine],
        }.get(path, [])

        replies = store.settle([*others, mine])

        stale = [type(None), StaleEpoch, type(None)]
        assert [type(reply) for reply in replies] == (
            stale if path == "several unlike" else [type(None)] * len(replies)
        )
        ended = {"a": how}
        if path.startswith("several"):
            ended["b"] = how if path == "several alike" else unlike
        for name in "abc":
            job, last = store.job(name), store.ownerships(name)[-1]
            if name not in ended:
                assert (job.status, last.ended) == (Status.RUNNING, None)
                continue
            alone, status = SAYS[ended[name]](a), SETTLED[ended[name]][0]
            assert (job.status, job.attempt, job.errors, job.reclaims, job.reason) == SETTLED[ended[name]]
            assert job.run_us == (clock.now() + alone.delay_us if alone.delay_us else a.granted_us)
            assert job.result_document == alone.result
            assert (job.last_error or "").partition(";")[0] == (alone.error or "")
            assert (job.finished_us, job.updated_us) == (None if status is Status.PENDING else clock.now(), clock.now())
            assert (last.epoch, last.by, last.ended_us) == (job.epoch, "worker", clock.now())
        # The key goes to the next job, or to the same again: it keeps its place, and is due at once.
        assert ("a" if how == "crash" else "next") in ids(store.claim("later", limit=10))
        [(_, created)] = store.add([new_job("again", unique="mail of a")])
        assert created == (SETTLED[how][0] is not Status.PENDING)
        assert store.settle([mine]) == [None]
        assert type(store.settle([SAYS[unlike](a)])[0]) is Settled
