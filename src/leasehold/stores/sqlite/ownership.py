"""Who may write: the epochs that are issued, the job that a caller holds, and the record of every refusal."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from ...core.job import Status
from ...core.lifecycle import Verb, after, ending, only_its_id
from ...core.options import decode
from ...core.ownership import Ownership, Process, Reason, draw_epochs
from ...core.retry import Retry
from ...errors import Settled, StaleEpoch, UnknownJob
from ...store import Refusal
from .sql import Program, Statements, many, one

log = logging.getLogger("leasehold")

T = TypeVar("T")

_REFUSALS = ("refused", "alarm")  # kinds of events that must outlive the transaction in which they happen


class Session:
    """
    What programs work with: the statements, and what this process knows beyond the file.

    Programs are pure of drivers: they yield statements, and are sent rows. The file's only write lock is held from
    their first statement to the end of the transaction. So what a program has read stays true until it commits, and to
    compare and then write is one atomic step.
    """

    def __init__(self, sql: Statements, *, trace: bool) -> None:
        self.sql = sql
        self.trace = trace
        self.seen = 0  # the highest epoch that this process knows to be issued
        self.drawn = 0  # the same, if the current transaction commits
        self.defers = False  # whether refusals wait in `deferred`: a caller's transaction may roll back
        self.deferred: deque[tuple[Any, ...]] = deque()  # events of refusals, to be recorded separately
        self.recorded = 0  # how many of them the current transaction records

    def joined(self) -> Session:
        """Return the session of programs inside callers' transactions: the refusals are recorded by this one."""
        joined = Session(self.sql, trace=self.trace)
        joined.defers, joined.deferred = True, self.deferred
        return joined

    # A transaction of the store's own; the write lock is held

    def begin(self, program: Program[T]) -> Program[T]:
        """Return *program*, to run in a new transaction that first records the deferred refusals."""
        self.drawn = self.recorded = 0
        return self._record_deferred(program) if self.deferred else program

    def _record_deferred(self, program: Program[T]) -> Program[T]:
        self.recorded = len(self.deferred)
        yield many(self.sql.insert_event, [self.deferred[i] for i in range(self.recorded)])
        return (yield from program)

    def committed(self) -> None:
        """Remember what the transaction has made certain."""
        if self.drawn > self.seen:
            self.seen = self.drawn
        while self.recorded:
            self.deferred.popleft()
            self.recorded -= 1

    def record(
        self,
        now: int,
        kind: str,
        job_id: str | None,
        *,
        epoch: int | None = None,
        owner: str | None = None,
        **facts: Any,
    ) -> Program[None]:
        """Insert an event; a refusal in a caller's transaction is deferred instead."""
        known = {name: value for name, value in facts.items() if value is not None}
        event = now, kind, job_id, epoch, owner, json.dumps(known)
        if self.defers and kind in _REFUSALS:
            self.deferred.append(event)
        else:
            yield one(self.sql.insert_event, *event)


def draw(session: Session, now: int, count: int, last: int | None = None) -> Program[int]:
    """Issue *count* epochs and return the last; *last* is the last one so far, if the caller has just read it."""
    if last is None:
        last = yield from last_epoch(session)
    if last < session.seen:
        log.error(
            "the store's epochs went back from %d to %d: it was restored; going on above both", session.seen, last
        )
        yield from session.record(now, "alarm", None, seen=session.seen, last=last)
    session.drawn = draw_epochs(max(last, session.seen), count, now)
    yield one(session.sql.set_last_epoch, session.drawn)
    return session.drawn


def last_epoch(session: Session) -> Program[int]:
    """Return the last epoch that was issued."""
    [(last,)] = yield one(session.sql.last_epoch)
    return int(last)


class Standing(NamedTuple):
    """A job with its lease, if any, as the statement `standing` selects them."""

    seq: int
    id: str
    stored_status: str
    queue: str
    priority: int
    run_us: int
    lock: str | None
    unique: str | None
    max_errors: int
    max_reclaims: int
    attempt: int
    errors: int
    reclaims: int
    job_epoch: int
    job_reason: str
    last_error: str | None
    done_by: str | None
    done_granted_us: int | None
    done_expires_us: int | None
    settlement: str | None
    finished_us: int | None
    lease_epoch: int | None
    owner: str | None
    lease_reason: str | None
    granted_us: int | None
    expires_us: int | None
    progress: float | None
    note: str | None
    narrow: int
    claim_id: str | None
    picked_up: int | None
    task: str | None

    @property
    def status(self) -> Status:
        """Where the job stands, for a reader; the store itself only knows "unfinished"."""
        if self.stored_status != "unfinished":
            return Status(self.stored_status)
        return Status.PENDING if self.lease_epoch is None else Status.RUNNING

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.job_epoch if self.lease_epoch is None else self.lease_epoch

    @property
    def reason(self) -> Reason | None:
        """Why the current epoch was issued; None if none was."""
        return Reason(self.lease_reason or self.job_reason) if self.epoch else None

    def ownership(self, ended: str, at: int, by: str, note: str | None) -> Ownership:
        """Return the record of the current lease, ended as the arguments say."""
        assert self.lease_epoch is not None
        assert self.owner is not None
        assert self.granted_us is not None
        assert self.expires_us is not None
        began = Reason(self.lease_reason or "")
        return Ownership(
            self.id, self.lease_epoch, self.owner, began, self.granted_us, self.expires_us, ended, at, by, note
        )

    @property
    def retry(self) -> Retry:
        """The job's budgets; its back-off is its owner's affair."""
        return decode(None, self.max_errors, self.max_reclaims).retry


def find(session: Session, job_id: str) -> Program[Standing | None]:
    """Return the job with its lease, if any."""
    rows = yield one(session.sql.standing, job_id)
    return Standing(*rows[0]) if rows else None


def find_held(session: Session, now: int, job_id: str, epoch: int, verb: str) -> Program[Standing | Refusal]:
    """Return the job if *epoch* is its owner's current one, else the refusal."""
    standing = yield from find(session, job_id)
    if standing is None:
        return UnknownJob(job_id)
    if standing.lease_epoch == epoch:
        return standing
    return (yield from refuse(session, now, standing, epoch, verb))


def find_seen(session: Session, now: int, job_id: str, epoch: int, verb: Verb, by: str) -> Program[Standing | Refusal]:
    """
    Return the job if *epoch* is the current one, else the refusal; for operators, who name the epoch that they saw.

    Raises `Conflict` if *verb* is not legal for the job as it stands.
    """
    standing = yield from find(session, job_id)
    if standing is None:
        return UnknownJob(job_id)
    if standing.epoch != epoch:
        return (yield from refuse(session, now, standing, epoch, verb.value, by))
    after(verb, standing.status, job_id)
    if standing.narrow:
        raise only_its_id(job_id, verb)
    return standing


def refuse_by_id(session: Session, now: int, job_id: str, epoch: int, verb: str) -> Program[Refusal]:
    """Return why *epoch* may not write, knowing that it may not."""
    standing = yield from find(session, job_id)
    return UnknownJob(job_id) if standing is None else (yield from refuse(session, now, standing, epoch, verb))


def refuse(
    session: Session, now: int, standing: Standing, presented: int, verb: str, actor: str | None = None
) -> Program[StaleEpoch]:
    """Return the refusal of a write, and record it."""
    kind: type[StaleEpoch] = StaleEpoch
    reason, by = standing.reason, None
    # The epoch of a narrow row is that of the lease that ended the job; its settlement is not kept.
    if standing.epoch == presented and (standing.settlement is not None or standing.narrow):
        kind, reason, by = Settled, None, standing.done_by
    moved: tuple[str | None, str | None] = None, None
    for owner, ended, settlement, moved_by, note in (yield one(session.sql.ownership, standing.seq, presented)):
        by = owner
        if settlement is not None:
            kind, reason = Settled, None
        else:
            kind, reason, moved = StaleEpoch, Reason(ended), (moved_by, note)
    last = yield one(session.sql.last_ownership, standing.seq)
    facts: dict[str, Any] = {
        "presented": presented,
        "current": standing.epoch,
        "owner": standing.owner,
        "reason": reason,
    }
    how = ending(
        standing.status,
        standing.job_reason,
        standing.finished_us,
        standing.done_by,
        moved=moved,
        last=last[0] if last else None,
    )
    refusal = kind.of_job(standing.id, **facts, verb=verb, ending=how)
    event = {"epoch": standing.epoch, "verb": verb, "by": actor or by, **facts}
    issued = yield from last_epoch(session)
    if presented > max(issued, session.seen):
        log.error("%s", refusal)
        yield from session.record(now, "alarm", standing.id, **event)
    yield from session.record(now, "refused", standing.id, **event)
    return refusal


def archive(
    session: Session, now: int, held: Standing, how: str, *, by: str, note: str | None, settlement: str | None = None
) -> Program[None]:
    """Insert the record of the current lease, which ends."""
    yield one(
        session.sql.insert_ownership,
        held.seq,
        held.lease_epoch,
        held.owner,
        held.lease_reason,
        held.granted_us,
        held.expires_us,
        str(how),
        now,
        by,
        note,
        settlement,
    )


@lru_cache(maxsize=64)
def process_number(process: Process) -> int:
    """Return the number of a process's row: a digest of its name, so that no other process ever has it."""
    digest = hashlib.blake2b("\0".join(map(str, process)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
