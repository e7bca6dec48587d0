"""
What runs in a process that a worker has started: one handler at a time, until the worker sends None.

The main thread runs the handlers. Another one reads messages of the worker, and ends everything when it is gone.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn, cast

from ....core import redaction
from ....core.job import Grant
from ....errors import InvalidArgument, StaleEpoch, StoreUnavailable, Unsupported
from ....lease import Lease, worker_side
from ....store import Store
from ....tasks import Backend
from ....tasks.task import AnyTask, Task, Unbindable, Unready
from ...calling import End, Raised, call, described, failed, settlement
from ...lifespan import Lifespan
from ..loop import Loop
from .messages import Began, Call, Ended, Reply, Start
from .remote_store import RemoteReports, RemoteStore

QUIET = {signal.SIGINT, signal.SIGTERM}


def main(connection: Connection[Any, Any]) -> None:
    """Handle what comes through *connection*, until None does."""
    _settle_in(connection)
    Child(connection).run()


def _settle_in(connection: Connection[Any, Any]) -> None:
    """Be a group of our own, which can be killed as one and which Ctrl-C at the terminal does not reach."""
    os.setpgid(0, 0)
    for number in QUIET:
        # The worker gets the signal too, and decides. Not SIG_IGN: what the handler starts would inherit that.
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET)
    os.set_inheritable(connection.fileno(), False)


def _ignore(_: int, __: FrameType | None) -> None:
    pass


class Child:
    """One process of a worker, from its first job to its end."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, SimpleQueue[Reply]] = {}
        self._jobs: SimpleQueue[Start | None] = SimpleQueue()
        self._stores: dict[int, RemoteStore] = {}  # by the id of the registry
        self._lifespans: list[tuple[Lifespan, Loop]] = []

    def run(self) -> None:
        """Handle jobs until the worker sends None."""
        threading.Thread(target=self._read, name="leasehold-read", daemon=True).start()
        while (job := self._jobs.get()) is not None:
            self._send(self._handle(job))
        for lifespan, loop in reversed(self._lifespans):
            lifespan.exit()
            loop.close()

    # Messages

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Reply):
                    self._calls.pop(message.number).put(message)
                else:
                    self._jobs.put(message)
        finally:
            _vanish()

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def _ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Have the worker execute a verb of the store; return or raise what comes of it."""
        if os.getpid() != self._pid:
            raise Unsupported("a forked process cannot use the lease of its parent: use it in the handler itself.")
        answer: SimpleQueue[Reply] = SimpleQueue()
        number = next(self._numbers)
        self._calls[number] = answer
        try:
            self._send(Call(number, verb, args, kwargs))
        except OSError as error:
            # What was not sent whole is not read.
            raise StoreUnavailable(f"the worker of this process is gone: {error}. Nothing was changed.") from error
        reply = answer.get()
        if reply.error is not None:
            raise reply.error
        return reply.value

    # Jobs

    def _handle(self, job: Start) -> Ended:
        try:
            task = self._found(job)
            store = self._store_of(task, job.url)
        except BaseException as error:
            text = f"task {job.task!r} cannot begin in process {os.getpid()}: {described(error)}"
            return Ended(None, Unready(text), False)
        lease = Lease(cast(Store, store), job.grant, RemoteReports(cast(Store, store)))
        self._send(Began())
        end = call(task, job.grant, lease, task.registry.hooks)
        _flush()
        carried = None if end.error is None else _carried(task, job.grant, lease, end)
        return Ended(end.document, carried, worker_side.settled(lease))

    def _found(self, job: Start) -> AnyTask:
        """Return the task, from the module in which it is written."""
        module: Any = importlib.import_module(job.module)
        for name in job.imports:
            importlib.import_module(name)
        found = module
        for part in job.qualname.split("."):
            found = getattr(found, part, None)
        # A name that means the function itself: `task = router.task(process=True)(function)`.
        for task in (found, *vars(module).values()):
            if isinstance(task, Task) and task.name == job.task:
                return task
        raise InvalidArgument(
            f"module {job.module} has no task {job.task!r} at its top level, which is where a process looks for it."
        )

    def _store_of(self, task: AnyTask, url: str | None) -> RemoteStore:
        """Return the store for the jobs of the task's router; from the first time on, that is the router's own too."""
        registry = task.registry
        store = self._stores.get(id(registry))
        if store is None:
            registry.load()
            # So that a job which the handler adds is a child of its lease, and a memory store is the worker's.
            adder = registry.adder
            store = RemoteStore(adder.store, self._ask, _elsewhere(adder.url, url))
            backend = Backend(adder.url, adder.clock, cast(Store, store))
            adder.enter(backend)
            try:
                loop = Loop(registry.hooks, lambda run: None, lambda run, end: None)
                lifespan = Lifespan(registry.hooks, lambda: loop.loop)
                lifespan.enter()
            except BaseException:
                adder.leave(backend)
                raise
            self._stores[id(registry)] = store
            self._lifespans.append((lifespan, loop))
        return store


def _elsewhere(here: str | None, there: str | None) -> str:
    here, there = here or "memory:", there or "memory:"
    if here == there:
        return ""
    mine, its = redaction.shown_url(here), redaction.shown_url(there)
    return (
        f"the router of this handler process is for {mine}, and the worker's is for {its}: a transaction needs the "
        "same database. A handler process imports the module again, so the module must find the same URL there, such "
        "as in the environment."
    )


def _carried(task: AnyTask, grant: Grant, lease: Lease, end: End) -> Exception:
    """Return an error that can be sent: what it means for the job is decided here, where its class is known."""
    error = cast(BaseException, end.error)
    if isinstance(error, Unbindable):
        return error
    try:
        return Raised(described(error), settlement(task, grant, lease, end), StaleEpoch.find(error))
    except Exception as failure:
        text = "the error of the handler cannot be recorded"
        return Raised(text, failed(task, grant, failure, text=text))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _vanish() -> NoReturn:
    """End at once, with all that handlers have started: the worker is gone."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
