"""
The row that the memory store keeps of a job.

A row is replaced when its job moves, so one comparison tells whether it is still that of its job. Two moves, the only
ones of nearly every job, change it in place instead, each by one last assignment: a claim, which sets `grant`, and the
owner's completion, which sets `end`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...core.clock import FAR
from ...core.effects import Effect
from ...core.job import Grant, Job, NewJob, Status, completion
from ...core.lifecycle import FINISHED, ending
from ...core.ownership import Ending, Ownership, Process, Reason
from ...core.parking import Parked

# In Python 3.11 an enum's member is found through its metaclass, ten times slower than a name of the module.
PENDING, RUNNING, DONE = Status.PENDING, Status.RUNNING, Status.DONE

READY = ""  # beside LOCK and TASK, where a job waits that no claim has passed over
Past = tuple[tuple[Ownership, str | None], ...]  # with the fingerprint of the owner's settlement, if any


@dataclass(slots=True, eq=False)
class Row:
    """What the store knows of one job."""

    spec: NewJob
    seq: int
    chosen: bool
    created_us: int
    run_us: int
    updated_us: int  # of a finished job, its end
    issued: int = 0  # its epoch, unless `grant` has it
    reason: Reason = Reason.CLAIM  # why the epoch was issued; of a job that went back, why the next claim finds it free
    parked: Parked | None = None  # of no meaning unless the job is pending
    grant: Grant | None = None  # the lease that lasts, or under which its owner completed the job
    awaited: bool = False  # that lease is a transfer that was not picked up
    renewed_us: int = 0  # of no meaning if that is before the lease
    stalls_us: int = FAR
    end: Status | None = None  # how it has finished
    result: str | None = None
    then: tuple[NewJob, ...] = ()  # of the completion
    # What the owners so far have left.
    attempt: int = 0
    errors: int = 0
    reclaims: int = 0
    last_error: str | None = None
    progress: float | None = None
    note: str | None = None
    checkpoint: str | None = None
    effects: tuple[Effect, ...] = ()
    past: Past = ()

    def __lt__(self, other: Row) -> bool:
        """Heaps ask for two rows of one job where all else is equal: then it does not matter."""
        return False

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.spec.id

    @property
    def status(self) -> Status:
        """Where the job stands."""
        return self.end or (PENDING if self.grant is None else RUNNING)

    @property
    def epoch(self) -> int:
        """The job's current epoch; 0 if it was never claimed."""
        return self.issued if self.grant is None else self.grant.epoch

    @property
    def lease(self) -> Grant | None:
        """The lease that lasts."""
        return self.grant if self.end is None else None

    @property
    def owner(self) -> str | None:
        """Who works on it now."""
        return self.grant.owner if self.grant is not None and self.end is None else None

    @property
    def finished_us(self) -> int | None:
        """When the job was done, failed or cancelled."""
        return None if self.end is None else self.updated_us

    @property
    def completed(self) -> Grant | None:
        """The lease under which its owner completed the job."""
        return None if self.end is None else self.grant

    @property
    def place(self) -> tuple[str, str]:
        """Where the job waits, if it is pending and due: as in `Parked`, or to be claimed."""
        return (READY, READY) if self.parked is None else self.parked[:2]

    @property
    def start_by(self) -> int:
        """By when the first owner must have the job (C56)."""
        within = self.spec.start_within_us
        return FAR if within is None or self.epoch else self.run_us + within

    @property
    def expires_us(self) -> int:
        """When the lease that lasts expires."""
        return FAR if self.grant is None else self.grant.expires_us

    def stalls_after(self, now: int) -> int:
        """Return when the job stalls, if it made progress just now."""
        return FAR if self.spec.stall_us is None else now + self.spec.stall_us

    def effect(self, name: str) -> Effect | None:
        """Return the effect of that name."""
        return next((one for one in self.effects if one.name == name), None)

    def with_effect(self, name: str, effect: Effect | None) -> Row:
        """Return the row with *effect*, or with none of that name."""
        others = tuple(one for one in self.effects if one.name != name)
        return replace(self, effects=others if effect is None else (*others, effect))

    # Moves

    def lease_to(
        self, owner: str, epoch: int, now: int, lease_us: int, claim_id: str | None, process: Process | None
    ) -> Grant:
        """Lease the job to *owner*, from the last assignment on; return the lease."""
        spec, until = self.spec, now + lease_us
        why, attempt, errors, checkpoint = self.reason, self.attempt, self.errors, self.checkpoint
        lease = Grant(spec, epoch, owner, why, attempt, errors, checkpoint, claim_id, process, now, until, lease_us)
        self.updated_us = now
        self.stalls_us = FAR if spec.stall_us is None else now + spec.stall_us
        self.grant = lease
        return lease

    def complete(self, result: str | None, now: int) -> None:
        """End the job, from the last assignment on: its owner has completed it."""
        self.last_error = None
        self.result = result
        self.updated_us = now
        self.end = DONE

    def moved(
        self, status: Status, now: int, epoch: int, reason: Reason, due: int | None = None, **changed: Any
    ) -> Row:
        """
        Return the row of a job that has no owner any more: finished, but not completed by an owner, or pending again.

        A pending one is due at *due*, or keeps its place and is due now.
        """
        changed = {"grant": None, "awaited": False, "parked": None, "result": None, "then": (), "end": None, **changed}
        if status in FINISHED:
            changed["end"] = status
        else:
            changed["attempt"] = self.attempt + 1
            changed["run_us"] = min(self.run_us, now) if due is None else due
        return replace(self, updated_us=now, issued=epoch, reason=reason, **changed)

    def closed(self, how: str, at: int, by: str, note: str | None = None, fingerprint: str | None = None) -> Past:
        """Return `past` as it is once the current ownership has ended."""
        return (*self.past, (self._ownership(str(how), at, by, note), fingerprint))

    # Questions

    def _ownership(self, *end: Any) -> Ownership:
        assert self.grant is not None
        _, epoch, owner, began, *_, granted_us, expires_us, _ = self.grant
        return Ownership(self.id, epoch, owner, began, granted_us, expires_us, *end)

    def ownerships(self) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        last: list[Ownership] = []
        if self.lease is not None:
            last = [self._ownership()]
        elif self.completed is not None:
            last = [self._ownership(DONE.value, self.updated_us, self.completed.owner)]
        return [one for one, _ in self.past] + last

    def fingerprint(self, epoch: int) -> str | None:
        """Return the fingerprint of the settlement by which the owner of *epoch* ended its lease; None for none."""
        if self.completed is not None and self.epoch == epoch:
            # Made anew for the rare repetition: kept, it would be one more object for each job.
            return completion(self.completed, self.result, self.then).fingerprint()
        return next((mark for one, mark in self.past if one.epoch == epoch), None)

    def how_it_ended(self, epoch: int) -> Ending:
        """Return how the ownership of *epoch* ended, and the job if it is finished, for the refusal of that epoch."""
        moved = next(((one.by, one.note) for one, mark in self.past if one.epoch == epoch and mark is None), None)
        last = [(str(one.ended), one.ended_us, one.by) for one, _ in self.past[-1:]]
        by = self.completed and self.completed.owner
        facts = last[0] if last else None
        return ending(self.status, self.reason, self.finished_us, by, moved=moved or (None, None), last=facts)

    def job(self) -> Job:
        """Return the job as a reader sees it."""
        lease, status = self.lease, self.status
        return Job(
            self.spec,
            status,
            self.epoch,
            self.owner,
            self.reason if self.epoch else None,
            self.attempt,
            self.errors,
            self.reclaims,
            self.run_us,
            lease and lease.granted_us,
            lease and lease.expires_us,
            self.progress,
            self.note,
            self.checkpoint,
            self.result,
            self.last_error,
            self.created_us,
            self.updated_us,
            self.finished_us,
            self.parked if status is PENDING else None,
            lease and max(self.renewed_us, lease.granted_us),
        )
