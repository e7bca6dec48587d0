"""
Where due jobs wait behind something in the memory store.

Behind a lock key, the first of each queue comes back to `Ready` when the key is free. Behind a task, a claim that knows
the task takes them from here: in `Ready`, the next claim that does not know it would park them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ...core.parking import LOCK, TASK, Parked
from .lines import Entry, Ranked, Ready

if TYPE_CHECKING:
    from .record import Record


class Parking:
    """Every due job that a claim passed over, by what it waits behind."""

    def __init__(self, paused: Collection[str] = ()) -> None:
        self._paused = paused  # the store's own mapping of them
        self._locks: dict[str, dict[str, list[tuple[int, Entry]]]] = {}  # by key and queue, best first
        self.tasks: dict[str, Ready] = {}  # by name, "" for jobs without one

    def behind_lock(self, record: Record, by: str) -> None:
        """Let *record* wait for its lock key."""
        key = record.spec.lock
        assert key is not None
        record.parked = Parked(LOCK, key, by)
        entry = (-record.spec.priority, (record.run_us, record.seq, record.ticket, record))
        heappush(self._locks.setdefault(key, {}).setdefault(record.spec.queue, []), entry)

    def behind_task(self, record: Record, by: str) -> None:
        """Let *record* wait for a claim that knows its task."""
        name = record.spec.task or ""
        record.parked = Parked(TASK, name, by)
        ready = self.tasks.get(name)
        if ready is None:
            ready = self.tasks[name] = Ready(self._paused)
        ready.push(record)

    def woken(self, key: str, queue: str | None) -> list[Record]:
        """
        Remove and return the first of each queue behind *key*, or of one *queue*.

        Of each queue, since no worker may be claiming from the queue of the very first.
        """
        queues = self._locks.get(key)
        if not queues:
            return []
        heaps = queues.values() if queue is None else [queues[queue]] if queue in queues else []
        first = [record for heap in heaps if (record := _pop_good(heap))]
        left = {name: heap for name, heap in queues.items() if heap}
        if left:
            self._locks[key] = left
        else:
            del self._locks[key]
        for record in first:
            record.parked = None
        return first

    def lanes(self, known: frozenset[str | None] | None, queues: Collection[str] | None) -> list[Ranked]:
        """Return the lanes behind the tasks that a claim knows, of the *queues* that it asks for."""
        found: list[Ranked] = []
        for name in [name for name in self.tasks if known is None or (name or None) in known]:
            ready = self.tasks[name]
            found += ready.lanes(queues)
            if ready.is_empty():
                del self.tasks[name]
        return found

    def pause(self, queue: str) -> None:
        """Keep the jobs of *queue* from claims."""
        for ready in self.tasks.values():
            ready.pause(queue)

    def resume(self, queue: str) -> None:
        """Let claims have the jobs of *queue* again."""
        for ready in self.tasks.values():
            ready.resume(queue)

    def records(self, kind: str) -> Iterator[tuple[str, Record]]:
        """What each record of a *kind* waits behind, and the record, in no order."""
        if kind == TASK:
            for name, ready in self.tasks.items():
                yield from ((name, record) for record in ready.records())
            return
        for key, queues in self._locks.items():
            for heap in queues.values():
                yield from ((key, record) for _, (_, _, ticket, record) in heap if record.ticket == ticket)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many wait behind each task, by its name and their queue."""
        counted: dict[str, dict[str, int]] = {}
        for name, record in self.records(TASK):
            queues = counted.setdefault(name, {})
            queues[record.spec.queue] = queues.get(record.spec.queue, 0) + 1
        return counted


def _pop_good(heap: list[tuple[int, Entry]]) -> Record | None:
    while heap:
        _, (_, _, ticket, record) = heappop(heap)
        if record.ticket == ticket:
            return record
    return None
