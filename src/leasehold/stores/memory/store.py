"""The verbs of the memory store, whose promises are those of `store.Store`. Each is one turn of the lock."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ...core import lifecycle
from ...core.backlog import Lately, Oldest
from ...core.clock import FAR, Clock, SystemClock
from ...core.counts import Counts
from ...core.effects import Effect, effect_key
from ...core.job import Added, Grant, Job, NewJob, Progress, Settlement, Status
from ...core.lifecycle import Verb, no_lease
from ...core.observations import Key as Observable
from ...core.observations import Noted, Observation, Observed, changes
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
from ...liveness import is_gone, this_process
from ...store import Begun, OpenKeys, Pruned, Refusal, Renewal, Store, ids_before
from ..policy import Pass
from . import moving, reading, upkeep
from .state import State
from .turn import Turn


class MemoryStore(Store):
    """Keeps jobs in this process: every clause of the contract but durability."""

    transactions = None

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        self._clock = clock or SystemClock()
        self._turn = Turn(self._clock)
        self._state = State(self._turn.tell, sane(self._clock.now()), trace)
        self._id = uuid.uuid4()
        self._woken = 0  # how often waiting claims were woken
        self._own = this_process()
        self._recovered_us = 0
        self._pass = Pass()
        self._observed: dict[Observable, tuple[int, tuple[Any, ...]]] = {}  # when it was noted, and what its event says
        self._round = self._looked_us = 0

    def _whole(self) -> State:
        """Return the state, without what an interrupted verb has left half written."""
        if self._state.torn:
            self._state.mend()
        return self._state

    def _begin(self) -> State:
        """Return the same, with what time it is: a wrong clock is found before anything is changed."""
        now, state = self._clock.now(), self._state
        if state.torn:
            state.mend()
        state.now = now if now < CLOCK_LIMIT else sane(now)
        return state

    def _sleep(self, until: int, at: int = FAR) -> int:
        """Let others have their turn until something changes, or *until* or *at* has come; return the new *until*."""
        before = self._state.now
        self._turn.sleep(min(until, at))
        return until - max(before - self._begin().now, 0)  # a clock that was set back must not make the wait longer

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        with self._turn.lock:
            return moving.add(self._begin(), jobs)

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
        with self._turn.lock:
            state, known, woken = self._begin(), known_tasks(tasks), self._woken
            until = state.now + wait_us
            while True:
                if state.next <= state.now:
                    moving.sweep(state)
                state.torn = True
                grants = []
                if taken := moving.take(state, owner, limit, queues, known):
                    now, enter = state.now, state.enter
                    for epoch, row in enumerate(taken, state.draw(len(taken))):
                        lasts = lease_us or row.spec.lease_us or default_lease_us
                        grants.append(row.lease_to(owner, epoch, now, lasts, claim_id, process))
                        enter(row)
                state.torn = False
                if grants or state.now >= until or self._woken != woken:
                    break
                until = self._sleep(until, state.next)
            if state.trace:
                for row in taken:
                    state.write(events=state.traced("claimed", row, reason=row.reason, attempt=row.attempt))
            if grants:
                state.tell()
            return grants

    def wake(self) -> None:
        with self._turn.lock:
            self._woken += 1
            self._turn.tell()

    def claimed(self, claim_id: str) -> list[Grant]:
        with self._turn.lock:
            leases = [row.lease for row in self._whole().running.values()]
            return sorted((one for one in leases if one and one.claim_id == claim_id), key=lambda lease: lease.epoch)

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        with self._turn.lock:
            state = self._begin()
            until = state.now + wait_us
            while (row := state.find(job_id)).owner != owner:
                if state.now >= until:
                    raise no_lease(job_id, row.status, row.owner, row.epoch, owner)
                until = self._sleep(until)
            if row.awaited:
                state.write([row := replace(row, awaited=False)])
            assert row.lease is not None
            return row.lease

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        with self._turn.lock:
            rows = [row for row in self._whole().running.values() if row.awaited and row.owner == owner]
            return sorted(((row.spec.id, row.epoch) for row in rows), key=lambda one: one[1])

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        with self._turn.lock:
            state, grants = self._begin(), []
            for job_id, epoch in transfers:
                row = state.running.get(job_id)
                if row is None or row.lease is None or (row.epoch, row.owner) != (epoch, owner):
                    continue
                if row.awaited or row.lease.claim_id == claim_id:
                    until = state.now + row.lease.lease_us
                    lease = row.lease._replace(claim_id=claim_id, process=process, expires_us=until)
                    stalls_us = row.stalls_after(state.now)
                    state.write([replace(row, grant=lease, awaited=False, renewed_us=state.now, stalls_us=stalls_us)])
                    grants.append(lease)
            return grants

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        with self._turn.lock:
            return moving.each(moving.check, self._begin(), holders)

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        with self._turn.lock:
            return moving.each(moving.renew, self._begin(), renewals)

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        with self._turn.lock:
            return moving.each(moving.progress, self._begin(), reports)

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        with self._turn.lock:
            state = self._begin()
            state.admit(job_id, epoch, "add")
            return moving.add(state, jobs)

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        with self._turn.lock:
            state = self._begin()
            state.torn = True
            reply = moving.each(moving.settle, state, settlements)
            state.torn = False
            state.tell()
            return reply

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        with self._turn.lock:
            state = self._begin()
            row, _ = state.admit(job_id, epoch, "once")
            known = row.effect(name)
            if known is not None and (known.known or not again):
                return Begun(known, False)
            effect = Effect(job_id, name, effect_key(self._id, job_id, name), epoch, False, None)
            state.write([row.with_effect(name, effect)])
            return Begun(effect, True)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        with self._turn.lock:
            state = self._begin()
            row, _ = state.admit(job_id, epoch, "once")
            state.write([moving.concluded(row, name, epoch, outcome)])

    def record(self, note: Note) -> None:
        with self._turn.lock:
            state, job_id = self._begin(), str(note.job_id)
            if note.kind is NoteKind.GUARDED:
                state.admit(job_id, note.epoch, "seal")
            upkeep.note_keys(state, job_id, note)
            state.note(note.kind.value, note.job_id, note.epoch, note.owner, **note.facts)

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
        with self._turn.lock:
            state = self._begin()
            alive = [worker for worker in state.workers.values() if is_alive(worker.seen_us, state.now)]
            named = [worker.name for worker in alive if to in (worker.name, worker.given_name)]
            return moving.transfer(state, job_id, epoch, to, named, by, note, lease_us, default_lease_us)

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        with self._turn.lock:
            return moving.override(self._begin(), Verb.CANCEL, job_id, epoch, by, note)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        with self._turn.lock:
            return moving.override(self._begin(), Verb.REPLAY, job_id, epoch, by, note)

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        with self._turn.lock:
            return moving.override(self._begin(), Verb.REQUEUE, job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        with self._turn.lock:
            return moving.override(self._begin(), Verb.FINISH, job_id, epoch, by, note, result)

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        with self._turn.lock:
            state = self._begin()
            row = state.seen(job_id, epoch, "resolve", by)
            effect = row.effect(name)
            if effect is not None and effect.known:
                raise lifecycle.not_in_doubt(job_id, name)
            row = moving.concluded(row, name, epoch, outcome)
            state.write([row], [state.event("resolved", job_id, epoch, row.owner, name=name, by=by, note=note)])
            return row.job()

    def prune_job(
        self, job_id: str, epoch: int, *, by: str, note: str | None = None, keep_ids_us: int | None = KEEP_IDS_US
    ) -> None:
        with self._turn.lock:
            state = self._begin()
            row = upkeep.prunable(state, state.seen(job_id, epoch, "prune", by))
            state.note("pruned", job_id, epoch, by=by, note=note)  # first: none is removed without a trace
            upkeep.remove(state, [row], ids_before(state.now, keep_ids_us))

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        with self._turn.lock:
            state = self._begin()
            state.paused[queue] = Queue(queue, state.now, by, note)
            state.note("paused", None, None, queue=queue, by=by, note=note)
            return state.paused[queue]

    def resume(self, queue: str, *, by: str) -> Queue:
        with self._turn.lock:
            state = self._begin()
            if state.paused.pop(queue, None) is not None:
                state.note("resumed", None, None, queue=queue, by=by)
            return Queue(queue)

    # Workers

    def report(self, report: WorkerReport) -> None:
        with self._turn.lock:
            state = self._begin()
            now, known = state.now, state.workers.get(report.name)
            started = now - report.up_us if known is None else known.started_us
            state.workers[report.name] = WorkerStatus(*report[:-1], started_us=started, seen_us=now, alive=True)

    def retire(self, name: str) -> None:
        with self._turn.lock:
            self._state.workers.pop(name, None)

    # Upkeep

    def reclaim(self) -> list[Ownership]:
        with self._turn.lock:
            state = self._begin()
            return moving.sweep(state) + self._recover(state)

    def _recover(self, state: State) -> list[Ownership]:
        self._recovered_us = state.now
        held = [(row, row.grant.process) for row in state.running.values() if row.grant is not None]
        others = {process for _, process in held if process is not None} - {self._own}
        gone = {process for process in others if is_gone(process)}
        lost = sorted((row for row, process in held if process in gone), key=lambda row: row.seq)
        return [moving.take_back(state, row, Reason.RECOVERY) for row in lost]

    def take_reclaimed(self) -> list[tuple[str, int]]:
        return self._state.reclaimed.take()

    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        with self._turn.lock:
            return upkeep.open_keys(self._whole(), guards, after, limit)

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        with self._turn.lock:
            state = self._begin()
            return upkeep.prune(state, state.now - keep_us, ids_before(state.now, keep_ids_us), limit)

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        with self._turn.lock:
            state = self._begin()
            moving.sweep(state)
            if not 0 <= state.now - self._recovered_us < RECOVERY_EVERY_US:  # also if the clock was set back
                self._recover(state)
            return self._pass.portion(state.now, retention, functools.partial(upkeep.prune_due, state, retention))

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        with self._turn.lock:
            state = self._begin()
            if round != self._round:
                return False
            before = {key: seen for key, (_, seen) in self._observed.items()}
            after = {one.key: (*(one.held or (None, None, None)), one.facts()) for one in found}
            for kind, (*held, facts) in changes(before, after):
                state.note(kind, *held, **facts)
            # What lasts stays as it was recorded.
            self._observed = {key: self._observed.get(key, (state.now, seen)) for key, seen in after.items()}
            self._round, self._looked_us = round + 1, state.now
            return True

    def advance(self, above: int = 0) -> int:
        with self._turn.lock:
            state = self._begin()
            state.last = draw_epochs(max(state.last, above), 1, state.now)
            state.note("advanced", None, state.last, above=above)
            return state.last

    def verify(self) -> list[str]:
        with self._turn.lock:
            return reading.broken(self._whole())

    # Readers

    def job(self, job_id: str) -> Job:
        with self._turn.lock:
            return self._whole().find(job_id).job()

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
        with self._turn.lock:
            state = self._whole()
            first = 0 if after is None else state.find(after).seq
            return list(islice(reading.jobs(state, first, status, owner, queue=queue, task=task, parent=parent), limit))

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        return collect(search, limit, cursor, functools.partial(self._look, search))

    def _look(self, search: Search, key: Key | None, count: int, limit: int) -> Looked:
        with self._turn.lock:  # a turn for each portion: no claim waits for a whole search (C66)
            return reading.look(self._whole(), search, key, count, limit)

    def ownerships(self, job_id: str) -> list[Ownership]:
        with self._turn.lock:
            return self._whole().find(job_id).ownerships()

    def effects(self, job_id: str) -> list[Effect]:
        with self._turn.lock:
            return sorted(self._whole().find(job_id).effects)

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        with self._turn.lock:
            return list(islice(reading.events(self._whole(), job_id, kind, after), limit))

    def identity(self) -> str:
        with self._turn.lock:
            return str(self._id)

    def queues(self) -> list[Queue]:
        with self._turn.lock:
            return [queue for _, queue in sorted(self._state.paused.items())]

    def workers(self) -> list[WorkerStatus]:
        with self._turn.lock:
            state = self._begin()
            return [replace(one, alive=is_alive(one.seen_us, state.now)) for _, one in sorted(state.workers.items())]

    def counts(self) -> Counts:
        with self._turn.lock:
            return reading.counts(self._whole())

    def oldest(self) -> list[Oldest]:
        with self._turn.lock:
            return reading.oldest(self._begin())

    def lately(self) -> Lately:
        with self._turn.lock:
            return reading.lately(self._begin())

    def observed(self) -> Observed:
        with self._turn.lock:
            noted = [Noted(*key, noted_us) for key, (noted_us, _) in sorted(self._observed.items())]
            return Observed(self._begin().now, self._round, self._looked_us, noted)

    def leases(self) -> list[LiveLease]:
        with self._turn.lock:
            return reading.leases(self._whole())

    def close(self) -> None:
        self._turn.close()
