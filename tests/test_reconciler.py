"""What upkeep records for operators: when an observation begins, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import until

from leasehold import Retry, Router
from leasehold.core.job import Progress, new_job
from leasehold.core.ownership import Event
from leasehold.core.redaction import HIDDEN, Redaction
from leasehold.core.workers import WorkerReport
from leasehold.reconciler import Reconciler
from leasehold.store import Renewal, Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock


def recorded(store: Store) -> list[tuple[str, str, str]]:
    """The events about observations: their kinds, and of what."""
    events = [event for event in store.events() if event.kind in ("observed", "cleared")]
    return [(event.kind, event.facts["observation"], event.facts["subject"]) for event in events]


def pass_time(store: Store, clock: ManualClock, epoch: int, seconds: int, *others: Reconciler) -> None:
    """Let time pass in steps in which the worker reports and renews, and the processes look one after the other."""
    for _ in range(0, seconds, 5):
        clock.advance(5)
        store.report(WorkerReport("w", "w", None, None, (), 1, 1, 0))
        store.renew([Renewal("stuck", epoch)])
        for reconciler in others:
            reconciler.look()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_wedged_worker_is_recorded_once_over_processes_and_once_when_it_moves(kind: str, tmp_path: Path) -> None:
    """It renews and reports, and its work does not move. Its job is left alone."""
    clock = ManualClock()
    stores: list[Store] = [MemoryStore(clock=clock)] * 2
    if kind == "sqlite":
        stores = [SqliteStore(str(tmp_path / "jobs.db"), clock=clock) for _ in range(2)]
    store = stores[0]
    reconcilers = [Reconciler(one, clock) for one in stores]
    store.add([new_job("stuck")])
    [grant] = store.claim("w")
    pass_time(store, clock, grant.epoch, 590, *reconcilers)
    assert recorded(store) == []

    pass_time(store, clock, grant.epoch, 100, *reconcilers)

    begun = [("observed", "never-settles", "w"), ("observed", "not-moving", "stuck")]
    assert recorded(store) == begun
    assert (store.job("stuck").owner, store.job("stuck").epoch) == ("w", grant.epoch)
    store.progress([Progress("stuck", grant.epoch, 0.5)])
    pass_time(store, clock, grant.epoch, 100, *reconcilers)
    assert recorded(store) == [*begun, ("cleared", "never-settles", "w"), ("cleared", "not-moving", "stuck")]
    for one in stores:
        one.close()


def test_processes_take_turns(tmp_path: Path) -> None:
    """However many there are, one looks every ten seconds."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    reconcilers = [Reconciler(store, clock) for _ in range(5)]

    looks = []
    for _ in range(60):
        looks.append(sum(reconciler.look() for reconciler in reconcilers))
        clock.advance(1)

    assert max(looks) == 1
    assert 4 <= sum(looks) <= 6


def test_a_router_shows_what_upkeep_has_recorded() -> None:
    """With when; its events name the job, so that they are part of its history."""
    clock = ManualClock()
    with Router("memory://", clock=clock) as router:
        router.add("a", queue="mail")
        [found] = router.observations()
        assert (found.kind, found.subject, found.noted_at) == ("no-consumer", "mail", None)

        router.reclaim()
        assert router.events(kind="observed") == []  # its worker may be starting
        clock.advance(30)
        router.reclaim()

        [found] = router.observations()
        assert found.noted_us == clock.now()
        [event] = router.events(kind="observed")
        assert event.facts["sentence"] == "No live worker serves queue 'mail', which has due jobs."
        lease = router.claim("w", lease_seconds=3_600)
        assert lease is not None
        clock.advance(601)
        router.reclaim()
        events: list[Event] = router.events("a")
        assert [event.kind for event in events] == ["observed"]
        assert [event.kind for event in router.events(kind="cleared")] == ["cleared"]


def test_a_worker_records_what_it_sees(caplog: pytest.LogCaptureFixture) -> None:
    """As part of its upkeep, from its start on; its log hides what the router hides."""
    clock = ManualClock()
    with Router("memory://", clock=clock, redact=["facts.subject"]) as router:

        @router.task
        def nothing() -> None: ...

        router.add("a", queue="other")
        clock.advance(30)
        with router.worker(queues=["default"]):
            until(lambda: router.events(kind="observed"), "the event")
            until(lambda: "observation began: no-consumer, '[redacted]'" in caplog.messages, "its line")

        [event] = router.events(kind="observed")
        assert (event.facts["observation"], event.facts["subject"]) == ("no-consumer", "other")
        assert router.job("a").epoch == 0


def test_a_job_that_loses_owner_after_owner_is_observed() -> None:
    """It may be what kills them; one that was lost once or twice may have met a restart."""
    clock = ManualClock()
    with Router("memory://", clock=clock) as router:
        router.add("poison", retry=Retry(max_reclaims=50))
        for number in range(4):
            assert [one.kind.value for one in router.observations() if one.kind == "poison"] == []
            assert router.claim(f"w-{number}", lease_seconds=5) is not None
            if number < 3:
                clock.advance(6)
                router.reclaim()

        [found] = [one for one in router.observations() if one.kind == "poison"]
        assert found.sentence == (
            "Job 'poison' lost its owner 3 times, last: the lease of 'w-2' expired; max_reclaims is 50."
        )
        assert (found.subject, found.command) == ("poison", "leasehold history poison")


def test_a_hidden_subject_is_hidden_in_the_sentence_too() -> None:
    facts = {"observation": "no-consumer", "subject": "mail", "sentence": "No live worker serves queue 'mail'."}

    shown = Redaction(["facts.subject"]).facts(facts)

    assert shown == {"observation": "no-consumer", "subject": HIDDEN, "sentence": HIDDEN}
