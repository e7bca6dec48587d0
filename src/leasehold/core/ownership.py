"""Epochs, and the record of who held a job, from when to when, and why it moved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import StoreUnavailable
from . import instants

if TYPE_CHECKING:
    from .job import Status

EPOCH_LIMIT = 2**53  # JSON and JavaScript keep every smaller whole number exactly
CLOCK_LIMIT = 2**52  # the year 2112: a clock beyond it is wrong, and would use the numbers up


STORE = "leasehold"  # who acts when the store itself takes a job back
RECOVERY_EVERY_US = 1_000_000  # looking up processes costs system calls, so an idle poll does it at most this often


class Reason(StrEnum):
    """Why an ownership began, or why a job was taken from its owner."""

    CLAIM = "claim"
    RETRY = "retry"
    TIMEOUT = "timeout"
    STALL = "stall"
    MANUAL = "manual"
    CANCELLATION = "cancellation"
    RECOVERY = "recovery"
    RELEASE = "release"


def draw_epochs(last: int, count: int, now: int) -> int:
    """
    Return the last of *count* consecutive epochs, all of them above *last*.

    The first of them is at or above the wall clock in microseconds. So a store that has forgotten what it issued (a
    restored backup, a copied file, a lost write) goes on above it without having to notice, as long as the clock is
    not behind the newest forgotten epoch. A clock that stands still or steps back costs nothing else: counting goes
    on by one.
    """
    before = now - 1 if now < CLOCK_LIMIT else sane(now)
    drawn = (last if last > before else before) + count
    if drawn >= EPOCH_LIMIT:
        raise StoreUnavailable(f"no epoch is left below 2**53: the last one was {last}.")
    return drawn


def sane(now: int) -> int:
    """Return *now*, unless epochs that followed such a clock could never be followed by others."""
    if now >= CLOCK_LIMIT:
        raise wrong_clock(now)
    return now


def wrong_clock(now: int) -> StoreUnavailable:
    """Return the refusal of a verb at such a time."""
    return StoreUnavailable(
        f"the store's clock says {now} microseconds since 1970, after the year 2112. Correct the clock: epochs follow "
        "it and never go back. Nothing was changed."
    )


class Ending(NamedTuple):
    """How a refused ownership ended, and its job if that is finished; what is not in the record is None."""

    moved_by: str | None = None  # who took the job from that owner; `STORE` for a reclaim
    note: str | None = None
    status: Status | None = None  # of a finished job
    finished_by: str | None = None
    finished_at: datetime | None = None


class Process(NamedTuple):
    """Names one run of one process, so that its death can be proved."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """One owner's time with one job, under one epoch. `ended` is "done", "failed" or a `Reason`; None as it lasts."""

    job_id: str
    epoch: int
    owner: str
    began: Reason
    granted_us: int
    deadline_us: int
    ended: str | None = None
    ended_us: int | None = None
    by: str | None = None
    note: str | None = None

    @property
    def granted_at(self) -> datetime:
        """When the epoch was issued, on the store's clock."""
        return instants.aware(self.granted_us)

    @property
    def expires_at(self) -> datetime:
        """The deadline as it stood last, after the last renewal."""
        return instants.aware(self.deadline_us)

    @property
    def ended_at(self) -> datetime | None:
        """When it ended, or None while it lasts."""
        return instants.as_datetime(self.ended_us)


class LiveLease(NamedTuple):
    """A lease that lasts, with when its owner renewed it last and when its work moved last."""

    job_id: str
    epoch: int
    owner: str
    granted_us: int
    expires_us: int
    renewed_us: int  # when it was granted, if it was not renewed
    progressed_us: int


class NoteKind(StrEnum):
    """What a note reports: of guarded resources, and of operators."""

    GUARDED = "guarded"  # the keys that an owner is about to write to
    REFUSED = "refused"  # a write, by a guard
    DOUBTED = "doubted"  # a seal found older uses that may still write
    UNSEALED = "unsealed"  # keys that could not be sealed after the job's end
    SEALED = "sealed"  # keys that were sealed after the job's end
    BULK = "bulk"  # an operator's verb on many jobs
    BREAK_GLASS = "break-glass"  # an operator's verb that was repeated until it held, with the reason


class Note(NamedTuple):
    """What happened outside of the store's own verbs, to be recorded as an event of that kind."""

    kind: NoteKind
    job_id: str | None
    epoch: int
    owner: str | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job, or to the store. `number` orders the events of one store."""

    number: int
    at_us: int
    kind: str
    job_id: str | None
    epoch: int | None
    owner: str | None
    facts: dict[str, Any]

    @property
    def at(self) -> datetime:
        """When it happened, on the store's clock."""
        return instants.aware(self.at_us)
