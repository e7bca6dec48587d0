"""
The row that the memory store keeps of a job.

As in the other stores, a claim and a renewal do not touch it: a job's lease is a `Grant` beside it. A row is never
changed. A verb puts another one in its place, so one comparison tells whether a row is still that of its job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...core.effects import Effect
from ...core.job import PRUNED, Grant, Job, NewJob, Outcome, Status, completion
from ...core.lifecycle import FINISHED, ending
from ...core.ownership import Ending, Ownership, Reason
from ...core.parking import Parked

# In Python 3.11 an enum's member is found through its metaclass, ten times slower than a name of the module.
PENDING, DONE, COMPLETE = Status.PENDING, Status.DONE, Outcome.COMPLETE


class Past(NamedTuple):
    """What the owners so far have left; nothing for nearly every job, which its first owner completes."""

    attempt: int = 0
    errors: int = 0
    reclaims: int = 0
    last_error: str | None = None
    progress: float | None = None
    note: str | None = None
    checkpoint: str | None = None
    effects: dict[str, Effect] = {}  # noqa: RUF012  # replaced, never changed
    ended: tuple[tuple[Ownership, str | None], ...] = ()  # with the fingerprint of the owner's settlement, if any


NO_PAST = Past()


@dataclass(slots=True, eq=False)
class Record:
    """The row of one job. A job that is leased is PENDING here; `epoch` is that of the last owner that wrote to it."""

    spec: NewJob
    seq: int
    chosen: bool
    created_us: int
    run_us: int
    status: Status
    epoch: int
    reason: Reason  # why that epoch was issued; of a job that went back, why the next claim finds it free
    updated_us: int  # of a finished job, its end
    result: str | None = None
    then: tuple[NewJob, ...] = ()  # of the completion
    grant: Grant | None = None  # the lease that completed the job
    past: Past = NO_PAST
    parked: Parked | None = None
    stalls_us: int | None = None
    awaited: bool = False  # the lease of `epoch` is a transfer that was not picked up

    def __lt__(self, other: Record) -> bool:
        """Heaps ask for two rows of one job where all else is equal: then it does not matter."""
        return False

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.spec.id

    @property
    def narrow(self) -> bool:
        """Whether the job was pruned, and only its id, status, epoch and end are kept."""
        return self.spec.document == PRUNED

    @property
    def finished_us(self) -> int | None:
        """When the job was done, failed or cancelled."""
        return self.updated_us if self.status in FINISHED else None

    @property
    def start_by(self) -> int | None:
        """By when the first owner must have the job (C56)."""
        within = self.spec.start_within_us
        return None if within is None or self.epoch else self.run_us + within

    def stalls_after(self, now: int) -> int | None:
        """Return when the job stalls, if it made progress just now; None for never."""
        return None if self.spec.stall_us is None else now + self.spec.stall_us

    def awaits(self, lease: Grant) -> bool:
        """Return whether *lease* is a transfer that was not picked up."""
        return self.awaited and self.epoch == lease.epoch

    def but(self, past: dict[str, Any] | None = None, **changed: Any) -> Record:
        """Return the row with these fields *changed*, and those of its past."""
        if past:
            changed["past"] = self.past._replace(**past)
        return replace(self, **changed)

    def held(self, lease: Grant) -> Record:
        """Return the row as the owner of *lease* finds it."""
        if self.epoch == lease.epoch:
            return self
        at = lease.granted_us
        return self.but(epoch=lease.epoch, updated_us=at, stalls_us=self.stalls_after(at))

    def complete(self, lease: Grant, result: str | None, now: int) -> None:
        """Change the row, as nothing else does: the owner of *lease* has completed the job. It takes effect at once."""
        if self.past is not NO_PAST:
            self.past = self.past._replace(last_error=None)
        self.epoch = lease.epoch
        self.reason = lease.reason
        self.result = result
        self.grant = lease
        self.updated_us = now
        self.status = DONE  # of what is above, nothing counts before

    def over(self, status: Status, now: int, *, past: dict[str, Any], **changed: Any) -> Record:
        """Return the row of a job that is finished by other means than an owner's completion."""
        return self.but(status=status, updated_us=now, past=past, **_AT_REST | changed)

    def back(self, reason: Reason, now: int, *, past: dict[str, Any], due: int | None = None, **changed: Any) -> Record:
        """Return the row of a job that waits to be claimed again: at its old place and due now, or due at *due*."""
        # Without a delay it is due at once, also if it was transferred before its time had come.
        run_us = min(self.run_us, now) if due is None else due
        past = {"attempt": self.past.attempt + 1, **past}
        changed = {"status": PENDING, "reason": reason, "run_us": run_us, "updated_us": now, **_AT_REST, **changed}
        return self.but(past, **changed)

    def ended(
        self, lease: Grant, how: str, at: int, by: str, note: str | None = None, fingerprint: str | None = None
    ) -> dict[str, Any]:
        """Return what changes in the past of the job when *lease* ends."""
        return {"ended": (*self.past.ended, (ownership(lease, str(how), at, by, note), fingerprint))}

    def fingerprint(self, epoch: int) -> str | None:
        """Return the fingerprint of the settlement by which the owner of *epoch* ended its lease; None for none."""
        if self.grant is not None and self.grant.epoch == epoch:
            # Made anew for the rare repetition: kept, it would be one more object for each job.
            return completion(self.grant, self.result, self.then).fingerprint()
        return next((mark for held, mark in self.past.ended if held.epoch == epoch), None)

    def how_it_ended(self, epoch: int) -> Ending:
        """Return how the ownership of *epoch* ended, and the job if it is finished, for the refusal of that epoch."""
        moved = next(((one.by, one.note) for one, mark in self.past.ended if one.epoch == epoch and mark is None), None)
        last = self.past.ended[-1][0] if self.past.ended else None
        by = None if self.grant is None else self.grant.owner
        facts = None if last is None else (str(last.ended), last.ended_us, last.by)
        return ending(self.status, self.reason, self.finished_us, by, moved=moved or (None, None), last=facts)

    def job(self, lease: Grant | None, renewed_us: int = 0) -> Job:
        """Return the job as a reader sees it; *renewed_us* is when it was renewed last, under this lease or before."""
        if lease is not None and lease.epoch != self.epoch:
            return self.held(lease).job(lease, renewed_us)
        past, running = self.past, lease is not None
        return Job(
            self.spec,
            Status.RUNNING if running else self.status,
            self.epoch,
            lease and lease.owner,
            self.reason if self.epoch else None,
            past.attempt,
            past.errors,
            past.reclaims,
            self.run_us,
            lease and lease.granted_us,
            lease and lease.expires_us,
            past.progress,
            past.note,
            past.checkpoint,
            self.result,
            past.last_error,
            self.created_us,
            self.updated_us,
            self.finished_us,
            self.parked if self.status is PENDING and not running else None,
            None if lease is None else max(renewed_us, lease.granted_us),
        )


_AT_REST: dict[str, Any] = {"grant": None, "result": None, "then": (), "parked": None, "awaited": False}


def ownership(
    lease: Grant, how: str | None = None, at: int | None = None, by: str | None = None, note: str | None = None
) -> Ownership:
    """Return the ownership of *lease*, ended as the arguments say."""
    _, epoch, owner, began, *_, granted_us, expires_us, _ = lease
    return Ownership(lease.spec.id, epoch, owner, began, granted_us, expires_us, how, at, by, note)
