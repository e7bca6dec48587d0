"""The workers that a store knows: what each of them reports, and which of them a name stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..errors import Conflict
from . import instants
from .ownership import Process

DEAD_AFTER_US = 30_000_000  # without a report, on the store's clock; workers report every 10 seconds
FORGET_AFTER_US = 86_400_000_000  # a day: how long a dead worker is listed


class WorkerReport(NamedTuple):
    """A worker's report about itself. *name* is the owner's name of its leases, which no other worker has."""

    name: str
    given_name: str
    process: Process | None
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    concurrency: int
    running: int
    up_us: int  # how long ago it was started


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """
    A worker as it reported itself last.

    *name* is the owner's name of its leases, which no other worker has; *given_name* is what it was started with
    (`--name`), else its host's name. *queues* is None for all queues. *running* counts handlers, even those that have
    lost their jobs. *concurrency* is 0 if such handlers have held every slot for ten seconds: it claims no more. A
    worker is *alive* if it has reported within the last 30 seconds on the store's clock.
    """

    name: str
    given_name: str
    process: Process | None
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    concurrency: int
    running: int
    started_us: int
    seen_us: int
    alive: bool

    @property
    def started_at(self) -> datetime:
        """When it was started, on the store's clock."""
        return instants.aware(self.started_us)

    @property
    def seen_at(self) -> datetime:
        """When it last reported, on the store's clock."""
        return instants.aware(self.seen_us)


def is_alive(seen_us: int, now: int) -> bool:
    """Return whether a worker that reported last at *seen_us* counts as alive."""
    return now - seen_us < DEAD_AFTER_US


def recipient(job_id: str, to: str, named: Sequence[str]) -> str:
    """
    Return the owner that a transfer to *to* is for; *named* are the live workers with that name or given name.

    A worker's own name comes before a given one; a name of no live worker is an owner's like any other.
    """
    if to in named or not named:
        return to
    if len(named) > 1:
        raise several_workers(job_id, to, named)
    return named[0]


def several_workers(job_id: str, to: str, named: Sequence[str]) -> Conflict:
    """Return the refusal of a transfer to a name that several live workers were given."""
    return Conflict(
        f"job {job_id!r} cannot be transferred to {to!r}: {len(named)} live workers have that name. Pass the full "
        f"name of one of them: {', '.join(map(repr, sorted(named)))}. Nothing was changed."
    )
