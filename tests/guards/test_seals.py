"""Keys that are sealed before a handler, refusals in the history of the job, and proofs (G10)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.guards.reference import CarelessShelf, Reference

from leasehold import InvalidArgument, Lease, Router, StaleEpoch, Unfenced
from leasehold.testing import ManualClock

from .sealed_jobs import Doubting, Unreachable, clock, keys, router, shelf, zombie

__all__ = ["clock", "router", "shelf"]  # fixtures


# Before the handler


def test_keys_are_recorded_and_sealed_before_the_first_line(router: Router, shelf: Reference) -> None:
    """At the epoch of the run, from the arguments that the function takes."""
    seen: list[int | None] = []

    @router.task(seals=lambda image: [shelf.key(f"{image}.png"), shelf.key("index")])
    def resize(lease: Lease, image: str, width: int) -> None:
        marks = [shelf.mark(name) for name in ("a.png", "index")]
        seen.extend(mark and mark.epoch for mark in marks)
        assert keys(router, lease.job_id) == [[["shelf", "a.png"], ["shelf", "index"]]]
        shelf.write(f"{image}.png", b"new")

    job = resize.add("a", 100).job
    [done] = router.drain(raise_errors=True)

    assert seen == [done.epoch, done.epoch]
    assert shelf.peek("a.png") == b"new"
    assert done.id == job.id


def test_keys_are_made_of_the_handlers_defaults_too(router: Router, shelf: Reference) -> None:
    """What was left out at add is what the handler sees."""

    @router.task(seals=lambda image, width: [shelf.key(f"{image}-{width}")])
    def resize(lease: Lease, image: str, width: int = 256) -> None:
        mark = shelf.mark(f"{image}-{width}")
        assert mark is not None
        assert mark.epoch == lease.epoch

    resize.add("a")
    resize.add("b", width=64)

    assert [job.status for job in router.drain(raise_errors=True)] == ["done", "done"]


def test_an_async_handler_finds_its_keys_sealed(router: Router, shelf: Reference) -> None:
    """The seal is made on a thread, so the loop goes on."""
    threads: list[threading.Thread] = []
    seal = shelf._seal
    shelf._seal = lambda key, writer: threads.append(threading.current_thread()) or seal(key, writer)  # type: ignore[method-assign, func-returns-value]

    @router.task(seals=lambda: shelf.key("a"))
    async def write(lease: Lease) -> None:
        mark = shelf.mark("a")
        assert mark is not None
        assert mark.epoch == lease.epoch
        threads.append(threading.current_thread())

    write.add()
    [done] = router.drain(raise_errors=True)

    assert done.status == "done"
    assert threads[0] is not threads[1]


def test_a_process_seals_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that runs the handler; the worker's store records the keys."""
    monkeypatch.setenv("SEALING_FOLDER", str(tmp_path))
    from tests.guards import sealing_tasks

    router = sealing_tasks.router
    with router.override(), router.worker(concurrency=1):
        job = sealing_tasks.write.add("a").job
        pid, epoch = router.result(job.id, wait_seconds=60)

        assert pid != os.getpid()
        assert epoch == router.job(job.id).epoch
        assert keys(router, job.id) == [[["shelf", "a"]]]
    assert Reference(tmp_path).peek("a") == b"by a process"


def test_a_job_whose_key_cannot_be_sealed_goes_back(router: Router, tmp_path: Path, clock: ManualClock) -> None:
    """With a back-off, the reason on the job and its budgets untouched; its handler was not called."""
    guard = router.guard("away", Unreachable(tmp_path))
    calls: list[str] = []

    @router.task(seals=lambda: [guard.key("a")])
    def write() -> None:
        calls.append("called")

    job = write.add().job
    [back] = router.drain()

    assert (back.status, back.errors, back.reclaims, calls) == ("pending", 0, 0, [])
    assert "the server is away" in str(back.last_error)
    assert router.drain() == [], "it is not due before its back-off"

    guard.away = False
    clock.advance(61)
    assert [found.status for found in router.drain()] == ["done"]
    assert router.job(job.id).status == "done"


def test_a_key_of_a_newer_owner_sends_the_job_back_for_a_newer_epoch(
    router: Router, shelf: Reference, clock: ManualClock
) -> None:
    """Two jobs write one key without a lock: the older claim is refused, and its next one passes."""

    @router.task(seals=lambda: [shelf.key("a")])
    def write(lease: Lease) -> int:
        return lease.epoch

    job = write.add().job
    above = router.advance() + 1_000
    shelf.seal("a", epoch=above, owner="other", store=router.store.identity())
    [back] = router.drain()
    clock.advance(61)
    router.advance(above=above)
    [done] = router.drain()

    assert (back.status, back.errors) == ("pending", 0)
    assert "stands at epoch" in str(back.last_error)
    assert done.id == job.id
    assert done.status == "done"


def test_a_doubt_is_recorded_and_the_handler_runs(router: Router, tmp_path: Path) -> None:
    """It is no failure: what may still happen under an older epoch is known now."""
    gate = router.guard("gate", Doubting(tmp_path))

    @router.task(seals=lambda: [gate.key("a")])
    def write() -> str:
        return "ran"

    job = write.add().job
    router.drain(raise_errors=True)

    assert router.result(job.id) == "ran"
    [doubted] = router.events(job.id, kind="doubted")
    [doubt] = doubted.facts["doubts"]
    assert {
        "guard": "gate",
        "key": "a",
        "epoch": 3,
        "owner": "old",
        "note": "a call that runs",
    }.items() <= doubt.items()


def test_what_is_not_registered_cannot_be_sealed(router: Router, tmp_path: Path) -> None:
    """Its keys could not be found again when the job ends. A mistake of the program: it counts as an error."""
    stray = Reference(tmp_path)

    @router.task(seals=lambda: [stray.key("a")])
    def write() -> None: ...

    write.add()
    [back] = router.drain()

    assert (back.status, back.errors) == ("pending", 1)
    assert "register it with router.guard(name, guard)" in str(back.last_error)
    assert stray.mark("a") is None


@pytest.mark.parametrize(
    ("seals", "why"),
    [
        (
            lambda height: [],
            "has a parameter 'height', but the handler has no argument of that name. It can use: image",
        ),
        (lambda *images: [], r"cannot have the parameter \*images: name each argument"),
        (["a"], "must be a plain function"),
    ],
)
def test_seals_that_do_not_fit_are_refused_at_decoration(router: Router, seals: Any, why: str) -> None:
    """And not when the first job comes."""
    with pytest.raises(InvalidArgument, match=why):

        @router.task(seals=seals)
        def resize(image: str) -> None: ...


@pytest.mark.parametrize("keys", [["a"], [None], [("shelf", "a")]])
def test_what_is_not_a_key_fails_the_job(router: Router, shelf: Reference, keys: list[Any]) -> None:
    """With what was returned, and what would do."""

    @router.task(seals=lambda: keys)
    def write() -> None: ...

    write.add()
    [failed] = router.drain()

    assert "return [guard.key(name), …]" in str(failed.last_error)


def test_two_guards_have_two_names(router: Router, shelf: Reference, tmp_path: Path) -> None:
    """The record finds a guard by its name."""
    assert router.guard("shelf", shelf) is shelf

    with pytest.raises(InvalidArgument, match="two guards are called 'shelf'"):
        router.guard("shelf", Reference(tmp_path))
    with pytest.raises(InvalidArgument, match="already registered as 'shelf'"):
        router.guard("other", shelf)
    with pytest.raises(InvalidArgument, match="takes a Guard"):
        router.guard("odd", "file.txt")  # type: ignore[type-var]


# Refusals


def test_a_refusal_is_in_the_history_of_the_job(router: Router, shelf: Reference) -> None:
    """With what was presented, what stands, who wrote and where."""
    lease = zombie(router, shelf)
    shelf.seal("a", epoch=lease.epoch + 5, owner="next", store=router.store.identity())

    with pytest.raises(StaleEpoch):
        shelf.write("a", b"late", lease=lease)

    [refused] = router.events(lease.job_id, kind="refused")
    assert (refused.epoch, refused.owner) == (lease.epoch + 5, "next")
    assert refused.facts == {
        "resource": "reference:a",
        "guard": "shelf",
        "presented": lease.epoch,
        "current": lease.epoch + 5,
        "by": "zombie",
        "verb": "write",
    }


def test_a_refusal_inside_a_transaction_is_recorded_after_it(router: Router, shelf: Reference) -> None:
    """On SQLite the record would wait for the very transaction in which the refusal was met."""
    if router.url is None:
        pytest.skip("a memory store has no transactions")
    lease = zombie(router, shelf)
    shelf.seal("a", epoch=lease.epoch + 5, owner="next", store=router.store.identity())

    with lease.transaction():
        with pytest.raises(StaleEpoch):
            shelf.write("a", b"late", lease=lease)
        assert router.events(lease.job_id, kind="refused") == []
    router._registry.guards.flush()

    assert len(router.events(lease.job_id, kind="refused")) == 1


def test_a_refusal_that_another_thread_records_is_raised_all_the_same(
    router: Router, shelf: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two threads that are refused at once, one may record both refusals; the other is still told `StaleEpoch`."""
    shelf.seal("k", epoch=9, owner="new", store="s")

    def other_thread(store: Any) -> Any:
        monkeypatch.undo()
        router._registry.guards.flush()
        return store

    monkeypatch.setattr("leasehold.tasks.guarded.alone", other_thread)
    with pytest.raises(StaleEpoch):
        shelf.write("k", b"stale", epoch=7, owner="old", store="s")
    assert len(router.events(kind="refused")) == 1


def test_a_refusal_of_another_store_names_it(router: Router, shelf: Reference) -> None:
    """Its job is not one of this store."""
    shelf.seal("a", epoch=9, owner="next", store="s")

    with pytest.raises(StaleEpoch):
        shelf.write("a", b"late", epoch=8, owner="old", store="other")

    [refused] = router.events(kind="refused")
    assert (refused.job_id, refused.facts["store"]) == (None, "other")


# Proof


def test_a_worker_does_not_start_on_a_guard_that_protects_nothing(router: Router, tmp_path: Path) -> None:
    """It would run handlers whose writes nothing fences."""
    router.guard("careless", Reference(tmp_path, CarelessShelf))

    with pytest.raises(Unfenced), router.worker():
        pass


def test_a_guard_that_is_not_to_be_proved_is_not(router: Router, tmp_path: Path) -> None:
    """For one that is proved elsewhere, or costs too much."""
    router.guard("careless", Reference(tmp_path, CarelessShelf), prove=False)

    with router.worker():
        pass
