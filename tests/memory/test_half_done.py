"""What a verb of the memory store leaves behind if it is stopped halfway: by Ctrl-C, or because no epoch is left."""

from __future__ import annotations

import dataclasses
import functools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import leasehold.stores.memory
from leasehold import Status, StoreUnavailable
from leasehold.core.job import Grant, NewJob, Outcome, Settlement, completion
from leasehold.core.options import Options
from leasehold.core.ownership import CLOCK_LIMIT, EPOCH_LIMIT
from leasehold.core.retry import Retry
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

FOLDER = str(Path(leasehold.stores.memory.__file__).parent)
SECOND = 1_000_000


class Scene:
    """A store with a job in every place."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.store.add(
            [
                NewJob("held", lock="k", unique="u", stall_us=100 * SECOND),
                NewJob("expiring", lease_us=10 * SECOND),
                NewJob("expiring too", lease_us=10 * SECOND, lock="l"),
                NewJob("exhausted", lease_us=10 * SECOND, options=Options(Retry(max_reclaims=0))),
                NewJob("done"),
            ]
        )
        [held] = self.store.claim("w")
        self.store.settle([Settlement(held.spec.id, held.epoch, Outcome.RELEASE)])  # so that it has a past
        self.grants = {grant.spec.id: grant for grant in self.store.claim("w", limit=5)}
        self.store.settle([completion(self.grants["done"])])
        self.store.add([NewJob("behind", lock="k"), NewJob("free"), NewJob("later", delay_us=3600 * SECOND)])
        [_] = self.store.claim("w")  # "free"; "behind" is parked
        self.store.add([NewJob("next"), NewJob("mail", queue="mail", lock="m")])

    @property
    def held(self) -> Grant:
        return self.grants["held"]

    def seen(self) -> Any:
        """All that readers see, but for events, and what a due job is parked behind: what was struck parks anew."""
        jobs = [dataclasses.replace(job, parked=None) for job in self.store.jobs()]
        return jobs, [self.store.ownerships(job.id) for job in jobs], self.store.counts()

    def drained(self) -> None:
        """Every job that is left can be claimed and completed."""
        for job in self.store.jobs(status=Status.RUNNING):
            assert self.store.settle([completion(self.store.lease(job.id, job.owner or ""))]) == [None]
        self.clock.advance(7200)
        while grants := self.store.claim("drain", limit=3):
            assert self.store.settle([completion(grant) for grant in grants]) == [None] * len(grants)
        assert self.store.verify() == []
        assert self.store.counts()[:2] == (0, 0)


def late(scene: Scene) -> Scene:
    """Let three leases expire."""
    scene.clock.advance(11)
    return scene


ISSUING: dict[str, Callable[[Scene], object]] = {
    "claim": lambda s: s.store.claim("v"),
    "claim many": lambda s: s.store.claim("v", limit=5),
    "claim what expired": lambda s: late(s).store.claim("v", limit=5),
    "reclaim": lambda s: late(s).store.reclaim(),
    "transfer a running job": lambda s: s.store.transfer("held", s.held.epoch, to="x", by="op"),
    "transfer a pending job": lambda s: s.store.transfer("mail", 0, to="x", by="op"),
    "cancel a running job": lambda s: s.store.cancel("held", s.held.epoch, by="op"),
    "cancel a parked job": lambda s: s.store.cancel("behind", 0, by="op"),
    "finish": lambda s: s.store.finish("held", s.held.epoch, by="op"),
    "requeue": lambda s: s.store.requeue("held", s.held.epoch, by="op"),
    "replay": lambda s: s.store.replay("done", s.grants["done"].epoch, by="op"),
}


@pytest.mark.parametrize("verb", ISSUING)
def test_a_verb_that_finds_no_epoch_left_has_changed_nothing(verb: str) -> None:
    """Every job is where it was, and its owner, who needs no new epoch, can still complete it."""
    scene = Scene()
    scene.store.advance(EPOCH_LIMIT - 2)
    before = scene.seen()

    with pytest.raises(StoreUnavailable, match="no epoch is left"):
        ISSUING[verb](scene)

    assert scene.store.verify() == []
    assert scene.seen() == before
    assert scene.store.settle([completion(scene.held)]) == [None]
    assert scene.store.verify() == []


def test_epochs_that_end_in_the_middle_of_a_batch_lose_no_job() -> None:
    """Of three leases that have expired, one is taken back with the last epoch; the others stay with their owners."""
    scene = late(Scene())
    scene.store.advance(EPOCH_LIMIT - 3)

    with pytest.raises(StoreUnavailable, match="no epoch is left"):
        scene.store.reclaim()

    assert scene.store.verify() == []
    running = [job.id for job in scene.store.jobs(status=Status.RUNNING)]
    assert running == ["held", "expiring too", "exhausted", "free"]
    assert scene.store.job("expiring").reclaims == 1
    assert scene.store.settle([completion(scene.grants["exhausted"])]) == [None]


def test_a_clock_beyond_its_limit_makes_no_job_due() -> None:
    """What was to wait goes on waiting once the clock is set right."""

    class Clock(ManualClock):
        wrong = False

        def now(self) -> int:
            return CLOCK_LIMIT if self.wrong else super().now()

    clock = Clock()
    store = MemoryStore(clock=clock)
    store.add([NewJob("later", delay_us=3600 * SECOND), NewJob("now")])

    clock.wrong = True
    with pytest.raises(StoreUnavailable, match="2112"):
        store.claim("w")
    clock.wrong = False

    assert [grant.spec.id for grant in store.claim("w", limit=2)] == ["now"]


class Strike:
    """Ctrl-C before the nth line of the store that is run; `struck` is where, or None if there were fewer."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.struck: str | None = None

    def _of_the_store(self, frame: FrameType) -> bool:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return False
        # CPython looks for signals when a call has returned: between the last step of a verb and the release of its
        # lock, which is such a call, nothing strikes.
        return "with self._turn" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno)

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace the frame, if it is one of the store's."""
        if event == "line" and self._of_the_store(frame):
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self.struck = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def struck(nth: int, verb: Callable[[], object]) -> str | None:
    """Call *verb* with Ctrl-C before its nth line; return where that was, or None if it has fewer lines."""
    strike, before = Strike(nth), sys.gettrace()
    sys.settrace(strike)
    try:
        verb()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return strike.struck


THEN = {
    "held": (NewJob("first", unique="u"), NewJob("second", lock="k"), NewJob("third", delay_us=SECOND)),
    "expiring": (NewJob("fourth"),),
}
VERBS: dict[str, Callable[[Scene], object]] = {
    "complete": lambda s: s.store.settle([completion(s.grants[job_id], "1", then) for job_id, then in THEN.items()]),
    "fail": lambda s: s.store.settle([Settlement("held", s.held.epoch, Outcome.FAIL, error="no")]),
    "add": lambda s: s.store.add(THEN["held"]),
    "add children": lambda s: s.store.add_children("held", s.held.epoch, THEN["held"]),
    **ISSUING,
}


@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_anywhere_in_a_verb_leaves_it_done_or_not(verb: str) -> None:
    """A completion has its follow-up jobs or has not happened (C24); every job is in one place, and can be finished."""
    whole = Scene()
    VERBS[verb](whole)
    after = {job.id: job for job in whole.store.jobs()}
    nth = 0
    where: str | None = ""
    while where is not None:
        nth += 1
        scene = Scene()
        untouched, events = scene.seen(), scene.store.events()
        before = {job.id: job for job in untouched[0]}
        where = struck(nth, functools.partial(VERBS[verb], scene))

        assert scene.store.verify() == [], where
        jobs, ownerships, counts = scene.seen()
        assert counts[:5] == tuple(sum(job.status is status for job in jobs) for status in Status), where
        assert scene.seen() != untouched or scene.store.events() == events, where
        seen = {job.id: job for job in jobs}
        for job_id in before:
            between = (Status.PENDING,) if seen[job_id].reclaims else ()
            assert seen[job_id].status in (before[job_id].status, after[job_id].status, *between), where
            assert seen[job_id].errors in (before[job_id].errors, after[job_id].errors), where
        for job, held in zip(jobs, ownerships, strict=True):
            assert [one.epoch for one in held] == sorted({one.epoch for one in held}), where
            assert [one.epoch for one in held if one.ended is None] == [job.epoch] * (job.status is Status.RUNNING)
        for parent, then in THEN.items():
            there = [child.id for child in then if child.id in seen]
            assert there in ([], [child.id for child in then if child.id in after]), where
            assert verb != "complete" or bool(there) == (seen[parent].status is Status.DONE), where
        scene.drained()
    assert nth > 10
