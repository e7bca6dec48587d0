"""
The rows and leases of the memory store, and what follows from them: where each job waits. The lock is held.

Nothing is ever searched for in a line or heap. A job that moves leaves its entry behind, and an entry whose row is no
longer that of its job is dropped when its turn comes.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from ...core.clock import FAR
from ...core.job import Grant, Job, NewJob, Status
from ...core.ownership import CLOCK_LIMIT, Event, Reason, draw_epochs
from ...core.parking import LOCK, TASK
from ...core.queues import Queue
from ..reclaimed import Reclaimed
from .record import PENDING, Record

Jobs = dict[str, Record]
Known = frozenset[str | None]  # the tasks of a claim that does not know all of them
Entry = tuple[int, int, int, Record]

_CLOSE_US = 10_000  # leases that end close together share an entry, whose time is that of the first
_EMPTY_LINES = 64
_SLACK = 10_000  # so many void entries are kept before it pays to remove them
_FEW = 16  # the same for entries that keep a whole finished job in memory


class Line:
    """Jobs of one queue and priority, in the order of C13: a deque as long as they arrive in order, else a heap."""

    __slots__ = ("early", "jobs", "ordered")

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.ordered: deque[Entry] = deque()
        self.early: list[Entry] = []

    def __len__(self) -> int:
        return len(self.ordered) + len(self.early)

    def push(self, row: Record) -> None:
        """Put *row* where its turn is."""
        entry = (-row.spec.priority, row.run_us, row.seq, row)
        if not self.ordered or entry > self.ordered[-1]:
            self.ordered.append(entry)
        else:
            heappush(self.early, entry)

    def first(self) -> Entry | None:
        """Return the first entry that is not void; those before it are dropped."""
        ordered, early = self.ordered, self.early
        while ordered or early:
            entry = early[0] if early and (not ordered or early[0] < ordered[0]) else ordered[0]
            if self.jobs.get(entry[3].spec.id) is entry[3]:
                return entry
            self._pop()
        return None

    def take(self) -> Record | None:
        """Remove and return the first row that is not void."""
        while self.ordered or self.early:
            row = self._pop() if self.early else self.ordered.popleft()[3]
            if self.jobs.get(row.spec.id) is row:
                return row
        return None

    def _pop(self) -> Record:
        if self.early and (not self.ordered or self.early[0] < self.ordered[0]):
            return heappop(self.early)[3]
        return self.ordered.popleft()[3]

    def rows(self) -> list[Record]:
        """Return every row here, in no order."""
        return [row for *_, row in (*self.ordered, *self.early) if self.jobs.get(row.spec.id) is row]


Lines = dict[tuple[str, int], Line]  # by queue and priority


def merged(lines: Sequence[Line]) -> Iterator[Record]:
    """Remove and yield the rows of several lines, in the order of them all."""
    heads = [(entry, number) for number, line in enumerate(lines) if (entry := line.first()) is not None]
    heapify(heads)
    while heads:
        _, number = heads[0]
        row = lines[number].take()
        assert row is not None
        yield row
        entry = lines[number].first()  # only now: the one that was taken may have let another one in
        heapreplace(heads, (entry, number)) if entry is not None else heappop(heads)


class State:
    """Every row and lease, and what follows from them."""

    def __init__(self, changed: threading.Condition, now: int, trace: bool) -> None:
        self.last = now  # epoch
        self.jobs: Jobs = {}
        self.leases: dict[str, Grant] = {}
        self.renewed: dict[str, int] = {}  # when the job was renewed last; of no meaning if that is before its lease
        self.events: list[Event] = []
        self.paused: dict[str, Queue] = {}
        self.reclaimed = Reclaimed()
        self.changed = changed
        self.waiting = 0  # calls that wait for a change
        self._seq = itertools.count(1)  # of jobs
        self._number = itertools.count(1)  # of events
        self._looks = itertools.count()  # of entries in `deadlines`, so that no two are alike
        self.trace = trace
        self.torn = False  # a verb is at what follows, or was struck by an exception while it was
        self._decided: tuple[Any, ...] | None = None  # and not wholly written
        self._clear()

    def _clear(self) -> None:
        self.ready: Lines = {}  # what claims look at
        self.halted: Lines = {}  # of the queues that are paused
        self.behind_lock: dict[str, dict[str, Line]] = defaultdict(lambda: defaultdict(self._empty))  # by key and queue
        self.behind_task: dict[str, Lines] = defaultdict(lambda: defaultdict(self._empty))
        self.held: dict[str, str] = {}  # by lock key: the leased job that has it
        self.unique: dict[str, str] = {}  # by unique key: the unfinished job that has it
        self.schedule: list[tuple[int, int, Record]] = []  # when to look at which pending job
        self.deadlines: list[tuple[int, int, Sequence[Grant]]] = []  # when to look at which leases
        self.finished: deque[Record] = deque()  # in the order of their end
        self.narrow: list[tuple[int, str]] = []  # what is left of pruned jobs, by their end
        self.unfinished: dict[str, int] = defaultdict(int)  # by queue
        self.ended: dict[Status, int] = dict.fromkeys(Status, 0)
        self._watched = self._left = 0  # leases in `deadlines`; void entries in lines
        self.next = 0  # nothing becomes due or overdue before this instant
        self._from, self._latest = FAR, list[Grant]()  # the newest entry of `deadlines`

    def job(self, row: Record) -> Job:
        """Return the job of a row as a reader sees it."""
        return row.job(self.leases.get(row.id), self.renewed.get(row.id, 0))

    # Numbers

    def epoch(self, now: int) -> int:
        """Return a new epoch."""
        self.last = draw_epochs(self.last, 1, now)
        return self.last

    def row(self, spec: NewJob, now: int) -> Record:
        """Return the row of a new job."""
        run_us, kept = spec.due(now), spec.stored()
        return Record(kept, next(self._seq), spec.chosen, now, run_us, PENDING, 0, Reason.CLAIM, now)

    def event(
        self, now: int, kind: str, job_id: str | None, epoch: int | None, owner: str | None = None, /, **facts: Any
    ) -> Event:
        """Return an event; facts that are None are left out."""
        plain = {name: str(value) if isinstance(value, StrEnum) else value for name, value in facts.items()}
        known = {name: value for name, value in plain.items() if value is not None}
        return Event(next(self._number), now, kind, job_id, epoch, owner, known)

    def traced(
        self, now: int, kind: str, job_id: str, epoch: int, owner: str | None = None, /, **facts: Any
    ) -> list[Event]:
        """Return an event of an owner's ordinary work, if this store traces."""
        return [self.event(now, kind, job_id, epoch, owner, **facts)] if self.trace else []

    def traced_as_added(self, now: int, rows: Sequence[Record]) -> list[Event]:
        """Return an event for each of these new rows, if this store traces."""
        return [self.event(now, "added", row.id, 0, queue=row.spec.queue) for row in rows] if self.trace else []

    def trace_claim(self, leases: Sequence[Grant]) -> None:
        """Record that *leases* were granted."""
        for one in leases:
            facts = {"reason": one.reason, "attempt": one.attempt}
            self.note(one.granted_us, "claimed", one.spec.id, one.epoch, one.owner, **facts)

    def note(
        self, now: int, kind: str, job_id: str | None, epoch: int | None, owner: str | None = None, /, **facts: Any
    ) -> None:
        """Record an event, and nothing else."""
        self.write(now, events=[self.event(now, kind, job_id, epoch, owner, **facts)])

    # Writing

    def write(
        self,
        now: int,
        rows: Collection[Record] = (),
        leases: Sequence[Grant] = (),
        freed: Collection[str] = (),
        events: Sequence[Event] = (),
    ) -> None:
        """
        End the leases of the jobs *freed*, put *leases* and *rows* in the place of those that are there, add *events*.

        All of it or nothing: what an exception interrupts here was decided, and the next verb does it first (`mend`).
        """
        torn, self.torn = self.torn, True
        self._decided = rows, leases, freed, events, len(self.events)
        for job_id in freed:
            self._free(self.leases.pop(job_id).spec.lock, now)
        if leases:
            self.lease(leases)
        for row in rows:
            job_id = row.spec.id
            old, self.jobs[job_id] = self.jobs.get(job_id), row
            self._place(old, row, now)
            if old is not None and old.status is PENDING and job_id not in freed and job_id not in self.leases:
                self._left += 1
                self._give_up(row, now)
        if events:
            self.events.extend(events)
        self._decided = None
        self.torn = torn or self._left > len(self.jobs) + _SLACK  # what a job has left behind keeps it in memory
        if self.waiting:
            self.changed.notify_all()

    def lease(self, leases: Sequence[Grant]) -> None:
        """Begin or renew *leases*, and have a sweep look at them before they end."""
        at, mine = FAR, self.leases
        for lease in leases:
            spec = lease.spec
            mine[spec.id] = lease
            if lease.expires_us < at:
                at = lease.expires_us
            if spec.lock is not None:
                self.held[spec.lock] = spec.id
            if spec.stall_us is not None:
                at = min(at, lease.granted_us + spec.stall_us)
        self.expect(at, leases)

    def expect(self, at: int, leases: Sequence[Grant]) -> None:
        """Have a sweep look at *leases* at the instant *at*, or with those that end a little earlier."""
        if self._from <= at < self._from + _CLOSE_US and self._watched < 4 * len(self.leases) + _SLACK:
            self._latest += leases
            self._watched += len(leases)
        else:
            self._watch(at, leases)

    def give_back(self, spec: NewJob, now: int) -> None:
        """Free the unique and the lock key of a job whose owner has completed it."""
        if spec.unique is not None:
            del self.unique[spec.unique]
        self._free(spec.lock, now)

    def _free(self, key: str | None, now: int) -> None:
        if key is not None:
            del self.held[key]
            self._wake(key, None, now)

    def _watch(self, at: int, leases: Sequence[Grant]) -> None:
        """Have a sweep look at *leases* at the instant *at*."""
        if self._watched >= 4 * len(self.leases) + _SLACK:  # most of them have ended
            self.deadlines = [(self.deadline(one), next(self._looks), [one]) for one in self.leases.values()]
            heapify(self.deadlines)
            self._watched = len(self.leases)
        self._from, self._latest = at, list(leases)
        heappush(self.deadlines, (at, next(self._looks), self._latest))
        self._watched += len(leases)
        self.next = min(self.next, at)

    def deadline(self, lease: Grant) -> int:
        """Return when *lease* ends, if its owner does nothing."""
        if lease.spec.stall_us is None:
            return lease.expires_us
        stalls_us = self.jobs[lease.spec.id].held(lease).stalls_us
        return lease.expires_us if stalls_us is None else min(lease.expires_us, stalls_us)

    def seq(self, lease: Grant) -> int:
        """Return the place of the leased job in the order of insertion."""
        return self.jobs[lease.spec.id].seq

    def _place(self, old: Record | None, row: Record, now: int) -> None:
        """Count the job, and let it wait if it is neither leased nor finished."""
        spec, status = row.spec, row.status
        if old is not None and old.status is PENDING:
            self.unfinished[spec.queue] -= 1
        elif old is not None:
            self.ended[old.status] -= 1
        if status is PENDING:
            self.unfinished[spec.queue] += 1
            if spec.unique is not None:
                self.unique[spec.unique] = spec.id
            if spec.id not in self.leases:
                self.wait(row, now)
            return
        self.ended[status] += 1
        self.finished.append(row)
        if old is not None and old.status is status:  # it has finished long ago: only an effect was resolved
            self.finished = deque(sorted(self.finished, key=lambda row: row.updated_us))
        if spec.unique is not None and self.unique.get(spec.unique) == spec.id:
            del self.unique[spec.unique]

    def forget_void(self) -> None:
        """Forget the entries of `finished` whose job has moved or is gone, once they are more than the others."""
        # Each of them keeps a payload in memory.
        ended = sum(self.ended.values())
        if len(self.finished) > 2 * ended + _FEW:
            self.finished = deque(row for row in self.finished if self.jobs.get(row.id) is row)

    def _give_up(self, row: Record, now: int) -> None:
        """Give the lock key for which a job does not wait any more to those behind it."""
        if row.spec.lock is not None and row.status is not PENDING:
            self._wake(row.spec.lock, None, now)
        elif row.spec.lock is not None and row.parked is not None and row.parked.kind == TASK:
            self._wake(row.spec.lock, row.spec.queue, now)

    def wait(self, row: Record, now: int) -> None:
        """Let a pending job wait for its time, for what it is parked behind, or for a claim."""
        if row.parked is None and row.run_us > now:
            self._look(row.run_us, row)
            return
        self._line(row).push(row)
        if row.spec.start_within_us is not None and row.start_by is not None:
            self._look(row.start_by, row)

    def _look(self, at: int, row: Record) -> None:
        heappush(self.schedule, (at, row.seq, row))
        self.next = min(self.next, at)

    def _line(self, row: Record) -> Line:
        queue, key = row.spec.queue, (row.spec.queue, row.spec.priority)
        if row.parked is not None and row.parked.kind == LOCK:
            return self.behind_lock[row.parked.behind][queue]
        if row.parked is not None:
            return self.behind_task[row.parked.behind][key]
        lines = self.halted if queue in self.paused else self.ready
        line = lines.get(key)
        return lines.setdefault(key, self._empty()) if line is None else line

    def _empty(self) -> Line:
        return Line(self.jobs)

    def _wake(self, key: str, queue: str | None, now: int) -> None:
        """If *key* is free, let the first job behind it of each queue, or of one, wait to be claimed again."""
        # Of each queue, since no worker may be claiming from the queue of the very first.
        lines = self.behind_lock.get(key)
        if lines is None or key in self.held:
            return
        for name in [name for name in lines if queue in (None, name)]:
            if (row := lines[name].take()) is not None:
                self.jobs[row.spec.id] = woken = row.but(parked=None)
                self.wait(woken, now)
            if not lines[name]:
                del lines[name]
        if not lines:
            del self.behind_lock[key]

    def mend(self, now: int) -> None:
        """Finish what was decided, and let all else follow from the rows and leases again."""
        if self._decided is not None:
            rows, leases, freed, events, at = self._decided
            self.jobs.update((row.spec.id, row) for row in rows)
            self.leases.update((lease.spec.id, lease) for lease in leases)
            self.leases = {job_id: lease for job_id, lease in self.leases.items() if job_id not in freed}
            self.events[at:] = events
            self._decided = None
        now = now if now < CLOCK_LIMIT else 0  # a clock that is wrong says of nothing that it is due
        self._clear()
        self.leases = {one.spec.id: one for one in self.leases.values() if self.jobs[one.spec.id].status is PENDING}
        self.renewed = {job_id: at for job_id, at in self.renewed.items() if job_id in self.leases}
        for lease in self.leases.values():
            self.lease([lease])
        for row in self.jobs.values():
            if row.narrow:
                self.narrow.append((row.updated_us, row.spec.id))
            else:
                self._place(None, row, now)
        heapify(self.narrow)
        self.finished = deque(sorted(self.finished, key=lambda row: row.updated_us))
        for key in list(self.behind_lock):
            self._wake(key, None, now)
        self.torn = False

    # Looking

    def taker(self, queues: Collection[str] | None, known: Known | None) -> Callable[[], Record | None]:
        """Return what removes and returns the next job for such a claim, also from behind a task that it knows."""
        if queues is not None:
            lines = [line for key, line in self.ready.items() if key[0] in queues]
        else:
            if len(self.ready) > _EMPTY_LINES:
                self.ready = {key: line for key, line in self.ready.items() if line}
            lines = list(self.ready.values())
        if self.behind_task:
            lines += self._lines_behind_tasks(queues, known)
        return lines[0].take if len(lines) == 1 else functools.partial(next, merged(lines), None)

    def _lines_behind_tasks(self, queues: Collection[str] | None, known: Known | None) -> list[Line]:
        found = []
        for task in [task for task in self.behind_task if known is None or (task or None) in known]:
            for key, line in list(self.behind_task[task].items()):
                queue = key[0]
                if not line:
                    del self.behind_task[task][key]
                elif queue not in self.paused and (queues is None or queue in queues):
                    found.append(line)
            if not self.behind_task[task]:
                del self.behind_task[task]
        return found

    def due(self, now: int) -> list[Record]:
        """Remove and return the pending jobs whose time has come: to be claimed, or to have been claimed."""
        due = []
        while self.schedule and self.schedule[0][0] <= now:
            row = heappop(self.schedule)[2]
            if self.jobs.get(row.id) is row and row.status is PENDING and row.id not in self.leases:
                due.append(row)
        return due

    def overdue(self, now: int) -> list[Grant]:
        """Remove and return the leases that have ended; those that end later are looked at again."""
        overdue, later = list[Grant](), list[Grant]()
        while self.deadlines and self.deadlines[0][0] <= now:
            looked_at = heappop(self.deadlines)[2]
            self._watched -= len(looked_at)
            for lease in looked_at:
                if self.leases.get(lease.spec.id) is lease:
                    (overdue if self.deadline(lease) <= now else later).append(lease)
        self._from = FAR
        for lease in later:
            self._watch(self.deadline(lease), [lease])
        self.next = min([heap[0][0] for heap in (self.deadlines, self.schedule) if heap], default=FAR)
        return overdue

    def pause(self, queue: Queue) -> None:
        """Keep the jobs of *queue* from claims."""
        self.torn = True
        self.paused[queue.name] = queue
        self.halted |= {key: self.ready.pop(key) for key in list(self.ready) if key[0] == queue.name}
        self.torn = False

    def resume(self, queue: str) -> None:
        """Let claims have the jobs of *queue* again."""
        self.torn = True
        del self.paused[queue]
        self.ready |= {key: self.halted.pop(key) for key in list(self.halted) if key[0] == queue}
        self.torn = False
