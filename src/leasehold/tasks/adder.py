"""Adds jobs to the store that a router is on: for the router itself, and for its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..aio import Facade, alone, joined, threaded
from ..core import ids
from ..core.children import as_root
from ..core.clock import Clock
from ..core.job import Added, NewJob
from ..logs import log
from ..store import Program, Store, Transactions
from .main_guard import refuse_in_an_import
from .unknown_tasks import UnknownTasks


class Backend(NamedTuple):
    """A store, with the URL that names it and the clock that it goes by."""

    url: str | None
    clock: Clock
    store: Store


class Adder:
    """
    Adds jobs to the newest of its backends.

    The first is the router's own. `Router.override` puts another one in front of it for a while, and a process of
    handlers the store of its worker.
    """

    url: str | None
    clock: Clock
    store: Store

    def __init__(self, tasks: Mapping[str, object]) -> None:
        self._unknown_tasks = UnknownTasks(tasks)
        self._backends: list[Backend] = []

    def enter(self, backend: Backend) -> None:
        """Use *backend* from now on."""
        self._backends.append(backend)
        self.url, self.clock, self.store = backend

    def leave(self, backend: Backend) -> None:
        """Use *backend* no longer, but the one before it; the blocks of two threads need not end in order."""
        self._backends.remove(backend)
        self.url, self.clock, self.store = self._backends[-1]

    @property
    def aio(self) -> AsyncAdder:
        """The same for async callers."""
        return AsyncAdder(self)

    def new_id(self) -> str:
        """Return an id for a job that was given none."""
        return ids.new_id(self.clock.now())

    def add(self, job: NewJob, *, connection: Any = None, savepoint: bool = False) -> Added:
        """Insert *job*, as `Router.add` does, and raise as it does."""
        refuse_in_an_import("a job was added")
        jobs = [as_root(job)]
        self._unknown_tasks.warn(jobs)
        if connection is None:
            return _compared(jobs, alone(self.store).add(jobs))[0]
        return joined(self.store, connection, lambda verbs: _added_one(verbs, jobs), savepoint=savepoint)

    def add_many(self, jobs: list[NewJob], *, connection: Any = None, savepoint: bool = False) -> list[Added]:
        """Insert *jobs*, as `Router.add_many` does, and raise as it does."""
        refuse_in_an_import("a job was added")
        jobs = [as_root(job) for job in jobs]
        self._unknown_tasks.warn(jobs)
        if connection is None:
            return _compared(jobs, alone(self.store).add(jobs))
        return joined(self.store, connection, lambda verbs: _added(verbs, jobs), savepoint=savepoint)


class AsyncAdder(Facade):
    """`add`, to be awaited."""

    add = threaded(Adder.add)


def _added_one(verbs: Transactions, jobs: list[NewJob]) -> Program[Added]:
    [added] = yield from _added(verbs, jobs)
    return added


def _added(verbs: Transactions, jobs: list[NewJob]) -> Program[list[Added]]:
    return _compared(jobs, (yield from verbs.add(jobs)))


def _compared(jobs: list[NewJob], added: list[Added]) -> list[Added]:
    for wish, (found, created) in zip(jobs, added, strict=True):
        if not created and found.id == wish.id and found.spec.document != wish.document and not found.pruned:
            log.warning(
                "job %r exists already, with another payload; the existing job was not changed, and the new payload "
                "was not stored",
                wish.id,
            )
    return added
