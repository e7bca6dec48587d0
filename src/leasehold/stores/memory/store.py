"""The verbs of the memory store: each is one turn of its lock, decides first, and then writes what it has decided."""

from __future__ import annotations

import functools
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ...core.backlog import Lately, Oldest
from ...core.clock import Clock, SystemClock
from ...core.counts import Counts
from ...core.effects import Effect, effect_key
from ...core.job import Added, Grant, Job, NewJob, Progress, Settlement, Status
from ...core.lifecycle import Verb, no_lease
from ...core.observations import Observation, Observed
from ...core.ownership import (
    CLOCK_LIMIT,
    RECOVERY_EVERY_US,
    Event,
    LiveLease,
    Note,
    NoteKind,
    Ownership,
    Process,
    Reason,
    draw_epochs,
    sane,
)
from ...core.parking import known_tasks
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.search import Key, Looked, Page, Search, collect
from ...core.workers import WorkerReport, WorkerStatus, is_alive
from ...errors import StoreUnavailable
from ...liveness import is_gone, this_process
from ...store import Begun, OpenKeys, Pruned, Refusal, Renewal, ids_before
from ..policy import IDS, WORKERS, Pass, Place
from . import fencing, moving, reading, upkeep
from .guarded import GuardedKeys
from .observing import Observations
from .state import State


class MemoryStore:
    """Keeps jobs in this process: every clause of the contract but durability."""

    transactions = None

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        self._clock = clock or SystemClock()
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._id = uuid.uuid4()
        self._gone: str | None = None  # why no verb works any more
        self._woken = 0  # how often waiting claims were woken
        self._state = State(self._changed, sane(self._clock.now()), trace)
        self._workers: dict[str, WorkerStatus] = {}
        self._own = this_process()
        self._recovered_us = 0
        self._pass = Pass()
        self._guarded = GuardedKeys()
        self._observations = Observations()
        _stores.add(self)

    @property
    def _turn(self) -> Any:
        """The lock that makes a verb one turn, unless this thread is in the middle of another verb."""
        if self._gone is not None:
            raise StoreUnavailable(self._gone)
        if self._lock._is_owned():
            raise fencing.inside(sys._getframe(1).f_code.co_name)
        return self._lock

    def _whole(self) -> State:
        """Return the state, without what an interrupted verb has left half written."""
        if self._state.torn:
            self._state.mend(self._clock.now())
        return self._state

    def _begin(self) -> int:
        """Return what time it is, to a verb that may write: a wrong clock is found before anything is changed."""
        now = self._clock.now()
        if self._state.torn:
            self._state.mend(now)
        return now if now < CLOCK_LIMIT else sane(now)

    def _sleep(self, until: int) -> int:
        """Let others have their turn until something changes or *until* has come; return what time it is then."""
        self._state.waiting += 1
        try:
            self._clock.wait(self._changed, until)
        finally:
            self._state.waiting -= 1
        if self._gone is not None:
            raise StoreUnavailable("this store was closed while the call waited. Nothing was changed.")
        return self._begin()

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Keep each job that is new, all in one atomic step; say for each whether this call made it."""
        with self._turn:
            return moving.add(self._state, self._begin(), jobs)

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
        with self._turn:
            now, state = self._begin(), self._state
            known = None if tasks is None else known_tasks(tasks)
            until, woken = now + wait_us, self._woken
            while True:
                if state.next <= now:
                    moving.sweep(state, now)
                state.torn = True
                taken = moving.take(state, now, owner, limit, queues, known)
                if taken:
                    leases = moving.grant(state, now, taken, owner, lease_us, default_lease_us, claim_id, process)
                    state.torn = False
                    if state.trace:
                        state.trace_claim(leases)
                    if state.waiting:
                        self._changed.notify_all()
                    return leases
                state.torn = False
                if now >= until or self._woken != woken:
                    return []
                before, now = now, self._sleep(min(until, state.next))
                until -= max(before - now, 0)  # a clock that was set back must not make the wait longer

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon."""
        with self._turn:
            self._woken += 1
            self._changed.notify_all()

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        with self._turn:
            granted = [lease for lease in self._whole().leases.values() if lease.claim_id == claim_id]
            return sorted(granted, key=lambda lease: lease.epoch)

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        with self._turn:
            now = self._begin()
            until = now + wait_us
            while True:
                row, lease = fencing.find(self._state, job_id)
                if lease is not None and lease.owner == owner:
                    if row.awaits(lease):
                        self._state.write(now, [row.but(awaited=False)])
                    return lease
                if now >= until:
                    job = row.job(lease)
                    raise no_lease(job_id, job.status, job.owner, job.epoch, owner)
                before, now = now, self._sleep(until)
                until -= max(before - now, 0)

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        with self._turn:
            return reading.transfers(self._whole(), owner)

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        with self._turn:
            now, state, grants = self._begin(), self._state, []
            for job_id, epoch in transfers:
                lease = state.leases.get(job_id)
                if lease is None or (lease.epoch, lease.owner) != (epoch, owner):
                    continue
                row = state.jobs[job_id].held(lease)
                if row.awaits(lease) or lease.claim_id == claim_id:
                    expires_us = now + lease.lease_us
                    state.renewed[job_id] = now
                    grants.append(lease._replace(claim_id=claim_id, process=process, expires_us=expires_us))
                    state.write(now, [row.but(awaited=False, stalls_us=row.stalls_after(now))], [grants[-1]])
            return grants

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        with self._turn:
            now = self._begin()
            return [fencing.refused(self._state, now, job_id, epoch, "check") for job_id, epoch in holders]

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """Move each lease's deadline to now plus its duration; return the new deadlines."""
        with self._turn:
            now, state = self._begin(), self._state
            reply: list[int | Refusal] = []
            for job_id, epoch, lease_us in renewals:
                refusal = fencing.refused(state, now, job_id, epoch, "renew")
                if refusal is not None:
                    reply.append(refusal)
                    continue
                row, lease = state.jobs[job_id], state.leases[job_id]
                renewed = lease._replace(expires_us=now + (lease_us or lease.lease_us))
                picked_up = [row.but(awaited=False)] if row.awaits(lease) else []
                traced = state.traced(now, "renewed", job_id, epoch, lease.owner)
                state.renewed[job_id] = now
                state.write(now, picked_up, [renewed], events=traced)
                reply.append(renewed.expires_us)
            return reply

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        with self._turn:
            now, state = self._begin(), self._state
            reply: list[Refusal | None] = []
            for job_id, epoch, fraction, note, checkpoint in reports:
                reply.append(fencing.refused(state, now, job_id, epoch, "progress"))
                if reply[-1] is not None:
                    continue
                row, lease = fencing.admit(state, now, job_id, epoch, "progress")
                given = {"progress": fraction, "note": note, "checkpoint": checkpoint}
                past = {name: value for name, value in given.items() if value is not None}
                moved = row.but(past, updated_us=now, stalls_us=row.stalls_after(now))
                leases = [] if checkpoint is None else [lease._replace(checkpoint=checkpoint)]
                traced = state.traced(now, "progressed", job_id, epoch, lease.owner, progress=fraction, note=note)
                state.write(now, [moved], leases, events=traced)
            return reply

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        with self._turn:
            now = self._begin()
            fencing.admit(self._state, now, job_id, epoch, "add")
            return moving.add(self._state, now, jobs)

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """End each lease as its owner says."""
        with self._turn:
            now, state = self._begin(), self._state
            state.torn = True
            reply = moving.settle(state, now, settlements)
            state.torn = False
            if state.waiting:
                self._changed.notify_all()
            return reply

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        with self._turn:
            now = self._begin()
            row, _ = fencing.admit(self._state, now, job_id, epoch, "once")
            effect = row.past.effects.get(name)
            if effect is not None and (effect.known or not again):
                return Begun(effect, False)
            key = effect.key if effect else effect_key(self._id, job_id, name)
            effect = Effect(job_id, name, key, epoch, False, None)
            self._state.write(now, [row.but({"effects": {**row.past.effects, name: effect}})])
            return Begun(effect, True)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        with self._turn:
            now = self._begin()
            row, _ = fencing.admit(self._state, now, job_id, epoch, "once")
            self._state.write(now, [moving.concluded(row, name, epoch, outcome)])

    def record(self, note: Note) -> None:
        """Record what happened at a guarded resource, as an event of the note's kind."""
        with self._turn:
            now, state = self._begin(), self._state
            if note.kind is NoteKind.GUARDED:
                self._guarded.note(fencing.admit(state, now, str(note.job_id), note.epoch, "seal")[0], note)
            elif note.kind is NoteKind.SEALED and (row := state.jobs.get(str(note.job_id))) is not None:
                self._guarded.forget(row, note)
            state.note(now, note.kind.value, note.job_id, note.epoch, note.owner, **note.facts)

    def _note(
        self, now: int, kind: str, job_id: str | None, epoch: int | None, owner: str | None = None, /, **facts: Any
    ) -> None:
        self._state.write(now, events=[self._state.event(now, kind, job_id, epoch, owner, **facts)])

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
        with self._turn:
            now, state = self._begin(), self._state
            alive = [worker for worker in self._workers.values() if is_alive(worker.seen_us, now)]
            named = [worker.name for worker in alive if to in (worker.name, worker.given_name)]
            return moving.transfer(state, now, job_id, epoch, to, named, by, note, lease_us, default_lease_us)

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        with self._turn:
            return moving.override(self._state, self._begin(), Verb.CANCEL, job_id, epoch, by, note)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now."""
        with self._turn:
            return moving.override(self._state, self._begin(), Verb.REPLAY, job_id, epoch, by, note)

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Take a running job from its owner and put it back to be claimed, due now."""
        with self._turn:
            return moving.override(self._state, self._begin(), Verb.REQUEUE, job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        with self._turn:
            return moving.override(self._state, self._begin(), Verb.FINISH, job_id, epoch, by, note, result)

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        with self._turn:
            return moving.resolve(self._state, self._begin(), job_id, epoch, name, by, outcome, note)

    def prune_job(
        self, job_id: str, epoch: int, *, by: str, note: str | None = None, keep_ids_us: int | None = KEEP_IDS_US
    ) -> None:
        """Remove this finished job, whenever it finished, with all that is kept of it."""
        with self._turn:
            now = self._begin()
            ids_us = ids_before(now, keep_ids_us)
            upkeep.prune_job(self._state, self._guarded, now, job_id, epoch, by, note, ids_us)

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        with self._turn:
            now = self._begin()
            self._state.pause(paused := Queue(queue, now, by, note))
            self._state.note(now, "paused", None, None, queue=queue, by=by, note=note)
            return paused

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        with self._turn:
            now = self._begin()
            if queue in self._state.paused:
                self._state.resume(queue)
                self._state.note(now, "resumed", None, None, queue=queue, by=by)
            return Queue(queue)

    # Workers

    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        with self._turn:
            now = self._begin()
            known = self._workers.get(report.name)
            started = now - report.up_us if known is None else known.started_us
            self._workers[report.name] = WorkerStatus(*report[:-1], started_us=started, seen_us=now, alive=True)

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        with self._turn:
            self._workers.pop(name, None)

    # Upkeep

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        with self._turn:
            now = self._begin()
            return moving.sweep(self._state, now) + self._recover(now)

    def _recover(self, now: int) -> list[Ownership]:
        self._recovered_us = now
        leases = sorted(self._state.leases.values(), key=self._state.seq)
        others = {lease.process for lease in leases} - {self._own}
        gone = {process for process in others if process is not None and is_gone(process)}
        lost = [lease for lease in leases if lease.process in gone]
        return [moving.take_back(self._state, now, lease, Reason.RECOVERY) for lease in lost]

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self._state.reclaimed.take()

    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        """Return keys of *guards* whose job has ended without a successor that would seal them."""
        with self._turn:
            return self._guarded.open(self._whole().jobs, guards, after, limit)

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        with self._turn:
            now = self._begin()
            return upkeep.prune(self._state, self._guarded, now - keep_us, ids_before(now, keep_ids_us), limit)

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        with self._turn:
            now = self._begin()
            moving.sweep(self._state, now)
            if not 0 <= now - self._recovered_us < RECOVERY_EVERY_US:  # also if the clock was set back
                self._recover(now)
            return self._pass.portion(now, retention, functools.partial(self._prune_due, now, retention))

    def _prune_due(self, now: int, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
        if kind == WORKERS:
            self._workers = {name: one for name, one in self._workers.items() if one.seen_us > now - keep_us}
            return None
        ids_us = ids_before(now, retention.keep_us(IDS))
        return place if upkeep.prune_due(self._state, self._guarded, kind, now, keep_us, ids_us) else None

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """Record that *found* is what there is to be observed, by a look that began at *round*."""
        with self._turn:
            return self._observations.observe(self._state, self._begin(), round, found)

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; it is issued to no owner."""
        with self._turn:
            now, state = self._begin(), self._state
            state.last = draw_epochs(max(state.last, above), 1, now)
            self._state.note(now, "advanced", None, state.last, above=above)
            return state.last

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        with self._turn:
            return reading.broken(self._whole())

    # Readers

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        with self._turn:
            return fencing.job(self._whole(), job_id)

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
        with self._turn:
            state = self._whole()
            first = 0 if after is None else fencing.find(state, after)[0].seq
            return list(islice(reading.jobs(state, first, status, owner, queue=queue, task=task, parent=parent), limit))

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the jobs that *search* describes."""
        return collect(search, limit, cursor, functools.partial(self._look, search))

    def _look(self, search: Search, key: Key | None, count: int, limit: int) -> Looked:
        with self._turn:  # a turn for each portion: no claim waits for a whole search (C66)
            return reading.look(self._whole(), search, key, count, limit)

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        with self._turn:
            return reading.ownerships(*fencing.find(self._whole(), job_id))

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        with self._turn:
            return sorted(fencing.find(self._whole(), job_id)[0].past.effects.values())

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        with self._turn:
            return list(islice(reading.events(self._whole(), job_id, kind, after), limit))

    def identity(self) -> str:
        """Return the id of this store."""
        with self._turn:
            return str(self._id)

    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        with self._turn:
            return [queue for _, queue in sorted(self._state.paused.items())]

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        with self._turn:
            now = self._begin()
            listed = [self._workers[name] for name in sorted(self._workers)]
            return [replace(worker, alive=is_alive(worker.seen_us, now)) for worker in listed]

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        with self._turn:
            return reading.counts(self._whole())

    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        with self._turn:
            return reading.oldest(self._whole(), self._begin())

    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        with self._turn:
            return reading.lately(self._whole(), self._begin())

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        with self._turn:
            return self._observations.noted(self._begin())

    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        with self._turn:
            return reading.leases(self._whole())

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        with self._changed:
            self._gone = "this store is closed."
            self._changed.notify_all()


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    # A forked child has a copy. Claims on both would issue the same epochs twice, and run every job twice.
    for store in _stores:
        store._changed = threading.Condition()  # a thread may have held the old one, for ever
        store._gone = (
            "this memory store belongs to the process that made it, and a forked child has only a copy: "
            "make a Router in the child, or share a SQLite file."
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
