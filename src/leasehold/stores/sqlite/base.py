"""What the programs of the SQLite store share: epochs, places, refusals and records."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from ...core.lifecycle import Verb, after, ending, only_its_id
from ...core.ownership import Reason, draw_epochs
from ...core.parking import LOCK, TASK
from ...errors import Settled, StaleEpoch, UnknownJob
from ...store import Refusal
from .rows import Program, Standing, many, one
from .sql import Statements

log = logging.getLogger("leasehold")

T = TypeVar("T")


class Base:
    """
    Programs are pure of drivers: they yield statements, and are sent rows.

    Whoever runs one holds the file's only write lock from its first statement to the end of its transaction. So what
    a program has read stays true until it commits, and to compare and then write is one atomic step.
    """

    def __init__(self, sql: Statements, *, trace: bool) -> None:
        self.sql = sql
        self.trace = trace
        self.seen = 0  # the highest epoch that this process knows to be issued
        self.drawn = 0  # the same, if the transaction under way commits
        self.apart: deque[tuple[Any, ...]] = deque()  # refusals inside callers' transactions, to be recorded later
        self.recorded = 0  # how many of them the transaction under way records

    # Around a transaction of our own; the write lock is held

    def begun(self, program: Program[T]) -> Program[T]:
        """Return *program*, after recording what could not be recorded before."""
        self.drawn = self.recorded = 0
        return self._recording(program) if self.apart else program

    def _recording(self, program: Program[T]) -> Program[T]:
        self.recorded = len(self.apart)
        yield many(self.sql.insert_event, [self.apart[i] for i in range(self.recorded)])
        return (yield from program)

    def committed(self) -> None:
        """Remember what the transaction has made certain."""
        if self.drawn > self.seen:
            self.seen = self.drawn
        while self.recorded:
            self.apart.popleft()
            self.recorded -= 1

    # Epochs

    def draw(self, count: int, now: int, last: int | None = None) -> Program[int]:
        """Issue *count* epochs and return the last; *last* is the last one so far, if the caller has just read it."""
        if last is None:
            [(last,)] = yield one(self.sql.last_epoch)
        if last < self.seen:
            log.error(
                "the store's epochs went back from %d to %d: it was restored; going on above both", self.seen, last
            )
            yield from self.record("alarm", None, now, seen=self.seen, last=last)
        self.drawn = draw_epochs(max(last, self.seen), count, now)
        yield one(self.sql.set_last_epoch, self.drawn)
        return self.drawn

    # Places

    def wait(self, standing: Standing, run_us: int, now: int) -> Program[None]:
        """Put a pending job where it waits."""
        if run_us > now:
            yield one(self.sql.insert_scheduled, run_us, standing.seq, standing.queue)
        else:
            yield one(self.sql.insert_ready, standing.queue, -standing.priority, run_us, standing.seq)

    def leave(self, standing: Standing) -> Program[None]:
        """Take a pending job out of wherever it waits."""
        rank = -standing.priority
        place = standing.queue, rank, standing.run_us, standing.seq
        yield one(self.sql.delete_ready, *place)
        yield one(self.sql.delete_scheduled, standing.run_us, standing.seq)
        yield one(self.sql.delete_parked, TASK, standing.task or "", *place)
        if standing.lock is not None:
            yield one(self.sql.delete_parked, LOCK, standing.lock, *place)

    def wake(self, lock: str | None, only: str | None = None) -> Program[None]:
        """
        Let the first job of each queue behind *lock* wait to be claimed again, if nobody holds the key; or of *only*.

        Of each queue, since nobody may be claiming from the queue of the very first.
        """
        if lock is None or (yield one(self.sql.lock_holder, lock)):
            return
        queues = [(only,)] if only is not None else (yield self.sql.parked_queues, {"lock": lock}, False)
        for (queue,) in queues:
            for rank, run_us, seq in (yield one(self.sql.first_parked, lock, queue)):
                yield one(self.sql.delete_parked, LOCK, lock, queue, rank, run_us, seq)
                yield one(self.sql.insert_ready, queue, rank, run_us, seq)

    def lanes(
        self, queues: Sequence[str] | None, paused: Collection[str], tasks: frozenset[str | None] | None
    ) -> Program[list[tuple[str, str]]]:
        """Return the known tasks, and the queues that are asked for, of jobs that are parked behind tasks."""
        return [
            (task, queue)
            for task, queue in (yield one(self.sql.parked_lanes))
            if queue not in paused
            and (queues is None or queue in queues)
            and (tasks is None or (task or None) in tasks)
        ]

    # Ownership

    def standing(self, job_id: str) -> Program[Standing | None]:
        """Return the job with its lease, if any."""
        rows = yield one(self.sql.standing, job_id)
        return Standing(*rows[0]) if rows else None

    def holding(self, job_id: str, epoch: int, verb: str, now: int) -> Program[Standing | Refusal]:
        """Return the job if *epoch* is its owner's current one, else the refusal."""
        standing = yield from self.standing(job_id)
        if standing is None:
            return UnknownJob(job_id)
        if standing.lease_epoch == epoch:
            return standing
        return (yield from self.refuse(standing, epoch, verb, now))

    def saw(self, job_id: str, epoch: int, verb: Verb, now: int, by: str) -> Program[Standing | Refusal]:
        """Return the job if *epoch* is the current one and *verb* is legal, else the refusal; for operators."""
        standing = yield from self.standing(job_id)
        if standing is None:
            return UnknownJob(job_id)
        if standing.epoch != epoch:
            return (yield from self.refuse(standing, epoch, verb.value, now, by))
        after(verb, standing.status, job_id)
        if standing.narrow:
            raise only_its_id(job_id, verb)
        return standing

    def refuse(
        self, standing: Standing, presented: int, verb: str, now: int, actor: str | None = None
    ) -> Program[StaleEpoch]:
        """Return the refusal of a write, and record it."""
        kind: type[StaleEpoch] = StaleEpoch
        reason, by = standing.reason, None
        # The epoch of a narrow row is that of who ended the job; what it said is not kept.
        if standing.epoch == presented and (standing.settlement is not None or standing.narrow):
            kind, reason, by = Settled, None, standing.done_by
        moved: tuple[str | None, str | None] = None, None
        for owner, ended, settlement, moved_by, note in (yield one(self.sql.ownership, standing.seq, presented)):
            by = owner
            if settlement is not None:
                kind, reason = Settled, None
            else:
                kind, reason, moved = StaleEpoch, Reason(ended), (moved_by, note)
        last = yield one(self.sql.last_ownership, standing.seq)
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
        [(last,)] = yield one(self.sql.last_epoch)
        if presented > max(last, self.seen):
            log.error("%s", refusal)
            yield from self.record("alarm", standing.id, now, epoch=standing.epoch, verb=verb, by=actor or by, **facts)
        yield from self.record("refused", standing.id, now, epoch=standing.epoch, verb=verb, by=actor or by, **facts)
        return refusal

    def archive(
        self, held: Standing, how: str, now: int, *, by: str, note: str | None, said: str | None = None
    ) -> Program[None]:
        """Keep the record of the current lease, which ends."""
        yield one(
            self.sql.insert_ownership,
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
            said,
        )

    # Records

    def record(
        self,
        kind: str,
        job_id: str | None,
        now: int,
        *,
        epoch: int | None = None,
        owner: str | None = None,
        **facts: Any,
    ) -> Program[None]:
        """Keep an event."""
        known = {name: value for name, value in facts.items() if value is not None}
        yield from self.keep((now, kind, job_id, epoch, owner, json.dumps(known)))

    def keep(self, event: tuple[Any, ...]) -> Program[None]:
        """Keep an event, as a row of the table."""
        yield one(self.sql.insert_event, *event)
