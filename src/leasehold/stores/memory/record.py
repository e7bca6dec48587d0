"""All that the memory store keeps of one job."""

from __future__ import annotations

from ...core.effects import Effect
from ...core.job import PRUNED, Grant, Job, NewJob, Settlement, Status, completion
from ...core.lifecycle import ending, no_effect
from ...core.ownership import Ending, Ownership, Reason
from ...core.parking import Parked

# In Python 3.11 an enum's member is found through its metaclass, ten times slower than a name of the module.
PENDING, RUNNING, DONE = Status.PENDING, Status.RUNNING, Status.DONE
_CLAIM = Reason.CLAIM

ORDER = {status: place for place, status in enumerate(Status)}
AT_PENDING, AT_RUNNING, AT_DONE = ORDER[PENDING], ORDER[RUNNING], ORDER[DONE]


class Record:
    """All that the store keeps of one job. `grant` is the current lease, or the one that completed the job."""

    __slots__ = (
        "attempt",
        "awaited",
        "checkpoint",
        "chosen",
        "created_us",
        "effects",
        "epoch",
        "errors",
        "expires_us",
        "finished_us",
        "grant",
        "history",
        "last_error",
        "left",
        "note",
        "parked",
        "plain",
        "progress",
        "reason",
        "reclaims",
        "renewed_us",
        "result",
        "run_us",
        "seq",
        "spec",
        "stalls_us",
        "status",
        "tally",
        "then",
        "ticket",
        "updated_us",
    )

    def __init__(self, spec: NewJob, seq: int, now: int, tally: list[int]) -> None:
        run_us = spec.due(now)
        self.chosen = spec.chosen
        self.spec = spec = spec.stored()
        # Nearly every job. One look at this is cheaper than four, where a job is claimed and where it is completed.
        self.plain = spec.lock is None and spec.unique is None and spec.lease_us is None and spec.stall_us is None
        self.seq = seq
        self.ticket = 0
        self.tally = tally  # how many jobs of its queue stand where, by the order of the statuses
        self.status = PENDING
        self.epoch = 0
        self.awaited = 0  # the epoch of a transfer that was not picked up; of no meaning under another epoch
        self.reason = _CLAIM
        self.run_us = run_us
        self.attempt = self.errors = self.reclaims = 0
        self.grant: Grant | None = None
        self.expires_us = 0
        self.renewed_us = 0  # of no meaning if it is before the grant
        self.stalls_us: int | None = None
        self.progress: float | None = None
        self.note: str | None = None
        self.checkpoint: str | None = None
        self.result: str | None = None
        self.last_error: str | None = None
        self.then: tuple[NewJob, ...] = ()  # of the completion
        self.left = 0  # entries that it has left behind in the line of finished jobs
        self.created_us = self.updated_us = now
        self.finished_us: int | None = None
        self.parked: Parked | None = None  # while it is pending
        self.history: list[tuple[Ownership, str | None]] | None = (
            None  # ended ownerships, with the fingerprint of their settlement
        )
        self.effects: dict[str, Effect] | None = None

    @property
    def narrow(self) -> bool:
        """Whether the job was pruned, and only its id, status, epoch and end are kept."""
        return self.spec.document == PRUNED

    @property
    def awaits_pick_up(self) -> bool:
        """Whether the job was transferred, and its new owner has not asked for it so far."""
        return self.status is RUNNING and self.awaited == self.epoch

    def job(self) -> Job:
        """The job as a reader sees it."""
        held = self.grant if self.status is RUNNING else None
        return Job(
            self.spec,
            self.status,
            self.epoch,
            held and held.owner,
            self.reason if self.epoch else None,
            self.attempt,
            self.errors,
            self.reclaims,
            self.run_us,
            held and held.granted_us,
            self.expires_us if held else None,
            self.progress,
            self.note,
            self.checkpoint,
            self.result,
            self.last_error,
            self.created_us,
            self.updated_us if self.finished_us is None else self.finished_us,
            self.finished_us,
            self.parked if self.status is PENDING else None,
            max(self.renewed_us, held.granted_us) if held else None,
        )

    def completion(self) -> Settlement | None:
        """The settlement that completed the job; None if no owner has completed it."""
        # Made anew for the rare repetition: kept, it would be one more object per job for the garbage collector.
        if self.status is not DONE or self.grant is None:
            return None
        return completion(self.grant, self.result, self.then)

    def effect(self, name: str) -> Effect:
        """The effect of that name, which must have been begun."""
        found = (self.effects or {}).get(name)
        if found is None:
            raise no_effect(self.spec.id, name)
        return found

    def how_it_ended(self, epoch: int) -> Ending:
        """How the ownership of *epoch* ended, and the job if it is finished, for the refusal of that epoch."""
        moved: tuple[str | None, str | None] = None, None
        last = None
        for held, fingerprint in self.history or ():
            assert held.ended is not None
            last = held.ended, held.ended_us, held.by
            if held.epoch == epoch and fingerprint is None:
                moved = held.by, held.note
        done_by = self.grant.owner if self.grant else None
        return ending(self.status, self.reason, self.finished_us, done_by, moved=moved, last=last)

    def ended(self, how: str | None, at: int | None, by: str | None, note: str | None) -> Ownership:
        """The current ownership as a record, ended as the arguments say."""
        assert self.grant is not None
        _, epoch, owner, began, *_, granted_us, _, _ = self.grant
        return Ownership(self.spec.id, epoch, owner, began, granted_us, self.expires_us, how, at, by, note)


def count_moved(tally: list[int], origin: int, place: int, count: int) -> None:
    """Count that so many jobs have moved from one place to another."""
    tally[origin] -= count
    tally[place] += count
