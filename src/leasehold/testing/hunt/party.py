"""What the threads of one process of the hunt share: their orders, their leases, and the reports that they send."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ...lease import Lease
from ...router import Router
from .judge import Report


@dataclass(frozen=True)
class Orders:
    """The settings of one process of the hunt."""

    url: str = field(repr=False)  # it may have a password
    schema: str
    number: int
    threads: int
    seed: int


class Ticks:
    """Numbers in the order in which they are drawn, whichever process draws them."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def __call__(self) -> int:
        """Draw the next one."""
        with self._shared.get_lock():
            self._shared.value += 1
            return int(self._shared.value)


class Reports:
    """The reports of all threads, sent in portions."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._pending: list[Report] = []

    def say(self, report: Report) -> None:
        """Keep a report for the next portion."""
        with self._lock:
            self._pending.append(report)

    def send(self) -> None:
        """Send the reports since the last portion."""
        with self._lock:
            portion, self._pending = self._pending, []
        if portion:
            self._pipe.send(portion)


@dataclass
class Held:
    """A lease, and the lock key of its job."""

    lease: Lease
    lock: str | None
    release: list[str] = field(default_factory=lambda: ["once"])  # who pops it may release the job

    def may_release(self) -> bool:
        """Whether the caller may be the one that releases the job: all releases have the same words, see `settle`."""
        try:
            self.release.pop()
        except IndexError:
            return False
        return True


class Party:
    """The leases that the threads of one process share: two of them may use the same one at the same time."""

    def __init__(self, orders: Orders, router: Router, tick: Ticks, reports: Reports, waiting: Any, stop: Any) -> None:
        self.orders = orders
        self.router = router
        self.tick = tick
        self.say = reports.say
        self.waiting = waiting
        self.stop = stop
        self._lock = threading.Lock()
        self.worker = f"worker-{orders.number}"
        self.given_name = f"given-{orders.number // 2}"  # two processes share one, so some transfers are conflicts
        self._held: dict[tuple[str, int], Held] = {}
        self._known: list[str] = []  # ids of jobs, for the operators

    def take_in(self, held: Held) -> None:
        """Share a new lease."""
        with self._lock:
            self._held[held.lease.job_id, held.lease.epoch] = held
            self._known.append(held.lease.job_id)
            del self._known[:-500]

    def drop(self, held: Held) -> None:
        """Forget a lease."""
        with self._lock:
            self._held.pop((held.lease.job_id, held.lease.epoch), None)

    def some(self, rng: random.Random, most: int) -> list[Held]:
        """Return some leases in random order."""
        with self._lock:
            held = list(self._held.values())
        return rng.sample(held, min(len(held), rng.randint(1, most)))

    def recipient(self, rng: random.Random) -> str:
        """Return the name of some worker or thread, whether or not it is there, or one that workers were given."""
        number = rng.randrange(self.orders.number + 2)
        thread = rng.randrange(self.orders.threads)
        return rng.choice((f"worker-{number}", f"worker-{number}", f"given-{number // 2}", f"owner-{number}-{thread}"))

    def size(self) -> int:
        """How many leases there are."""
        return len(self._held)

    def known(self, rng: random.Random) -> str | None:
        """Return the id of some job that was seen lately."""
        with self._lock:
            return rng.choice(self._known) if self._known else None
