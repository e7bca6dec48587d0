"""How many children of each name a lease has added: their ids are made of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..core.children import Child, as_child, as_root, new_child
from ..core.job import Added, NewJob
from ..errors import InvalidArgument
from ..transaction import End, Joined


def named(parent: NewJob, child: NewJob, name: str, nth: int) -> NewJob:
    """Return *child* with its id and parent; without a *name* to count it by, its own id stays and it has no parent."""
    return new_child(parent.id, child, nth, parent.meta) if name else as_root(child)


@dataclass(slots=True)
class Within:
    """The transaction of the caller's that a child is added in: a block, or one on a connection of the caller's own."""

    asked: int  # identifies what the caller named: a block, a connection, a session
    end: Callable[[Joined | None], End]  # asks how the transaction has ended
    joined: Joined | None = None  # filled in when the connection is known

    def join(self, joined: Joined) -> None:
        """Take note of the transaction on a connection of the caller's own."""
        self.joined = joined

    def ended(self) -> End:
        """Return how the transaction has ended."""
        return self.end(self.joined)


@dataclass(slots=True)
class _Entry:
    nth: int
    id: str
    within: Within
    created: bool


class Children:
    """
    Counts the children of one lease, by name; a second run of the job counts to the same numbers.

    A child that was rolled back does not count, or the next one would get a number that a second run gives to another
    child. So what transactions have added is kept in mind until it is known how they ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for an instant
        self._counts: Counter[str] = Counter()
        self._unsure: dict[str, list[_Entry]] = {}  # by name: added in transactions, the last one last

    def following(self, parent: NewJob, items: Iterable[Child], exists: Callable[[str], bool]) -> tuple[NewJob, ...]:
        """Return the jobs that a completion sets off, numbered behind those that were added before."""
        if isinstance(items, str | Mapping | NewJob):
            raise InvalidArgument(f"then= must be a list of jobs, not {type(items).__name__}.")
        wishes = [as_child(item) for item in items]
        for _, name in wishes:
            self.recount(name, exists)
        with self._lock:
            counts = Counter(self._counts)
        children = []
        for child, name in wishes:
            counts[name] += 1
            children.append(named(parent, child, name, counts[name]))
        return tuple(children)

    @contextmanager
    def counted(self, name: str) -> Iterator[int]:
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

    def added_in(self, name: str, nth: int, id: str, added: Added, within: Within) -> None:
        """Keep in mind that a transaction has added a child."""
        with self._lock:
            self._unsure.setdefault(name, []).append(_Entry(nth, id, within, added.created))

    def recount(self, name: str, exists: Callable[[str], bool]) -> None:
        """
        Forget the last children of that name if their transactions have ended without them.

        *exists* asks the store, not an open transaction: whose snapshot may be older than a child.
        """
        while (entry := self._last(name)) is not None:
            match entry.within.ended():
                case End.NOT_YET:
                    return
                case End.ROLLED_BACK:
                    self._forget(name, entry)
                # A savepoint may have taken it along. One that was there before says nothing about the transaction.
                case End.COMMITTED | End.UNKNOWN if entry.created and not exists(entry.id):
                    self._forget(name, entry)
                case _:
                    with self._lock:
                        self._unsure.pop(name, None)
                    return

    def last_in(self, name: str, asked: int) -> str | None:
        """Return the id of the last child of that name if an open transaction that *asked* names has created it."""
        entry = self._last(name)
        if entry is None or not entry.created or entry.within.asked != asked:
            return None
        return entry.id

    def forget_last(self, name: str, id: str) -> None:
        """Forget the last child of that name, which a savepoint has taken along."""
        entry = self._last(name)
        if entry is not None and entry.id == id:
            self._forget(name, entry)

    def _last(self, name: str) -> _Entry | None:
        with self._lock:
            entries = self._unsure.get(name)
            return entries[-1] if entries else None

    def _forget(self, name: str, entry: _Entry) -> None:
        with self._lock:
            entries = self._unsure.get(name, [])
            if entry in entries:
                entries.remove(entry)
                self._uncount(name, entry.nth)

    def _uncount(self, name: str, nth: int) -> None:
        if self._counts[name] == nth:  # else another one of that name has been counted after it
            self._counts[name] -= 1
