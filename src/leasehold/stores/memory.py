"""
The memory store: jobs in this process, gone with it. The shortest reading of the contract.

One lock, and every verb decides before it changes anything, so a verb that raises has changed nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..core.clock import Clock, SystemClock
from ..core.job import (
    Added,
    Counts,
    Effect,
    Grant,
    Job,
    NewJob,
    Outcome,
    Progress,
    Settlement,
    Status,
)
from ..core.lifecycle import FINISHED, FREED_BY, MOVED_BY, Verb, after, judge_error, judge_reclaim, reclaim_error
from ..core.ownership import Event, Ownership, Process, Reason, draw_epochs
from ..errors import InvalidArgument, NoLease, Settled, StaleEpoch, StoreUnavailable, UnknownJob
from ..process import is_gone, this_process
from ..store import Begun, Refusal, Renewal
from ._lines import Deadlines, Parked, Ready, Scheduled

log = logging.getLogger("leasehold")

STORE = "leasehold"  # who acts when the store itself takes a job back
RECOVERY_EVERY_US = 1_000_000


class Record:
    """All that the store keeps of one job. `grant` is the current lease, or the one that completed the job."""

    __slots__ = (
        "attempt",
        "checkpoint",
        "created_us",
        "effects",
        "epoch",
        "errors",
        "expires_us",
        "finished_us",
        "grant",
        "history",
        "last_error",
        "note",
        "progress",
        "reason",
        "reclaims",
        "result",
        "run_us",
        "seq",
        "settlement",
        "spec",
        "stalls_us",
        "status",
        "ticket",
        "updated_us",
    )

    def __init__(self, spec: NewJob, seq: int, now: int) -> None:
        run_us = spec.due(now)
        if spec.run_us is not None or spec.delay_us:
            spec = replace(spec, run_us=None, delay_us=0)  # said once, in run_us of the record
        self.spec = spec
        self.seq = seq
        self.ticket = 0
        self.status = Status.PENDING
        self.epoch = 0
        self.reason = Reason.CLAIM
        self.run_us = run_us
        self.attempt = self.errors = self.reclaims = 0
        self.grant: Grant | None = None
        self.expires_us = 0
        self.stalls_us: int | None = None
        self.progress: float | None = None
        self.note: str | None = None
        self.checkpoint: str | None = None
        self.result: str | None = None
        self.last_error: str | None = None
        self.settlement: Settlement | None = None
        self.created_us = self.updated_us = now
        self.finished_us: int | None = None
        self.history: list[tuple[Ownership, str | None]] | None = None  # ended ownerships, and what their owner said
        self.effects: dict[str, Effect] | None = None

    def job(self) -> Job:
        """The job as a reader sees it."""
        held = self.grant if self.status is Status.RUNNING else None
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
            self.updated_us,
            self.finished_us,
        )

    def ended(self, how: str | None, at: int | None, by: str | None, note: str | None) -> Ownership:
        """The current ownership as a record, ended as the arguments say."""
        assert self.grant is not None
        _, epoch, owner, began, *_, granted_us, _, _ = self.grant
        return Ownership(self.spec.id, epoch, owner, began, granted_us, self.expires_us, how, at, by, note)


class MemoryStore:
    """Keeps jobs in this process: every clause of the contract but durability."""

    transactions = None

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        self._clock = clock or SystemClock()
        self._trace = trace
        self._lock: Any = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._id = uuid.uuid4()
        self._last = self._clock.now()
        self._seq = 0
        self._jobs: dict[str, Record] = {}
        self._unique: dict[str, Record] = {}
        self._held: dict[str, Record] = {}
        self._running: dict[str, Record] = {}
        self._ready = Ready()
        self._scheduled = Scheduled()
        self._parked = Parked()
        self._expiries = Deadlines()
        self._stalls = Deadlines()
        self._finished: deque[tuple[int, Record]] = deque()
        self._counts: Counter[tuple[Status, str]] = Counter()
        self._processes: dict[Process, int] = {}
        self._recovered_us = 0
        self._events: list[Event] = []
        self._events_dropped = 0
        _stores.add(self)

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Keep each job that is new, all in one atomic step; say for each whether this call made it."""
        with self._lock:
            added = self._add(jobs, self._clock.now())
            self._wake_claims()
            return added

    def _add(self, jobs: Sequence[NewJob], now: int) -> list[Added]:
        added = []
        for spec in jobs:
            existing = self._jobs.get(spec.id) or (spec.unique is not None and self._unique.get(spec.unique))
            if existing:
                added.append(Added(existing.job(), False))
                continue
            self._seq += 1
            record = self._jobs[spec.id] = Record(spec, self._seq, now)
            if spec.unique is not None:
                self._unique[spec.unique] = record
            self._counts[Status.PENDING, spec.queue] += 1
            self._wait(record, now)
            if self._trace:
                self._note("added", record, now, queue=spec.queue)
            added.append(Added(record.job(), True))
        return added

    # Owners

    def claim(
        self,
        owner: str,
        *,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        lease_us: int | None = None,
        default_lease_us: int = 30_000_000,
        claim_id: str | None = None,
        process: Process | None = None,
        wait_us: int = 0,
    ) -> list[Grant]:
        """Lease up to *limit* due jobs to *owner*; wait up to *wait_us* for the first."""
        with self._lock:
            now = self._clock.now()
            until = now + wait_us
            while not self._closed:
                self._sweep(now)
                taken = self._take(limit, queues)
                if taken:
                    return self._grant(taken, owner, lease_us, default_lease_us, claim_id, process, now)
                if self._recover(now):
                    continue
                if now >= until:
                    return []
                self._waiting += 1
                try:
                    self._clock.wait(self._changed, self._next_look(until, now))
                finally:
                    self._waiting -= 1
                now = self._clock.now()
            raise StoreUnavailable("this store was closed while the claim waited.")

    def _take(self, limit: int, queues: Sequence[str] | None) -> list[Record]:
        taken: list[Record] = []
        if limit < 1:
            return taken
        for record in self._ready.take(queues):
            key = record.spec.lock
            if key is not None:
                if key in self._held:
                    self._parked.push(key, record)
                    continue
                self._held[key] = record
            taken.append(record)
            if len(taken) >= limit:
                break
        return taken

    def _grant(
        self,
        taken: list[Record],
        owner: str,
        lease_us: int | None,
        default_lease_us: int,
        claim_id: str | None,
        process: Process | None,
        now: int,
    ) -> list[Grant]:
        # The lock keys are held by now: an epoch drawn before its key could be smaller than that of an earlier holder.
        self._last = draw_epochs(self._last, len(taken), now)
        epoch = self._last - len(taken)
        running, counts = self._running, self._counts
        grants: list[Grant] = []
        looks: dict[int, list[Record]] = {}
        for record in taken:
            spec = record.spec
            epoch += 1
            lasts = lease_us or spec.lease_us or default_lease_us
            expires = now + lasts
            grant = Grant(
                spec,
                epoch,
                owner,
                record.reason,
                record.attempt,
                record.errors,
                record.checkpoint,
                claim_id,
                process,
                now,
                expires,
                lasts,
            )
            record.grant = grant
            record.epoch = epoch
            record.status = Status.RUNNING
            record.expires_us = expires
            record.updated_us = now
            running[spec.id] = record
            counts[Status.PENDING, spec.queue] -= 1
            counts[Status.RUNNING, spec.queue] += 1
            if expires in looks:
                looks[expires].append(record)
            else:
                looks[expires] = [record]
            if spec.stall_us is not None:
                record.stalls_us = now + spec.stall_us
                self._stalls.push(record.stalls_us, [record])
            if self._trace:
                self._note("claimed", record, now, reason=record.reason, attempt=record.attempt)
            grants.append(grant)
        for expires, records in looks.items():
            self._expiries.push(expires, records)
        if process is not None:
            self._processes[process] = self._processes.get(process, 0) + len(taken)
        return grants

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        with self._lock:
            return [
                self._live(record)
                for record in self._running.values()
                if record.grant and record.grant.claim_id == claim_id
            ]

    def lease(self, job_id: str, owner: str) -> Grant:
        """Return the live lease of *owner* on the job."""
        with self._lock:
            record = self._find(job_id)
            grant = record.grant
            if record.status is not Status.RUNNING or grant is None:
                raise NoLease(f"job {job_id!r} is {record.status}: nobody holds a lease on it.")
            if grant.owner != owner:
                raise NoLease(f"job {job_id!r} is leased to {grant.owner!r} (epoch {grant.epoch}), not to {owner!r}.")
            return self._live(record)

    def _live(self, record: Record) -> Grant:
        assert record.grant is not None
        return record.grant._replace(expires_us=record.expires_us, checkpoint=record.checkpoint)

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        with self._lock:
            now = self._clock.now()
            return [self._refused(job_id, epoch, "check", now) for job_id, epoch in holders]

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """Move each lease's deadline to now plus its duration; return the new deadlines."""
        reply: list[int | Refusal] = []
        with self._lock:
            now = self._clock.now()
            for job_id, epoch, lease_us in renewals:
                refusal = self._refused(job_id, epoch, "renew", now)
                if refusal is not None:
                    reply.append(refusal)
                    continue
                record = self._jobs[job_id]
                assert record.grant is not None
                expires = now + (lease_us or record.grant.lease_us)
                if expires < record.expires_us:
                    self._expiries.push(expires, [record])
                record.expires_us = expires
                if self._trace:
                    self._note("renewed", record, now)
                reply.append(expires)
            self._wake_claims()
        return reply

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        reply: list[Refusal | None] = []
        with self._lock:
            now = self._clock.now()
            for job_id, epoch, fraction, note, checkpoint in reports:
                refusal = self._refused(job_id, epoch, "progress", now)
                reply.append(refusal)
                if refusal is not None:
                    continue
                record = self._jobs[job_id]
                record.updated_us = now
                if fraction is not None:
                    record.progress = fraction
                if note is not None:
                    record.note = note
                if checkpoint is not None:
                    record.checkpoint = checkpoint
                if record.spec.stall_us is not None:
                    record.stalls_us = now + record.spec.stall_us
                if self._trace:
                    self._note("progressed", record, now, progress=record.progress, note=record.note)
        return reply

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        with self._lock:
            now = self._clock.now()
            self._admit(job_id, epoch, "add", now)
            added = self._add(jobs, now)
            self._wake_claims()
            return added

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """End each lease as its owner says."""
        reply: list[Refusal | None] = []
        with self._lock:
            now = self._clock.now()
            jobs = self._jobs
            for said in settlements:
                record = jobs.get(said.job_id)
                if record is None or record.epoch != said.epoch or record.status is not Status.RUNNING:
                    reply.append(self._repeated(said, now))
                    continue
                if said.outcome is Outcome.COMPLETE:
                    self._complete(record, said, now)
                else:
                    self._put_back(record, said, now)
                reply.append(None)
            self._wake_claims()
        return reply

    def _repeated(self, said: Settlement, now: int) -> Refusal | None:
        record = self._jobs.get(said.job_id)
        if record is not None and said.epoch:
            if record.settlement is not None and record.epoch == said.epoch:
                before: str | None = record.settlement.fingerprint()
            else:
                before = next((said_so for held, said_so in record.history or () if held.epoch == said.epoch), None)
            if before is not None and before == said.fingerprint():
                return None
        return self._refused(said.job_id, said.epoch, said.outcome.value, now)

    def _complete(self, record: Record, said: Settlement, now: int) -> None:
        record.result = said.result
        record.settlement = said
        record.last_error = None
        if said.then:
            self._add(said.then, now)
        self._let_go(record)
        self._end(record, Status.DONE, now)
        if self._trace:
            self._note("completed", record, now)

    def _put_back(self, record: Record, said: Settlement, now: int) -> None:
        verb = Verb.RELEASE
        if said.outcome is Outcome.FAIL:
            record.errors += 1
            record.last_error = said.error
            verb = judge_error(record.errors, record.spec.retry, again=said.retry)
        assert record.grant is not None
        owner, status = record.grant.owner, after(verb, record.status, record.spec.id)
        how = Status.FAILED if status in FINISHED else FREED_BY[verb]
        self._archive(record, how, now, by=owner, note=said.error, said=said.fingerprint())
        self._let_go(record)
        record.grant = None
        if status in FINISHED:
            self._end(record, status, now)
            self._note("failed", record, now, owner=owner, error=said.error, errors=record.errors)
            return
        self._requeue(record, FREED_BY[verb], now, due=now + said.delay_us if said.delay_us else None)
        record.attempt += 1
        said_so = "released" if verb is Verb.RELEASE else "retried"
        self._note(said_so, record, now, owner=owner, error=said.error, run_us=record.run_us)

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        with self._lock:
            record = self._admit(job_id, epoch, "once", self._clock.now())
            if record.effects is None:
                record.effects = {}
            effect = record.effects.get(name)
            if effect is not None and (effect.known or not again):
                return Begun(effect, False)
            key = effect.key if effect else effect_key(self._id, job_id, name)
            effect = record.effects[name] = Effect(job_id, name, key, epoch, False, None)
            return Begun(effect, True)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        with self._lock:
            record = self._admit(job_id, epoch, "once", self._clock.now())
            self._conclude(record, name, epoch, outcome)

    def _conclude(self, record: Record, name: str, epoch: int, outcome: str | None) -> None:
        effect = (record.effects or {}).get(name)
        if record.effects is None or effect is None:
            raise InvalidArgument(f"job {record.spec.id!r} has begun no effect named {name!r}.")
        if outcome is None:
            del record.effects[name]
        else:
            record.effects[name] = effect._replace(epoch=epoch, known=True, outcome=outcome)

    # Operators

    def transfer(
        self,
        job_id: str,
        epoch: int,
        *,
        to: str,
        by: str,
        note: str | None = None,
        lease_us: int | None = None,
        default_lease_us: int = 30_000_000,
    ) -> Grant:
        """Give the job to *to* under a new epoch."""
        with self._lock:
            now = self._clock.now()
            record = self._seen(job_id, epoch, Verb.TRANSFER, now)
            key = record.spec.lock
            holder = self._held.get(key) if key is not None else None
            if holder is not None and holder is not record:
                raise lock_held(job_id, key, holder.spec.id, holder.epoch)
            was = record.grant.owner if record.grant else None
            if record.status is Status.RUNNING:
                self._archive(record, Reason.MANUAL, now, by=by, note=note)
                self._let_go(record, wake=False)
                record.attempt += 1
                self._counts[Status.RUNNING, record.spec.queue] -= 1
                self._counts[Status.PENDING, record.spec.queue] += 1
            else:
                record.ticket += 1
            if key is not None:
                self._held[key] = record
            record.reason = Reason.MANUAL
            [grant] = self._grant([record], to, lease_us, default_lease_us, None, None, now)
            self._note("transferred", record, now, owner=to, was=was, by=by, note=note)
            return grant

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        return self._override(Verb.CANCEL, "cancelled", job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        return self._override(Verb.FINISH, "finished", job_id, epoch, by, note, result)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now."""
        return self._override(Verb.REPLAY, "replayed", job_id, epoch, by, note)

    def _override(
        self, verb: Verb, kind: str, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
    ) -> Job:
        with self._lock:
            now = self._clock.now()
            record = self._seen(job_id, epoch, verb, now)
            status, was = after(verb, record.status, job_id), record.status
            unique = record.spec.unique
            if status not in FINISHED and unique is not None and unique in self._unique:
                raise unique_taken(job_id, unique, self._unique[unique].spec.id)
            owner = record.grant.owner if record.grant and was is Status.RUNNING else None
            if was is Status.RUNNING:
                self._archive(record, MOVED_BY[verb], now, by=by, note=note)
                self._let_go(record)
            elif was is Status.PENDING:
                record.ticket += 1
                self._wake(record.spec.lock)
            elif record.grant is not None:
                said = record.settlement
                assert said is not None
                self._archive(record, Status.DONE, record.finished_us, by=record.grant.owner, said=said.fingerprint())
            self._advance_record(record, MOVED_BY[verb], now)
            if status in FINISHED:
                if verb is Verb.FINISH:
                    record.result, record.last_error = result, None
                self._end(record, status, now)
            else:
                self._reopen(record, now)
            self._note(kind, record, now, was=owner, by=by, note=note)
            self._wake_claims()
            return record.job()

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        with self._lock:
            now = self._clock.now()
            record = self._find(job_id)
            if record.epoch != epoch:
                raise self._refuse(record, epoch, "resolve", now)
            effect = (record.effects or {}).get(name)
            if effect is not None and effect.known:
                raise InvalidArgument(f"effect {name!r} of job {job_id!r} is not in doubt: its outcome is recorded.")
            self._conclude(record, name, epoch, outcome)
            self._note("resolved", record, now, name=name, by=by, note=note)
            return record.job()

    # The store itself

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        with self._lock:
            now = self._clock.now()
            ended = self._sweep(now) + self._recover(now, always=True)
            self._wake_claims()
            return ended

    def _sweep(self, now: int) -> list[Ownership]:
        for record in self._scheduled.pop_due(now):
            self._ready.push(record)
        ended: list[Ownership] = []
        at = self._expiries.next()
        if at is not None and at <= now:
            ended += self._overdue(self._expiries, now, Reason.TIMEOUT)
        at = self._stalls.next()
        if at is not None and at <= now:
            ended += self._overdue(self._stalls, now, Reason.STALL)
        if self._expiries.crowded(len(self._running)):
            self._expiries.rebuild([(record.expires_us, record) for record in self._running.values()])
        if self._stalls.crowded(len(self._running)):
            self._stalls.rebuild([(r.stalls_us, r) for r in self._running.values() if r.stalls_us is not None])
        return ended

    def _overdue(self, deadlines: Deadlines, now: int, reason: Reason) -> list[Ownership]:
        over: dict[tuple[int, int], Record] = {}
        for record in deadlines.pop_due(now):
            at = record.expires_us if reason is Reason.TIMEOUT else record.stalls_us
            if record.status is not Status.RUNNING or at is None:
                continue
            if at <= now:
                over[at, record.seq] = record
            else:
                deadlines.push(at, [record])
        return [self._take_back(over[key], reason, now) for key in sorted(over)]

    def _recover(self, now: int, *, always: bool = False) -> list[Ownership]:
        # Looking up processes costs system calls, so an idle poll looks at most once a second.
        if not self._processes or not (always or now >= self._recovered_us + RECOVERY_EVERY_US):
            return []
        self._recovered_us = now
        mine = this_process()
        gone = {process for process in self._processes if process != mine and is_gone(process)}
        if not gone:
            return []
        lost = [record for record in self._running.values() if record.grant and record.grant.process in gone]
        return [self._take_back(record, Reason.RECOVERY, now) for record in sorted(lost, key=lambda r: r.seq)]

    def _take_back(self, record: Record, reason: Reason, now: int) -> Ownership:
        assert record.grant is not None
        owner, retry = record.grant.owner, record.spec.retry
        record.reclaims += 1
        verb = judge_reclaim(record.reclaims, retry)
        record.last_error = reclaim_error(verb, reason, owner, record.reclaims, retry)
        status = after(verb, record.status, record.spec.id)
        ended = self._archive(record, reason, now, by=STORE, note=record.last_error)
        self._let_go(record)
        self._advance_record(record, reason, now)
        if status in FINISHED:
            self._end(record, status, now)
            self._note("failed", record, now, reason=reason, was=owner, error=record.last_error)
        else:
            record.attempt += 1
            self._requeue(record, reason, now)
            self._note("reclaimed", record, now, reason=reason, was=owner)
        return ended

    def prune(self, keep_us: int, *, limit: int = 1_000) -> int:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first; return how many."""
        with self._lock:
            before_us = self._clock.now() - keep_us
            removed, kept = 0, []
            while self._finished and removed < limit and self._finished[0][0] < before_us:
                at, record = self._finished.popleft()
                if record.finished_us != at or self._jobs.get(record.spec.id) is not record:
                    continue  # replayed since
                parent = self._jobs.get(record.spec.parent) if record.spec.parent is not None else None
                if parent is not None and parent.status not in FINISHED:
                    kept.append((at, record))
                    continue
                del self._jobs[record.spec.id]
                self._counts[record.status, record.spec.queue] -= 1
                removed += 1
            self._finished.extendleft(reversed(kept))
            old = next((i for i, event in enumerate(self._events) if event.at_us >= before_us), len(self._events))
            del self._events[:old]
            self._events_dropped += old
            return removed

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; it is issued to nobody."""
        with self._lock:
            now = self._clock.now()
            self._last = draw_epochs(max(self._last, above), 1, now)
            self._note("advanced", None, now, epoch=self._last, above=above)
            return self._last

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        with self._lock:
            places: Counter[str] = Counter()
            due = list(self._ready.records())
            parked = list(self._parked.records())
            places.update(record.spec.id for record in due)
            places.update(record.spec.id for record in self._scheduled.records())
            places.update(record.spec.id for _, record in parked)
            places.update(self._running)
            wrong = []
            for job_id, record in self._jobs.items():
                expected = 0 if record.status in FINISHED else 1
                if places.pop(job_id, 0) != expected:
                    wrong.append(f"job {job_id!r} is {record.status} and not in exactly {expected} place(s).")
            wrong += [f"job {job_id!r} is in a place and not in the store." for job_id in places]
            keys = Counter(record.spec.lock for record in self._running.values() if record.spec.lock is not None)
            wrong += [f"lock {key!r} is held by {count} running jobs." for key, count in keys.items() if count > 1]
            if set(keys) != set(self._held):
                wrong.append(f"held keys are {sorted(self._held)}, running jobs have {sorted(keys)}.")
            free = {key for key, _ in parked} - set(self._held) - {record.spec.lock for record in due}
            wrong += [f"jobs are parked behind lock {key!r}, which is free." for key in sorted(free)]
            wrong += [
                f"job {record.spec.id!r} has epoch {record.epoch}, above the last one issued, {self._last}."
                for record in self._jobs.values()
                if record.epoch > self._last
            ]
            return wrong

    # Readers

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        with self._lock:
            return self._find(job_id).job()

    def jobs(
        self,
        *,
        status: Status | None = None,
        queue: str | None = None,
        owner: str | None = None,
        task: str | None = None,
        parent: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return the jobs that fit, in the order of their insertion, beginning behind the job *after*."""
        with self._lock:
            first = self._find(after).seq if after is not None else 0
            source = self._running if status is Status.RUNNING or owner is not None else self._jobs
            fitting: Iterator[Record] = (
                record
                for record in sorted(source.values(), key=lambda record: record.seq)
                if record.seq > first
                and (status is None or record.status is status)
                and (queue is None or record.spec.queue == queue)
                and (owner is None or (record.grant is not None and record.grant.owner == owner))
                and (task is None or record.spec.task == task)
                and (parent is None or record.spec.parent == parent)
            )
            return (
                [record.job() for record, _ in zip(fitting, range(limit), strict=False)]
                if limit is not None
                else [record.job() for record in fitting]
            )

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        with self._lock:
            record = self._find(job_id)
            ended = [ownership for ownership, _ in record.history or ()]
            if record.grant is not None:
                if record.status is Status.RUNNING:
                    ended.append(record.ended(None, None, None, None))
                else:
                    ended.append(record.ended(Status.DONE.value, record.finished_us, record.grant.owner, None))
            return ended

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        with self._lock:
            return sorted((self._find(job_id).effects or {}).values())

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        with self._lock:
            fitting = [
                event
                for event in self._events[max(after - self._events_dropped, 0) :]
                if (job_id is None or event.job_id == job_id) and (kind is None or event.kind == kind)
            ]
            return fitting[:limit]

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        with self._lock:
            total = dict.fromkeys(Status, 0)
            queues: dict[str, dict[str, int]] = {}
            for (status, queue), count in self._counts.items():
                total[status] += count
                if status not in FINISHED and count:
                    queues.setdefault(queue, {"pending": 0, "running": 0})[status.value] = count
            return Counts.of(total, queues)

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._lock = Broken("this store is closed.")

    # What the verbs share; the lock is held

    def _find(self, job_id: str) -> Record:
        record = self._jobs.get(job_id)
        if record is None:
            raise UnknownJob(job_id)
        return record

    def _refused(self, job_id: str, epoch: int, verb: str, now: int) -> Refusal | None:
        record = self._jobs.get(job_id)
        if record is None:
            return UnknownJob(job_id)
        if record.epoch == epoch and record.status is Status.RUNNING:
            return None
        return self._refuse(record, epoch, verb, now)

    def _admit(self, job_id: str, epoch: int, verb: str, now: int) -> Record:
        refusal = self._refused(job_id, epoch, verb, now)
        if refusal is not None:
            raise refusal
        return self._jobs[job_id]

    def _seen(self, job_id: str, epoch: int, verb: Verb, now: int) -> Record:
        record = self._find(job_id)
        if record.epoch != epoch:
            raise self._refuse(record, epoch, verb.value, now)
        after(verb, record.status, job_id)
        return record

    def _refuse(self, record: Record, presented: int, verb: str, now: int) -> StaleEpoch:
        owner = record.grant.owner if record.grant and record.status is Status.RUNNING else None
        kind, reason = StaleEpoch, record.reason if record.epoch else None
        if record.epoch == presented and record.settlement is not None:
            kind, reason = Settled, None
        for held, said in record.history or ():
            if held.epoch == presented:
                assert held.ended is not None
                kind, reason = (Settled, None) if said is not None else (StaleEpoch, Reason(held.ended))
        refusal = kind(record.spec.id, presented=presented, current=record.epoch, owner=owner, reason=reason, verb=verb)
        facts = {"presented": presented, "current": record.epoch, "verb": verb, "reason": reason}
        if presented > self._last:
            log.error("%s", refusal)
            self._note("alarm", record, now, owner=owner, **facts)
        self._note("refused", record, now, owner=owner, **facts)
        return refusal

    def _wait(self, record: Record, now: int) -> None:
        """Put a pending record into the place where it waits."""
        if record.run_us > now:
            self._scheduled.push(record)
        else:
            self._ready.push(record)

    def _requeue(self, record: Record, reason: Reason, now: int, *, due: int | None = None) -> None:
        self._counts[record.status, record.spec.queue] -= 1
        self._counts[Status.PENDING, record.spec.queue] += 1
        record.status = Status.PENDING
        record.reason = reason
        record.updated_us = now
        if due is not None:
            record.run_us = due
        self._wait(record, now)

    def _reopen(self, record: Record, now: int) -> None:
        record.errors = record.reclaims = 0
        record.attempt += 1
        record.result = record.finished_us = None
        if record.spec.unique is not None:
            self._unique[record.spec.unique] = record
        self._requeue(record, Reason.MANUAL, now, due=now)

    def _let_go(self, record: Record, *, wake: bool = True) -> None:
        """End the live lease: it no longer runs, counts for its process, or holds its key."""
        assert record.grant is not None
        del self._running[record.spec.id]
        record.stalls_us = None
        process = record.grant.process
        if process is not None:
            left = self._processes[process] - 1
            if left:
                self._processes[process] = left
            else:
                del self._processes[process]
        key = record.spec.lock
        if key is not None:
            del self._held[key]
            if wake:
                self._wake(key)

    def _wake(self, key: str | None) -> None:
        """Let the first job behind *key* wait to be claimed again, if nobody holds the key."""
        if key is None or key in self._held:
            return
        record = self._parked.pop(key)
        if record is not None:
            self._ready.push(record)

    def _end(self, record: Record, status: Status, now: int) -> None:
        counts, queue = self._counts, record.spec.queue
        counts[record.status, queue] -= 1
        counts[status, queue] += 1
        record.status = status
        record.updated_us = record.finished_us = now
        self._finished.append((now, record))
        unique = record.spec.unique
        if unique is not None and self._unique.get(unique) is record:
            del self._unique[unique]

    def _advance_record(self, record: Record, reason: Reason, now: int) -> None:
        self._last = draw_epochs(self._last, 1, now)
        record.epoch = self._last
        record.reason = reason
        record.grant = None
        record.settlement = None

    def _archive(
        self, record: Record, how: str, at: int | None, *, by: str, note: str | None = None, said: str | None = None
    ) -> Ownership:
        ended = record.ended(str(how), at, by, note)
        if record.history is None:
            record.history = []
        record.history.append((ended, said))
        return ended

    def _next_look(self, until: int, now: int) -> int:
        looks = [until, self._scheduled.next(), self._expiries.next(), self._stalls.next()]
        if self._processes:
            looks.append(now + RECOVERY_EVERY_US)
        return min(look for look in looks if look is not None)

    def _wake_claims(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _note(self, kind: str, record: Record | None, now: int, **facts: Any) -> None:
        number = self._events_dropped + len(self._events) + 1
        epoch = facts.pop("epoch", record.epoch if record else None)
        held = record.grant.owner if record and record.grant else None
        owner = facts.pop("owner", held)
        known = {name: value for name, value in facts.items() if value is not None}
        job_id = None if record is None else record.spec.id
        self._events.append(Event(number, now, kind, job_id, epoch, owner, known))


def effect_key(store_id: uuid.UUID, job_id: str, name: str) -> str:
    """Return the idempotency key of an effect: the same for every owner, another for every store, job and name."""
    return str(uuid.uuid5(store_id, f"{job_id}\0{name}"))


def lock_held(job_id: str, key: str | None, holder: str, epoch: int) -> InvalidArgument:
    """The refusal of a transfer to a job whose key is in use."""
    return InvalidArgument(
        f"job {job_id!r} cannot run now: its lock {key!r} is held by job {holder!r} (epoch {epoch}). "
        "Cancel or finish that one first."
    )


def unique_taken(job_id: str, key: str, holder: str) -> InvalidArgument:
    """The refusal of a replay whose unique key an unfinished job has."""
    return InvalidArgument(
        f"job {job_id!r} cannot be replayed: its unique key {key!r} belongs to job {holder!r}, unfinished."
    )


class Broken:
    """Stands where a lock stood that must not be taken any more."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __enter__(self) -> None:
        raise StoreUnavailable(self._why)

    def __exit__(self, *_: object) -> None:  # never entered
        raise AssertionError


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    # A forked child has a copy. Claims on both would issue the same epochs twice, and run every job twice.
    for store in _stores:
        store._lock = Broken(
            "this memory store belongs to the process that made it, and a forked child has only a copy: "
            "make a Router in the child, or share a SQLite file."
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
