"""What the topics of the contract share: the hooks of a store, a stricter clock, and short ways to say things."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ...core import checks
from ...core.effects import Effect
from ...core.job import Grant, Job, NewJob, Outcome, Settlement, new_job
from ...core.ownership import Event, Ownership, Process
from ...errors import StaleEpoch
from ...liveness import identify
from ...store import Refusal, Store
from ..clock import ManualClock

SECOND = 1_000_000
_LOOKS_OF_A_POLL = 6  # at the clock, by one claim: more than it takes to find nothing once
PATIENCE_SECONDS = 10  # of a test, on the machine's clock, with a thread that should be done at once


class AlarmClock(ManualClock):
    """
    A clock moved by hand that wakes only those whose time has come.

    `ManualClock` wakes everybody at each move, and would hide a store that looks again too late.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alarms: list[tuple[int, threading.Condition]] = []
        self._watched: dict[int, Callable[[bool], None]] = {}

    def put(self, now: int) -> None:
        """Set the clock to an instant, also an earlier one, as happens to the clocks of machines; wakes no thread."""
        self._now = now

    def watch(self, waits: threading.Event) -> None:
        """Set *waits* once the calling thread waits: on this clock, or by looking at it again and again."""
        looks = itertools.count(1)

        def notice(waiting: bool) -> None:
            if waiting or next(looks) >= _LOOKS_OF_A_POLL:
                waits.set()

        self._watched[threading.get_ident()] = notice

    def now(self) -> int:
        """Return the instant, in microseconds since 1970 (UTC)."""
        self._notice(waiting=False)
        return super().now()

    def _notice(self, *, waiting: bool) -> None:
        notice = self._watched.get(threading.get_ident())
        if notice is not None:
            notice(waiting)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by *seconds*, and wake those who wait for an instant up to then."""
        self._now += checks.microseconds(seconds, "seconds", zero=True)
        with self._lock:
            due = {condition for until, condition in self._alarms if until <= self._now}
        for condition in due:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait on *condition*, which the caller holds, until it is notified or *until* has come."""
        alarm = (until, condition)
        with self._lock:
            self._alarms.append(alarm)
        self._notice(waiting=True)
        try:
            if self._now < until:
                condition.wait()
        finally:
            with self._lock:
                self._alarms.remove(alarm)


class Contract:
    """The hooks that say how to reach a store, and the fixtures made from them."""

    def open(self, clock: AlarmClock) -> Store:
        """Return a new, empty store whose clock is *clock*. The one hook that every store needs."""
        raise NotImplementedError("a StoreContract needs open(self, clock), which returns a new, empty store.")

    def reopen(self, store: Store, clock: AlarmClock) -> Store:
        """Return a second store on the data of *store*, as a process that starts now would see it."""
        pytest.skip("this store is not shared: it has no reopen() hook")

    def traced(self, clock: AlarmClock) -> Store:
        """Return a new, empty store that records every event."""
        pytest.skip("this store does not trace: it has no traced() hook")

    def connect(self, store: Store) -> Any:
        """Return a connection of the caller's own to the database of *store*, as the driver makes it."""
        pytest.skip("this store's database is not shared: it has no connect() hook")

    def connect_autocommit(self, store: Store) -> Any:
        """Return a connection like `connect`'s on which every statement commits by itself."""
        pytest.skip("this store's driver does not commit by itself: it has no connect_autocommit() hook")

    @pytest.fixture
    def clock(self) -> AlarmClock:
        """The time, which only the test moves."""
        return AlarmClock()

    @pytest.fixture
    def store(self, clock: AlarmClock) -> Iterator[Store]:
        """The store under test, asked at the end whether it is still whole (C7)."""
        yield from _verified(self.open(clock))

    @pytest.fixture
    def another(self, store: Store, clock: AlarmClock) -> Iterator[Store]:
        """A second store on the same data."""
        yield from _verified(self.reopen(store, clock))

    @pytest.fixture
    def tracing(self, clock: AlarmClock) -> Iterator[Store]:
        """A store that records every event."""
        yield from _verified(self.traced(clock))


def _verified(store: Store) -> Iterator[Store]:
    try:
        yield store
        assert store.verify() == []
    finally:
        store.close()


# What owners say


def one(store: Store, owner: str = "worker", **options: Any) -> Grant:
    """Claim exactly one job."""
    [grant] = store.claim(owner, **options)
    return grant


# The paths that a claim may take: alone, behind an earlier claim (for which a store may have a fast path), with others
# of its queue that are alike or not, with one of another queue, and with one that has a lock key.
CLAIMS = ("one", "the next one", "several alike", "several unlike", "of several queues", "beside a key")


def companion(path: str, job: NewJob) -> list[NewJob]:
    """What stands beside *job* where it is claimed on that *path*: one job, or none."""
    others = {
        "several unlike": new_job("before", lease_seconds=7200),
        "of several queues": new_job("before", queue="another"),
        "beside a key": new_job("before", lock="a key"),
    }
    return [] if path == "one" else [others.get(path, job._replace(id="before"))]


def claimed(store: Store, path: str, job: NewJob, **options: Any) -> Grant:
    """Add *job*, and return the lease that a claim on that *path* grants for it."""
    store.add([*companion(path, job), job])
    if path == "the next one":
        one(store, **options)
    return store.claim("worker", limit=1 if path in ("one", "the next one") else 2, **options)[-1]


def ids(grants: list[Grant]) -> list[str]:
    """The jobs that *grants* are for, in their order."""
    return [grant.spec.id for grant in grants]


def completed(grant: Grant, result: str = "null", then: tuple[NewJob, ...] = ()) -> Settlement:
    """The owner's word that the job is done."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, result, then)


def failed(grant: Grant, error: str = "boom", *, retry: bool = True, delay_us: int = 0) -> Settlement:
    """The owner's word that this run met an error."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.FAIL, error=error, retry=retry, delay_us=delay_us)


def released(grant: Grant, *, delay_us: int = 0) -> Settlement:
    """The owner's word that it hands the job back."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.RELEASE, delay_us=delay_us)


def crashed(grant: Grant, how: str = "the process ended with exit code 3") -> Settlement:
    """The owner's word that the process of its handler has died."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.CRASH, error=how)


def settle(store: Store, settlement: Settlement) -> None:
    """Settle one lease, which must be accepted."""
    assert store.settle([settlement]) == [None]


def expire(store: Store, clock: AlarmClock) -> list[Ownership]:
    """Let every lease of the usual length run out, and take the jobs back."""
    clock.advance(31)
    return store.reclaim()


# What readers see


def refusal(reply: int | Refusal | None) -> StaleEpoch:
    """The refusal that *reply* must be."""
    assert isinstance(reply, StaleEpoch), f"{reply!r} is no refusal"
    return reply


def all_of(store: Store) -> dict[str, tuple[Job, list[Ownership], list[Effect]]]:
    """Everything that is kept of every job, to be compared with the same a moment later."""
    return {job.id: (job, store.ownerships(job.id), store.effects(job.id)) for job in store.jobs()}


def last_event(store: Store, kind: str) -> Event:
    """The newest event of its *kind*."""
    return store.events(kind=kind)[-1]


# Other threads, and other processes


class Waiter:
    """A claim that waits in a thread of its own; or another *call*, which takes *wait_us*."""

    def __init__(
        self,
        store: Store,
        clock: AlarmClock,
        *,
        wait_seconds: int = 1000,
        call: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self._answer: Any = None
        self._error: Exception | None = None
        self._call = functools.partial(store.claim, "waiter", **options) if call is None else call
        self._thread = threading.Thread(target=self._run, args=(clock, wait_seconds), daemon=True)
        self._waits = threading.Event()
        self._thread.start()
        # A store that waits by another clock leaves the test as true, and not as sharp.
        self._waits.wait(timeout=1)

    def _run(self, clock: AlarmClock, wait_seconds: int) -> None:
        clock.watch(self._waits)
        try:
            self._answer = self._call(wait_us=wait_seconds * SECOND)
        except Exception as error:  # raised in the test by `result`
            self._error = error

    def is_waiting(self) -> bool:
        """Whether the call has not returned."""
        return self._thread.is_alive()

    def result(self) -> Any:
        """What the call returned or raised; it must be done by now, or be about to be."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call still waits"
        if self._error is not None:
            raise self._error
        return self._answer


def in_threads(*calls: Any) -> list[Any]:
    """Make *calls* at the same time, and return what each returned or raised."""
    answers: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(number: int) -> None:
        start.wait(PATIENCE_SECONDS)
        try:
            answers[number] = calls[number]()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS * 3)
        assert not thread.is_alive(), "a call did not return"
    return answers


class Mortal:
    """A real process, to be named in a claim and then ended."""

    def __init__(self, child: subprocess.Popen[bytes], name: Process) -> None:
        self._child = child
        self.name = name

    def die(self) -> None:
        """End, and be gone for certain."""
        self._child.kill()
        self._child.wait()


@contextmanager
def a_process() -> Iterator[Mortal]:
    """Start a process that does nothing until it is ended; skip where the system does not name processes."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            name = identify(child.pid)
            if name is None:
                pytest.skip("this system does not tell enough about a process to prove its death")
            yield Mortal(child, name)
        finally:
            child.kill()
