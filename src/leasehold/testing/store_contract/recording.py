"""C38 to C40, C64, C67, C68: who held a job, what was recorded, and which keys are open."""

from __future__ import annotations

import pytest

from ...core.job import Progress, new_job
from ...core.ownership import Note, NoteKind, Ownership, Reason
from ...core.retention import Retention
from ...core.retry import Retry
from ...errors import Conflict, StaleEpoch, UnknownJob
from ...store import OpenKey, Renewal, Store
from .support import SECOND, AlarmClock, Contract, completed, expire, failed, one, released, settle


class Recording(Contract):
    """Every hand-over says why, and can be read afterwards."""

    def test_c39_the_history_of_a_job(self, store: Store, clock: AlarmClock) -> None:
        """Each ownership has its epoch, owner, grant, deadline, how it began and how, when and by whom it ended."""
        start = clock.now()
        store.add([new_job("a")])
        first = one(store, "a")
        clock.advance(10)
        store.renew([Renewal("a", first.epoch)])
        clock.advance(30)
        second = one(store, "b")
        clock.advance(1)
        third = store.transfer("a", second.epoch, to="c", by="ops", note="b is on holiday")
        clock.advance(1)
        settle(store, failed(third, "no route"))
        fourth = one(store, "d")
        clock.advance(1)
        settle(store, completed(fourth))

        reclaimed, transferred, retried, done = store.ownerships("a")

        assert (reclaimed.owner, reclaimed.epoch, reclaimed.began) == ("a", first.epoch, Reason.CLAIM)
        assert (reclaimed.granted_us, reclaimed.deadline_us) == (start, start + 40 * SECOND)
        assert (reclaimed.ended, reclaimed.ended_us) == (Reason.TIMEOUT, start + 40 * SECOND)
        assert reclaimed.by is not None
        assert transferred == Ownership(
            "a",
            second.epoch,
            "b",
            Reason.TIMEOUT,
            second.granted_us,
            second.expires_us,
            Reason.MANUAL,
            start + 41 * SECOND,
            "ops",
            "b is on holiday",
        )
        assert (retried.owner, retried.epoch, retried.began) == ("c", third.epoch, Reason.MANUAL)
        assert (retried.ended, retried.by, retried.note) == (Reason.RETRY, "c", "no route")
        assert (done.owner, done.epoch, done.began) == ("d", fourth.epoch, Reason.RETRY)
        assert (done.ended, done.ended_us, done.by) == ("done", clock.now(), "d")

    def test_c39_a_live_ownership_has_no_end(self, store: Store, clock: AlarmClock) -> None:
        """It is the last of the list, with the deadline of now."""
        store.add([new_job("a")])
        assert store.ownerships("a") == []
        grant = one(store, "a")
        clock.advance(10)
        store.renew([Renewal("a", grant.epoch)])

        [live] = store.ownerships("a")

        assert (live.owner, live.epoch, live.deadline_us) == ("a", grant.epoch, clock.now() + 30 * SECOND)
        assert (live.ended, live.ended_us, live.by, live.note) == (None,) * 4

    def test_c39_how_each_ownership_ends(self, store: Store, clock: AlarmClock) -> None:
        """Done and failed by its owner; else the reason why it was taken or handed back."""
        names = ["done", "failed", "retry", "release", "manual", "cancellation", "stall", "timeout"]
        store.add([new_job(name, stall_seconds=5 if name == "stall" else None) for name in names])
        grants = {grant.spec.id: grant for grant in store.claim("a", limit=10)}
        store.settle(
            [
                completed(grants["done"]),
                failed(grants["failed"], retry=False),
                failed(grants["retry"]),
                released(grants["release"]),
            ]
        )
        store.finish("manual", grants["manual"].epoch, by="ops")
        store.cancel("cancellation", grants["cancellation"].epoch, by="ops")
        clock.advance(5)
        store.reclaim()
        expire(store, clock)

        assert {name: [ownership.ended for ownership in store.ownerships(name)] for name in names} == {
            name: [name] for name in names
        }

    def test_c39_a_replayed_job_keeps_its_history(self, store: Store, clock: AlarmClock) -> None:
        """The ownership that completed it is still there, as it was."""
        store.add([new_job("a")])
        first = one(store)
        settle(store, completed(first))
        before = store.ownerships("a")
        clock.advance(60)
        store.replay("a", first.epoch, by="ops")
        assert store.ownerships("a") == before

        second = one(store)

        assert [ownership.epoch for ownership in store.ownerships("a")] == [first.epoch, second.epoch]
        assert store.ownerships("a")[0] == before[0]

    def test_c39_epochs_that_nobody_held_are_no_ownerships(self, store: Store, clock: AlarmClock) -> None:
        """A reclaim, a cancellation and a replay issue an epoch without an owner."""
        store.add([new_job("a")])
        store.cancel("a", 0, by="ops")
        store.replay("a", store.job("a").epoch, by="ops")

        assert store.ownerships("a") == []

    def test_c39_a_second_store_reads_the_same(self, store: Store, another: Store, clock: AlarmClock) -> None:
        """History, events and jobs are kept with the data."""
        store.add([new_job("a")])
        one(store)
        expire(store, clock)
        grant = one(store)
        store.transfer("a", grant.epoch, to="b", by="ops", note="why")

        assert another.ownerships("a") == store.ownerships("a")
        assert another.events() == store.events()
        assert another.jobs() == store.jobs()

    def test_c40_the_common_path_records_nothing(self, store: Store) -> None:
        """Adds, claims, renewals, progress and completions cost no event."""
        store.add([new_job("a")])
        grant = one(store)
        store.renew([Renewal("a", grant.epoch)])
        store.progress([Progress("a", grant.epoch, 0.5)])
        settle(store, completed(grant))

        assert store.events() == []

    def test_c40_everything_else_is_recorded(self, store: Store, clock: AlarmClock) -> None:
        """Each with its kind, oldest first, numbered upwards, with the job, its epoch, and the instant."""
        store.add([new_job("a", retry=Retry(max_reclaims=1))])
        settle(store, released(one(store)))
        settle(store, failed(one(store)))
        one(store)
        expire(store, clock)
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        store.resolve("a", grant.epoch, "charge", by="ops", outcome="1")
        store.transfer("a", grant.epoch, to="b", by="ops")
        store.settle([completed(grant)])
        store.requeue("a", store.job("a").epoch, by="ops")
        one(store)
        expire(store, clock)
        store.finish("a", store.job("a").epoch, by="ops")
        store.replay("a", store.job("a").epoch, by="ops")
        store.cancel("a", store.job("a").epoch, by="ops")
        store.renew([Renewal("a", store.advance() + 1)])
        store.replay("a", store.job("a").epoch, by="ops")
        settle(store, failed(one(store), retry=False))

        events = store.events()

        assert [event.kind for event in events] == [
            "released",
            "retried",
            "reclaimed",
            "resolved",
            "transferred",
            "refused",
            "requeued",
            "failed",
            "finished",
            "replayed",
            "cancelled",
            "advanced",
            "alarm",
            "refused",
            "replayed",
            "failed",
        ]
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))
        assert events[-1].at_us == clock.now()
        assert events[-1].epoch == store.job("a").epoch
        assert {event.job_id for event in events if event.kind != "advanced"} == {"a"}

    def test_c40_an_event_has_its_facts(self, store: Store, clock: AlarmClock) -> None:
        """Who had the job, why it went, and the note."""
        store.add([new_job("a")])
        settle(store, failed(one(store, "a"), "no route"))
        one(store, "b")
        expire(store, clock)
        grant = one(store, "c")
        store.transfer("a", grant.epoch, to="d", by="ops", note="why")

        retried, reclaimed, transferred = store.events(job_id="a")

        assert (retried.owner, retried.facts["error"]) == ("a", "no route")
        assert (reclaimed.facts["was"], reclaimed.facts["reason"]) == ("b", Reason.TIMEOUT)
        assert (transferred.owner, transferred.facts["was"]) == ("d", "c")
        assert (transferred.facts["by"], transferred.facts["note"]) == ("ops", "why")

    def test_c64_a_note_of_a_guard_is_an_event(self, store: Store) -> None:
        """Whatever the epoch and the job: it reports what has happened elsewhere."""
        facts = {"resource": "file:ä.csv", "presented": 3, "doubts": [["a", 1]]}
        kinds = [NoteKind.REFUSED, NoteKind.DOUBTED, NoteKind.UNSEALED]

        for kind in kinds:
            store.record(Note(kind, "gone", 7, "me", {**facts, "nothing": None}))
        store.record(Note(NoteKind.REFUSED, None, 7, None, facts))

        events = store.events()
        assert [event.kind for event in events] == [*kinds, "refused"]
        assert [event.job_id for event in events] == ["gone"] * 3 + [None]
        assert {(event.epoch, event.owner) for event in events[:3]} == {(7, "me")}
        assert all(event.facts == facts for event in events)

    def test_c64_only_the_current_owner_records_its_keys(self, store: Store, clock: AlarmClock) -> None:
        """They are its own write, so a stale owner is refused, and the job is not touched."""
        store.add([new_job("a")])
        old = one(store, "old")
        expire(store, clock)
        new = one(store, "new")
        before = store.job("a")

        with pytest.raises(StaleEpoch) as refusal:
            store.record(Note(NoteKind.GUARDED, "a", old.epoch, "old", {"keys": [["reports", "x"]]}))
        with pytest.raises(UnknownJob):
            store.record(Note(NoteKind.GUARDED, "b", old.epoch, "old", {"keys": []}))
        store.record(Note(NoteKind.GUARDED, "a", new.epoch, "new", {"keys": [["reports", "x"]]}))

        assert (refusal.value.presented, refusal.value.current) == (old.epoch, new.epoch)
        assert [event.facts for event in store.events(job_id="a", kind="guarded")] == [{"keys": [["reports", "x"]]}]
        assert store.job("a") == before

    def test_c67_the_keys_of_a_job_that_ends_without_a_successor_are_open(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """A final failure, by its owner or by a claim that takes it back, a cancellation, a completion by hand."""
        names = ["cancelled", "failed", "finished", "pending", "running", "taken"]
        store.add([new_job(name, retry=Retry(max_reclaims=0)) for name in names])
        grants = {grant.spec.id: grant for grant in store.claim("a", limit=10)}
        for name, grant in grants.items():
            _guarded(store, name, grant.epoch, "x")
        store.settle([failed(grants["failed"], retry=False), released(grants["pending"])])
        store.cancel("cancelled", grants["cancelled"].epoch, by="ops")
        store.finish("finished", grants["finished"].epoch, by="ops")
        clock.advance(20)
        store.renew([Renewal("running", grants["running"].epoch)])
        clock.advance(20)
        store.claim("b", queues=["another"])

        found = store.open_keys(["reports"])

        ended = ["cancelled", "failed", "finished", "taken"]
        assert sorted(found.keys) == [OpenKey(name, store.job(name).epoch, "reports", "x") for name in ended]
        assert found.following is None
        assert store.open_keys(["other"]).keys == []

    def test_c67_what_its_owner_completes_is_forgotten(self, store: Store) -> None:
        """It has ended its own writes. After a replay, another end opens nothing of it."""
        store.add([new_job("a")])
        grant = one(store)
        _guarded(store, "a", grant.epoch, "x")
        settle(store, completed(grant))
        assert store.open_keys(["reports"]).keys == []

        store.replay("a", grant.epoch, by="ops")
        store.cancel("a", store.job("a").epoch, by="ops")

        assert store.open_keys(["reports"]).keys == []

    def test_c67_an_earlier_owners_keys_stay_open_if_a_later_one_does_not_take_them_over(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """The later one has sealed other keys, so the earlier one could still write to its own."""
        store.add([new_job("a")])
        _guarded(store, "a", one(store).epoch, "x", "y")
        expire(store, clock)
        grant = one(store)
        _guarded(store, "a", grant.epoch, "y", "z")
        settle(store, completed(grant))

        assert store.open_keys(["reports"]).keys == [OpenKey("a", grant.epoch, "reports", "x")]

    def test_c38_the_keys_of_an_unfinished_job_are_not_pruned(self, store: Store, clock: AlarmClock) -> None:
        """Its end could not seal them at once, and would name none that it has not reached."""
        store.add([new_job("a"), new_job("b")])
        for grant in store.claim("a", limit=2):
            _guarded(store, grant.spec.id, grant.epoch, "x")
        settle(store, completed(grant))
        clock.advance(10)

        assert store.prune(5 * SECOND) == (1, 1, 0)  # "b", and what was recorded of it

        assert [event.job_id for event in store.events(kind=NoteKind.GUARDED)] == ["a"]
        assert store.prune(5 * SECOND) == (0, 0, 0)

    def test_c38_the_keys_of_a_finished_job_are_not_pruned_before_they_are_sealed(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """Neither by hand nor by policy: to seal a job by its id is to read its keys from these events."""
        store.add([new_job("a")])
        grant = one(store)
        _guarded(store, "a", grant.epoch, "x")
        clock.advance(20)
        settle(store, failed(grant, retry=False))
        clock.advance(60)
        by_policy = Retention(events_seconds=1)

        assert store.prune(70 * SECOND) == (0, 0, 0)
        while store.tend(by_policy):
            pass

        assert [event.job_id for event in store.events(kind=NoteKind.GUARDED)] == ["a"]
        _sealed(store, "a", grant.epoch + 1, "x")
        clock.advance(60)
        while store.tend(by_policy):
            pass
        assert store.events() == []

    def test_c67_a_sealed_key_is_no_longer_open(self, store: Store) -> None:
        """Unless an owner has recorded it again since, which the seal is not above."""
        store.add([new_job("a")])
        grant = one(store)
        _guarded(store, "a", grant.epoch, "x", "y")
        settle(store, failed(grant, retry=False))

        _sealed(store, "a", grant.epoch, "x", "y")  # not above
        assert [open_key.key for open_key in store.open_keys(["reports"]).keys] == ["x", "y"]
        _sealed(store, "a", grant.epoch + 1, "x")
        assert [open_key.key for open_key in store.open_keys(["reports"]).keys] == ["y"]
        store.replay("a", grant.epoch, by="ops")
        again = one(store)
        _guarded(store, "a", again.epoch, "x")
        _sealed(store, "a", grant.epoch + 1, "x", "y")  # late
        settle(store, failed(again, retry=False))

        assert store.open_keys(["reports"]).keys == [OpenKey("a", again.epoch, "reports", "x")]
        _sealed(store, "gone", grant.epoch, "x")  # of a job that is not known: nothing to forget

    @pytest.mark.parametrize("by", ["prune", "prune_job", "tend"])
    def test_c67_a_job_is_not_pruned_before_its_open_keys_are_sealed(
        self, store: Store, clock: AlarmClock, by: str
    ) -> None:
        """Its last owner could write to them for good. The keys of an owner that has completed the job are not open."""
        ended = ["cancelled", "failed", "finished", "overtaken", "short"]
        store.add([new_job("done"), *map(new_job, ended[:-1]), new_job("short", keep_seconds=1)])
        for grant in store.claim("a", limit=10):
            _guarded(store, grant.spec.id, grant.epoch, "x")
        expire(store, clock)
        grants = {grant.spec.id: grant for grant in store.claim("b", limit=10)}
        _guarded(store, "overtaken", grants["overtaken"].epoch, "y")
        _guarded(store, "done", grants["done"].epoch, "x")
        for name in ("failed", "short"):
            settle(store, failed(grants[name], retry=False))
        for name in ("overtaken", "done"):
            settle(store, completed(grants[name]))
        store.cancel("cancelled", grants["cancelled"].epoch, by="ops")
        store.finish("finished", grants["finished"].epoch, by="ops")
        clock.advance(60)

        _prune(store, by)

        assert sorted(job.id for job in store.jobs()) == ended
        assert sorted({key.job_id for key in store.open_keys(["reports"]).keys}) == ended
        for job in store.jobs():
            _sealed(store, job.id, job.epoch + 1, "x")
        clock.advance(60)
        _prune(store, by)
        assert store.jobs() == []
        store.add([new_job("failed")])
        store.cancel("failed", 0, by="ops")
        assert store.open_keys(["reports"]).keys == []

    def test_c68_open_keys_come_in_portions(self, store: Store) -> None:
        """Each of whole jobs; together they are all."""
        store.add([new_job(f"{number}") for number in range(5)])
        for grant in store.claim("a", limit=5):
            _guarded(store, grant.spec.id, grant.epoch, "x", "y", "z")
            settle(store, failed(grant, retry=False))
        found, portion = [], store.open_keys(["reports"], limit=4)
        while portion.following is not None:
            assert 3 <= len(portion.keys) <= 6
            found += portion.keys
            portion = store.open_keys(["reports"], after=portion.following, limit=4)

        assert sorted(found + portion.keys) == sorted(store.open_keys(["reports"]).keys)
        assert len(found + portion.keys) == 15

    def test_c40_a_reader_reads_on_where_it_was(self, store: Store) -> None:
        """Events can be asked for by job, by kind, behind a number, and a few at a time."""
        store.add([new_job("a"), new_job("b")])
        for job_id in ("a", "b"):
            store.cancel(job_id, 0, by="ops")
            store.replay(job_id, store.job(job_id).epoch, by="ops")
        first, *rest = store.events()

        assert store.events(after=first.number) == rest
        assert store.events(limit=1) == [first]
        assert store.events(after=rest[-1].number) == store.events(kind="nothing") == []
        assert [event.kind for event in store.events(job_id="b")] == ["cancelled", "replayed"]
        assert [event.job_id for event in store.events(kind="replayed", after=first.number, limit=1)] == ["a"]

    def test_c40_a_store_that_traces_records_the_common_path_too(self, tracing: Store, clock: AlarmClock) -> None:
        """One event for each add, claim, renewal, report and completion, follow-ups included."""
        tracing.add([new_job("a"), new_job("a")])
        grant = one(tracing, "a")
        tracing.renew([Renewal("a", grant.epoch)])
        tracing.progress([Progress("a", grant.epoch, 0.5)])
        settle(tracing, completed(grant, then=(new_job("then"),)))

        events = tracing.events()

        assert [event.kind for event in events if event.job_id == "a"] == [
            "added",
            "claimed",
            "renewed",
            "progressed",
            "completed",
        ]
        assert [event.kind for event in events if event.job_id == "then"] == ["added"]
        assert [event.owner for event in events if event.kind == "claimed"] == ["a"]


def _guarded(store: Store, job_id: str, epoch: int, *keys: str) -> None:
    store.record(Note(NoteKind.GUARDED, job_id, epoch, "a", {"keys": [["reports", key] for key in keys]}))


def _sealed(store: Store, job_id: str, epoch: int, *keys: str) -> None:
    store.record(Note(NoteKind.SEALED, job_id, epoch, None, {"keys": [["reports", key] for key in keys], "by": "ops"}))


def _prune(store: Store, verb: str) -> None:
    """Have that verb prune every job that it may."""
    if verb == "prune":
        store.prune(0, keep_ids_us=0)
    elif verb == "tend":
        while store.tend(Retention(0, 0, 0, None, 0)):
            pass
    else:
        open_jobs = {key.job_id for key in store.open_keys(["reports"]).keys}
        for job in store.jobs():
            if job.id in open_jobs:
                with pytest.raises(Conflict, match=f"keys are not sealed yet.*leasehold guard seal {job.id} --app"):
                    store.prune_job(job.id, job.epoch, by="ops")
            else:
                store.prune_job(job.id, job.epoch, by="ops", keep_ids_us=0)
