"""Keys that are sealed after the end of a job: by its operator, its worker, upkeep and the command line (G10)."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import COMMAND, TOP, environment, leasehold
from tests.guards.reference import CarelessShelf, Reference
from tests.support import until

from leasehold import Conflict, Job, Lease, Retry, Router, StaleEpoch
from leasehold.cli.app import run
from leasehold.core.ownership import Note, NoteKind
from leasehold.core.search import Search
from leasehold.guard import GuardKey, Seal, Writer
from leasehold.testing import ManualClock

from .sealed_jobs import Unreachable, clock, router, shelf, zombie

__all__ = ["clock", "router", "shelf"]  # fixtures


# After the end


@pytest.mark.parametrize("verb", ["cancel", "complete"])
def test_a_job_that_an_operator_ends_is_sealed(router: Router, shelf: Reference, verb: str) -> None:
    """There is no successor that would seal its keys: without this, the owner would write on."""
    lease = zombie(router, shelf)
    shelf.write("a", b"before", lease=lease)

    ended: Job = getattr(router, verb)(router.job(lease.job_id), by="ann")

    assert ended.unsealed == ()
    with pytest.raises(StaleEpoch) as refusal:
        shelf.write("a", b"after", lease=lease)
    assert refusal.value.owner == "ann"
    assert shelf.peek("a") == b"before"


def test_a_job_that_fails_for_good_is_sealed(router: Router, shelf: Reference) -> None:
    """By the worker that has failed it, above the epoch of its owner."""
    leases: list[Lease] = []

    @router.task(seals=lambda: [shelf.key("a")], retry=Retry(max_errors=1))
    def work(lease: Lease) -> None:
        leases.append(lease)
        raise ValueError("no")

    heard = threading.Event()
    job = work.add().job
    router.on("failed")(lambda event: heard.set())  # after the one that seals
    with router.worker(concurrency=1):
        assert heard.wait(60)

    assert router.job(job.id).status == "failed"
    with pytest.raises(StaleEpoch):
        shelf.write("a", b"after", lease=leases[0])


def test_a_job_that_fails_as_it_is_taken_back_by_hand_is_sealed(
    router: Router, shelf: Reference, clock: ManualClock
) -> None:
    """No worker hears of it, and its owner may only have been paused."""
    router.add("j", retry=Retry(max_reclaims=0))
    lease = router.claim("paused")
    assert lease is not None
    router._registry.guards.seal([shelf.key("a")], lease)
    clock.advance(3600)

    assert [one.job_id for one in router.reclaim()] == ["j"]

    assert router.job("j").status == "failed"
    with pytest.raises(StaleEpoch):
        shelf.write("a", b"after", lease=lease)


def test_a_job_that_is_taken_back_and_has_not_ended_is_not_sealed(
    router: Router, shelf: Reference, clock: ManualClock
) -> None:
    """Its next owner does that."""
    lease = zombie(router, shelf)
    before = shelf.mark("a")
    clock.advance(3600)
    assert [one.job_id for one in router.reclaim()] == [lease.job_id]
    assert shelf.mark("a") == before


def failed_by_hand(router: Router, lease: Lease, clock: ManualClock) -> None:
    """Its owner fails the job for good, without a worker."""
    lease.fail("no", retry=False)


def failed_by_a_claim(router: Router, lease: Lease, clock: ManualClock) -> None:
    """A claim by hand takes the job back once too often."""
    clock.advance(3600)
    assert router.claim("other") is None


@pytest.mark.parametrize("end", [failed_by_hand, failed_by_a_claim])
@pytest.mark.parametrize("upkeep", ["worker", "reclaim", "drain"])
def test_a_job_that_fails_without_a_worker_is_sealed_by_upkeep(
    router: Router, shelf: Reference, clock: ManualClock, end: Any, upkeep: str
) -> None:
    """At one above the epoch that ended, and never a newly drawn one; and recorded."""
    lease = zombie(router, shelf, retry=Retry(max_reclaims=0))
    end(router, lease, clock)
    failed = router.job(lease.job_id)
    assert failed.status == "failed"

    if upkeep == "worker":
        with router.worker(concurrency=1):
            until(lambda: router.events(lease.job_id, kind="sealed"))
    elif upkeep == "reclaim":
        router.reclaim()
        router.reclaim()
    else:
        router.drain()

    mark = shelf.mark("a")
    assert mark is not None
    assert mark.epoch == failed.epoch + 1
    [sealed, *_] = router.events(lease.job_id, kind="sealed")  # a worker may have heard of it twice
    assert sealed.facts == {"keys": [["shelf", "a"]], "by": "leasehold"}
    with pytest.raises(StaleEpoch):
        shelf.write("a", b"late", lease=lease)
    router.replay(failed, by="ann")
    again = router.claim("next")
    assert again is not None
    shelf.write("a", b"again", lease=again)


def test_a_listener_that_had_no_time_leaves_its_seals_to_the_next_worker(router: Router, tmp_path: Path) -> None:
    """At its end a worker gives listeners a second; what they do not do by then is not lost."""
    guard = router.guard("away", Unreachable(tmp_path))
    guard.away = False

    @router.task(seals=lambda: [guard.key("a")], retry=Retry(max_errors=1))
    def work(lease: Lease) -> None:
        guard.away = True
        raise ValueError("no")

    job = work.add().job
    with router.worker(concurrency=1):
        until(lambda: router.events(job.id, kind="unsealed"))
    guard.away = False
    assert router.events(job.id, kind="sealed") == []

    with router.worker(concurrency=1):
        until(lambda: router.events(job.id, kind="sealed"))

    with pytest.raises(StaleEpoch):
        guard.write("a", b"late", epoch=router.job(job.id).epoch, owner="zombie", store=router.store.identity())


def test_upkeep_tries_a_key_that_it_cannot_reach_less_and_less_often(router: Router, tmp_path: Path) -> None:
    """And records that once. A key of another guard is sealed meanwhile, and those of guards not known here stay."""
    away, near = router.guard("away", Unreachable(tmp_path)), router.guard("near", Reference(tmp_path))
    away.away = False
    tries: list[str] = []
    seal = away._seal
    away._seal = lambda key, writer: tries.append(key) or seal(key, writer)  # type: ignore[method-assign, func-returns-value]
    lease = zombie(router, away)
    guards = router._registry.guards
    guards.seal([away.key("a"), near.key("b")], lease)
    foreign = {"keys": [["elsewhere", "c"]]}
    router.store.record(Note(NoteKind.GUARDED, lease.job_id, lease.epoch, lease.owner, foreign))
    lease.fail("no", retry=False)
    tries.clear()
    away.away = True

    for _ in range(64):
        guards.seal_open()

    assert 4 <= len(tries) <= 8
    assert len(router.events(lease.job_id, kind="unsealed")) == 1
    assert (mark := near.mark("b")) is not None
    assert mark.epoch == lease.epoch + 1
    away.away = False
    router.reclaim()  # at once
    assert [event.facts["keys"] for event in router.events(lease.job_id, kind="sealed")] == [
        [["near", "b"]],
        [["away", "a"]],
    ]
    assert [open_key.key for open_key in router.store.open_keys(["away", "elsewhere", "near"]).keys] == ["c"]


def test_reclaim_tries_each_key_once_and_after_the_rest_of_upkeep(
    router: Router, tmp_path: Path, clock: ManualClock
) -> None:
    """A resource that keeps its seals waiting delays no retention. A key that was not reached is recorded once."""
    guard = router.guard("away", Unreachable(tmp_path))
    guard.away = False
    router.add("old", keep_seconds=60)
    router.cancel("old", epoch=0, by="ops")
    lease = zombie(router, guard, retry=Retry(max_reclaims=0), keep_seconds=0)
    foreign = {"keys": [["elsewhere", "c"]]}
    router.store.record(Note(NoteKind.GUARDED, lease.job_id, lease.epoch, lease.owner, foreign))
    clock.advance(3600)
    guard.away = True
    kept: list[set[str]] = []
    seal = guard._seal
    guard._seal = lambda key, writer: kept.append({*router.snapshot()}) or seal(key, writer)  # type: ignore[method-assign, func-returns-value]

    assert [one.job_id for one in router.reclaim()] == [lease.job_id]

    assert kept == [{lease.job_id}]  # one try, when "old" was gone
    unsealed = [event.facts["keys"][0][:2] for event in router.events(lease.job_id, kind="unsealed")]
    assert sorted(unsealed) == [["away", "a"], ["elsewhere", "c"]]
    clock.advance(3600)
    router.reclaim()
    assert len(kept) == 2
    assert len(router.events(lease.job_id, kind="unsealed")) == 2
    guard.away = False
    router.reclaim()
    with pytest.raises(StaleEpoch):
        guard.write("a", b"late", lease=lease)


class AnnouncedLock:
    """A lock that calls *met* when a caller finds it taken."""

    def __init__(self, met: Callable[[], None]) -> None:
        self._lock, self._met = threading.Lock(), met

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self._met()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("upkeep", ["between two portions", "in a portion"])
def test_reclaim_seals_every_open_key(
    router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upkeep: str
) -> None:
    """Whatever part of its pass upkeep in the same process has done, or is doing."""
    guard = router.guard("away", Unreachable(tmp_path))
    guard.away = False
    for job_id in "xyz":
        router.add(job_id)
        lease = router.claim("paused")
        assert lease is not None
        router._registry.guards.seal([guard.key(job_id)], lease)
        lease.fail("no", retry=False)
    guard.away = True
    guards, open_keys = router._registry.guards, router.store.open_keys
    monkeypatch.setattr(router.store, "open_keys", functools.partial(open_keys, limit=1))
    if upkeep == "between two portions":
        assert guards.seal_open()
        guard.away = False
        router.reclaim()
    else:
        entered, met = threading.Event(), threading.Event()
        guards._sealing = AnnouncedLock(met.set)  # type: ignore[assignment]
        seal = guard._seal

        def first(key: str, writer: Writer) -> Seal:
            guard._seal = seal  # type: ignore[method-assign]
            entered.set()
            assert met.wait(60)
            return seal(key, writer)

        guard._seal = first  # type: ignore[method-assign]
        portion = threading.Thread(target=guards.seal_open)
        portion.start()
        assert entered.wait(60)
        guard.away = False
        router.reclaim()
        portion.join(60)

    assert open_keys(["away"]).keys == []


def test_a_replayed_job_writes_again(router: Router, shelf: Reference) -> None:
    """The seal of its end is below every later owner's epoch."""
    lease = zombie(router, shelf)
    cancelled = router.cancel(router.job(lease.job_id), by="ann")
    router.replay(cancelled, by="ann")

    again = router.claim("next")
    assert again is not None
    assert router._registry.guards.seal_ended(cancelled).unreached == ()  # late, and harmless
    shelf.write("a", b"again", lease=again)

    assert shelf.peek("a") == b"again"


def test_the_seal_of_an_end_never_locks_out_the_next_owner(router: Router, shelf: Reference) -> None:
    """Even if the job was replayed and claimed before it: it is one above the epoch that ended."""
    lease = zombie(router, shelf)
    lease.fail("no", retry=False)
    failed = router.job(lease.job_id)
    router.replay(failed, by="ann")
    again = router.claim("next")
    assert again is not None

    sealed = router._registry.guards.seal_ended(failed)

    assert sealed.epoch == lease.epoch + 1 <= again.epoch
    shelf.write("a", b"again", lease=again)
    with pytest.raises(StaleEpoch):
        shelf.write("a", b"late", lease=lease)


def test_a_key_that_cannot_be_reached_is_named_and_tried_again(router: Router, tmp_path: Path) -> None:
    """The verb has succeeded, the caller learns what is left, and the history has it."""
    guard = router.guard("away", Unreachable(tmp_path))
    guard.away = False
    lease = zombie(router, guard)
    guard.away = True

    ended = router.cancel(router.job(lease.job_id), by="ann")

    assert ended.status == "cancelled"
    assert ended.unsealed == ("away:a (reference:a: the server is away.)",)
    [unsealed] = router.events(lease.job_id, kind="unsealed")
    assert unsealed.facts["keys"] == [["away", "a", "reference:a: the server is away."]]
    guard.away = False
    assert router.seal(lease.job_id, by="bob").sealed == (("away", "a"),)
    [sealed] = router.events(lease.job_id, kind="sealed")
    assert sealed.facts == {"keys": [["away", "a"]], "by": "bob"}
    with pytest.raises(StaleEpoch):
        guard.write("a", b"late", lease=lease)


def test_a_bulk_action_names_the_keys_that_could_not_be_reached(router: Router, tmp_path: Path) -> None:
    """Of each job, as the verb on one job does."""
    guard = router.guard("away", Unreachable(tmp_path))
    guard.away = False
    lease = zombie(router, guard)
    guard.away = True

    outcome = router.bulk("cancel", Search(id_prefix=lease.job_id), expect=1, by="ann")

    assert (outcome.done, outcome.moved) == (1, ())
    assert outcome.unsealed == {lease.job_id: ("away:a (reference:a: the server is away.)",)}


def test_a_process_without_the_guards_says_so(router: Router, tmp_path: Path, shelf: Reference) -> None:
    """An operator's console does not import the application."""
    if router.url is None:
        pytest.skip("a memory store has no second process")
    lease = zombie(router, shelf)
    with Router(router.url) as console:
        ended = console.cancel(console.job(lease.job_id), by="ann")

    assert ended.unsealed == (
        "shelf:a (no guard is registered as 'shelf' in this process: register it with "
        "router.guard('shelf', guard), or try again in a process that has it)",
    )


def test_a_worker_without_guards_records_what_it_could_not_seal(
    router: Router, shelf: Reference, clock: ManualClock
) -> None:
    """Upkeep is for all queues of a store, so it may be another application's worker that fails a job for good."""
    if router.url is None:
        pytest.skip("a memory store has no second application")
    router.add("j", retry=Retry(max_reclaims=0))
    lease = router.claim("paused")
    assert lease is not None
    router._registry.guards.seal([shelf.key("a")], lease)
    clock.advance(3600)
    with Router(router.url, clock=clock) as other:
        heard = threading.Event()
        other.on("failed")(lambda event: heard.set())
        with other.worker(concurrency=1):
            assert heard.wait(60)

    [unsealed] = router.events("j", kind="unsealed")
    assert [key[:2] for key in unsealed.facts["keys"]] == [["shelf", "a"]]
    router.seal("j", by="ann")
    with pytest.raises(StaleEpoch):
        shelf.write("a", b"late", lease=lease)


def test_only_what_has_ended_is_sealed_by_hand(router: Router, shelf: Reference) -> None:
    """A running job has an owner, who has sealed its keys."""
    lease = zombie(router, shelf)

    with pytest.raises(Conflict, match="is running: only the keys of a finished job"):
        router.seal(lease.job_id, by="ann")


# The command line


APP = """
from pathlib import Path
from leasehold import Router
from tests.guards.reference import CarelessShelf, Reference

router = Router("sqlite:///{url}")
shelf = router.guard("shelf", Reference(Path("{folder}")))
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application in a folder, whose guard the command finds."""
    (tmp_path / "sealing_app.py").write_text(APP.format(url=tmp_path / "jobs.db", folder=tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sealing_app", raising=False)
    return tmp_path


def test_the_command_seals_what_was_not_reached(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the application's guards; once more is harmless."""
    url = f"sqlite:///{app / 'jobs.db'}"
    with Router(url) as router:
        guard = router.guard("shelf", Reference(app))
        lease = zombie(router, guard)
    with Router(url) as console:
        cancelled = console.cancel(console.job(lease.job_id), by="ann")

    call = ["guard", "seal", lease.job_id, "--app", "sealing_app:router", "--app-dir", f"{app}"]
    done = [leasehold(*call, cwd=TOP) for _ in range(2)]
    as_json = leasehold(*call, "--json", cwd=TOP)

    assert [(one.returncode, one.stdout) for one in done] == [
        (0, f"sealed shelf:a at epoch {cancelled.epoch + 1}\n")
    ] * 2
    assert json.loads(as_json.stdout)["sealed"] == [["shelf", "a"]]
    with pytest.raises(StaleEpoch):
        guard.write("a", b"late", epoch=lease.epoch, owner="zombie", store="any")


def test_the_command_proves_guards(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each by name; one that protects nothing is exit code 1."""
    call = ["guard", "prove", "--app", "sealing_app", "--app-dir", str(app)]
    assert run(call) == 0
    assert capsys.readouterr().out == "shelf: proved\n"

    import sealing_app  # type: ignore[import-not-found]  # just written

    sealing_app.router.guard("careless", Reference(app, CarelessShelf))

    assert run([*call, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["proved"]) for row in rows] == [("careless", False), ("shelf", True)]


def test_a_key_knows_how_to_seal_itself(router: Router, shelf: Reference) -> None:
    """`guard.key(name).seal()` is `guard.seal(name)`."""
    key = shelf.key("a")
    assert isinstance(key, GuardKey)

    assert key.seal(epoch=5, owner="me", store="s").mark.epoch == 5


def test_a_cancel_from_the_shell_seals_with_the_application_and_else_says_so(app: Path) -> None:
    """Without its guards the job is cancelled, its keys are open, and the exit code is 1."""
    url = f"sqlite:///{app / 'jobs.db'}"
    with Router(url) as router:
        guard = router.guard("shelf", Reference(app))
        first = zombie(router, guard)

    bare = leasehold("cancel", first.job_id, "--epoch", str(first.epoch), "--store", url, cwd=TOP)
    with Router(url) as router:
        again = router.replay(router.job(first.job_id), by="ann")
        assert router.claim("zombie", process=None) is not None
        running = router.job(again.id)
    call = ["cancel", running.id, "--epoch", str(running.epoch), "--app", "sealing_app:router"]
    env = {**environment(), "PYTHONPATH": f"{TOP / 'src'}:{TOP}"}
    sealed = subprocess.run([*COMMAND, *call], cwd=app, env=env, capture_output=True, text=True, timeout=60)

    assert (bare.returncode, bare.stderr.count("could not be reached")) == (1, 1)
    assert (sealed.returncode, sealed.stderr) == (0, "")
    with pytest.raises(StaleEpoch):
        guard.write("a", b"late", epoch=running.epoch, owner="zombie", store="any")
