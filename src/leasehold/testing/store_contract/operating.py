"""C31, C33, C34, C48: operators go through the same door, and name the epoch that they saw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import Progress, Status, new_job
from ...core.ownership import Reason
from ...core.retry import Retry
from ...errors import Conflict, StaleEpoch, UnknownJob
from ...store import Renewal, Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    all_of,
    completed,
    expire,
    failed,
    ids,
    one,
    refusal,
    released,
    settle,
)

Act = Callable[[Store, str, int], object]

ACTS: dict[str, Act] = {
    "transfer": lambda store, job_id, epoch: store.transfer(job_id, epoch, to="b", by="ops", note="why"),
    "cancel": lambda store, job_id, epoch: store.cancel(job_id, epoch, by="ops", note="why"),
    "replay": lambda store, job_id, epoch: store.replay(job_id, epoch, by="ops", note="why"),
    "requeue": lambda store, job_id, epoch: store.requeue(job_id, epoch, by="ops", note="why"),
    "finish": lambda store, job_id, epoch: store.finish(job_id, epoch, by="ops", note="why", result="7"),
    "resolve": lambda store, job_id, epoch: store.resolve(job_id, epoch, "charge", by="ops", note="why", outcome="7"),
}
KINDS = {
    "transfer": "transferred",
    "cancel": "cancelled",
    "replay": "replayed",
    "requeue": "requeued",
    "finish": "finished",
    "resolve": "resolved",
}


class Operating(Contract):
    """Every manual verb is an ordinary, recorded transfer."""

    @pytest.mark.parametrize("act", ACTS)
    def test_c31_a_stale_operator_is_refused_with_the_facts(self, store: Store, clock: AlarmClock, act: str) -> None:
        """A job that has moved since the operator looked is not moved again by mistake."""
        store.add([new_job("a")])
        seen = one(store, "a")
        store.begin_effect("a", seen.epoch, "charge")
        expire(store, clock)
        now = one(store, "c")
        if act == "replay":
            settle(store, completed(now))
        before = all_of(store)

        with pytest.raises(StaleEpoch) as refused:
            ACTS[act](store, "a", seen.epoch)

        facts = refused.value
        assert (facts.job_id, facts.presented, facts.current) == ("a", seen.epoch, now.epoch)
        assert (facts.owner, facts.reason) == (None if act == "replay" else "c", Reason.TIMEOUT)
        assert all_of(store) == before
        event = store.events(kind="refused")[-1]
        assert (event.facts["presented"], event.facts["current"]) == (seen.epoch, now.epoch)

    @pytest.mark.parametrize("act", ACTS)
    def test_c31_an_epoch_of_zero_means_never_claimed(self, store: Store, act: str) -> None:
        """It is refused once the job has had an owner, also by an owner that settled."""
        store.add([new_job("a")])
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        settle(store, failed(grant, retry=act != "replay"))
        before = all_of(store)

        with pytest.raises(StaleEpoch) as refused:
            ACTS[act](store, "a", 0)

        assert (refused.value.presented, refused.value.current) == (0, grant.epoch)
        assert all_of(store) == before

    @pytest.mark.parametrize("seen", ["never claimed", "released", "reclaimed"])
    @pytest.mark.parametrize("act", ["transfer", "cancel", "finish", "resolve"])
    def test_c31_an_operator_who_saw_the_job_before_its_claim_is_refused(
        self, store: Store, clock: AlarmClock, act: str, seen: str
    ) -> None:
        """The job was pending when the operator looked, and has an owner now: its epoch is the one that counts."""
        store.add([new_job("a")])
        if seen == "released":
            settle(store, released(one(store)))
        elif seen == "reclaimed":
            one(store)
            expire(store, clock)
        epoch = store.job("a").epoch
        owner = one(store, "owner")
        store.begin_effect("a", owner.epoch, "charge")
        before = all_of(store)

        with pytest.raises(StaleEpoch) as refused:
            ACTS[act](store, "a", epoch)

        assert (refused.value.presented, refused.value.current) == (epoch, owner.epoch)
        assert refused.value.owner == "owner"
        assert all_of(store) == before

    @pytest.mark.parametrize("act", ACTS)
    def test_c31_each_verb_is_recorded_with_who_and_why(self, store: Store, clock: AlarmClock, act: str) -> None:
        """The event says by whom and with what note; all but `resolve` issue a new epoch."""
        store.add([new_job("a")])
        grant = one(store, "a")
        store.begin_effect("a", grant.epoch, "charge")
        if act == "replay":
            settle(store, completed(grant))
        clock.advance(1)

        ACTS[act](store, "a", grant.epoch)

        event = store.events(job_id="a")[-1]
        assert (event.kind, event.at_us) == (KINDS[act], clock.now())
        assert (event.facts["by"], event.facts["note"]) == ("ops", "why")
        assert (store.job("a").epoch > grant.epoch) == (act != "resolve")
        assert store.job("a").epoch == event.epoch

    @pytest.mark.parametrize("act", ["transfer", "cancel", "finish"])
    def test_c31_a_taken_ownership_says_who_took_it_and_why(self, store: Store, act: str) -> None:
        """The history of the job has the operator and the note."""
        store.add([new_job("a")])
        grant = one(store, "a")

        ACTS[act](store, "a", grant.epoch)

        taken = store.ownerships("a")[0]
        assert (taken.epoch, taken.owner, taken.by, taken.note) == (grant.epoch, "a", "ops", "why")
        assert taken.ended == (Reason.CANCELLATION if act == "cancel" else Reason.MANUAL)

    @pytest.mark.parametrize("act", ACTS)
    def test_c31_an_unknown_job_is_unknown(self, store: Store, act: str) -> None:
        """There is nothing to move."""
        with pytest.raises(UnknownJob):
            ACTS[act](store, "unknown", 0)

    def test_c31_a_never_claimed_job_is_seen_at_epoch_zero(self, store: Store) -> None:
        """Each verb that a pending job admits takes 0 for it, and gives it its first epoch."""
        store.add([new_job("transferred"), new_job("cancelled"), new_job("finished")])

        epochs = [
            store.transfer("transferred", 0, to="b", by="ops").epoch,
            store.cancel("cancelled", 0, by="ops").epoch,
            store.finish("finished", 0, by="ops").epoch,
        ]

        assert 0 < epochs[0] < epochs[1] < epochs[2]
        assert store.claim("c", limit=10) == []

    def test_c31_a_transfer_is_a_lease_for_the_new_owner(self, store: Store, clock: AlarmClock) -> None:
        """It lasts as long as asked, names no process, counts against no budget, and the old owner is refused."""
        store.add([new_job("a", lease_seconds=7, retry=Retry(max_errors=1, max_reclaims=0))])
        first = one(store, "a", claim_id="mine")
        store.progress([Progress("a", first.epoch, checkpoint="4")])

        moved = store.transfer("a", first.epoch, to="b", by="ops")
        again = store.transfer("a", moved.epoch, to="b", by="ops", lease_us=90 * SECOND)

        assert (moved.owner, moved.reason, moved.attempt, moved.checkpoint) == ("b", Reason.MANUAL, 1, "4")
        assert (moved.lease_us, moved.expires_us) == (7 * SECOND, clock.now() + 7 * SECOND)
        assert (moved.claim_id, moved.process) == (None, None)
        assert (again.lease_us, again.epoch > moved.epoch) == (90 * SECOND, True)
        job = store.job("a")
        assert (job.owner, job.errors, job.reclaims) == ("b", 0, 0)
        assert isinstance(store.renew([Renewal("a", moved.epoch)])[0], StaleEpoch)
        assert store.renew([Renewal("a", again.epoch)]) == [clock.now() + 90 * SECOND]

    def test_c31_a_pending_job_can_be_handed_to_somebody(self, store: Store) -> None:
        """Even before its time; no claim gets it then."""
        store.add([new_job("a", delay_seconds=60), new_job("b")])

        grant = store.transfer("a", 0, to="b", by="ops", default_lease_us=5 * SECOND)

        assert (grant.owner, grant.attempt, grant.lease_us) == ("b", 0, 5 * SECOND)
        assert ids(store.claim("c", limit=10)) == ["b"]

    def test_c31_a_cancelled_job_stays_cancelled(self, store: Store, clock: AlarmClock) -> None:
        """It is not claimed, not even after a restart of the clock's hand, and its owner is refused."""
        store.add([new_job("running"), new_job("pending"), new_job("delayed", delay_seconds=60)])
        grant = one(store)

        jobs = [
            store.cancel("running", grant.epoch, by="ops"),
            store.cancel("pending", 0, by="ops"),
            store.cancel("delayed", 0, by="ops"),
        ]
        clock.advance(3600)

        assert [job.status for job in jobs] == [Status.CANCELLED] * 3
        assert [job.owner for job in jobs] == [None] * 3
        assert store.claim("b", limit=10) == []
        assert isinstance(store.settle([completed(grant)])[0], StaleEpoch)

    def test_c31_a_job_finished_by_hand_has_the_given_result(self, store: Store, clock: AlarmClock) -> None:
        """Its errors are forgiven, and its owner is refused."""
        store.add([new_job("a")])
        settle(store, failed(one(store)))
        grant = one(store)
        clock.advance(1)

        job = store.finish("a", grant.epoch, by="ops", result='{"total":1}')

        assert (job.status, job.result, job.last_error) == (Status.DONE, {"total": 1}, None)
        assert job == store.job("a")
        assert job.finished_us == clock.now()
        assert isinstance(store.settle([completed(grant)])[0], StaleEpoch)

    def test_c33_a_transfer_does_not_break_a_lock(self, store: Store) -> None:
        """A job whose key another job holds cannot be handed out, not even by an operator."""
        store.add([new_job("holder", lock="k"), new_job("parked", lock="k"), new_job("waiting", lock="k")])
        [grant] = store.claim("a", limit=2)
        before = all_of(store)

        for job_id in ("parked", "waiting"):
            with pytest.raises(Conflict, match=rf"'k'.*'holder'.*{grant.epoch}"):
                store.transfer(job_id, 0, to="b", by="ops")
        assert all_of(store) == before

        settle(store, completed(grant))
        assert store.transfer("waiting", 0, to="b", by="ops").owner == "b"
        assert store.claim("c", limit=10) == []

    def test_c33_a_transferred_job_takes_its_free_key(self, store: Store) -> None:
        """From then on it excludes the others like any holder."""
        store.add([new_job("first", lock="k"), new_job("second", lock="k")])

        grant = store.transfer("second", 0, to="b", by="ops")

        assert store.claim("c", limit=10) == []
        settle(store, completed(grant))
        assert ids(store.claim("c", limit=10)) == ["first"]

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    def test_c34_a_replayed_job_begins_anew(self, store: Store, clock: AlarmClock, end: str) -> None:
        """Its budgets are new and it is due now; its attempt, checkpoint and effects stay."""
        store.add([new_job("a")])
        one(store)
        expire(store, clock)
        settle(store, failed(one(store)))
        grant = one(store)
        store.progress([Progress("a", grant.epoch, checkpoint="4")])
        store.begin_effect("a", grant.epoch, "charge")
        store.end_effect("a", grant.epoch, "charge", "7")
        if end == "cancel":
            store.cancel("a", grant.epoch, by="ops")
        else:
            settle(store, completed(grant, "1") if end == "complete" else failed(grant, retry=False))
        clock.advance(60)

        job = store.replay("a", store.job("a").epoch, by="ops")

        assert (job.status, job.errors, job.reclaims, job.result) == (Status.PENDING, 0, 0, None)
        assert (job.run_us, job.finished_us, job.checkpoint) == (clock.now(), None, 4)
        assert [effect.outcome for effect in store.effects("a")] == ["7"]
        again = one(store)
        assert (again.attempt, again.errors, again.checkpoint) == (3, 0, "4")
        assert again.epoch > job.epoch > grant.epoch

    def test_c34_new_budgets_are_whole(self, store: Store) -> None:
        """A job that failed for good may fail as often again."""
        store.add([new_job("a", retry=Retry(max_errors=2))])
        for _ in range(2):
            settle(store, failed(one(store)))
        store.replay("a", store.job("a").epoch, by="ops")

        settle(store, failed(one(store)))
        assert store.job("a").status == Status.PENDING
        settle(store, failed(one(store)))
        assert store.job("a").status == Status.FAILED

    def test_c34_a_replay_needs_its_unique_key(self, store: Store) -> None:
        """While another unfinished job has the key, the replay is refused and names it; then it takes the key back."""
        store.add([new_job("a", unique="k")])
        grant = one(store)
        settle(store, completed(grant))
        store.add([new_job("b", unique="k")])
        before = all_of(store)

        with pytest.raises(Conflict, match=r"'k'.*'b'"):
            store.replay("a", grant.epoch, by="ops")
        assert all_of(store) == before

        store.cancel("b", 0, by="ops")
        store.replay("a", grant.epoch, by="ops")
        [(job, created)] = store.add([new_job("c", unique="k")])
        assert (job.id, created) == ("a", False)

    def test_c48_a_requeued_job_is_due_at_its_old_place_and_keeps_its_budgets(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """It is claimed before jobs that were added later; only the attempt counts up."""
        store.add([new_job("a", retry=Retry(max_errors=5)), new_job("b")])
        settle(store, failed(one(store)))
        one(store)
        expire(store, clock)
        grant = one(store)
        assert grant.spec.id == "a"
        store.progress([Progress("a", grant.epoch, 0.5, "half", '{"page":7}')])
        store.begin_effect("a", grant.epoch, "charge")
        before, effects = store.job("a"), store.effects("a")
        clock.advance(1)
        store.add([new_job("c")])

        job = store.requeue("a", grant.epoch, by="ops", note="stuck")

        assert job == store.job("a")
        assert (job.status, job.owner, job.reason) == (Status.PENDING, None, Reason.MANUAL)
        assert job.epoch > grant.epoch
        assert (job.errors, job.reclaims, job.attempt) == (before.errors, before.reclaims, before.attempt + 1)
        assert (job.run_us, job.progress, job.note) == (before.run_us, 0.5, "half")
        assert store.effects("a") == effects
        ended = store.ownerships("a")[-1]
        assert (ended.epoch, ended.ended, ended.by, ended.note) == (grant.epoch, "manual", "ops", "stuck")
        granted = store.claim("next", limit=10)
        assert ids(granted) == ["a", "b", "c"]
        assert (granted[0].reason, granted[0].checkpoint) == (Reason.MANUAL, '{"page":7}')

    def test_c48_the_owner_of_a_requeued_job_is_refused_with_who_and_why(self, store: Store) -> None:
        """Whatever it writes, before and after the next claim."""
        store.add([new_job("a")])
        grant = one(store, "worker")
        job = store.requeue("a", grant.epoch, by="ops", note="stuck")

        for owner in (None, "next"):
            if owner is not None:
                one(store, owner)
            for reply in (*store.renew([Renewal("a", grant.epoch)]), *store.settle([completed(grant)])):
                refused = refusal(reply)
                assert (refused.presented, refused.owner, refused.reason) == (grant.epoch, owner, Reason.MANUAL)
                assert (refused.moved_by, refused.note) == ("ops", "stuck")
                assert "'ops'" in str(refused)
                assert "stuck" in str(refused)
        assert job.epoch < store.job("a").epoch

    def test_c48_a_requeued_job_due_later_is_due_now(self, store: Store, clock: AlarmClock) -> None:
        """A transfer may have given it to an owner before its time."""
        store.add([new_job("a", delay_seconds=60)])
        moved = store.transfer("a", 0, to="b", by="ops")

        job = store.requeue("a", moved.epoch, by="ops")

        assert job.run_us == clock.now()
        assert ids(store.claim("c")) == ["a"]

    def test_c48_a_requeued_job_gives_its_lock_and_keeps_its_unique_key(self, store: Store) -> None:
        """What is parked behind the key waits to be claimed again, and no second job with the unique key is added."""
        store.add([new_job("a", lock="k", unique="u", priority=-1), new_job("b", lock="k", queue="other")])
        grant = one(store, queues=["default"])
        assert store.claim("c", queues=["other"]) == []

        store.requeue("a", grant.epoch, by="ops")

        [again] = store.add([new_job("d", unique="u")])
        assert (again.created, again.job.id) == (False, "a")
        assert ids(store.claim("c", limit=10)) == ["b"]
