"""The programs that move a job past its owner: reclaims, operators' verbs, and the store's own upkeep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from ...core.job import Grant, Job
from ...core.lifecycle import (
    FINISHED,
    MOVED_BY,
    NOT_STARTED,
    Verb,
    after,
    judge_taken_back,
    lock_held,
    unique_taken,
)
from ...core.ownership import STORE, Ownership, Process, Reason
from ...core.queues import Queue
from ...errors import Conflict, UnknownJob
from ...store import Refusal
from ..rows import grant_of, job_of, spec_of, state_of
from .owning import Owning
from .rows import Program, Standing, number_of, one
from .workers import Workers

SWEPT_AT_ONCE = 1_000


class Moving(Owning, Workers):
    """What happens to a job without its owner."""

    # The store itself

    def sweep(self, now: int) -> Program[list[Ownership]]:
        """Take back what expired or stalled, and let wait what has become due; a bounded number at a time."""
        ended: list[Ownership] = []
        for (job_id,) in (yield one(self.sql.expired, now, SWEPT_AT_ONCE)):
            ended.append((yield from self.take_back(job_id, Reason.TIMEOUT, now)))
        for (job_id,) in (yield one(self.sql.stalled, now, SWEPT_AT_ONCE)):
            ended.append((yield from self.take_back(job_id, Reason.STALL, now)))
        yield one(self.sql.promote, now, SWEPT_AT_ONCE)
        yield one(self.sql.promoted, now, SWEPT_AT_ONCE)
        for start_by, seq, job_id, unclaimed in (yield one(self.sql.late, now, SWEPT_AT_ONCE)):
            if unclaimed:
                yield from self.override(Verb.CANCEL, "cancelled", job_id, 0, STORE, NOT_STARTED, None, now)
            yield one(self.sql.delete_start, start_by, seq)
        return ended

    def recover(self, gone: Sequence[Process], now: int) -> Program[list[Ownership]]:
        """Take back the jobs of processes that are gone."""
        numbers = [number_of(process) for process in gone]
        ended = []
        for (job_id,) in (yield one(self.sql.leased_by_processes, json.dumps(numbers))):
            ended.append((yield from self.take_back(job_id, Reason.RECOVERY, now)))
        for number in numbers:
            yield one(self.sql.delete_process, number)
        return ended

    def processes(self) -> Program[list[Process]]:
        """Return the processes that have claimed jobs here."""
        return [Process(*row) for row in (yield one(self.sql.processes))]

    def take_back(self, job_id: str, reason: Reason, now: int) -> Program[Ownership]:
        """End a lease for the store's own reasons."""
        held = yield from self.standing(job_id)
        assert held is not None
        ended = held.ownership(reason.value, now, STORE, None)
        verb, reclaims, error = judge_taken_back(
            reason, ended.owner, held.reclaims, held.retry, picked_up=bool(held.picked_up)
        )
        status = after(verb, held.status, job_id)
        final = status in FINISHED
        yield from self.archive(held, reason, now, by=STORE, note=error)
        epoch = yield from self.draw(1, now)
        yield from self.back(
            held,
            now,
            status=status,
            epoch=epoch,
            reason=reason.value,
            attempt=held.attempt if final else held.attempt + 1,
            reclaims=reclaims,
            last_error=error,
            run_us=held.run_us if final else min(held.run_us, now),
        )
        if final:
            yield from self.record("failed", job_id, now, epoch=epoch, reason=reason, was=held.owner, error=error)
        else:
            yield from self.record("reclaimed", job_id, now, epoch=epoch, reason=reason, was=held.owner)
        return replace(ended, note=error)

    def advance(self, above: int, now: int) -> Program[int]:
        """Raise the counter, and issue the epoch to nobody."""
        [(last,)] = yield one(self.sql.last_epoch)
        if above > last:
            yield one(self.sql.set_last_epoch, above)
        epoch = yield from self.draw(1, now)
        yield from self.record("advanced", None, now, epoch=epoch, above=above)
        return epoch

    # Operators

    def transfer(
        self,
        job_id: str,
        epoch: int,
        to: str,
        by: str,
        note: str | None,
        lease_us: int | None,
        default_lease_us: int,
        now: int,
    ) -> Program[Grant | Refusal]:
        """Give the job to another owner."""
        held = yield from self.saw(job_id, epoch, Verb.TRANSFER, now, by)
        if not isinstance(held, Standing):
            return held
        running = held.lease_epoch is not None
        if running:
            yield from self.archive(held, Reason.MANUAL, now, by=by, note=note)
            yield one(self.sql.delete_lease, held.seq)
        else:
            if held.lock is not None:
                for holder, holder_epoch, _ in (yield one(self.sql.lock_holder, held.lock)):
                    raise lock_held(job_id, held.lock, holder, holder_epoch)
            yield from self.leave(held)
        to = yield from self.recipient(job_id, to, now)
        moved = {
            "seq": held.seq,
            "attempt": held.attempt + running,
            "progress": held.progress,
            "note": held.note,
            "now": now,
        }
        yield self.sql.transferred, moved, False
        issued = yield from self.draw(1, now)
        [row] = yield one(self.sql.job, job_id)
        spec = spec_of(row)
        stall_us, lasts = spec.stall_us, lease_us or spec.lease_us or default_lease_us
        yield one(
            self.sql.insert_transfer,
            held.seq,
            issued,
            to,
            Reason.MANUAL.value,
            None,
            None,  # whoever moves a job is not the process that will run it, so its exit must prove nothing
            held.lock,
            now,
            now + lasts,
            lasts,
            None if stall_us is None else now + stall_us,
            stall_us,
            now,
        )
        yield from self.record("transferred", job_id, now, epoch=issued, owner=to, was=held.owner, by=by, note=note)
        [row] = yield one(self.sql.grant, job_id)
        return grant_of(row)

    def override(
        self, verb: Verb, kind: str, job_id: str, epoch: int, by: str, note: str | None, result: str | None, now: int
    ) -> Program[Job | Refusal]:
        """Cancel, replay, requeue or finish a job by hand."""
        held = yield from self.saw(job_id, epoch, verb, now, by)
        if not isinstance(held, Standing):
            return held
        status = after(verb, held.status, job_id)
        final, running, pending = status in FINISHED, held.lease_epoch is not None, held.stored_status == "unfinished"
        if verb is Verb.REPLAY and held.unique is not None:
            for _, holder in (yield one(self.sql.known_unique, json.dumps([held.unique]))):
                raise unique_taken(job_id, held.unique, holder)
        if running:
            yield from self.archive(held, MOVED_BY[verb], now, by=by, note=note)
            yield one(self.sql.delete_lease, held.seq)
        elif pending:
            yield from self.leave(held)
        elif held.done_by is not None:
            yield from self._archive_done(held)
        issued = yield from self.draw(1, now)
        yield from self._write_override(held, verb, final, issued, result, now)
        yield from self.record(kind, job_id, now, epoch=issued, was=held.owner, by=by, note=note)
        [row] = yield one(self.sql.job, job_id)
        return job_of(row)

    def _archive_done(self, held: Standing) -> Program[None]:
        yield one(
            self.sql.insert_ownership,
            held.seq,
            held.job_epoch,
            held.done_by,
            held.job_reason,
            held.done_granted_us,
            held.done_expires_us,
            "done",
            held.finished_us,
            held.done_by,
            None,
            held.settlement,
        )

    def _write_override(
        self, held: Standing, verb: Verb, final: bool, issued: int, result: str | None, now: int
    ) -> Program[None]:
        [row] = yield one(self.sql.job, held.id)
        finish, replay = verb is Verb.FINISH, verb is Verb.REPLAY
        run_us = now if replay else held.run_us if final else min(held.run_us, now)
        values = {
            "seq": held.seq,
            "status": after(verb, held.status, held.id).value if final else "unfinished",
            "epoch": issued,
            "reason": MOVED_BY[verb].value,
            "attempt": held.attempt + (not final),
            "errors": 0 if replay else held.errors,
            "reclaims": 0 if replay else held.reclaims,
            "last_error": None if finish else held.last_error,
            "result": result if finish else None if replay else state_of(row).result,
            "run_at": run_us,
            "progress": held.progress,
            "note": held.note,
            "now": now,
            "finished_at": now if final else None,
        }
        yield self.sql.override, values, False
        if not final:
            yield from self.wait(held, run_us, now)
        if held.finished_us is None:
            yield from self.wake(held.lock)

    def pause(self, queue: str, by: str, note: str | None, now: int) -> Program[Queue]:
        """Have claims take nothing from the queue."""
        yield one(self.sql.pause, queue, now, by, note)
        yield from self.record("paused", None, now, queue=queue, by=by, note=note)
        return Queue(queue, now, by, note)

    def resume(self, queue: str, by: str, now: int) -> Program[Queue]:
        """Have claims take from the queue again."""
        if (yield one(self.sql.resume, queue)):
            yield from self.record("resumed", None, now, queue=queue, by=by)
        return Queue(queue)

    def resolve(
        self, job_id: str, epoch: int, name: str, by: str, outcome: str | None, note: str | None, now: int
    ) -> Program[Job | Refusal]:
        """Record how an effect in doubt ended."""
        standing = yield from self.standing(job_id)
        if standing is None:
            return UnknownJob(job_id)
        if standing.epoch != epoch:
            return (yield from self.refuse(standing, epoch, "resolve", now, by))
        for _, _, known in (yield one(self.sql.effect, standing.seq, name)):
            if known is not None:
                raise Conflict(f"effect {name!r} of job {job_id!r} is not in doubt: its outcome is recorded.")
        yield from self.conclude(standing, name, epoch, outcome)
        yield from self.record("resolved", job_id, now, epoch=epoch, owner=standing.owner, name=name, by=by, note=note)
        [row] = yield one(self.sql.job, job_id)
        return job_of(row)
