"""What only the memory store has: one bound for all deadlines, rows that stay in memory, and turns of a lock."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold import Conflict, Router
from leasehold.core.clock import SystemClock
from leasehold.core.job import NewJob, Progress, completion
from leasehold.core.parking import LOCK, Parked
from leasehold.store import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.memory.row import Row
from leasehold.testing import ManualClock


def _store(clock: ManualClock, count: int = 4, stall_us: int | None = None) -> MemoryStore:
    store = MemoryStore(clock=clock)
    store.add([NewJob(f"j{n}", stall_us=stall_us) for n in range(count)])
    return store


def test_leases_that_end_close_together_are_each_taken_back_at_their_own_time() -> None:
    """The sweep that takes back the first looks at them all, and finds out when to look again."""
    clock = ManualClock()
    store = _store(clock)
    for _ in range(3):
        store.claim("w", lease_us=1_000_000)
        clock.advance(0.001)
    clock.advance(0.997)

    ended = []
    for _ in range(3):
        ended.append([ownership.job_id for ownership in store.reclaim()])
        clock.advance(0.001)

    assert ended == [["j0"], ["j1"], ["j2"]]
    assert store.verify() == []


def test_a_lease_that_ends_before_those_that_were_granted_earlier_is_taken_back_first() -> None:
    """The earliest deadline is not that of the oldest lease."""
    clock = ManualClock()
    store = _store(clock)
    store.claim("w", lease_us=1_000_000)
    store.claim("w", lease_us=999_000)
    clock.advance(0.999)

    assert [ownership.job_id for ownership in store.reclaim()] == ["j1"]


def test_a_lease_granted_after_its_neighbours_were_taken_back_is_not_forgotten() -> None:
    """Its deadline is before all that the sweep has found."""
    clock = ManualClock()
    store = _store(clock)
    store.claim("w", lease_us=1_000_000)
    clock.advance(1)
    assert len(store.reclaim()) == 1
    [late] = store.claim("w", lease_us=5_000)
    clock.advance(0.005)

    assert [ownership.epoch for ownership in store.reclaim()] == [late.epoch]


def test_no_stall_of_a_batch_is_overlooked() -> None:
    """The deadlines of a batch are not those of its leases alone."""
    clock = ManualClock()
    store = _store(clock, 20, stall_us=1_000_000)

    granted = store.claim("w", limit=20, lease_us=60_000_000)
    clock.advance(1)

    assert {ownership.job_id for ownership in store.reclaim()} == {grant.spec.id for grant in granted}


def test_what_a_job_has_left_where_it_waited_before_does_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it moves, and although nobody claims: each such entry keeps a row of the job."""
    monkeypatch.setattr("leasehold.stores.memory.state._SLACK", 10)
    store = _store(ManualClock(), 4)

    epoch = 0
    for _ in range(100):
        epoch = store.cancel("j0", epoch, by="ops").epoch
        epoch = store.replay("j0", epoch, by="ops").epoch

    kept = [line for *_, line in store._state.lines()]
    assert sum(len(line._ordered) + len(line._early) for line in kept) < 20
    assert [grant.spec.id for grant in store.claim("w", limit=5)] == ["j0", "j1", "j2", "j3"]


def test_queues_in_which_nothing_waits_any_more_do_not_make_claims_slower() -> None:
    """A claim looks at each queue that is kept, and every customer may have one: empty ones are forgotten."""
    store = MemoryStore()
    store.add([NewJob(f"j{n}", queue=f"q{n}") for n in range(100)])

    claimed = [grant.spec.id for grant in store.claim("w", limit=99)]
    store.add([NewJob("last", queue="last")])

    assert claimed == [f"j{n}" for n in range(99)]
    assert [grant.spec.id for grant in store.claim("w", limit=5)] == ["j99", "last"]
    for _ in range(16):  # not by each of them: with full lines there would be nothing to gain
        assert store.claim("w") == []
    assert list(store._state.lines()) == []


BREAKAGES: dict[str, tuple[str, Callable[[MemoryStore], object]]] = {
    "twice": ("'due' is pending but is listed 2 times", lambda s: s._state._wait(s._state.jobs["due"])),
    "nowhere": ("'held' is running but is listed 0 times", lambda s: s._state.running.pop("held")),
    "elsewhere": ("'due' is listed under the wrong lock or task", lambda s: _park(s, "due", Parked(LOCK, "no", "w"))),
    "stray": ("'due' is listed as due, parked or running, but is not in", lambda s: _lose(s, "due")),
    "lock": (r"held keys are \[\], running jobs have", lambda s: s._state.held.clear()),
    "free": ("of 'default' are parked behind lock 'k', which is free", lambda s: s._state.held.clear()),
    "epoch": (
        "'due' has epoch .*, above the last one issued",
        lambda s: setattr(s._state.jobs["due"], "issued", 2**52),
    ),
}


def _park(store: MemoryStore, job_id: str, parked: Parked) -> None:
    store._state.jobs[job_id].parked = parked


def _lose(store: MemoryStore, job_id: str) -> None:
    store._state.running[job_id] = store._state.jobs.pop(job_id)


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_what_contradicts_itself_is_found(breakage: str) -> None:
    """By `verify`, which says what is wrong with which job."""
    sentence, spoil = BREAKAGES[breakage]
    store = MemoryStore()
    store.add([NewJob("held", lock="k"), NewJob("behind", lock="k")])
    assert len(store.claim("w", limit=5)) == 1
    store.add([NewJob("due")])
    assert store.verify() == []

    spoil(store)

    assert any(re.search(sentence, found) for found in store.verify()), store.verify()


def test_every_verb_of_the_contract_is_a_verb_of_the_store() -> None:
    """One that it merely inherits does nothing."""
    verbs = {name for name in vars(Store) if not name.startswith("_")}

    assert verbs <= vars(MemoryStore).keys()
    assert inspect.getdoc(MemoryStore.claim) == inspect.getdoc(Store.claim)


def test_a_batch_passes_over_what_left_and_what_waits_for_a_key_and_is_full_all_the_same() -> None:
    """However many of the first are void or locked, as many are claimed as are there."""
    store = MemoryStore()
    store.add([NewJob(f"j{n}", lock="k" if n % 3 == 0 else None) for n in range(12)])
    store.cancel("j1", 0, by="ops")
    store.cancel("j2", 0, by="ops")

    first = [grant.spec.id for grant in store.claim("w", limit=5)]
    rest = [grant.spec.id for grant in store.claim("w", limit=100)]

    assert first == ["j0", "j4", "j5", "j7", "j8"]
    assert rest == ["j10", "j11"]
    assert store.verify() == []


def test_checkpoints_of_one_lease_far_apart_are_all_kept() -> None:
    """Each replaces the lease, whose deadline stays."""
    clock = ManualClock()
    store = _store(clock, 2)
    one, other = store.claim("w"), store.claim("w", lease_us=60_000_000)
    for page in range(3):
        for [grant] in (one, other):
            assert store.progress([Progress(grant.spec.id, grant.epoch, checkpoint=str(page))]) == [None]
        clock.advance(1)

    assert [store.job(grant.spec.id).checkpoint for [grant] in (one, other)] == [2, 2]


def test_a_job_that_is_pruned_by_its_id_does_not_stay_in_memory() -> None:
    """Nothing of it is left in the order of ends."""
    clock = ManualClock()
    store = _store(clock, 100)
    store.settle([completion(grant, "1") for grant in store.claim("w", limit=100)])

    for job in store.jobs()[:-1]:
        store.prune_job(job.id, job.epoch, by="ops", keep_ids_us=0)

    assert len(store._state.finished) == 1
    clock.advance(1)
    assert store.prune(0, keep_ids_us=0).jobs == 1
    assert store.verify() == []


def test_a_job_taken_from_behind_a_task_is_not_parked_once_it_is_done() -> None:
    """Its row said so until its completion."""
    store = _store(ManualClock(), 1)
    assert store.claim("w", tasks=["other"]) == []

    [grant] = store.claim("w")
    store.settle([completion(grant)])

    assert store.job("j0").parked is None


class _Handler(SystemClock):
    """Does something in the middle of each verb, as a signal handler would."""

    def __init__(self) -> None:
        self.strike: Callable[[], object] = lambda: None

    def now(self) -> int:
        strike, self.strike = self.strike, lambda: None
        strike()
        return super().now()


@pytest.mark.parametrize("verb", ["claim", "settle", "add"])
def test_each_verb_is_refused_inside_another_and_works_afterwards(verb: str) -> None:
    """The message names the verb that was called inside, not the one that was under way."""
    clock = _Handler()
    store = MemoryStore(clock=clock)
    store.add([NewJob("a"), NewJob("b")])
    [grant] = store.claim("w")
    verbs: dict[str, Callable[[], object]] = {
        "claim": lambda: store.claim("w"),
        "settle": lambda: store.settle([completion(grant)]),
        "add": lambda: store.add([NewJob("c")]),
    }

    for outer in verbs.values():
        clock.strike = verbs[verb]
        with pytest.raises(Conflict, match=rf"^{verb}\(\) was called while another verb"):
            outer()

    assert store.settle([completion(grant)]) == [None]
    assert len(store.claim("w", limit=5)) == 1
    assert store.verify() == []


@pytest.mark.parametrize("limit", [1, 10])
def test_ctrl_c_in_the_middle_of_a_batch_leaves_every_job_in_its_place(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims and completions that were half done are either done or not; and are counted right."""

    def strike(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    store = MemoryStore()
    store.add([NewJob(f"j{n}", queue="ab"[n % 2], unique=f"u{n}") for n in range(20)])
    grants = store.claim("w", limit=limit)
    steps: list[tuple[object, str, Callable[[], object]]] = [
        (store._state, "enter", lambda: store.claim("w", limit=limit, lease_us=1_000)),
        (Row, "complete", lambda: store.settle([completion(grant) for grant in grants])),
    ]
    for part, step, verb in steps:
        with monkeypatch.context() as broken:
            broken.setattr(part, step, strike)
            with pytest.raises(KeyboardInterrupt):
                verb()
        assert store.verify() == []
        counts, jobs = store.counts(), store.jobs()
        assert counts[:3] == tuple(sum(job.status == s for job in jobs) for s in ("pending", "running", "done"))
        for queue, counted in counts.queues.items():
            mine = [job.status.value for job in jobs if job.queue == queue]
            assert counted == {"pending": mine.count("pending"), "running": mine.count("running")}


_FORKS = """
import os
from leasehold import Router

router = Router(f"sqlite:///{os.environ['JOBS']}")
router.add_many([{"id": "a"}, {"id": "b"}])
child = os.fork()
if child:
    os.waitpid(child, 0)
print(router.claim("w")._grant.claim_id, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gives_its_claims_no_id_of_its_parents(tmp_path: Path) -> None:
    """It counts on where its parent was, so what comes before the number must differ."""
    environment = {**os.environ, "JOBS": str(tmp_path / "jobs.db")}

    ran = subprocess.run([sys.executable, "-c", _FORKS], env=environment, capture_output=True, text=True, check=True)

    theirs, mine = ran.stdout.split()
    assert theirs != mine


def test_claims_of_two_routers_have_ids_of_their_own() -> None:
    """Else the leases of one could be handed to the other after a lost reply."""
    ids = set()
    for router in (Router(), Router()):
        router.add("job")
        lease = router.claim("w")
        assert lease is not None
        ids.add(lease._grant.claim_id)

    assert len(ids) == 2


@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_does_not_look_at_the_jobs_of_a_paused_queue(limit: int) -> None:
    """It makes as many calls beside 5,000 paused jobs as beside none."""
    store = MemoryStore(clock=ManualClock())
    store.add([NewJob(f"busy-{n}", queue="busy") for n in range(2 * limit)])
    store.add([NewJob("first", queue="paused", priority=1)])
    store.pause("paused", by="ops")

    def calls() -> int:
        count = 0

        def called(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            grants = store.claim("worker", limit=limit)
        finally:
            sys.setprofile(None)
        assert len(grants) == limit
        return count

    few = calls()
    store.add([NewJob(f"paused-{n}", queue="paused") for n in range(5_000)])

    assert calls() <= few
    assert store.verify() == []
