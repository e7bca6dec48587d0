"""The verbs of the memory store, each one turn of its only lock."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence

from ...core.clock import Clock
from ...core.counts import Counts
from ...core.effects import Effect, effect_key
from ...core.job import Added, Grant, Job, NewJob, Outcome, Progress, Settlement, Status
from ...core.lifecycle import FINISHED, MOVED_BY, Verb, after, unique_taken
from ...core.ownership import Event, Note, NoteKind, Ownership, Process, Reason, draw_epochs
from ...core.parking import known_tasks
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.search import Key, Looked, Page, Search, collect
from ...errors import Conflict, StoreUnavailable
from ...store import Begun, OpenKeys, Pruned, Refusal, Renewal, ids_before
from ..policy import Pass
from ..reclaimed import Reclaimed
from . import searching, upkeep
from .guarded import GuardedKeys
from .observing import Observing
from .record import AT_DONE, AT_PENDING, AT_RUNNING, DONE, ORDER, PENDING, RUNNING, Record, count_moved
from .turn import inside, turn
from .verifying import broken

_COMPLETE = Outcome.COMPLETE


class MemoryStore(Observing):
    """Keeps jobs in this process: every clause of the contract but durability."""

    transactions = None

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        super().__init__(clock=clock, trace=trace)
        self._reclaimed = Reclaimed()
        self._pass = Pass()
        self._guarded = GuardedKeys()
        _stores.add(self)

    # Producers

    @turn
    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Keep each job that is new, all in one atomic step; say for each whether this call made it."""
        if len(jobs) > 1:
            self._begin(None)
        added = self._add(jobs, self._now())
        self._undo = None
        self._wake_claims()
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
        tasks: Collection[str] | None = None,
    ) -> list[Grant]:
        """Lease up to *limit* due jobs to *owner*; wait up to *wait_us* for the first."""
        # A turn, spelled out: `turn` packs and unpacks the arguments. With it here and in `settle`, one by one takes
        # a fifth longer (python benchmarks/core.py --only "memory: claim + complete, one by one").
        with self._lock:
            if self._inside:
                raise inside("claim")
            self._inside = True
            try:
                return self._claim(owner, limit, queues, lease_us, default_lease_us, claim_id, process, wait_us, tasks)
            except BaseException as error:
                self._mend(error)
                raise
            finally:
                self._inside = False

    def _claim(
        self,
        owner: str,
        limit: int,
        queues: Sequence[str] | None,
        lease_us: int | None,
        default_lease_us: int,
        claim_id: str | None,
        process: Process | None,
        wait_us: int,
        tasks: Collection[str] | None,
    ) -> list[Grant]:
        now = self._now()
        known = None if tasks is None else known_tasks(tasks)
        until, woken = now + wait_us, self._woken
        while not self._closed:
            if now >= self._next:
                self._sweep(now)
            self._claimer = owner
            taken = self._take(queues, limit, known)
            if taken:
                grants = self._grant(taken, owner, lease_us, default_lease_us, claim_id, process, now)
                if self._trace:
                    for record in taken:
                        self._note("claimed", record, now, reason=record.reason, attempt=record.attempt)
                if self._expecting:
                    self._wake_claims()
                return grants
            if now >= until or self._woken != woken:
                return []
            before, now = now, self._sleep(min(until, self._next))
            until -= max(before - now, 0)  # a clock that was set back must not make the wait longer
        raise StoreUnavailable("this store was closed while the claim waited.")

    @turn
    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon."""
        self._woken += 1
        self._changed.notify_all()

    @turn
    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        granted = [self._live(r) for r in self._running() if r.grant and r.grant.claim_id == claim_id]
        return sorted(granted, key=lambda grant: grant.epoch)

    @turn
    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        now = self._now()
        return [self._refused(job_id, epoch, "check", now) for job_id, epoch in holders]

    @turn
    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """Move each lease's deadline to now plus its duration; return the new deadlines."""
        reply: list[int | Refusal] = []
        now = self._now()
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
                self._look(expires)
            record.expires_us, record.renewed_us = expires, now
            record.awaited = 0
            if self._trace:
                self._note("renewed", record, now)
            reply.append(expires)
        self._wake_claims()
        return reply

    @turn
    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        reply: list[Refusal | None] = []
        now = self._now()
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
                self._note("progressed", record, now, progress=fraction, note=note)
        return reply

    @turn
    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        now = self._now()
        self._admit(job_id, epoch, "add", now)
        self._begin(None)
        added = self._add(jobs, now)
        self._undo = None
        self._wake_claims()
        return added

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """End each lease as its owner says."""
        with self._lock:  # a turn, spelled out as in `claim`
            if self._inside:
                raise inside("settle")
            self._inside = True
            try:
                return self._settle(settlements)
            except BaseException as error:
                self._mend(error)
                raise
            finally:
                self._inside = False

    def _settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        reply: list[Refusal | None] = []
        now = self._now()
        find, end, trace = self._jobs.get, self._finished.append, self._trace
        tally: list[int] = []
        count = 0
        for settlement in settlements:
            job_id, epoch, outcome, result, then, _, _, _ = settlement
            record = find(job_id)
            if record is None or record.epoch != epoch or record.status is not RUNNING:
                reply.append(self._repeated(settlement, now))
                continue
            reply.append(None)
            if outcome is not _COMPLETE:
                self._put_back(record, settlement, now)
                continue
            # The common path of every job, so it does in one breath what _let_go and _end do.
            if then:
                self._begin(record)
            record.result = result
            record.then = then
            record.last_error = None
            record.status = DONE
            record.finished_us = now
            end(record)
            if record.tally is not tally:
                if count:
                    count_moved(tally, AT_RUNNING, AT_DONE, count)
                tally, count = record.tally, 0
            count += 1
            if not record.plain:
                self._give_back(record)
                self._let_go(record)
            if then:  # only now: a follow-up may have the unique key that the job gave back
                self._add(then, now)
            if trace:
                self._note("completed", record, now)
            if then:
                self._undo = None
        if count:
            count_moved(tally, AT_RUNNING, AT_DONE, count)
        self._wake_claims()
        return reply

    @turn
    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        record = self._admit(job_id, epoch, "once", self._now())
        if record.effects is None:
            record.effects = {}
        effect = record.effects.get(name)
        if effect is not None and (effect.known or not again):
            return Begun(effect, False)
        key = effect.key if effect else effect_key(self._id, job_id, name)
        effect = record.effects[name] = Effect(job_id, name, key, epoch, False, None)
        return Begun(effect, True)

    @turn
    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        record = self._admit(job_id, epoch, "once", self._now())
        self._conclude(record, name, epoch, outcome)

    @turn
    def record(self, note: Note) -> None:
        """Record what happened at a guarded resource, as an event of the note's kind."""
        now = self._now()
        if note.kind is NoteKind.GUARDED:
            self._guarded.note(self._admit(str(note.job_id), note.epoch, "seal", now), note)
        elif note.kind is NoteKind.SEALED and (record := self._jobs.get(str(note.job_id))) is not None:
            self._guarded.forget(record, note)
        self._insert_event(now, note.kind.value, note.job_id, note.epoch, note.owner, note.facts)

    # Operators

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        return self._override(Verb.CANCEL, "cancelled", job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        return self._override(Verb.FINISH, "finished", job_id, epoch, by, note, result)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now."""
        return self._override(Verb.REPLAY, "replayed", job_id, epoch, by, note)

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Take a running job from its owner and put it back to be claimed, due now."""
        return self._override(Verb.REQUEUE, "requeued", job_id, epoch, by, note)

    @turn
    def _override(
        self, verb: Verb, kind: str, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
    ) -> Job:
        now = self._now()
        record = self._seen(job_id, epoch, verb, now, by)
        status, was = after(verb, record.status, job_id), record.status
        unique = record.spec.unique
        if verb is Verb.REPLAY and unique is not None and unique in self._unique:
            raise unique_taken(job_id, unique, self._unique[unique].spec.id)
        self._begin(record)
        owner = record.grant.owner if record.grant and was is RUNNING else None
        if was is RUNNING:
            self._archive(record, MOVED_BY[verb], now, by=by, note=note)
            self._let_go(record)
        elif was is PENDING:
            self._leave(record)
            self._wake(record.spec.lock)
        elif record.grant is not None:
            completion = record.completion()
            assert completion is not None
            self._archive(record, DONE, record.finished_us, by=record.grant.owner, fingerprint=completion.fingerprint())
        self._advance_record(record, MOVED_BY[verb], now)
        if status in FINISHED:
            if verb is Verb.FINISH:
                record.result, record.last_error = result, None
            self._end(record, status, now)
        elif verb is Verb.REPLAY:
            self._reopen(record, now)
        else:
            record.attempt += 1
            self._requeue(record, Reason.MANUAL, now)
        self._note(kind, record, now, was=owner, by=by, note=note)
        self._undo = None
        self._wake_claims()
        return record.job()

    @turn
    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        now = self._now()
        record = self._find(job_id)
        if record.epoch != epoch:
            raise self._refuse(record, epoch, "resolve", now, by)
        effect = (record.effects or {}).get(name)
        if effect is not None and effect.known:
            raise Conflict(f"effect {name!r} of job {job_id!r} is not in doubt: its outcome is recorded.")
        self._conclude(record, name, epoch, outcome)
        held = record.grant if record.status is RUNNING else None
        self._note("resolved", record, now, owner=held and held.owner, name=name, by=by, note=note)
        return record.job()

    @turn
    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        now = self._now()
        paused = self._paused[queue] = Queue(queue, now, by, note)
        self._ready.pause(queue)
        self._parking.pause(queue)
        self._note("paused", None, now, queue=queue, by=by, note=note)
        return paused

    @turn
    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        if self._paused.pop(queue, None) is not None:
            self._ready.resume(queue)
            self._parking.resume(queue)
            self._note("resumed", None, self._now(), queue=queue, by=by)
            self._wake_claims()
        return Queue(queue)

    # The store itself

    @turn
    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        now = self._now()
        ended = self._sweep(now) + upkeep.recover(self, now, always=True)
        self._wake_claims()
        return ended

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self._reclaimed.take()

    def _take_back(self, record: Record, reason: Reason, now: int) -> Ownership:
        ended = super()._take_back(record, reason, now)
        self._reclaimed.note([(ended.job_id, ended.epoch)])
        return ended

    @turn
    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        """Return keys of *guards* whose job has ended without a successor that would seal them."""
        return self._guarded.open(self._jobs, guards, after, limit)

    @turn
    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        now = self._now()
        removed = upkeep.prune(self, now - keep_us, ids_before(now, keep_ids_us), limit)
        self._tallies = {queue: tally for queue, tally in self._tallies.items() if any(tally)}
        self._tidy()
        return removed

    @turn
    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        now = self._now()
        if self._sweep(now) + upkeep.recover(self, now):
            self._wake_claims()
        return self._pass.portion(now, retention, functools.partial(upkeep.prune_due, self, now, retention))

    @turn
    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; it is issued to no owner."""
        now = self._now()
        self._last = draw_epochs(max(self._last, above), 1, now)
        self._note("advanced", None, now, epoch=self._last, above=above)
        return self._last

    @turn
    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        return broken(self)

    # Readers

    @turn
    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        return self._find(job_id).job()

    @turn
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
        first = self._find(after).seq if after is not None else 0
        few = status is RUNNING or owner is not None
        fitting: Iterator[Record] = (
            record
            for record in (self._running() if few else self._jobs.values())
            if record.seq > first
            and not record.narrow
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

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the jobs that *search* describes."""
        return collect(search, limit, cursor, functools.partial(self._candidates, search))

    @turn
    def _candidates(self, search: Search, key: Key | None, count: int, limit: int) -> Looked:
        return searching.look(self._jobs.values(), search, key, count, limit)

    @turn
    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        record = self._find(job_id)
        ended = [ownership for ownership, _ in record.history or ()]
        if record.grant is not None:
            if record.status is RUNNING:
                ended.append(record.ended(None, None, None, None))
            else:
                ended.append(record.ended(DONE.value, record.finished_us, record.grant.owner, None))
        return ended

    @turn
    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        return sorted((self._find(job_id).effects or {}).values())

    @turn
    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        fitting = [
            event
            for event in self._events[max(after - self._events_dropped, 0) :]
            if event.number > after
            and (job_id is None or event.job_id == job_id)
            and (kind is None or event.kind == kind)
        ]
        return fitting[:limit]

    @turn
    def identity(self) -> str:
        """Return the id of this store."""
        return str(self._id)

    @turn
    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        return [self._paused[name] for name in sorted(self._paused)]

    @turn
    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        tallies = self._tallies.items()
        total = {status: sum(tally[place] for _, tally in tallies) for status, place in ORDER.items()}
        queues = {queue: {"pending": tally[AT_PENDING], "running": tally[AT_RUNNING]} for queue, tally in tallies}
        unfinished = {queue: counted for queue, counted in queues.items() if any(counted.values())}
        return Counts.of(total, unfinished, self._parking.counts())

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._lock = Broken("this store is closed.")


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
        store._changed = threading.Condition()  # a thread may have held the old one, for ever
        store._inside = False
        store._lock = Broken(
            "this memory store belongs to the process that made it, and a forked child has only a copy: "
            "make a Router in the child, or share a SQLite file."
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
