"""How many children of each name a lease has added: their ids are made of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..core.job import Child, NewJob, as_child, new_child
from ..errors import InvalidArgument


def named(parent: str, child: NewJob, name: str, nth: int) -> NewJob:
    """Return *child* with its id and parent; without a *name* to count it by, its own id stays and it has no parent."""
    return new_child(parent, child, nth) if name else child._replace(parent=None)


class Children:
    """Counts the children of one lease, by name; a second run of the job counts to the same numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for an instant
        self._counts: Counter[str] = Counter()
        self._inside: dict[int, list[tuple[str, int]]] = {}  # in transactions that are open, by their connections' ids

    def following(self, parent: str, items: Iterable[Child]) -> tuple[NewJob, ...]:
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
    def counted(self, name: str, inside: int | None = None) -> Iterator[int]:
        """Count one more child of that name, before it is asked for: two threads must not ask for the same one."""
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
        if inside is not None:
            with self._lock:
                self._inside.setdefault(inside, []).append((name, nth))

    @contextmanager
    def uncounted_on_failure(self, inside: int) -> Iterator[None]:
        """
        Count the children of a transaction no more if it fails: they are not there, and the next attempt must ask for
        the same ids. Only those of this one: another thread may be adding children under the same lease.
        """
        try:
            yield
        except BaseException:
            with self._lock:
                for name, nth in reversed(self._inside.get(inside, ())):
                    self._uncount(name, nth)
            raise
        finally:
            with self._lock:
                self._inside.pop(inside, None)

    def _uncount(self, name: str, nth: int) -> None:
        if self._counts[name] == nth:  # else another one of that name has been counted after it
            self._counts[name] -= 1
