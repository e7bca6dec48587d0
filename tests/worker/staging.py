"""What the tests of the worker share: a store that can be tampered with, gates for handlers, and patience."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Clock, Job, Router, Status
from leasehold.store import Store
from leasehold.worker.worker import Worker

PATIENCE = float(PATIENCE_SECONDS)

T = TypeVar("T")

Verb = Callable[..., Any]
Tamper = Callable[..., Any]


class Tampered:
    """
    A store that does what *real* does, except where the test says otherwise, and that remembers what it was asked.

    `tampers["settle"] = f` has `f(real_settle, …)` called instead; f may call the real verb, before or after the fault.
    """

    def __init__(self, real: Store) -> None:
        self.real = real
        self.tampers: dict[str, Tamper] = {}
        self.asked: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)

    @property
    def store(self) -> Store:
        """Itself, as a store."""
        return cast(Store, self)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)
        if not callable(real) or name == "transactions":
            return real

        def verb(*args: Any, **kwargs: Any) -> Any:
            self.asked[name].append(args)
            tamper = self.tampers.get(name)
            return real(*args, **kwargs) if tamper is None else tamper(real, *args, **kwargs)

        return verb


class Gate:
    """Where handlers wait for the test; the test sees who has come."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._all = threading.Condition()
        self.came: list[Any] = []

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._open.set()

    def pass_by(self, who: Any = None) -> None:
        """Wait, on a handler's thread, until the gate is open."""
        with self._all:
            self.came.append(who)
            self._all.notify_all()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    def wait_for(self, count: int = 1) -> None:
        """Wait, in the test, until that many have come."""
        with self._all:
            assert self._all.wait_for(lambda: len(self.came) >= count, PATIENCE), f"{len(self.came)} came"


class Most:
    """Counts how many are inside at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0
        self.entered = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.entered += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


def made(router: Router, *, store: Store | None = None, steady: Clock | None = None, **settings: Any) -> Worker:
    """Return a worker of *router*, maybe on another store or with another clock."""
    shop = router.worker()._shop
    return Worker(shop if store is None else shop._replace(store=store), steady=steady, **settings)


@contextmanager
def working(
    router: Router, *, store: Tampered | Store | None = None, steady: Clock | None = None, **settings: Any
) -> Iterator[Worker]:
    """Have a worker at work; at the end it waits for its handlers."""
    worker = made(router, store=store.store if isinstance(store, Tampered) else store, steady=steady, **settings)
    worker.start()
    try:
        yield worker
    except BaseException:
        worker.stop(grace_seconds=0)
        raise
    worker.stop()


def has_looked(worker: Worker, steady: Clock) -> bool:
    """Return whether both keepers have looked at what the clock shows now, and sleep."""
    sleepers = (worker.runner.renewer, worker.runner.watch)
    return all(sleeper._woken._waiters and steady.now() < sleeper._until for sleeper in sleepers)  # type: ignore[attr-defined]  # who waits


def with_status(router: Router, job_id: str, status: Status, seconds: float = PATIENCE) -> Job:
    """Wait until the job has that status, and return it."""
    until(lambda: router.job(job_id).status is status, f"{job_id} to be {status}, not {router.job(job_id)}", seconds)
    return router.job(job_id)


def ended(router: Router, *job_ids: str) -> list[Job]:
    """Wait until every one of the jobs is done, and return them."""
    return [with_status(router, job_id, Status.DONE) for job_id in job_ids]


def our_threads() -> list[str]:
    """Return the names of all threads that a worker has started and that still run."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("leasehold-"))


def assert_nothing_left() -> None:
    """No thread of a worker runs any more; those of handlers and of async callers may be ending."""
    assert [name for name in our_threads() if not name.startswith(("leasehold-handler", "leasehold-wait"))] == []
    until(lambda: our_threads() == [], "the handlers' threads")
