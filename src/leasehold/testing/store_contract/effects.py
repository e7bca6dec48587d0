"""C29, C30, C35: named effects, begun once, ended once, and settled by hand when the outcome is not known."""

from __future__ import annotations

import pytest

from ...core.job import new_job
from ...errors import Conflict, InDoubt, StaleEpoch, UnknownJob
from ...lease import Lease
from ...store import Store
from .support import AlarmClock, Contract, all_of, completed, expire, one, released, settle


class Effects(Contract):
    """An intent, then an outcome, both under the current epoch."""

    def test_c29_the_first_to_begin_is_fresh(self, store: Store) -> None:
        """It alone may bring the effect about; a second call of the same owner may not."""
        store.add([new_job("a")])
        epoch = one(store).epoch

        first = store.begin_effect("a", epoch, "charge")
        second = store.begin_effect("a", epoch, "charge")

        assert (first.fresh, first.effect.known, first.effect.outcome) == (True, False, None)
        assert (first.effect.job_id, first.effect.name, first.effect.epoch) == ("a", "charge", epoch)
        assert (second.fresh, second.effect) == (False, first.effect)
        assert store.effects("a") == [first.effect]

    def test_c29_every_later_owner_gets_the_same_key(self, store: Store, clock: AlarmClock) -> None:
        """Over a reclaim, and over an intent that was cleared; another name or another job has another key."""
        store.add([new_job("a"), new_job("b")])
        first, other = store.claim("worker", limit=2)
        key = store.begin_effect("a", first.epoch, "charge").effect.key
        others = {
            store.begin_effect("a", first.epoch, "mail").effect.key,
            store.begin_effect("b", other.epoch, "charge").effect.key,
        }
        expire(store, clock)
        second = one(store)

        assert store.begin_effect("a", second.epoch, "charge").effect.key == key
        store.end_effect("a", second.epoch, "charge", None)
        assert store.begin_effect("a", second.epoch, "charge").effect.key == key
        assert len(others | {key}) == 3

    def test_c29_a_known_outcome_is_handed_to_every_later_owner(self, store: Store) -> None:
        """A second call, even one that would repeat it, gets the recorded outcome and may not do it again."""
        store.add([new_job("a")])
        first = one(store)
        store.begin_effect("a", first.epoch, "charge")
        store.end_effect("a", first.epoch, "charge", '{"receipt":7}')
        settle(store, released(first))
        second = one(store)

        for again in (False, True):
            effect, fresh = store.begin_effect("a", second.epoch, "charge", again=again)
            assert (fresh, effect.known, effect.outcome) == (False, True, '{"receipt":7}')

    def test_c29_an_effect_in_doubt_is_fresh_only_if_asked_again(self, store: Store, clock: AlarmClock) -> None:
        """The next owner learns that an earlier one began, and may repeat it with the same key if that is harmless."""
        store.add([new_job("a")])
        first = one(store)
        begun = store.begin_effect("a", first.epoch, "charge").effect
        expire(store, clock)
        second = one(store)

        in_doubt = store.begin_effect("a", second.epoch, "charge")
        repeated = store.begin_effect("a", second.epoch, "charge", again=True)

        assert (in_doubt.fresh, in_doubt.effect) == (False, begun)
        assert (repeated.fresh, repeated.effect.known, repeated.effect.key) == (True, False, begun.key)
        assert repeated.effect.epoch == second.epoch

    def test_c29_once_raises_in_doubt_for_the_next_owner(self, store: Store, clock: AlarmClock) -> None:
        """Through a lease: a call that died in between is neither repeated nor taken for done."""
        store.add([new_job("a")])
        calls: list[str] = []

        def dies(key: str) -> str:
            calls.append(key)
            raise OSError("the connection broke")

        with pytest.raises(OSError, match="broke"):
            Lease(store, one(store)).once("charge", dies)
        expire(store, clock)
        lease = Lease(store, one(store))

        with pytest.raises(InDoubt) as doubt:
            lease.once("charge", lambda key: "never called")
        outcome = lease.once("charge", lambda key: f"paid with {key}", in_doubt="retry")

        assert [doubt.value.key] == calls
        assert outcome == f"paid with {doubt.value.key}"
        assert lease.once("charge", lambda key: "never called") == outcome

    def test_c30_the_outcome_is_recorded_under_the_current_epoch(self, store: Store) -> None:
        """And can be read with the job's effects, sorted by name."""
        store.add([new_job("a")])
        epoch = one(store).epoch
        for name in ("mail", "charge"):
            store.begin_effect("a", epoch, name)

        store.end_effect("a", epoch, "charge", "7")

        charge, mail = store.effects("a")
        assert (charge.name, charge.known, charge.outcome, charge.epoch) == ("charge", True, "7", epoch)
        assert (mail.name, mail.known, mail.outcome) == ("mail", False, None)

    def test_c30_what_did_not_happen_is_cleared(self, store: Store) -> None:
        """The next call begins anew."""
        store.add([new_job("a")])
        epoch = one(store).epoch
        store.begin_effect("a", epoch, "charge")

        store.end_effect("a", epoch, "charge", None)

        assert store.effects("a") == []
        assert store.begin_effect("a", epoch, "charge").fresh

    def test_c30_a_stale_owner_cannot_say_how_it_ended(self, store: Store, clock: AlarmClock) -> None:
        """Its effect stays in doubt: neither its outcome nor its "it did not happen" counts any more."""
        store.add([new_job("a")])
        old = one(store)
        store.begin_effect("a", old.epoch, "charge")
        expire(store, clock)
        before = all_of(store)

        for outcome in ("7", None):
            with pytest.raises(StaleEpoch):
                store.end_effect("a", old.epoch, "charge", outcome)

        assert all_of(store) == before

    def test_c30_an_effect_that_was_not_begun_has_no_outcome(self, store: Store) -> None:
        """It is the state that forbids it: a restored backup may have taken the intent away under a right call."""
        store.add([new_job("a")])
        grant = one(store)

        with pytest.raises(Conflict, match="charge"):
            store.end_effect("a", grant.epoch, "charge", "7")

        assert store.effects("a") == []

    def test_c30_effects_of_an_unknown_job(self, store: Store) -> None:
        """The effects of an unknown job are an error, not an empty list."""
        with pytest.raises(UnknownJob):
            store.effects("unknown")

    def test_c30_intents_and_outcomes_are_durable(self, store: Store, another: Store) -> None:
        """A second store on the same data knows both, and has the same keys."""
        store.add([new_job("a")])
        epoch = one(store).epoch
        for name in ("charge", "mail"):
            store.begin_effect("a", epoch, name)
        store.end_effect("a", epoch, "charge", "7")

        assert another.effects("a") == store.effects("a")
        assert another.begin_effect("a", epoch, "mail", again=True).effect.key == store.effects("a")[1].key

    def test_c35_the_next_owner_gets_the_resolved_outcome(self, store: Store, clock: AlarmClock) -> None:
        """An operator looked it up: the call is not repeated."""
        store.add([new_job("a")])
        first = one(store)
        key = store.begin_effect("a", first.epoch, "charge").effect.key
        expire(store, clock)

        store.resolve("a", store.job("a").epoch, "charge", by="ops", outcome='"paid"', note="found it")

        effect, fresh = store.begin_effect("a", one(store).epoch, "charge")
        assert (fresh, effect.known, effect.outcome, effect.key) == (False, True, '"paid"', key)

    def test_c35_resolved_as_not_happened_begins_anew(self, store: Store, clock: AlarmClock) -> None:
        """The next owner is fresh, with the same key."""
        store.add([new_job("a")])
        first = one(store)
        key = store.begin_effect("a", first.epoch, "charge").effect.key
        expire(store, clock)

        store.resolve("a", store.job("a").epoch, "charge", by="ops", outcome=None)

        effect, fresh = store.begin_effect("a", one(store).epoch, "charge")
        assert (fresh, effect.known, effect.key) == (True, False, key)

    def test_c35_no_epoch_is_issued(self, store: Store) -> None:
        """Ownership does not move: the current owner stays, and the job is as it was."""
        store.add([new_job("a")])
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        before = store.job("a")

        answered = store.resolve("a", grant.epoch, "charge", by="ops", outcome="7", note="found it")

        assert (answered.epoch, answered.owner, answered.status) == (before.epoch, before.owner, before.status)
        assert store.check([("a", grant.epoch)]) == [None]
        event = store.events(job_id="a")[-1]
        assert (event.kind, event.facts["by"], event.facts["note"]) == ("resolved", "ops", "found it")

    def test_c35_a_finished_jobs_effect_can_be_resolved(self, store: Store) -> None:
        """The doubt outlives the job, and so does its answer: a replay finds it."""
        store.add([new_job("a")])
        grant = one(store)
        store.begin_effect("a", grant.epoch, "charge")
        settle(store, completed(grant))

        store.resolve("a", grant.epoch, "charge", by="ops", outcome="7")
        store.replay("a", grant.epoch, by="ops")

        assert store.begin_effect("a", one(store).epoch, "charge").effect.outcome == "7"

    def test_c35_only_what_is_in_doubt_can_be_resolved(self, store: Store) -> None:
        """A recorded outcome is not overwritten, and what was never begun is unknown."""
        store.add([new_job("a")])
        epoch = one(store).epoch
        store.begin_effect("a", epoch, "charge")
        store.end_effect("a", epoch, "charge", "7")

        with pytest.raises(Conflict, match="charge"):
            store.resolve("a", epoch, "charge", by="ops", outcome="8")
        with pytest.raises(Conflict, match="mail"):
            store.resolve("a", epoch, "mail", by="ops", outcome="8")

        assert [effect.outcome for effect in store.effects("a")] == ["7"]
