"""C3 to C6: only the current epoch writes, time refuses nothing, and a refusal has its reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ...core.children import new_child
from ...core.job import Grant, Outcome, Progress, Settlement, Status, new_job
from ...core.ownership import STORE, Reason
from ...core.retry import Retry
from ...errors import Conflict, Settled, StaleEpoch, UnknownJob
from ...store import Refusal, Renewal, Store
from .support import (
    AlarmClock,
    Contract,
    all_of,
    completed,
    expire,
    failed,
    in_threads,
    last_event,
    one,
    refusal,
    released,
    settle,
)

Write = Callable[[Store, str, int], "int | Refusal | None"]


def _raising(call: Callable[[Store, str, int], object]) -> Write:
    """A verb that raises its refusal, as one that returns it."""

    def write(store: Store, job_id: str, epoch: int) -> Refusal | None:
        try:
            call(store, job_id, epoch)
        except (StaleEpoch, UnknownJob) as refused:
            return refused
        return None

    return write


def _settling(outcome: Outcome) -> Write:
    def write(store: Store, job_id: str, epoch: int) -> Refusal | None:
        then = (new_child(job_id, new_job("then"), 1),) if outcome is Outcome.COMPLETE else ()
        return store.settle([Settlement(job_id, epoch, outcome, "7", then, error="boom")])[0]

    return write


def _plain(job_id: str, epoch: int) -> Settlement:
    return Settlement(job_id, epoch, Outcome.COMPLETE, "7")


# Every write that an owner has. An effect named "charge" has been begun before.
WRITES: dict[str, Write] = {
    "renew": lambda store, job_id, epoch: store.renew([Renewal(job_id, epoch)])[0],
    "progress": lambda store, job_id, epoch: store.progress([Progress(job_id, epoch, 0.5, "half", "5")])[0],
    "add": _raising(
        lambda store, job_id, epoch: store.add_children(job_id, epoch, [new_child(job_id, new_job("child"), 1)])
    ),
    "begin": _raising(lambda store, job_id, epoch: store.begin_effect(job_id, epoch, "charge", again=True)),
    "end": _raising(lambda store, job_id, epoch: store.end_effect(job_id, epoch, "charge", "1")),
    **{outcome.value: _settling(outcome) for outcome in Outcome},
    # The same verbs on their other paths: without follow-ups, and in a batch.
    "complete, plain": lambda store, job_id, epoch: store.settle([_plain(job_id, epoch)])[0],
    "complete, plain, in a batch": lambda store, job_id, epoch: store.settle(
        [_plain("missing", epoch), _plain(job_id, epoch), _plain("missing too", epoch)]
    )[1],
    "complete, in a mixed batch": lambda store, job_id, epoch: store.settle(
        [Settlement("missing", epoch, Outcome.RELEASE), _plain(job_id, epoch)]
    )[1],
    "renew, in a batch": lambda store, job_id, epoch: store.renew(
        [Renewal("missing", epoch), Renewal(job_id, epoch, 1_000_000)]
    )[1],
    "progress, in a batch": lambda store, job_id, epoch: store.progress(
        [Progress("missing", epoch, 0.5), Progress(job_id, epoch, 0.5)]
    )[1],
}

# How an ownership can be ended by others, and the reason that the refusal of its owner has.
TAKEN: dict[str, tuple[Callable[[Store, AlarmClock, Grant], object], Reason]] = {
    "timeout": (lambda store, clock, grant: expire(store, clock), Reason.TIMEOUT),
    "transfer": (lambda store, clock, grant: store.transfer("a", grant.epoch, to="b", by="ops"), Reason.MANUAL),
    "cancel": (lambda store, clock, grant: store.cancel("a", grant.epoch, by="ops"), Reason.CANCELLATION),
    "finish": (lambda store, clock, grant: store.finish("a", grant.epoch, by="ops"), Reason.MANUAL),
}


def held(store: Store, owner: str = "a") -> Grant:
    """A lease on job "a", with an effect begun."""
    store.add([new_job("a")])
    grant = one(store, owner)
    store.begin_effect("a", grant.epoch, "charge")
    return grant


class Fencing(Contract):
    """The epoch decides, and nothing else."""

    @pytest.mark.parametrize("write", WRITES)
    def test_c3_a_write_with_an_old_epoch_changes_nothing(self, store: Store, clock: AlarmClock, write: str) -> None:
        """An owner that slept through its lease is refused, although its successor has the same name."""
        old = held(store, "worker-0")
        expire(store, clock)
        new = one(store, "worker-0")
        before = all_of(store)

        refused = refusal(WRITES[write](store, "a", old.epoch))

        assert (refused.presented, refused.current, refused.owner) == (old.epoch, new.epoch, "worker-0")
        assert all_of(store) == before
        assert store.check([("a", new.epoch)]) == [None]

    @pytest.mark.parametrize("write", WRITES)
    def test_c3_a_write_between_two_owners_changes_nothing(self, store: Store, clock: AlarmClock, write: str) -> None:
        """Taken back is taken, although the job has no new owner yet; nor does the store's own epoch write."""
        old = held(store)
        expire(store, clock)
        before = all_of(store)

        refused = refusal(WRITES[write](store, "a", old.epoch))
        nobodys = refusal(WRITES[write](store, "a", before["a"][0].epoch))

        assert (refused.current, refused.owner, refused.reason) == (before["a"][0].epoch, None, Reason.TIMEOUT)
        assert nobodys.owner is None
        assert all_of(store) == before

    @pytest.mark.parametrize("write", WRITES)
    def test_c3_an_epoch_of_zero_writes_nothing(self, store: Store, write: str) -> None:
        """A job that was never claimed has no owner: "never" is not an epoch that can be held."""
        store.add([new_job("a")])
        before = all_of(store)

        refused = refusal(WRITES[write](store, "a", 0))

        assert (refused.presented, refused.current, refused.owner, refused.reason) == (0, 0, None, None)
        assert not isinstance(refused, Settled)
        assert all_of(store) == before

    @pytest.mark.parametrize("write", WRITES)
    def test_c3_another_jobs_epoch_writes_nothing(self, store: Store, write: str) -> None:
        """One integer names one ownership of one job."""
        held(store)
        store.add([new_job("b")])
        other = one(store)
        before = all_of(store)

        refusal(WRITES[write](store, "a", other.epoch))

        assert all_of(store) == before

    @pytest.mark.parametrize("write", WRITES)
    def test_c3_a_write_to_an_unknown_job_says_so(self, store: Store, write: str) -> None:
        """Unknown means refused, never accepted."""
        epoch = store.advance()

        answer = WRITES[write](store, "unknown", epoch)

        assert isinstance(answer, UnknownJob)
        assert answer.job_id == "unknown"
        assert store.jobs() == []

    def test_c3_a_refusal_stands_in_the_place_of_its_item(self, store: Store, clock: AlarmClock) -> None:
        """In a batch, what is refused does not stop the rest, and the reply keeps the order."""
        store.add([new_job(name) for name in ("a", "b", "c")])
        a, b, c = store.claim("worker", limit=3)
        store.transfer("b", b.epoch, to="other", by="ops")
        renewals = [Renewal("a", a.epoch), Renewal("b", b.epoch), Renewal("no", 1), Renewal("c", c.epoch)]
        reports = [
            Progress("a", a.epoch, 0.1),
            Progress("b", b.epoch, 0.2),
            Progress("no", 1),
            Progress("c", c.epoch, 0.3),
        ]
        clock.advance(1)

        renewed = store.renew(renewals)
        reported = store.progress(reports)
        checked = store.check([(job_id, epoch) for job_id, epoch, *_ in renewals])
        settled = store.settle([completed(a), completed(b), Settlement("no", 1, Outcome.RELEASE), completed(c)])

        assert [type(answer) for answer in renewed] == [int, StaleEpoch, UnknownJob, int]
        for answers in (reported, checked, settled):
            assert [type(answer) for answer in answers] == [type(None), StaleEpoch, UnknownJob, type(None)]
        assert [store.job(name).status for name in ("a", "b", "c")] == ["done", "running", "done"]
        assert [store.job(name).progress for name in ("a", "b", "c")] == [0.1, None, 0.3]

    @pytest.mark.parametrize("batch", ["alike", "other results", "a follow-up", "a key", "a failure"])
    def test_c3_each_completion_of_a_batch_is_compared(self, store: Store, clock: AlarmClock, batch: str) -> None:
        """A worker settles the work of many owners at once; the stale ones among them change nothing."""
        store.add([new_job(name, lock=f"key of {name}" if batch == "a key" else None) for name in "abcd"])
        a, b, c, d = store.claim("worker", limit=4)
        taken = store.transfer("b", b.epoch, to="other", by="ops")
        store.cancel("d", d.epoch, by="ops")
        then = (new_child("c", new_job("then"), 1),) if batch == "a follow-up" else ()
        settlements = [completed(a), completed(b), completed(c, then=then), completed(d)]
        if batch == "other results":
            settlements = [one._replace(result=str(number)) for number, one in enumerate(settlements)]
        if batch == "a failure":
            settlements[0] = failed(a, retry=False)

        replies = store.settle(settlements)

        assert [type(reply) for reply in replies] == [type(None), StaleEpoch, type(None), StaleEpoch]
        assert store.lease("b", "other") == taken
        statuses = ["failed" if batch == "a failure" else "done", "running", "done", "cancelled"]
        assert [store.job(name).status for name in "abcd"] == statuses

    def test_c3_compare_and_write_are_one_step(self, store: Store) -> None:
        """Of a completion and a transfer at the same moment exactly one happens."""
        for number in range(10):
            job_id = f"job-{number}"
            store.add([new_job(job_id)])
            grant = one(store)

            settled, moved = in_threads(
                partial(store.settle, [completed(grant)]),
                partial(store.transfer, job_id, grant.epoch, to="b", by="ops"),
            )

            if settled == [None]:
                assert isinstance(moved, Conflict)
                assert store.job(job_id).status == "done"
            else:
                assert isinstance(settled[0], StaleEpoch)
                assert store.lease(job_id, "b") == moved

    @pytest.mark.parametrize("write", WRITES)
    def test_c4_time_alone_refuses_nothing(self, store: Store, clock: AlarmClock, write: str) -> None:
        """An owner long past its deadline whose job was not taken over may still write, under the same epoch."""
        grant = held(store)
        clock.advance(3600)

        answer = WRITES[write](store, "a", grant.epoch)

        assert not isinstance(answer, Exception)
        assert store.job("a").epoch == grant.epoch

    def test_c4_readers_take_nothing(self, store: Store, clock: AlarmClock) -> None:
        """Looking at an expired lease does not end it; a renewal makes it whole again."""
        grant = held(store)
        clock.advance(3600)
        store.add([new_job("b")])
        assert store.job("a").status == "running"
        assert [job.id for job in store.jobs(owner="a")] == ["a"]
        assert store.lease("a", "a").epoch == grant.epoch
        assert store.check([("a", grant.epoch)]) == [None]

        assert store.renew([Renewal("a", grant.epoch)]) == [clock.now() + grant.lease_us]
        assert store.reclaim() == []

    @pytest.mark.parametrize("how", TAKEN)
    def test_c5_the_loser_is_told_how_it_lost(self, store: Store, clock: AlarmClock, how: str) -> None:
        """The refusal names both epochs, the current owner, and why the presented ownership ended."""
        grant = held(store)
        take, reason = TAKEN[how]
        take(store, clock, grant)
        now = store.job("a")

        [refused] = store.settle([completed(grant)])

        assert type(refused) is StaleEpoch
        assert refused.job_id == "a"
        assert (refused.presented, refused.current) == (grant.epoch, now.epoch)
        assert (refused.owner, refused.reason) == (now.owner, reason)

    def test_c5_the_reason_is_that_of_the_presented_ownership(self, store: Store, clock: AlarmClock) -> None:
        """Whatever ended the later ones, each owner gets the reason that ended its own."""
        first = held(store)
        expire(store, clock)
        second = one(store)
        third = store.transfer("a", second.epoch, to="c", by="ops")
        store.cancel("a", third.epoch, by="ops")

        reasons = [refusal(store.check([("a", grant.epoch)])[0]).reason for grant in (first, second, third)]

        assert reasons == [Reason.TIMEOUT, Reason.MANUAL, Reason.CANCELLATION]

    @pytest.mark.parametrize("how", ["transfer", "cancel", "finish"])
    def test_c5_the_loser_is_told_who_moved_the_job_and_why(self, store: Store, how: str) -> None:
        """As facts, and in the message."""
        grant = held(store)
        act: dict[str, Callable[..., object]] = {
            "transfer": lambda: store.transfer("a", grant.epoch, to="b", by="ops", note="it hangs"),
            "cancel": lambda: store.cancel("a", grant.epoch, by="ops", note="it hangs"),
            "finish": lambda: store.finish("a", grant.epoch, by="ops", note="it hangs"),
        }
        act[how]()

        refused = refusal(store.renew([Renewal("a", grant.epoch)])[0])

        assert (refused.moved_by, refused.note) == ("ops", "it hangs")
        assert " by 'ops': 'it hangs'" in str(refused)
        ended = {"transfer": None, "cancel": Status.CANCELLED, "finish": Status.DONE}[how]
        assert (refused.status, refused.finished_by) == (ended, None if ended is None else "ops")

    @pytest.mark.parametrize("how", ["completed", "failed", "exhausted", "cancelled later"])
    def test_c5_the_loser_is_told_how_the_job_ended(self, store: Store, clock: AlarmClock, how: str) -> None:
        """By whom and when, as far as the record says."""
        store.add([new_job("a", None, retry=Retry(max_errors=1, max_reclaims=1))])
        grant = one(store)
        expire(store, clock)
        second = one(store, "b")
        clock.advance(1)
        by: str | None = "b"
        if how == "completed":
            settle(store, completed(second))
        elif how == "failed":
            settle(store, failed(second))
        elif how == "exhausted":
            expire(store, clock)
            by = STORE
        else:
            settle(store, released(second))
            store.cancel("a", second.epoch, by="ops")
            by = None  # no ownership ended then
        finished = store.job("a")

        refused = refusal(store.check([("a", grant.epoch)])[0])

        assert type(refused) is StaleEpoch
        assert (refused.moved_by, refused.reason, refused.owner) == (STORE, Reason.TIMEOUT, None)
        assert (refused.status, refused.finished_by) == (finished.status, by)
        assert refused.finished_at == finished.finished_at is not None
        at = f"at {finished.finished_at.isoformat(timespec='seconds')}"
        words = {
            "completed": f"it was completed by 'b' {at}.",
            "failed": f"it failed {at}, reported by 'b'.",
            "exhausted": f"it failed {at}, reported by 'leasehold'.",
            "cancelled later": f"it was cancelled {at}.",
        }
        assert words[how] in str(refused)

    def test_c5_of_an_unfinished_job_no_outcome_is_told(self, store: Store, clock: AlarmClock) -> None:
        """A replayed job has none either, though it had one."""
        grant = held(store)
        expire(store, clock)
        waiting = refusal(store.check([("a", grant.epoch)])[0])
        settle(store, completed(one(store, "b")))
        store.replay("a", store.job("a").epoch, by="ops")

        again = refusal(store.check([("a", grant.epoch)])[0])

        for refused in (waiting, again):
            assert (refused.status, refused.finished_by, refused.finished_at) == (None, None, None)
            assert "no owner holds it now" in str(refused)

    def test_c5_a_settled_owner_is_told_how_the_job_ended(self, store: Store) -> None:
        """Its own outcome, say."""
        grant = held(store)
        settle(store, completed(grant))

        refused = refusal(store.check([("a", grant.epoch)])[0])

        assert (type(refused), refused.status, refused.finished_by) == (Settled, Status.DONE, grant.owner)
        assert f"it was completed by {grant.owner!r} at" in str(refused)

    @pytest.mark.parametrize("settlement", [completed, released])
    def test_c5_the_check_of_an_owner_that_settled_is_not_recorded(
        self, store: Store, settlement: Callable[[Grant], Settlement]
    ) -> None:
        """A worker asks so after each handler that has settled its job; a write is still recorded."""
        grant = held(store)
        settle(store, settlement(grant))

        assert isinstance(store.check([("a", grant.epoch)])[0], Settled)
        assert store.events(kind="refused") == []

        assert isinstance(store.renew([Renewal("a", grant.epoch)])[0], Settled)
        assert [event.facts["verb"] for event in store.events(kind="refused")] == ["renew"]

    @pytest.mark.parametrize("later", ["at once", "after another owner"])
    def test_c5_an_owner_that_settled_is_told_that(self, store: Store, later: str) -> None:
        """A write after the own settlement is `Settled`, which has no reason."""
        grant = held(store)
        settle(store, released(grant))
        if later == "after another owner":
            settle(store, failed(one(store, "b")))

        refused = refusal(store.renew([Renewal("a", grant.epoch)])[0])

        assert type(refused) is Settled
        assert refused.reason is None

    @pytest.mark.parametrize("write", WRITES)
    def test_c5_a_refused_write_is_recorded_with_its_facts(self, store: Store, clock: AlarmClock, write: str) -> None:
        """The event has the facts of the refusal."""
        grant = held(store)
        store.transfer("a", grant.epoch, to="b", by="ops")
        clock.advance(1)

        refused = refusal(WRITES[write](store, "a", grant.epoch))

        event = last_event(store, "refused")
        assert (event.job_id, event.owner, event.at_us) == ("a", "b", clock.now())
        assert event.facts["presented"] == refused.presented == grant.epoch
        assert event.facts["current"] == refused.current
        assert event.facts["reason"] == refused.reason == Reason.MANUAL
        assert event.facts["verb"] == refused.verb

    def test_c5_a_settled_owners_event_has_no_reason(self, store: Store) -> None:
        """As its refusal has none."""
        grant = held(store)
        settle(store, completed(grant))

        store.settle([failed(grant)])

        assert last_event(store, "refused").facts.get("reason") is None

    @pytest.mark.parametrize("write", WRITES)
    def test_c6_an_epoch_from_the_future_is_refused_and_alarmed(
        self, store: Store, clock: AlarmClock, write: str
    ) -> None:
        """An epoch above all that were issued says that the store was rolled back: refused, never trusted."""
        held(store)
        future = store.advance() + 10**9
        before = all_of(store)

        refused = refusal(WRITES[write](store, "a", future))

        assert (refused.presented, refused.current) == (future, before["a"][0].epoch)
        assert not isinstance(refused, Settled)
        assert all_of(store) == before
        alarm = last_event(store, "alarm")
        assert (alarm.job_id, alarm.facts["presented"]) == ("a", future)
        assert last_event(store, "refused").facts["presented"] == future

    def test_c6_an_operators_epoch_from_the_future_is_alarmed_too(self, store: Store) -> None:
        """Under any owner's name."""
        held(store)
        future = store.advance() + 10**9

        with pytest.raises(StaleEpoch):
            store.cancel("a", future, by="ops")

        assert last_event(store, "alarm").facts["presented"] == future

    def test_c6_an_old_epoch_alarms_nobody(self, store: Store, clock: AlarmClock) -> None:
        """A slow owner is everyday life."""
        grant = held(store)
        expire(store, clock)

        store.settle([completed(grant)])

        assert store.events(kind="alarm") == []
