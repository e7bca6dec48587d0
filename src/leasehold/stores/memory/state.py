"""
The rows of the memory store, where each job waits, who may write, and the one function that writes. The lock is held.

`jobs`, `pruned`, `events`, `keys`, `paused` and `last` are what the store knows. All else follows from the rows, and is
made anew after an exception, such as Ctrl-C, has struck while it was changed (`mend`).
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from ...core import lifecycle
from ...core.clock import FAR
from ...core.job import Grant
from ...core.lifecycle import Verb
from ...core.ownership import Event, Reason, draw_epochs
from ...core.parking import LOCK, TASK
from ...core.queues import Queue
from ...core.workers import WorkerStatus
from ...errors import Settled, StaleEpoch, UnknownJob
from ...logs import log
from ..reclaimed import Reclaimed
from .row import PENDING, READY, Row

Known = frozenset[str | None]  # the tasks of a claim that does not know all of them
Entry = tuple[int, int, int, Row]

_MANY, _SELDOM = 64, 16  # lines, of which some may be empty; how many claims look at them before those are forgotten
_SLACK = 10_000  # so many void entries are kept before it pays to remove them


class Line:
    """
    Jobs of one queue and priority that wait in one place, in the order of C13.

    A deque of those that have come in this order, so that a million of them cost a claim no more than a thousand, and a
    heap of the others. Nothing is searched for: an entry is void, and dropped when its turn comes, if its row is no
    longer that of its job.
    """

    __slots__ = ("_early", "_jobs", "_ordered")

    def __init__(self, jobs: dict[str, Row]) -> None:
        self._jobs = jobs
        self._ordered: deque[Entry] = deque()
        self._early: list[Entry] = []

    def push(self, row: Row) -> None:
        """Put *row* where its turn is."""
        entry = (-row.spec.priority, row.run_us, row.seq, row)
        if not self._ordered or entry > self._ordered[-1]:
            self._ordered.append(entry)
        else:
            heappush(self._early, entry)

    def first(self) -> Entry | None:
        """Return the first entry that is not void."""
        ordered, early = self._ordered, self._early
        while ordered or early:
            entry = early[0] if early and (not ordered or early[0] < ordered[0]) else ordered[0]
            if self._jobs.get(entry[3].spec.id) is entry[3]:
                return entry
            self._pop()
        return None

    def take(self) -> Row | None:
        """Remove and return the first row."""
        while self._ordered or self._early:
            row = self._pop() if self._early else self._ordered.popleft()[3]
            if self._jobs.get(row.spec.id) is row:
                return row
        return None

    def _pop(self) -> Row:
        if self._early and (not self._ordered or self._early[0] < self._ordered[0]):
            return heappop(self._early)[3]
        return self._ordered.popleft()[3]

    def rows(self) -> list[Row]:
        """Return every row here, in no order."""
        return [row for *_, row in (*self._ordered, *self._early) if self._jobs.get(row.id) is row]


Lines = dict[tuple[str, int], Line]  # by queue and priority


def _merged(lines: Sequence[Line]) -> Iterator[Row]:
    """Remove and yield the rows of several lines, in the order of them all."""
    heads = [(entry, number) for number, line in enumerate(lines) if (entry := line.first()) is not None]
    heapify(heads)
    while heads:
        _, number = heads[0]
        if (row := lines[number].take()) is not None:
            yield row
        entry = lines[number].first()  # only now: the one that was taken may have let another one in
        heapreplace(heads, (entry, number)) if entry is not None else heappop(heads)


class State:
    """Every row, and what follows from them."""

    def __init__(self, tell: Callable[[], None], now: int, trace: bool) -> None:
        self.now = self.last = now  # the instant of this turn; the last epoch that was issued
        self.jobs: dict[str, Row] = {}  # in the order of their insertion
        self.pruned: dict[str, Row] = {}  # what is left of others
        self.events: list[Event] = []
        self.keys: dict[str, dict[tuple[str, str], int]] = {}  # by job, guard and key: the epoch of the last `guarded`
        self.paused: dict[str, Queue] = {}
        self.workers: dict[str, WorkerStatus] = {}
        self.reclaimed = Reclaimed()
        self.tell = tell  # of a change, the calls that wait for one
        self.trace = trace
        self.torn = False  # a verb is at what follows from the rows, or was struck by an exception while it was
        self._decided: tuple[dict[str, Row], Sequence[Event], int] | None = None  # and not wholly written
        self.seqs, self._numbers = itertools.count(1), itertools.count(1)  # of jobs, of events
        self._looks = itertools.count()  # of claims at many lines
        self._derive()

    def _derive(self) -> None:
        """Make anew what follows from the rows."""
        self.pruned = {job_id: row for job_id, row in self.pruned.items() if job_id not in self.jobs}
        self.waiting: dict[str, dict[str, Lines]] = {READY: {}, LOCK: {}, TASK: {}}  # by place, and its name
        self.schedule: list[tuple[int, int, Row]] = []  # when to look at which pending job
        self.running: dict[str, Row] = {}
        self.held: dict[str, str] = {}  # by lock key: the running job that has it
        self.unique: dict[str, str] = {}  # by unique key: the unfinished job that has it
        self.finished: dict[str, Row] = {}  # in the order of their end
        self.earliest = FAR  # no lease ends before this instant
        self.ids = sorted((row.updated_us, job_id) for job_id, row in self.pruned.items())  # a heap, by their end
        self._void = 0  # about how many entries of lines and of `schedule` are void
        for row in sorted(self.jobs.values(), key=lambda row: row.updated_us):
            self.enter(row)
        for key in list(self.waiting[LOCK]):
            self._wake(key)

    def mend(self) -> None:
        """Finish what was decided, and let all else follow from it again."""
        if self._decided is not None:
            rows, events, at = self._decided
            self.jobs.update(rows)
            self.events[at:] = events
            self._decided = None
        self._derive()
        self.torn = False
        self.tell()

    # Numbers and events

    def draw(self, count: int = 1) -> int:
        """Return the first of *count* new epochs."""
        self.last = draw_epochs(self.last, count, self.now)
        return self.last - count + 1

    def event(
        self, kind: str, job_id: str | None, epoch: int | None, owner: str | None = None, /, **facts: Any
    ) -> Event:
        """Return an event; facts that are None are left out."""
        plain = {name: str(value) if isinstance(value, StrEnum) else value for name, value in facts.items()}
        known = {name: value for name, value in plain.items() if value is not None}
        return Event(next(self._numbers), self.now, kind, job_id, epoch, owner, known)

    def traced(self, kind: str, row: Row, /, **facts: Any) -> list[Event]:
        """Return an event of ordinary work, if this store traces."""
        return [self.event(kind, row.id, row.epoch, row.owner, **facts)] if self.trace else []

    def note(self, kind: str, job_id: str | None, epoch: int | None, owner: str | None = None, /, **facts: Any) -> None:
        """Record an event, and nothing else."""
        self.write(events=[self.event(kind, job_id, epoch, owner, **facts)])

    # Writing

    def write(self, rows: Collection[Row] = (), events: Sequence[Event] = ()) -> None:
        """
        Put *rows* in the place of those that are there, and add *events*: all of it or nothing.

        What an exception interrupts here was decided, and the next verb does it first (`mend`).
        """
        torn, self.torn = self.torn, True
        before = [self.jobs.get(row.id) for row in rows]
        self._decided = {row.id: row for row in rows}, events, len(self.events)
        self.jobs.update(self._decided[0])
        self.events += events
        for old, row in zip(before, rows, strict=True):
            if old is not None:
                self._leave(old, row)
            self.enter(row)
        self._decided = None
        self.torn = torn or self._void > len(self.jobs) + _SLACK  # a void entry keeps its row in memory
        self.tell()

    def _leave(self, old: Row, row: Row) -> None:
        """Take a job from where it was, since it has moved on to *row*."""
        spec = old.spec
        if old.end is not None:
            if (old.end, old.updated_us) != (row.end, row.updated_us):
                del self.finished[spec.id]
        elif old.grant is not None:
            if row.lease is None:
                self.stop(old)
        else:
            self._void += 1
            if row.end is not None:
                if spec.unique is not None:
                    del self.unique[spec.unique]
                self._wake(spec.lock)  # it does not wait for the key any more
            elif row.parked is not None and row.parked.kind == TASK:
                self._wake(spec.lock, spec.queue)

    def stop(self, row: Row) -> None:
        """Take a running job from its owner and give back its keys; `enter` takes the unique one again if need be."""
        spec = row.spec
        del self.running[spec.id]
        if spec.unique is not None:
            del self.unique[spec.unique]
        if spec.lock is not None:
            del self.held[spec.lock]
            self._wake(spec.lock)

    def enter(self, row: Row) -> None:
        """Put a job where its row says that it is."""
        spec = row.spec
        if row.end is not None:
            self.finished[spec.id] = row
            return
        if spec.unique is not None:
            self.unique[spec.unique] = spec.id
        if row.grant is None:
            self._wait(row)
            return
        self.running[spec.id] = row
        if spec.start_within_us is not None:
            self._void += 1  # its entry of `schedule`
        if row.grant.expires_us < self.earliest:
            self.earliest = row.grant.expires_us
        if row.stalls_us < self.earliest:
            self.earliest = row.stalls_us
        if spec.lock is not None:
            self.held[spec.lock] = spec.id

    def _wake(self, key: str | None, queue: str | None = None) -> None:
        """If *key* is free, let the first job behind it of each queue, or of one, wait to be claimed again."""
        # Of each queue, since no worker may be claiming from the queue of the very first.
        if key is None or key not in self.waiting[LOCK] or key in self.held:
            return
        firsts: dict[str, Row] = {}
        for *_, row in sorted(entry for line in self._tidy(LOCK, key).values() if (entry := line.first())):
            if queue in (None, row.spec.queue):
                firsts.setdefault(row.spec.queue, row)
        for row in firsts.values():
            self.jobs[row.id] = woken = replace(row, parked=None)
            self._wait(woken)

    def _wait(self, row: Row) -> None:
        """Let a pending job wait for its time, for what it is parked behind, or for a claim."""
        spec = row.spec
        if row.parked is None and row.run_us > self.now:
            heappush(self.schedule, (row.run_us, row.seq, row))
            return
        kind, name = row.place
        lines = self.waiting[kind].setdefault(name, {})
        line = lines.get((spec.queue, spec.priority))
        if line is None:
            line = lines[spec.queue, spec.priority] = Line(self.jobs)
        line.push(row)
        if row.start_by < FAR:
            heappush(self.schedule, (row.start_by, row.seq, row))

    # Looking

    def _tidy(self, kind: str, name: str) -> Lines:
        """Forget the lines of a place that have come to be empty, and return the others."""
        lines = {key: line for key, line in self.waiting[kind].pop(name, {}).items() if line.first() is not None}
        if lines:
            self.waiting[kind][name] = lines
        return lines

    def lines(self) -> Iterator[tuple[str, str, str, Line]]:
        """Yield every line, with its place, the place's name and its queue."""
        for kind, places in self.waiting.items():
            for name, lines in places.items():
                for (queue, _), line in lines.items():
                    yield kind, name, queue, line

    def taker(self, queues: Collection[str] | None, known: Known | None) -> Callable[[], Row | None]:
        """Return what removes and returns the next job for such a claim, also from behind a task that it knows."""
        places = [self.waiting[READY].get(READY, {})]
        if len(places[0]) > _MANY and next(self._looks) % _SELDOM == 0:
            places = [self._tidy(READY, READY)]
        if self.waiting[TASK]:
            tasks = [task for task in self.waiting[TASK] if known is None or (task or None) in known]
            places += [self._tidy(TASK, task) for task in tasks]
        lines = [
            line
            for place in places
            for (queue, _), line in place.items()
            if queue not in self.paused and (queues is None or queue in queues)
        ]
        return lines[0].take if len(lines) == 1 else functools.partial(next, _merged(lines), None)

    @property
    def next(self) -> int:
        """Nothing becomes due or overdue before this instant."""
        return min(self.earliest, self.schedule[0][0]) if self.schedule else self.earliest

    def waits(self, row: Row) -> bool:
        """Return whether this is a row of the store whose job is pending."""
        return self.jobs.get(row.id) is row and row.status is PENDING

    def overdue(self) -> list[Row]:
        """
        Return the running jobs whose lease has expired, and then those that have stalled, each in that order.

        Looks at every lease if the earliest deadline has come, else at none: a millisecond for 10,000 leases.
        """
        overdue, now = [], self.now
        if self.earliest <= now:
            self.earliest = FAR
            for row in self.running.values():
                expires_us, stalls_us = row.expires_us, row.stalls_us
                if expires_us <= now or stalls_us <= now:
                    stalled = expires_us > now
                    overdue.append((stalled, stalls_us if stalled else expires_us, row.seq, row))
                elif self.earliest > expires_us or self.earliest > stalls_us:
                    self.earliest = min(expires_us, stalls_us)
        return [row for *_, row in sorted(overdue)]

    def let_wait(self) -> list[Row]:
        """Let those wait to be claimed whose time has come, and return those that should have been claimed by now."""
        late: list[Row] = []
        while self.schedule and self.schedule[0][0] <= self.now:
            row = heappop(self.schedule)[2]
            if self.waits(row):
                late.append(row) if row.start_by <= self.now else self._wait(row)
        return sorted(late, key=lambda row: (row.start_by, row.seq))

    # Who may write

    def find(self, job_id: str) -> Row:
        """Return the row of a job, or raise `UnknownJob`."""
        row = self.jobs.get(job_id) or self.pruned.get(job_id)
        if row is None:
            raise UnknownJob(job_id)
        return row

    def admit(self, job_id: str, epoch: int, verb: str) -> tuple[Row, Grant]:
        """Return the row and the lease if *epoch* is current; raise the refusal otherwise."""
        row = self.running.get(job_id)
        if row is None or row.grant is None or row.grant.epoch != epoch:
            raise self._refusal(self.find(job_id), epoch, verb)
        return row, row.grant

    def seen(self, job_id: str, epoch: int, verb: str, by: str) -> Row:
        """Return the row if *epoch* is the one that the operator *by* saw; raise the refusal otherwise."""
        row = self.find(job_id)
        if row.epoch != epoch:
            raise self._refusal(row, epoch, verb, by)
        if verb in lifecycle.MOVED_BY:
            lifecycle.after(Verb(verb), row.status, job_id)
        if job_id in self.pruned and verb != "resolve":
            raise lifecycle.only_its_id(job_id, verb)
        return row

    def _refusal(self, row: Row, presented: int, verb: str, actor: str | None = None) -> StaleEpoch:
        kind, reason, by = StaleEpoch, row.reason if row.epoch else None, None
        if row.epoch == presented and (row.id in self.pruned or row.completed is not None):
            kind, reason, by = Settled, None, row.grant and row.grant.owner
        for held, fingerprint in row.past:
            if held.epoch == presented:
                by = held.owner
                kind, reason = (Settled, None) if fingerprint is not None else (StaleEpoch, Reason(str(held.ended)))
        facts: dict[str, Any] = {"presented": presented, "current": row.epoch, "verb": verb, "reason": reason}
        refusal = kind.of_job(row.id, owner=row.owner, ending=row.how_it_ended(presented), **facts)
        facts["by"] = actor or by
        if presented > self.last:
            self.note("alarm", row.id, row.epoch, row.owner, **facts)
            log.error("%s", refusal)
        if verb != "check" or kind is not Settled:
            self.note("refused", row.id, row.epoch, row.owner, **facts)
        return refusal
