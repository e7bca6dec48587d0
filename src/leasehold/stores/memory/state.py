"""
What the verbs of the memory store are made of: where each job is, and the steps that move it. The lock is held.

A step that could be refused decides before it changes anything, so a verb that raises has changed nothing. What Ctrl-C
strikes, or the end of the epochs, is undone (`_begin`): of a job that moves, all has happened or nothing.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any

from ...core.clock import FAR, Clock, SystemClock
from ...core.job import Added, Grant, NewJob, Settlement, Status
from ...core.lifecycle import (
    FINISHED,
    FREED_BY,
    NOT_STARTED,
    RECORDED_AS,
    Verb,
    after,
    judge_taken_back,
    only_its_id,
    setback,
)
from ...core.ownership import CLOCK_LIMIT, STORE, Event, Ownership, Process, Reason, draw_epochs, sane
from ...core.queues import Queue
from ...core.workers import WorkerStatus
from ...errors import LeaseholdError, Settled, StaleEpoch, StoreUnavailable, UnknownJob
from ...liveness import this_process
from ...store import Refusal
from . import upkeep
from .lines import Deadlines, Known, Ready, Scheduled
from .parking import Parking
from .record import AT_PENDING, AT_RUNNING, ORDER, PENDING, RUNNING, Record, count_moved

log = logging.getLogger("leasehold")

_new_tuple = tuple.__new__  # with Grant(…), batches take a fifth longer: benchmarks/core.py --only "memory: claim + c"

_all_of: Callable[[Record], tuple[Any, ...]] = attrgetter(*Record.__slots__)

_LEFT_BEHIND = 1_000  # so many void entries are kept before a rebuild pays


class State:
    """Every job, in exactly one place, and the steps that move one."""

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        self._clock = clock or SystemClock()
        self._trace = trace
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = False  # whether a verb is under way
        self._claimer = ""  # whose claim is under way
        self._waiting = 0  # calls that wait
        self._expecting = 0  # those of them that wait for a lease, which a claim may grant
        self._woken = 0  # how often waiting claims were woken
        self._closed = False
        self._id = uuid.uuid4()
        self._own = this_process()  # a forked child cannot use the store
        self._last = self._now()
        self._seq = 0
        self._jobs: dict[str, Record] = {}
        self._unique: dict[str, Record] = {}
        self._held: dict[str, Record] = {}
        self._paused: dict[str, Queue] = {}
        self._ready = Ready()
        self._scheduled = Scheduled()
        self._parking = Parking(self._paused)
        self._expiries = Deadlines()
        self._stalls = Deadlines()
        self._starts = Deadlines()
        self._finished: deque[Record] = deque()
        self._narrow: list[tuple[int, int, str]] = []  # a heap, by when the job finished
        self._tallies: dict[str, list[int]] = {}
        self._transfers: dict[int, Record] = {}  # by seq: they may wait to be picked up, and no others do
        self._workers: dict[str, WorkerStatus] = {}
        self._processes: set[Process] = set()  # others that have claimed, until they are found gone
        self._recovered_us = 0
        self._events: list[Event] = []
        self._events_dropped = 0
        self._left = 0  # entries that jobs have left behind in lines and heaps
        self._next = 0  # nothing becomes due or overdue before this instant
        self._undo: tuple[Record | None, tuple[Any, ...], int, int, int] | None = None  # see `_begin`

    def _begin(self, record: Record | None) -> None:
        """Until `_undo` is None again, what happens to *record*, and all that is added, happens together or not."""
        was = () if record is None else _all_of(record)
        past = 0 if record is None else len(record.history or ())
        self._undo = record, was, past, len(self._events), self._seq

    def _mend(self, error: BaseException) -> None:
        """Undo what was begun, and put every job where its record says; after a refusal there is nothing to mend."""
        refused = isinstance(error, LeaseholdError) and not isinstance(error, StoreUnavailable)
        if self._closed or (refused and self._undo is None):
            return
        if self._undo is not None:
            record, was, past, events, seq = self._undo
            if record is not None:
                for name, value in zip(Record.__slots__, was, strict=True):
                    setattr(record, name, value)
                del (record.history or [])[past:]
            del self._events[events:]
            for job_id in [job_id for job_id, added in self._jobs.items() if added.seq > seq]:
                del self._jobs[job_id]
            self._undo = None
        self._rebuild()

    def _sleep(self, until: int) -> int:
        """Let others have their turn until something changes or *until* has come; return what time it is then."""
        self._waiting += 1
        self._inside = False
        try:
            self._clock.wait(self._changed, until)
        finally:
            self._waiting -= 1
            self._inside = True
        return self._now()

    def _now(self) -> int:
        now = self._clock.now()
        # Looked at before anything is changed: later, there would be no way back.
        return now if now < CLOCK_LIMIT else sane(now)

    # Adding and claiming

    def _add(self, jobs: Sequence[NewJob], now: int) -> list[Added]:
        added = []
        for spec in jobs:
            existing = self._jobs.get(spec.id) or (spec.unique is not None and self._unique.get(spec.unique))
            if existing:
                added.append(Added(existing.job(), False))
                continue
            self._seq += 1
            record = self._jobs[spec.id] = Record(spec, self._seq, now, self._tally(spec.queue))
            if spec.unique is not None:
                self._unique[spec.unique] = record
            record.tally[AT_PENDING] += 1
            self._wait(record, now)
            if self._trace:
                self._note("added", record, now, queue=spec.queue)
            added.append(Added(record.job(), True))
        return added

    def _take(self, queues: Sequence[str] | None, limit: int, known: Known | None) -> list[Record]:
        """Take up to *limit* records of *known* tasks out of where they wait, in the order of their claim."""
        if known is None and not self._parking.tasks:
            return self._ready.take(queues, limit, self._hold)
        admit = self._hold if known is None else functools.partial(self._handle, known)
        return self._ready.take_known(queues, limit, admit, known, self._parking.lanes(known, queues))

    def _handle(self, known: Known, record: Record) -> bool:
        """Take the record's lock key for it, if it has one; or park it behind its task, if that is not *known*."""
        if record.spec.task in known:
            return record.spec.lock is None or self._hold(record)
        self._parking.behind_task(record, self._claimer)
        self._wake(record.spec.lock, record.spec.queue)  # it may have been the next to hold its key
        self._wake_claims()
        return False

    def _hold(self, record: Record) -> bool:
        """Take the record's lock key for it, or park it behind the key."""
        key = record.spec.lock
        assert key is not None
        if key in self._held:
            self._parking.behind_lock(record, self._claimer)
            return False
        self._held[key] = record
        return True

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
        usual = lease_us or default_lease_us
        usual_expires = now + usual
        grants: list[Grant] = []
        special = False
        tally, count = taken[0].tally, 0
        for record in taken:
            spec = record.spec
            epoch += 1
            lasts, expires = usual, usual_expires
            if not record.plain:
                special = True
                lasts = lease_us or spec.lease_us or default_lease_us
                expires = now + lasts
            grant = record.grant = _new_tuple(
                Grant,
                (
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
                ),
            )
            grants.append(grant)
            record.epoch = epoch
            record.expires_us = expires
            record.updated_us = now
            record.status = RUNNING
            if record.tally is not tally:
                count_moved(tally, AT_PENDING, AT_RUNNING, count)
                tally, count = record.tally, 0
            count += 1
        count_moved(tally, AT_PENDING, AT_RUNNING, count)
        if special:
            self._watch(taken, now)
        else:
            self._expect(usual_expires, taken)
        if process is not self._own and process is not None:
            self._processes.add(process)
        return grants

    def _expect(self, expires: int, records: list[Record]) -> None:
        """Have a sweep look at the leases of *records* at the instant *expires*."""
        if expires < self._next:
            self._next = expires
        if self._expiries.push(expires, records):
            self._expiries.rebuild([(record.expires_us, record) for record in self._running()])

    def _watch(self, records: list[Record], now: int) -> None:
        """Have a sweep look at each of these leases when it expires, and when its job stalls."""
        for record in records:
            self._expect(record.expires_us, [record])  # first: what has no deadline is not seen to run
            if record.spec.stall_us is not None:
                record.stalls_us = now + record.spec.stall_us
                self._look(record.stalls_us)
                if self._stalls.push(record.stalls_us, [record]):
                    self._stalls.rebuild([(r.stalls_us, r) for r in self._running() if r.stalls_us is not None])

    def _running(self) -> list[Record]:
        """Every record with a live lease, by seq; each of them has a deadline to be looked at."""
        live = {record.seq: record for record in self._expiries.records() if record.status is RUNNING}
        return [live[seq] for seq in sorted(live)]

    def _tally(self, queue: str) -> list[int]:
        tally = self._tallies.get(queue)
        if tally is None:
            tally = self._tallies[queue] = [0] * len(Status)
        return tally

    def _live(self, record: Record) -> Grant:
        assert record.grant is not None
        return record.grant._replace(expires_us=record.expires_us, checkpoint=record.checkpoint)

    # Ending a lease, by its owner

    def _repeated(self, settlement: Settlement, now: int) -> Refusal | None:
        record = self._jobs.get(settlement.job_id)
        if record is not None and settlement.epoch:
            last = record.completion() if record.epoch == settlement.epoch else None
            earlier = {held.epoch: fingerprint for held, fingerprint in record.history or ()}
            if (last.fingerprint() if last else earlier.get(settlement.epoch)) == settlement.fingerprint():
                return None
        return self._refused(settlement.job_id, settlement.epoch, settlement.outcome.value, now)

    def _put_back(self, record: Record, settlement: Settlement, now: int) -> None:
        self._begin(record)
        left = setback(settlement, record.errors, record.reclaims, record.last_error, record.spec.retry)
        verb, record.errors, record.reclaims, record.last_error = left
        assert record.grant is not None
        owner, status = record.grant.owner, after(verb, record.status, record.spec.id)
        how = Status.FAILED if status in FINISHED else FREED_BY[verb]
        error = record.last_error if settlement.error is not None else None
        self._archive(record, how, now, by=owner, note=error, fingerprint=settlement.fingerprint())
        self._let_go(record)
        record.grant = None
        if status in FINISHED:
            self._end(record, status, now)
            self._note("failed", record, now, owner=owner, error=error, errors=record.errors)
            self._undo = None
            return
        self._requeue(record, FREED_BY[verb], now, due=now + settlement.delay_us if settlement.delay_us else None)
        record.attempt += 1
        self._note(RECORDED_AS[verb], record, now, owner=owner, error=error, run_us=record.run_us)
        self._undo = None

    def _conclude(self, record: Record, name: str, epoch: int, outcome: str | None) -> None:
        effect = record.effect(name)
        assert record.effects is not None
        if outcome is None and effect.known:
            return  # another thread under this epoch has brought it about meanwhile; what is known stays known
        if outcome is None:
            del record.effects[name]
        else:
            record.effects[name] = effect._replace(epoch=epoch, known=True, outcome=outcome)

    # Taking a job back

    def _look(self, at: int) -> None:
        """Have a sweep look at what becomes due or overdue at the instant *at*."""
        if at < self._next:
            self._next = at

    def _sweep(self, now: int) -> list[Ownership]:
        """Let wait what has become due, and take back what is overdue."""
        if now < self._next:
            return []
        for record in self._scheduled.pop_due(now):
            self._ready.push(record)
        ended = self._overdue(self._expiries, now, Reason.TIMEOUT) + self._overdue(self._stalls, now, Reason.STALL)
        self._cancel_late(now)
        looks = [self._scheduled.next(), self._expiries.next(), self._stalls.next(), self._starts.next()]
        self._next = min((at for at in looks if at is not None), default=FAR)
        return ended

    def _cancel_late(self, now: int) -> None:
        """Cancel what was not claimed by the time its producer wanted it begun."""
        late = [record for record in self._starts.pop_due(now) if record.status is PENDING and not record.epoch]
        for record in sorted(late, key=lambda record: (_start_by(record), record.seq)):
            if _start_by(record) > now:  # it was looked at a little early
                self._starts.push(_start_by(record), [record])
                continue
            self._begin(record)
            self._leave(record)
            self._wake(record.spec.lock)
            self._advance_record(record, Reason.CANCELLATION, now)
            record.last_error = NOT_STARTED
            self._end(record, Status.CANCELLED, now)
            self._note("cancelled", record, now, by=STORE, note=NOT_STARTED)
            self._undo = None

    def _overdue(self, deadlines: Deadlines, now: int, reason: Reason) -> list[Ownership]:
        over: dict[tuple[int, int], Record] = {}
        for record in deadlines.pop_due(now):
            at = record.expires_us if reason is Reason.TIMEOUT else record.stalls_us
            if record.status is not RUNNING or at is None:
                continue
            if at <= now:
                over[at, record.seq] = record
            else:
                deadlines.push(at, [record])
        return [self._take_back(over[key], reason, now) for key in sorted(over)]

    def _take_back(self, record: Record, reason: Reason, now: int) -> Ownership:
        assert record.grant is not None
        self._begin(record)
        owner, retry = record.grant.owner, record.spec.retry
        verb, record.reclaims, record.last_error = judge_taken_back(
            reason, owner, record.reclaims, retry, picked_up=not record.awaits_pick_up
        )
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
        self._undo = None
        return ended

    # Comparing epochs

    def _find(self, job_id: str) -> Record:
        record = self._jobs.get(job_id)
        if record is None:
            raise UnknownJob(job_id)
        return record

    def _refused(self, job_id: str, epoch: int, verb: str, now: int) -> Refusal | None:
        record = self._jobs.get(job_id)
        if record is None:
            return UnknownJob(job_id)
        if record.epoch == epoch and record.status is RUNNING:
            return None
        return self._refuse(record, epoch, verb, now)

    def _admit(self, job_id: str, epoch: int, verb: str, now: int) -> Record:
        refusal = self._refused(job_id, epoch, verb, now)
        if refusal is not None:
            raise refusal
        return self._jobs[job_id]

    def _seen(self, job_id: str, epoch: int, verb: Verb, now: int, by: str) -> Record:
        record = self._find(job_id)
        if record.epoch != epoch:
            raise self._refuse(record, epoch, verb.value, now, by)
        after(verb, record.status, job_id)
        if record.narrow:
            raise only_its_id(job_id, verb)
        return record

    def _refuse(self, record: Record, presented: int, verb: str, now: int, actor: str | None = None) -> StaleEpoch:
        owner = record.grant.owner if record.grant and record.status is RUNNING else None
        kind, reason, by = StaleEpoch, record.reason if record.epoch else None, None
        if record.epoch == presented and (record.narrow or record.completion() is not None):
            kind, reason, by = Settled, None, record.grant and record.grant.owner
        for held, fingerprint in record.history or ():
            if held.epoch == presented:
                assert held.ended is not None
                by = held.owner
                kind, reason = (Settled, None) if fingerprint is not None else (StaleEpoch, Reason(held.ended))
        facts: dict[str, Any] = {"presented": presented, "current": record.epoch, "verb": verb, "reason": reason}
        refusal = kind.of_job(record.spec.id, owner=owner, ending=record.how_it_ended(presented), **facts)
        if presented > self._last:
            log.error("%s", refusal)
            self._note("alarm", record, now, owner=owner, by=actor or by, **facts)
        self._note("refused", record, now, owner=owner, by=actor or by, **facts)
        return refusal

    # Places

    def _wait(self, record: Record, now: int) -> None:
        """Put a pending record into the place where it waits."""
        if record.spec.start_within_us is not None and not record.epoch:
            self._starts.push(_start_by(record), [record])
            self._look(_start_by(record))
        if record.run_us > now:
            self._scheduled.push(record)
            self._look(record.run_us)
        else:
            self._ready.push(record)

    def _requeue(self, record: Record, reason: Reason, now: int, *, due: int | None = None) -> None:
        self._move(record, PENDING)
        record.reason = reason
        record.parked = None
        record.updated_us = now
        # Without a delay it is due at once, also if it was transferred before its time had come.
        record.run_us = min(record.run_us, now) if due is None else due
        self._wait(record, now)

    def _move(self, record: Record, status: Status) -> None:
        record.tally[ORDER[record.status]] -= 1
        record.tally[ORDER[status]] += 1
        record.status = status

    def _reopen(self, record: Record, now: int) -> None:
        record.left += 1
        record.errors = record.reclaims = 0
        record.attempt += 1
        record.result = record.finished_us = None
        if record.spec.unique is not None:
            self._unique[record.spec.unique] = record
        self._requeue(record, Reason.MANUAL, now, due=now)

    def _let_go(self, record: Record, *, wake: bool = True) -> None:
        """End the live lease: it no longer runs, or holds its key."""
        assert record.grant is not None
        record.stalls_us = None
        key = record.spec.lock
        if key is not None and wake:
            self._free(key)

    def _free(self, key: str) -> None:
        del self._held[key]
        self._wake(key)

    def _wake(self, key: str | None, queue: str | None = None) -> None:
        """Let the first job behind *key* of each queue, or of one, wait to be claimed again, if the key is free."""
        if key is None or key in self._held:
            return
        for record in self._parking.woken(key, queue):
            self._ready.push(record)
            self._ready.stirred = True

    def _end(self, record: Record, status: Status, now: int) -> None:
        if record.status in FINISHED:  # completed by hand after it had failed
            record.left += 1
        self._move(record, status)
        record.finished_us = now
        self._finished.append(record)
        self._give_back(record)

    def _give_back(self, record: Record) -> None:
        """End the hold that an unfinished record has on its unique key."""
        unique = record.spec.unique
        if unique is not None and self._unique.get(unique) is record:
            del self._unique[unique]

    def _advance_record(self, record: Record, reason: Reason, now: int) -> None:
        self._last = draw_epochs(self._last, 1, now)
        record.epoch = self._last
        record.reason = reason
        record.grant = None
        record.then = ()

    def _leave(self, record: Record) -> None:
        """Take a pending record out of wherever it waits; the entry that stays behind is void."""
        self._tidy()
        record.ticket += 1
        self._left += 1

    def _tidy(self) -> None:
        # What a job has left behind keeps it in memory.
        if self._left > len(self._jobs) + _LEFT_BEHIND:
            self._rebuild()

    def _rebuild(self) -> None:
        """Put every job where its record says that it is."""
        self._ready, self._scheduled, self._parking = Ready(self._paused), Scheduled(), Parking(self._paused)
        self._expiries, self._stalls, self._starts = Deadlines(), Deadlines(), Deadlines()
        self._held, self._unique, self._transfers = {}, {}, {}
        self._next = 0  # look at everything
        for tally in self._tallies.values():
            tally[:] = [0] * len(Status)
        self._finished = deque()
        self._left = 0
        now = self._clock.now()
        if now >= CLOCK_LIMIT:
            now = 0  # a clock that is wrong says of nothing that it is due
        self._narrow = upkeep.narrow_rows(self)
        for record in sorted(self._jobs.values(), key=lambda record: record.seq):
            if record.narrow:
                continue
            record.ticket += 1
            record.left = 0
            grant, spec = record.grant, record.spec
            if record.status is RUNNING and (grant is None or grant.epoch != record.epoch):
                record.status = PENDING  # its lease had ended, and what was to follow did not happen
            record.tally[ORDER[record.status]] += 1
            if record.status in FINISHED:
                record.finished_us = record.finished_us or now
                self._finished.append(record)
                continue
            record.then, record.finished_us, record.result = (), None, None
            if spec.unique is not None:
                self._unique[spec.unique] = record
            if record.status is PENDING:
                record.grant = record.parked = None
                self._wait(record, now)
                continue
            assert grant is not None
            if record.awaits_pick_up:
                self._transfers[record.seq] = record
            self._expiries.push(record.expires_us, [record])
            if record.stalls_us is not None:
                self._stalls.push(record.stalls_us, [record])
            if spec.lock is not None:
                self._held[spec.lock] = record
        self._finished = deque(sorted(self._finished, key=lambda record: record.finished_us or 0))

    # Records

    def _archive(
        self,
        record: Record,
        how: str,
        at: int | None,
        *,
        by: str,
        note: str | None = None,
        fingerprint: str | None = None,
    ) -> Ownership:
        ended = record.ended(str(how), at, by, note)
        if record.history is None:
            record.history = []
        record.history.append((ended, fingerprint))
        return ended

    def _wake_claims(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _note(self, kind: str, record: Record | None, now: int, **facts: Any) -> None:
        epoch = facts.pop("epoch", record.epoch if record else None)
        owner = facts.pop("owner", record.grant.owner if record and record.grant else None)
        self._insert_event(now, kind, None if record is None else record.spec.id, epoch, owner, facts)

    def _insert_event(
        self, now: int, kind: str, job_id: str | None, epoch: int | None, owner: str | None, facts: dict[str, Any]
    ) -> None:
        number = self._events_dropped + len(self._events) + 1
        plain = {name: str(value) if isinstance(value, StrEnum) else value for name, value in facts.items()}
        known = {name: value for name, value in plain.items() if value is not None}
        self._events.append(Event(number, now, kind, job_id, epoch, owner, known))


def _start_by(record: Record) -> int:
    return record.run_us + (record.spec.start_within_us or 0)
