"""What strikes in the middle of a verb: Ctrl-C, a signal handler, a second thread of the same owner."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from leasehold import Conflict, Router, Status
from leasehold.core.clock import SystemClock
from leasehold.core.ownership import Process
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore, claiming


def _interrupt(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["enter", "write", "_leave", "stop", "_wake", "_wait", "taker"])
def test_ctrl_c_in_the_middle_of_a_verb_loses_no_job(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it strikes, every job is in exactly one place afterwards, and can be claimed and finished."""
    store = MemoryStore()
    router = Router()
    monkeypatch.setattr(router._adder, "store", store)
    router.add_many([{"id": f"j{n}", "lock": "k" if n % 2 else None} for n in range(6)])
    held = router.claim_many("w", limit=2)
    verbs: list[Callable[[], object]] = [
        lambda: router.claim("w"),
        held[1].complete,
        lambda: held[0].fail("no", delay_seconds=0),
        lambda: router.cancel(router.job("j5"), by="ops"),
        lambda: router.add("j6"),
    ]

    struck = 0
    for verb in verbs:
        with monkeypatch.context() as strike:
            strike.setattr(store._state, step, _interrupt)
            try:
                verb()
            except KeyboardInterrupt:
                struck += 1
        assert store.verify() == []
    assert struck > 0

    for job in router.jobs(status="running"):
        router.lease(job.id, owner="w").complete()
    while lease := router.claim("w"):
        lease.complete()
    assert store.verify() == []
    assert {job.status for job in router.jobs()} <= {Status.DONE, Status.CANCELLED}


def test_a_verb_inside_a_verb_is_refused_and_does_not_hang() -> None:
    """As when a signal handler strikes inside a verb and asks for another."""

    class Handler(SystemClock):
        def now(self) -> int:
            for one in asked:
                one.counts()
            return super().now()

    asked: list[Router] = []
    made = Router(clock=Handler())
    asked.append(made)

    with pytest.raises(Conflict, match="while another verb of this store was under way"):
        made.add("job")


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path) -> Router:
    """A router on each store."""
    return Router(None if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")


def test_children_of_one_name_added_at_once_are_all_there(router: Router) -> None:
    """Two threads of one owner never ask for the same child."""
    router.add("parent")
    lease = router.claim("w")
    assert lease is not None

    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda n: lease.add("mail", {"to": n}), range(10)))

    assert all(one.created for one in added)
    assert len(router.jobs(parent="parent")) == 10
    router.close()


def test_no_two_children_share_an_id(router: Router) -> None:
    """Whatever characters a name has: a child's id says whose it is."""
    router.add_many([{"id": "order"}, {"id": "order/ship"}])
    first, second = router.claim_many("w", limit=2)

    ids = [
        first.add("x").job.id,
        first.add("x").job.id,
        first.add("x#2").job.id,
        first.add("ship/label").job.id,
        second.add("label").job.id,
    ]

    assert len(set(ids)) == len(ids)
    router.close()


def test_a_name_may_be_a_member_of_a_string_enumeration(router: Router) -> None:
    """It is kept as the text that it is, not as the name of the member."""

    class Queue(str, enum.Enum):  # noqa: UP042 -- the older kind, whose str() is not its text
        MAIL = "mail"

    router.add("job", queue=Queue.MAIL)

    assert router.claim("w", queues=["mail"]) is not None
    router.close()


def test_an_effect_that_is_known_is_not_cleared(router: Router) -> None:
    """Of two calls under one epoch, one succeeded; the other's failure does not undo what is known."""
    router.add("job")
    lease = router.claim("w")
    assert lease is not None
    store = router.store
    store.begin_effect("job", lease.epoch, "charge")
    store.begin_effect("job", lease.epoch, "charge", again=True)

    store.end_effect("job", lease.epoch, "charge", '"paid"')
    store.end_effect("job", lease.epoch, "charge", None)

    assert lease.once("charge", lambda key: "again") == "paid"
    router.close()


def test_recovery_goes_by_the_name_of_a_process_and_not_by_its_row(tmp_path: Path) -> None:
    """Between the proof and the reclaim, the row of the dead process may have been given to one that lives."""
    with Router(f"sqlite:///{tmp_path}/jobs.db") as router:
        store = router.store
        assert isinstance(store, SqliteStore)
        router.add("job")
        assert router.claim("alive") is not None
        dead = Process("host", "boot", "namespace", 1, 1)

        assert store._write(claiming.recover, [dead]) == []

        assert router.job("job").owner == "alive"


def test_a_clock_that_is_set_back_makes_no_wait_longer(tmp_path: Path) -> None:
    """What is left to wait is counted as the clock goes on; an hour backwards adds nothing to it."""

    class SetBack(SystemClock):
        """Goes a second on at each look, but for one look at which it was set back by an hour."""

        def __init__(self) -> None:
            self.at = 1_900_000_000_000_000
            self.looks = 0

        def now(self) -> int:
            self.looks += 1
            self.at += -3_600_000_000 if self.looks == 4 else 1_000_000
            return self.at

        def wait(self, condition: threading.Condition, until: int) -> None:
            """Return at once: time passes by looking."""

    for url in (None, f"sqlite:///{tmp_path}/jobs.db"):
        clock = SetBack()
        with Router(url, clock=clock) as router:
            assert router.claim("w", wait_seconds=20) is None

        assert clock.looks < 100, "an hour was waited for, a second at a time"


def test_one_prune_removes_a_bounded_number_of_events(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are old: nobody waits long for the write lock because of it."""
    monkeypatch.setattr("leasehold.stores.memory.upkeep.EVENTS_AT_ONCE", 3)
    monkeypatch.setattr("leasehold.stores.sqlite.claiming.EVENTS_AT_ONCE", 3)
    for _ in range(8):
        router.advance()

    counts = []
    for _ in range(4):
        removed = router.store.prune(0).events
        counts.append((removed, len(router.events())))

    assert counts == [(3, 5), (3, 2), (2, 0), (0, 0)]
    router.close()


def test_a_router_prunes_events_until_none_is_old(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there are more of them than one prune removes, and no job has finished."""
    monkeypatch.setattr("leasehold.stores.memory.upkeep.EVENTS_AT_ONCE", 3)
    monkeypatch.setattr("leasehold.stores.sqlite.claiming.EVENTS_AT_ONCE", 3)
    for _ in range(8):
        router.advance()

    assert router.prune(keep_seconds=0) == (0, 8, 0)

    assert router.events() == []
    router.close()
