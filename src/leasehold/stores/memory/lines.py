"""
Where the jobs of the memory store wait: lines for what is due, heaps for the rest. Nothing is ever searched for.

An entry is `(run_us, seq, ticket, record)`. A job that leaves its place by another door than a pop (it is cancelled, or
transferred) gets a new ticket, and the entry that it left behind is dropped when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from ...core.clock import FAR

if TYPE_CHECKING:
    from .record import Record

Entry = tuple[int, int, int, "Record"]
Admit = Callable[["Record"], bool]  # asked about a record with a lock key; it keeps the record that it refuses
Known = frozenset["str | None"]  # the tasks of a claim that does not know all of them

_EMPTY_LANES_KEPT = 64
_ROOM = 10_000
_CLOSE_US = 10_000  # at a few claims a millisecond, an entry for each would be most of what a claim leaves behind


class Lane:
    """The due jobs of one queue and priority: a deque while they arrive in order, a heap for those that do not."""

    __slots__ = ("early", "line")

    def __init__(self) -> None:
        self.line: deque[Entry] = deque()
        self.early: list[Entry] = []

    def push(self, entry: Entry) -> None:
        """Put *entry* where its turn is."""
        if not self.line or entry >= self.line[-1]:
            self.line.append(entry)
        else:
            heappush(self.early, entry)

    def peek(self) -> Entry | None:
        """Return the first entry that is still good, or None."""
        line, early = self.line, self.early
        while line or early:
            head = early[0] if early and (not line or early[0] < line[0]) else line[0]
            if head[3].ticket == head[2]:
                return head
            self.pop()
        return None

    def pop(self) -> Entry:
        """Remove and return the first entry, good or not."""
        if self.early and (not self.line or self.early[0] < self.line[0]):
            return heappop(self.early)
        return self.line.popleft()

    def entries(self) -> Iterator[Entry]:
        """Every good entry, in no order."""
        yield from (entry for entry in self.line if entry[3].ticket == entry[2])
        yield from (entry for entry in self.early if entry[3].ticket == entry[2])


Lanes = dict[tuple[str, int], Lane]  # by queue and priority
Ranked = tuple[int, Lane]  # with the rank of its jobs: minus the priority


class Ready:
    """Every due job, by queue and priority. The lanes of *paused* queues are kept apart: claims do not look at them."""

    def __init__(self, paused: Iterable[str] = ()) -> None:
        self._lanes: Lanes = {}
        self._paused: dict[str, Lanes] = {queue: {} for queue in paused}
        self._only: Lane | None = None  # the one lane, where there is one
        self.stirred = False  # records have come in while some were taken

    def push(self, record: Record) -> None:
        """Let *record* wait for a claim."""
        key = (record.spec.queue, record.spec.priority)
        lane = self._lanes.get(key) or self._lane(key)
        lane.push((record.run_us, record.seq, record.ticket, record))

    def _lane(self, key: tuple[str, int]) -> Lane:
        lane = self._paused.get(key[0], self._lanes).setdefault(key, Lane())
        self._count()
        return lane

    def _count(self) -> None:
        self._only = next(iter(self._lanes.values())) if len(self._lanes) == 1 else None

    def pause(self, queue: str) -> None:
        """Keep the jobs of *queue* from claims."""
        if queue not in self._paused:
            self._paused[queue] = {key: lane for key, lane in self._lanes.items() if key[0] == queue}
            self._lanes = {key: lane for key, lane in self._lanes.items() if key[0] != queue}
            self._count()

    def resume(self, queue: str) -> None:
        """Let claims have the jobs of *queue* again."""
        self._lanes.update(self._paused.pop(queue, {}))
        self._count()

    def take(self, queues: Collection[str] | None, limit: int, admit: Admit) -> list[Record]:
        """Remove and return up to *limit* admitted records in the order of their claim; those not asked for stay."""
        if queues is None and self._only is not None:
            return _in_turn(self._only, limit, admit)
        wanted = self.lanes(queues)
        if len(wanted) == 1:
            return _in_turn(wanted[0][1], limit, admit)
        taken: list[Record] = []
        self.stirred = False
        self._merge(wanted, limit, admit, None, taken)
        return taken

    def take_known(
        self, queues: Collection[str] | None, limit: int, admit: Admit, known: Known | None, beside: list[Ranked]
    ) -> list[Record]:
        """
        The same of the tasks that are *known*, and of the lanes *beside*; *admit* is asked about all other tasks, too.

        What it refuses may put others here (`stirred`), maybe before those that would be next: then look again.
        """
        taken: list[Record] = []
        self.stirred = True
        while self.stirred and len(taken) < limit:
            self.stirred = False
            wanted = self.lanes(queues) + beside  # what is void in these is dropped
            if len(wanted) == 1:
                self._take_known(wanted[0][1], limit, admit, known, taken)
            else:
                self._merge(wanted, limit, admit, known, taken)
        return taken

    def _take_known(self, lane: Lane, limit: int, admit: Admit, known: Known | None, taken: list[Record]) -> None:
        line, early = lane.line, lane.early
        while (line or early) and len(taken) < limit and not self.stirred:
            _, _, ticket, record = lane.pop() if early else line.popleft()
            if record.ticket != ticket:
                continue
            spec = record.spec  # as `_is_plain`: a call for each job would take longer than the rest of this loop
            if (spec.lock is None and (known is None or spec.task in known)) or admit(record):
                taken.append(record)

    def _merge(self, lanes: list[Ranked], limit: int, admit: Admit, known: Known | None, taken: list[Record]) -> None:
        heads = [(rank, head, lane) for rank, lane in lanes if (head := lane.peek())]
        heapify(heads)
        while heads and len(taken) < limit and not self.stirred:
            rank, (_, _, _, record), lane = heads[0]
            lane.pop()
            if _is_plain(record, known) or admit(record):
                taken.append(record)
            following = lane.peek()
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (rank, following, lane))

    def lanes(self, queues: Collection[str] | None) -> list[Ranked]:
        """Return the lanes of *queues* that have entries, with their ranks; None: of all that are not paused."""
        wanted = [
            (-key[1], lane)
            for key, lane in self._lanes.items()
            if (lane.line or lane.early) and (queues is None or key[0] in queues)
        ]
        if len(self._lanes) > len(wanted) + _EMPTY_LANES_KEPT:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane.line or lane.early}
            self._count()
        return wanted

    def is_empty(self) -> bool:
        """Return whether there is no entry, good or not."""
        return not any(lane.line or lane.early for lanes in self._all() for lane in lanes.values())

    def _all(self) -> list[Lanes]:
        return [self._lanes, *self._paused.values()]

    def all_lanes(self) -> Iterator[tuple[tuple[str, int], Lane]]:
        """Every lane by its queue and priority, those of paused queues too."""
        for lanes in self._all():
            yield from lanes.items()

    def records(self) -> Iterator[Record]:
        """Every record that waits here, in no order."""
        for lanes in self._all():
            for lane in lanes.values():
                yield from (entry[3] for entry in lane.entries())


def _in_turn(lane: Lane, limit: int, admit: Admit) -> list[Record]:
    return _first(lane, admit) if limit == 1 else _batch(lane, limit, admit)


def _first(lane: Lane, admit: Admit) -> list[Record]:
    line, early = lane.line, lane.early
    while line or early:
        _, _, ticket, record = lane.pop() if early else line.popleft()
        if record.ticket == ticket and (record.spec.lock is None or admit(record)):
            return [record]
    return []


def _batch(lane: Lane, limit: int, admit: Admit) -> list[Record]:
    taken: list[Record] = []
    line, early = lane.line, lane.early
    while (line or early) and len(taken) < limit:
        pop = lane.pop if early else line.popleft
        taken += [
            record
            for _ in range(min(limit - len(taken), len(line) + len(early)))
            for _, _, ticket, record in [pop()]
            if record.ticket == ticket and (record.spec.lock is None or admit(record))
        ]
    return taken


def _is_plain(record: Record, known: Known | None) -> bool:
    spec = record.spec
    return spec.lock is None and (known is None or spec.task in known)


class Scheduled:
    """Jobs that are not due yet, by the instant at which they will be."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def push(self, record: Record) -> None:
        """Let *record* wait for its time."""
        heappush(self._heap, (record.run_us, record.seq, record.ticket, record))

    def pop_due(self, now: int) -> Iterator[Record]:
        """Remove and yield what has become due."""
        while self._heap and self._heap[0][0] <= now:
            _, _, ticket, record = heappop(self._heap)
            if record.ticket == ticket:
                yield record

    def due(self, now: int) -> Iterator[Record]:
        """Yield what has become due and was not removed so far, in no order."""
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._heap) and self._heap[place][0] <= now:
                _, _, ticket, record = self._heap[place]
                if record.ticket == ticket:
                    yield record
                places += [2 * place + 1, 2 * place + 2]  # what is below it in the heap is not due before it

    def next(self) -> int | None:
        """Return the instant of the next one, or None; maybe too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def records(self) -> Iterator[Record]:
        """Every record that waits here, in no order."""
        return (record for _, _, ticket, record in self._heap if record.ticket == ticket)


class Deadlines:
    """
    When to look at which leases.

    Leases that end close together share an entry, whose time is that of the first. A renewal leaves it where it is:
    when its time comes, the leases are looked at, and one that ends later, or was renewed meanwhile, goes back.
    """

    __slots__ = ("_first", "_heap", "_latest", "_number", "_room", "_size")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, list[Record]]] = []
        self._latest: list[Record] = []  # of the newest entry, whose time is _first as long as it waits
        self._first = FAR
        self._number = 0
        self._size = 0
        self._room = _ROOM

    def push(self, at: int, records: list[Record]) -> bool:
        """
        Look at *records* at the instant *at*, or a little earlier.

        Returns whether there are by now so many entries of leases that may have ended that a `rebuild` pays.
        """
        self._size += len(records)
        if self._first <= at < self._first + _CLOSE_US:
            self._latest += records
        else:
            self._first, self._latest = at, records.copy()
            self._number += 1
            heappush(self._heap, (at, self._number, self._latest))
        return self._size > self._room

    def pop_due(self, now: int) -> list[Record]:
        """Remove and return the records whose time to be looked at has come, some of them long settled."""
        due: list[Record] = []
        self._first = FAR
        while self._heap and self._heap[0][0] <= now:
            due += heappop(self._heap)[2]
        self._size -= len(due)
        return due

    def next(self) -> int | None:
        """Return when to look next, or None."""
        return self._heap[0][0] if self._heap else None

    def records(self) -> Iterator[Record]:
        """Every record that will be looked at, some of them long settled, some twice."""
        for _, _, records in self._heap:
            yield from records

    def rebuild(self, live: list[tuple[int, Record]]) -> None:
        """Start over with one entry for each live lease."""
        self._heap = [(at, number, [record]) for number, (at, record) in enumerate(live)]
        heapify(self._heap)
        self._first = FAR
        self._number = self._size = len(live)
        self._room = 4 * len(live) + _ROOM
