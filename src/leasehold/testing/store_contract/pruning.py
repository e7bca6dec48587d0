"""C73: one finished job is removed under the epoch that was seen, and that is recorded."""

from __future__ import annotations

import pytest

from ...core.children import new_child
from ...core.job import Progress, new_job
from ...errors import Conflict, StaleEpoch, UnknownJob
from ...store import Store
from .support import AlarmClock, Contract, completed, failed, one, settle


class Pruning(Contract):
    """What may be pruned by its id, and what stays."""

    @pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
    def test_c73_a_finished_job_is_removed_under_the_epoch_that_was_seen(
        self, store: Store, clock: AlarmClock, end: str
    ) -> None:
        """However young, and with all that is kept of it; a chosen id stays. Others are left alone."""
        store.add([new_job("a", task="t"), new_job("other"), new_job("made").made()])
        grant = one(store)
        store.progress([Progress("a", grant.epoch, 0.5, checkpoint="1")])
        if end == "cancelled":
            store.cancel("a", grant.epoch, by="ops")
        else:
            settle(store, completed(grant) if end == "done" else failed(grant, retry=False))
        store.cancel("made", 0, by="ops")
        job = store.job("a")
        seen = {one.id: one.epoch for one in store.jobs()}

        store.prune_job("a", seen["a"], by="ops", note="why")
        store.prune_job("made", seen["made"], by="ops")

        after = store.job("a")
        assert (after.pruned, after.status, after.epoch, after.finished_us) == (True, end, job.epoch, job.finished_us)
        assert [one.id for one in store.jobs()] == ["other"]
        assert sum(store.counts()[:5]) == 1
        assert not store.add([new_job("a")])[0].created
        with pytest.raises(UnknownJob):
            store.job("made")
        with pytest.raises(UnknownJob):
            store.prune_job("made", seen["made"], by="ops")
        assert [(event.job_id, event.epoch, event.facts) for event in store.events(kind="pruned")] == [
            ("a", seen["a"], {"by": "ops", "note": "why"}),
            ("made", seen["made"], {"by": "ops"}),
        ]
        clock.advance(1)
        assert store.prune(0, keep_ids_us=0)[::2] == (0, 1)
        assert store.events(kind="pruned") == []
        assert store.verify() == []

    def test_c73_what_has_moved_is_left_alone(self, store: Store) -> None:
        """A replay in between, and another end since: each has an epoch that was not seen. The refusal is recorded."""
        store.add([new_job("a")])
        seen = one(store)
        settle(store, completed(seen))
        store.replay("a", seen.epoch, by="ops")

        with pytest.raises(StaleEpoch):
            store.prune_job("a", seen.epoch, by="ann")
        settle(store, completed(one(store)))
        with pytest.raises(StaleEpoch) as refused:
            store.prune_job("a", seen.epoch, by="ann")

        assert refused.value.current == store.job("a").epoch
        assert store.events(kind="pruned") == []
        assert [event.facts["verb"] for event in store.events(kind="refused")] == ["prune", "prune"]
        assert not store.job("a").pruned

    def test_c73_what_is_still_needed_is_a_conflict(self, store: Store) -> None:
        """An unfinished job, a child whose parent is kept, an effect in doubt, and what is pruned already."""
        store.add([new_job("a"), new_job("doubt")])
        parent, doubted = store.claim("worker", limit=2)
        store.add_children("a", parent.epoch, [new_child("a", new_job("child"), 1)])
        store.begin_effect("doubt", doubted.epoch, "charge")
        settle(store, failed(doubted, retry=False))
        child = store.cancel("a/child", 0, by="ops")

        def refused(job_id: str) -> str:
            with pytest.raises(Conflict) as conflict:
                store.prune_job(job_id, store.job(job_id).epoch, by="ops")
            return str(conflict.value)

        assert "'a' is running" in refused("a")
        assert "its parent 'a' is kept" in refused("a/child")
        assert "its effect 'charge' is in doubt" in refused("doubt")
        store.requeue("a", parent.epoch, by="ops")
        assert "'a' is pending" in refused("a")
        store.cancel("a", store.job("a").epoch, by="ops")
        assert "its parent 'a' is kept" in refused("a/child")
        store.prune_job("a", store.job("a").epoch, by="ops")
        assert "'a' was pruned" in refused("a")
        store.prune_job("a/child", child.epoch, by="ops")
        store.resolve("doubt", doubted.epoch, "charge", by="ops", outcome=None)
        store.prune_job("doubt", doubted.epoch, by="ops", keep_ids_us=0)
        assert store.jobs() == []
