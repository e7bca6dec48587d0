"""C1, C2, C9: epochs only go up, one owner at a time, and one clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import new_job
from ...core.ownership import CLOCK_LIMIT
from ...errors import StoreUnavailable
from ...store import Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    all_of,
    completed,
    expire,
    failed,
    ids,
    in_threads,
    one,
    released,
    settle,
)


class Epochs(Contract):
    """Every ownership outranks all earlier ones."""

    def test_c1_every_verb_that_moves_a_job_issues_a_greater_epoch(self, store: Store, clock: AlarmClock) -> None:
        """Claim, transfer, requeue, reclaim, cancel, replay, finish and advance: each epoch is above all before."""
        store.add([new_job("a")])
        issued = [one(store).epoch]

        issued.append(store.transfer("a", issued[-1], to="b", by="ops").epoch)
        issued.append(store.requeue("a", issued[-1], by="ops").epoch)
        issued.append(one(store).epoch)
        expire(store, clock)
        issued.append(store.job("a").epoch)
        issued.append(one(store).epoch)
        issued.append(store.advance())
        issued.append(store.cancel("a", store.job("a").epoch, by="ops").epoch)
        issued.append(store.replay("a", issued[-1], by="ops").epoch)
        issued.append(store.finish("a", issued[-1], by="ops").epoch)

        assert issued == sorted(set(issued))

    def test_c1_the_owners_own_settlement_keeps_its_epoch_and_the_next_claim_does_not(self, store: Store) -> None:
        """The same worker that claims its job again gets a greater epoch, also at the same instant."""
        store.add([new_job("a")])
        epochs = []

        for _ in range(3):
            grant = one(store)
            settle(store, released(grant))
            assert store.job("a").epoch == grant.epoch
            epochs.append(grant.epoch)

        assert epochs == sorted(set(epochs))

    def test_c1_a_batch_gets_as_many_epochs_as_jobs(self, store: Store) -> None:
        """No two leases of one claim share an epoch, and the next claim is above all of them."""
        store.add([new_job(f"job-{number}") for number in range(10)])

        batch = [grant.epoch for grant in store.claim("a", limit=9)]
        after = one(store).epoch

        assert len(set(batch)) == 9
        assert after > max(batch)

    def test_c1_epochs_are_unique_over_threads(self, store: Store) -> None:
        """Claims at the same time issue no epoch twice, and grant no job twice (C2)."""
        store.add([new_job(f"job-{number}") for number in range(40)])

        def work() -> list[tuple[str, int]]:
            got = []
            while grants := store.claim("a", limit=3):
                got += [(grant.spec.id, grant.epoch) for grant in grants]
            return got

        granted = [pair for pairs in in_threads(work, work, work, work) for pair in pairs]

        assert len({job_id for job_id, _ in granted}) == len({epoch for _, epoch in granted}) == len(granted) == 40

    def test_c1_a_pruned_job_that_is_added_again_goes_on_above(self, store: Store, clock: AlarmClock) -> None:
        """Forgetting a job does not forget its epochs."""
        store.add([new_job("a")])
        before = one(store)
        settle(store, completed(before))
        clock.advance(1)
        assert store.prune(0, keep_ids_us=0).jobs == 1

        store.add([new_job("a")])

        assert store.job("a").epoch == 0
        assert one(store).epoch > before.epoch

    def test_c1_advance_goes_above_what_it_is_told(self, store: Store) -> None:
        """An epoch that another store has issued can be outranked by hand."""
        store.add([new_job("a")])
        seen_elsewhere = store.advance() + 10**9

        assert store.advance(above=seen_elsewhere) > seen_elsewhere
        assert one(store).epoch > seen_elsewhere

    def test_c1_advance_goes_above_the_clock(self, store: Store, clock: AlarmClock) -> None:
        """So a store that forgot what it issued outranks its own past."""
        before = store.advance()
        clock.advance(3600)

        assert store.advance() >= max(clock.now(), before + 1)

    def test_c1_a_clock_that_would_use_up_the_epochs_moves_nothing(self, store: Store, clock: AlarmClock) -> None:
        """Epochs that followed it would soon not be whole in JSON: the store says so, and nothing changes (C8)."""
        store.add([new_job("a"), new_job("b", lock="k"), new_job("c")])
        held = one(store)
        before, today = all_of(store), clock.now()
        moves: list[Callable[[], object]] = [
            lambda: store.claim("b", limit=2),
            lambda: store.transfer("a", held.epoch, to="b", by="ops"),
            lambda: store.cancel("b", 0, by="ops"),
            lambda: store.finish("a", held.epoch, by="ops"),
            store.reclaim,
            store.advance,
        ]

        clock.put(CLOCK_LIMIT)
        for move in moves:
            with pytest.raises(StoreUnavailable) as refused:
                move()
            assert not refused.value.outcome_unknown
        clock.put(today)

        assert all_of(store) == before
        assert ids(store.claim("b", limit=10)) == ["b", "c"]

    def test_c1_a_second_store_goes_on_above_the_first(self, store: Store, another: Store, clock: AlarmClock) -> None:
        """Two stores on the same data, in turn, never issue an epoch twice nor a smaller one later."""
        store.add([new_job(f"job-{number}") for number in range(8)])

        epochs = [grant.epoch for each in (store, another) * 2 for grant in each.claim("a", limit=2)]

        assert len(epochs) == 8
        assert epochs == sorted(set(epochs))

    def test_c1_a_restart_with_a_clock_that_stepped_back_goes_on_above(
        self, store: Store, another: Store, clock: AlarmClock
    ) -> None:
        """A store that remembers its last epoch needs no clock to stay above it."""
        clock.advance(3600)
        before = store.advance()
        clock.put(clock.now() - 10**15)

        restarted = self.reopen(store, clock)

        try:
            assert restarted.advance() > before
            assert another.advance() > before + 1
        finally:
            restarted.close()

    def test_c2_a_running_job_is_not_granted_again(self, store: Store, clock: AlarmClock) -> None:
        """A leased job belongs to its owner until it is taken back: no other claim gets it."""
        store.add([new_job("a")])
        one(store, "a")
        clock.advance(29)

        assert store.claim("a", limit=10) == store.claim("b", limit=10) == []

    def test_c2_claims_of_two_stores_never_overlap(self, store: Store, another: Store) -> None:
        """What one store has granted, another on the same data does not grant."""
        store.add([new_job(f"job-{number}") for number in range(6)])

        first, second = store.claim("a", limit=3), another.claim("b", limit=10)

        assert len({grant.spec.id for grant in first + second}) == len(first + second) == 6

    def test_c9_every_instant_is_the_stores(self, store: Store, clock: AlarmClock) -> None:
        """What is recorded comes from the store's clock, whatever the machine's says."""
        start = clock.now()
        [(added, _)] = store.add([new_job("a", delay_seconds=5)])
        clock.advance(5)
        grant = one(store)
        clock.advance(2)
        settle(store, failed(grant, retry=False))

        job = store.job("a")
        assert (added.created_us, added.run_us) == (start, start + 5 * SECOND)
        assert (grant.granted_us, grant.expires_us) == (start + 5 * SECOND, start + 35 * SECOND)
        assert job.updated_us == job.finished_us == clock.now()
        assert store.events(job_id="a")[-1].at_us == clock.now()

    def test_c9_nothing_expires_while_the_clock_stands(self, store: Store, clock: AlarmClock) -> None:
        """A lease lasts to the microsecond: until just before its deadline, and no longer than it."""
        store.add([new_job("a")])
        grant = one(store)

        clock.advance(29.999_999)
        assert store.reclaim() == []

        clock.advance(0.000_001)
        assert [ended.epoch for ended in store.reclaim()] == [grant.epoch]
