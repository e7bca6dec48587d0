"""How many children of each name a lease has added: their ids are made of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..core.job import Child, NewJob, as_child, as_root, new_child
from ..errors import InvalidArgument


def named(parent: NewJob, child: NewJob, name: str, nth: int) -> NewJob:
    """Return *child* with its id and parent; without a *name* to count it by, its own id stays and it has no parent."""
    return new_child(parent.id, child, nth, parent.meta) if name else as_root(child)


class Children:
    """Counts the children of one lease, by name; a second run of the job counts to the same numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for an instant
        self._counts: Counter[str] = Counter()
        # By name, the numbers that transactions have added of which it is not known that they have committed, each with
        # its transaction: the number of a block, or the `id` of a caller's connection.
        self._unsure: dict[str, list[tuple[int, int]]] = {}
        self._blocks: set[int] = set()  # that are open

    def following(self, parent: NewJob, items: Iterable[Child]) -> tuple[NewJob, ...]:
        """Return the jobs that a completion sets off, numbered behind those that were added before."""
        if isinstance(items, str | Mapping | NewJob):
            raise InvalidArgument(f"then is a list of jobs, not {type(items).__name__}.")
        with self._lock:
            counts = Counter(self._counts)
        children = []
        for item in items:
            child, name = as_child(item)
            counts[name] += 1
            children.append(named(parent, child, name, counts[name]))
        return tuple(children)

    @contextmanager
    def counted(self, name: str, within: int | None = None) -> Iterator[int]:
        """
        Count one more child of that name, before it is asked for: two threads must not ask for the same one.

        *within* is the transaction that adds it, if it is the caller's.
        """
        with self._lock:
            self._counts[name] += 1
            nth = self._counts[name]
        try:
            yield nth
        except BaseException:
            # A call that is repeated after a lost reply must ask for the same id.
            with self._lock:
                self._uncount(name, nth)
            raise
        if within is not None:
            with self._lock:
                self._unsure.setdefault(name, []).append((nth, within))

    def unsure(self, name: str, within: int | None, is_open: Callable[[int], bool]) -> int | None:
        """
        Return the last number of that name if the transaction that added it may have rolled back, else None.

        A call *within* a transaction sees what that transaction has added. What another one has added cannot be seen
        while it is open.
        """
        with self._lock:
            entries = self._unsure.get(name)
            if not entries:
                return None
            nth, transaction = entries[-1]
            if transaction != within and transaction in self._blocks:
                return None
        return None if transaction != within and is_open(transaction) else nth

    def uncount(self, name: str, nth: int) -> None:
        """Forget a child that is not there: the next one of that name gets its number."""
        with self._lock:
            self._unsure[name] = [entry for entry in self._unsure[name] if entry[0] != nth]
            self._uncount(name, nth)

    @contextmanager
    def committing(self, block: int) -> Iterator[None]:
        """While *block* is open, its children may yet roll back; at its regular end they are there."""
        with self._lock:
            self._blocks.add(block)
        try:
            yield
            with self._lock:
                for name, entries in list(self._unsure.items()):
                    self._unsure[name] = [entry for entry in entries if entry[1] != block]
        finally:
            with self._lock:
                self._blocks.discard(block)

    def _uncount(self, name: str, nth: int) -> None:
        if self._counts[name] == nth:  # else another one of that name has been counted after it
            self._counts[name] -= 1
