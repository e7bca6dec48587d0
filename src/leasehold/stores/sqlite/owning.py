"""The programs of producers and owners: add, renew, progress, settle. To claim is in claiming.py."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from ...connections import Statement
from ...core.job import Added, Effect, Job, NewJob, Outcome, Progress, Settlement, Status, effect_key, new_state
from ...core.lifecycle import FINISHED, FREED_BY, RECORDED_AS, after, no_effect, setback
from ...core.options import encode
from ...errors import UnknownJob
from ...store import Begun, Refusal, Renewal
from ..rows import job_of
from .base import Base
from .rows import Program, Standing, many, one


class Owning(Base):
    """What producers and owners do."""

    def add(self, jobs: Sequence[NewJob], now: int) -> Program[list[Added]]:
        """Keep each job that is new."""
        if not jobs:
            return []
        known: dict[str, str] = {}  # ids, and unique keys behind a NUL, to the id of the job that has them
        for (job_id,) in (yield one(self.sql.known_ids, json.dumps([job.id for job in jobs]))):
            known[job_id] = job_id
        keys = [job.unique for job in jobs if job.unique is not None]
        if keys:
            for key, job_id in (yield one(self.sql.known_unique, json.dumps(keys))):
                known["\0" + key] = job_id
        [(seq,)] = yield one(self.sql.last_seq)
        created: dict[str, Job] = {}
        found: list[str] = []
        rows, ready, scheduled, starts = [], [], [], []
        for job in jobs:
            existing = known.get(job.id) or (job.unique is not None and known.get("\0" + job.unique))
            if existing:
                found.append(existing)
                continue
            seq += 1
            run_us = job.due(now)
            rows.append(_job_row(seq, job, run_us, now))
            if job.start_within_us is not None:
                starts.append((run_us + job.start_within_us, seq))
            if run_us > now:
                scheduled.append((run_us, seq, job.queue))
            else:
                ready.append((job.queue, -job.priority, run_us, seq))
            known[job.id] = job.id
            if job.unique is not None:
                known["\0" + job.unique] = job.id
            created[job.id] = new_state(job, now)
            found.append("")
        yield many(self.sql.insert_job, rows)
        if ready:
            yield many(self.sql.insert_ready, ready)
        if scheduled:
            yield many(self.sql.insert_scheduled, scheduled)
        if starts:
            yield many(self.sql.insert_start, starts)
        if self.trace:
            for made in created.values():
                yield from self.record("added", made.id, now, epoch=0, queue=made.queue)
        return (yield from self._added(jobs, found, created))

    def _added(self, jobs: Sequence[NewJob], found: list[str], created: dict[str, Job]) -> Program[list[Added]]:
        added = []
        for job, existing in zip(jobs, found, strict=True):
            if not existing:
                added.append(Added(created[job.id], True))
            else:
                [row] = yield one(self.sql.job, existing)
                added.append(Added(job_of(row), False))
        return added

    # Holding

    def holders(self, job_ids: Sequence[str]) -> Statement:
        """The statement whose rows say who holds each job that exists."""
        if len(job_ids) == 1:
            return one(self.sql.holder, job_ids[0])
        return one(self.sql.holders, json.dumps(job_ids))

    def refusal(self, job_id: str, epoch: int, verb: str, now: int) -> Program[Refusal]:
        """Return why *epoch* may not write, knowing that it may not."""
        standing = yield from self.standing(job_id)
        return UnknownJob(job_id) if standing is None else (yield from self.refuse(standing, epoch, verb, now))

    def check(self, holders: Sequence[tuple[str, int]], now: int) -> Program[list[Refusal | None]]:
        """Say for each epoch whether it is current."""
        held = {row[0]: row for row in (yield self.holders([job_id for job_id, _ in holders]))}
        reply: list[Refusal | None] = []
        for job_id, epoch in holders:
            row = held.get(job_id)
            current = row is not None and row[2] == epoch
            reply.append(None if current else (yield from self.refusal(job_id, epoch, "check", now)))
        return reply

    def renew(self, renewals: Sequence[Renewal], now: int) -> Program[list[int | Refusal]]:
        """Move each lease's deadline."""
        held = {row[0]: row for row in (yield self.holders([renewal.job_id for renewal in renewals]))}
        reply: list[int | Refusal] = []
        moved = []
        for job_id, epoch, lease_us in renewals:
            row = held.get(job_id)
            if row is None or row[2] != epoch:
                reply.append((yield from self.refusal(job_id, epoch, "renew", now)))
                continue
            expires = now + (lease_us or row[5])
            moved.append((expires, row[1]))
            reply.append(expires)
            if self.trace:
                yield from self.record("renewed", job_id, now, epoch=epoch, owner=row[3])
        yield many(self.sql.renew, moved)
        return reply

    def progress(self, reports: Sequence[Progress], now: int) -> Program[list[Refusal | None]]:
        """Record that the work moves."""
        held = {row[0]: row for row in (yield self.holders([report.job_id for report in reports]))}
        reply: list[Refusal | None] = []
        for job_id, epoch, fraction, note, checkpoint in reports:
            row = held.get(job_id)
            if row is None or row[2] != epoch:
                reply.append((yield from self.refusal(job_id, epoch, "progress", now)))
                continue
            stalls = None if row[6] is None else now + row[6]
            yield one(self.sql.progress, fraction, note, now, stalls, row[1])
            if checkpoint is not None:
                yield one(self.sql.put_checkpoint, row[1], checkpoint)
            if self.trace:
                yield from self.record(
                    "progressed", job_id, now, epoch=epoch, owner=row[3], progress=fraction, note=note
                )
            reply.append(None)
        return reply

    def fence(self, job_id: str, epoch: int, now: int) -> Program[Refusal | None]:
        """Return the refusal unless *epoch* is current; the write lock keeps the answer true until the commit."""
        standing = yield from self.holding(job_id, epoch, "fence", now)
        return None if isinstance(standing, Standing) else standing

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob], now: int) -> Program[list[Added] | Refusal]:
        """Add children, if *epoch* is current."""
        standing = yield from self.holding(job_id, epoch, "add", now)
        return (yield from self.add(jobs, now)) if isinstance(standing, Standing) else standing

    # Settling

    def settle(self, settlements: Sequence[Settlement], now: int) -> Program[list[Refusal | None]]:
        """End each lease as its owner says."""
        held = {row[0]: row for row in (yield self.holders([said.job_id for said in settlements]))}
        reply: list[Refusal | None] = []
        completed: list[tuple[Settlement, tuple[Any, ...]]] = []
        for said in settlements:
            row = held.get(said.job_id)
            if row is None or row[2] != said.epoch:
                # Maybe an earlier item of this very batch has settled it, or added it.
                completed = yield from self._complete(completed, now)
                reply.append((yield from self._repeated(said, now)))
            else:
                del held[said.job_id]
                if said.outcome is Outcome.COMPLETE:
                    completed.append((said, row))
                    if said.then:  # while the later items are unfinished, and hold their unique keys
                        completed = yield from self._complete(completed, now)
                else:
                    yield from self._put_back(said, now)
                reply.append(None)
        yield from self._complete(completed, now)
        return reply

    def _complete(
        self, completed: list[tuple[Settlement, tuple[Any, ...]]], now: int
    ) -> Program[list[tuple[Settlement, tuple[Any, ...]]]]:
        if completed:
            seqs = json.dumps([row[1] for _, row in completed])
            rows = [(said.result, said.fingerprint(), now, now, f"[{row[1]}]") for said, row in completed]
            # Those that said the same are one statement: without it, 0.75 times as many jobs per second are claimed and
            # completed (python benchmarks/core.py --only "sqlite: claim + complete, batches").
            if all(row[:2] == rows[0][:2] for row in rows):
                rows = [(*rows[0][:4], seqs)]
            yield many(self.sql.complete, rows)
            yield one(self.sql.delete_leases, seqs)
        for said, row in completed:
            if said.then:
                yield from self.add(said.then, now)
            if row[4] is not None:
                yield from self.wake(row[4])
            if self.trace:
                yield from self.record("completed", said.job_id, now, epoch=said.epoch, owner=row[3])
        return []

    def _repeated(self, said: Settlement, now: int) -> Program[Refusal | None]:
        standing = yield from self.standing(said.job_id)
        if standing is None:
            return UnknownJob(said.job_id)
        before = standing.settlement if standing.epoch == said.epoch else None
        for _, _, settlement, *_ in (yield one(self.sql.ownership, standing.seq, said.epoch)):
            before = settlement
        if before is not None and before == said.fingerprint():
            return None
        return (yield from self.refuse(standing, said.epoch, said.outcome.value, now))

    def _put_back(self, said: Settlement, now: int) -> Program[None]:
        held = yield from self.standing(said.job_id)
        assert held is not None
        assert held.owner is not None
        verb, errors, reclaims, last_error = setback(said, held.errors, held.reclaims, held.last_error, held.retry)
        error = last_error if said.error is not None else None
        status = after(verb, held.status, held.id)
        final = status in FINISHED
        how = Status.FAILED.value if final else FREED_BY[verb].value
        yield from self.archive(held, how, now, by=held.owner, note=error, said=said.fingerprint())
        # Without a delay it is due at once, also if it was transferred before its time had come.
        due = now + said.delay_us if said.delay_us else min(held.run_us, now)
        run_us = held.run_us if final else due
        yield from self.back(
            held,
            now,
            status=status,
            epoch=said.epoch,
            reason=held.lease_reason if final else how,
            attempt=held.attempt if final else held.attempt + 1,
            errors=errors,
            reclaims=reclaims,
            last_error=last_error,
            run_us=run_us,
        )
        facts: dict[str, Any] = {"error": error, "errors": errors} if final else {"error": error, "run_us": run_us}
        kind = "failed" if final else RECORDED_AS[verb]
        yield from self.record(kind, held.id, now, epoch=said.epoch, owner=held.owner, **facts)

    def back(
        self,
        held: Standing,
        now: int,
        *,
        status: Status,
        epoch: int,
        reason: str | None,
        attempt: int,
        last_error: str | None,
        run_us: int,
        errors: int | None = None,
        reclaims: int | None = None,
    ) -> Program[None]:
        """Take the lease off a job that goes back, or is failed."""
        final = status in FINISHED
        yield one(self.sql.delete_lease, held.seq)
        row = {
            "seq": held.seq,
            "status": status.value if final else "unfinished",
            "epoch": epoch,
            "reason": reason,
            "attempt": attempt,
            "errors": held.errors if errors is None else errors,
            "reclaims": held.reclaims if reclaims is None else reclaims,
            "last_error": last_error,
            "run_at": run_us,
            "progress": held.progress,
            "note": held.note,
            "now": now,
            "finished_at": now if final else None,
        }
        yield self.sql.back, row, False
        if not final:
            yield from self.wait(held, run_us, now)
        yield from self.wake(held.lock)

    # Effects

    def begin_effect(self, job_id: str, epoch: int, name: str, again: bool, now: int) -> Program[Begun | Refusal]:
        """Record an intent, if *epoch* is current."""
        standing = yield from self.holding(job_id, epoch, "once", now)
        if not isinstance(standing, Standing):
            return standing
        rows = yield one(self.sql.effect, standing.seq, name)
        if rows and (rows[0][2] is not None or not again):
            return Begun(_effect(job_id, name, rows[0]), False)
        if rows:
            key = rows[0][0]
        else:
            [(store_id,)] = yield one(self.sql.store_id)
            key = effect_key(uuid.UUID(store_id), job_id, name)
        yield one(self.sql.begin_effect, standing.seq, name, key, epoch)
        return Begun(Effect(job_id, name, key, epoch, False, None), True)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None, now: int) -> Program[Refusal | None]:
        """Record an outcome, if *epoch* is current."""
        standing = yield from self.holding(job_id, epoch, "once", now)
        if not isinstance(standing, Standing):
            return standing
        yield from self.conclude(standing, name, epoch, outcome)
        return None

    def conclude(self, standing: Standing, name: str, epoch: int, outcome: str | None) -> Program[None]:
        """Record how an effect that was begun has ended."""
        rows = yield one(self.sql.effect, standing.seq, name)
        if not rows:
            raise no_effect(standing.id, name)
        if outcome is None and rows[0][2] is not None:
            return  # somebody else under this epoch has brought it about meanwhile; what is known stays known
        if outcome is None:
            yield one(self.sql.clear_effect, standing.seq, name)
        else:
            yield one(self.sql.end_effect, epoch, outcome, standing.seq, name)


def _effect(job_id: str, name: str, row: tuple[Any, ...]) -> Effect:
    key, epoch, outcome = row
    return Effect(job_id, name, key, epoch, outcome is not None, outcome)


def _job_row(seq: int, job: NewJob, run_us: int, now: int) -> tuple[Any, ...]:
    return (
        seq,
        job.id,
        job.chosen,
        job.task,
        job.queue,
        job.priority,
        run_us,
        job.lock,
        job.unique,
        job.lease_us,
        job.stall_us,
        job.start_within_us,
        job.parent,
        job.retry.max_errors,
        job.retry.max_reclaims,
        encode(job.options),
        job.meta,
        job.document,
        now,
        now,
    )
