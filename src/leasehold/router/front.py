"""`Router`: every public verb, for callers that may block."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from ..aio import warn_on_loops
from ..core import checks, inputs, redaction, suggestions
from ..core.clock import Clock, SystemClock
from ..core.job import Added, Job, NewJob, as_new_job, new_job, unknown_options
from ..core.retention import DEFAULT_RETENTION, Retention
from ..core.settings import JobOptions
from ..errors import InvalidArgument, NotFinished
from ..lease import Lease
from ..store import Store
from ..stores import open_store
from ..tasks import Backend, Registry
from ..tasks.hooks import Hook
from . import bulk as bulk_verbs
from . import guards as guard_verbs
from . import observing, operators, owners, readers, searching, upkeep
from . import queues as queue_verbs
from . import workers as worker_verbs
from .results import id_of, pauses, result_of

if TYPE_CHECKING:  # imported on use: a producer needs no tasks, and most processes no worker
    from ..guard import Guard
    from ..tasks.task import AnyTask, Decorator, Task, TaskSettings
    from ..worker.events import Listener
    from ..worker.reporting import Tally
    from ..worker.shop import Shop
    from ..worker.worker import Worker
    from .aio import AsyncRouter

P = ParamSpec("P")
R = TypeVar("R")


class Router:
    """
    Adds jobs, claims them, moves them and shows them, in the store that *url* names.

    Makes no connection, thread or file; the first verb does. Safe to share between threads. A claim's `lease_seconds`
    beats the job's, which beats the Router's. *redact* has paths such as `payload.card.number` or `error`, which are
    hidden in views, explanations and logs, beside those of LEASEHOLD_REDACT.

    Every verb raises `InvalidArgument` for a wrong argument, `StoreUnavailable` if the store cannot do it now
    (`outcome_unknown` tells whether it may have happened) and `StoreIncompatible` if its data is of another version.
    The constructor raises `InvalidArgument` for a URL that names no store, and `Unsupported` if its driver is missing.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lease_seconds: float = 30,
        clock: Clock | None = None,
        trace: bool = False,
        imports: Sequence[str] = (),
        schema: str = "leasehold",
        retention: Retention = DEFAULT_RETENTION,
        redact: Iterable[str] = (),
    ) -> None:
        self._registry = Registry(inputs.modules(imports))
        self._adder = self._registry.adder
        self._listeners: dict[str, list[Listener]] = {}  # by the name of their event
        self._lease_us = checks.microseconds(lease_seconds, "lease_seconds")
        self._trace = trace
        self._retention = inputs.retention(retention)
        self.redaction = redaction.Redaction(redact) | redaction.Redaction.of_environment()
        self._schema = schema
        self._adder.enter(self._backend(url, clock, schema))

    def __repr__(self) -> str:
        return f"<Router {redaction.shown_url(self.url or 'memory:')}>"

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every connection; later verbs raise `StoreUnavailable`."""
        self._store.close()

    @contextmanager
    def override(
        self, url: str | None = None, *, clock: Clock | None = None, schema: str | None = None
    ) -> Iterator[Router]:
        """
        Put this very router, and so its tasks, on another store until the end of the block, for tests.

        On a fresh one in memory, or on that of *url*, which is closed at the end; its schema is the router's, or
        *schema*. The store that the router is made for is not touched. Leases, and workers that were made inside, stay
        with the store that they came from.
        """
        backend = self._backend(url, clock, self._schema if schema is None else schema)
        self._adder.enter(backend)
        try:
            yield self
        finally:
            self._adder.leave(backend)
            backend.store.close()

    def _backend(self, url: str | None, clock: Clock | None, schema: str) -> Backend:
        store = open_store(url, clock=clock, trace=self._trace, schema=schema)
        return Backend(url, clock or SystemClock(), store)

    @property
    def url(self) -> str | None:
        """What names the store; None for the one in this process."""
        return self._adder.url

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules whose tasks a worker needs."""
        return self._registry.imports

    @property
    def _clock(self) -> Clock:
        return self._adder.clock

    @property
    def _store(self) -> Store:
        return self._adder.store

    @property
    def store(self) -> Store:
        """The store itself, whose verbs take and return lists."""
        return self._store

    @property
    def aio(self) -> AsyncRouter:
        """The same verbs for async callers."""
        return _facade()(self)

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Refuse what there is not, with advice on what other libraries call it."""
            raise suggestions.no_attribute(self, "Router", name, suggestions.ROUTER)

    # Producers

    def add(
        self,
        id: str | None,
        payload: object = None,
        *,
        connection: Any = None,
        savepoint: bool = False,
        **options: Unpack[JobOptions],
    ) -> Added:
        """
        Insert a job, unless one with this *id* exists; `created` of the returned `Added` tells which.

        An id of None becomes a UUID, made before anything is sent. With *connection*, the job is part of the
        transaction that is open there. Options: task, queue, priority (larger first), delay_seconds or run_at, lock
        (one running job per key), unique (one unfinished per key), retry, lease_seconds, stall_seconds,
        start_within_seconds (or it is cancelled), run_seconds (of its handler, beats the task's), keep_seconds
        (after its end), meta (a dict).

        Raises `TypeError` for an unknown option. With *connection*: `NotInTransaction` if no transaction is open,
        `Conflict` inside a savepoint, unless *savepoint*, and `Unsupported` if the store cannot join that connection.
        """
        try:
            job = new_job(self._adder.new_id() if id is None else id, payload, **options)
            job = job.made() if id is None else job
        except TypeError:
            if unknown := unknown_options(options):
                raise TypeError(f"add() takes no {unknown}") from None
            raise
        return self._adder.add(job, connection=connection, savepoint=savepoint)

    def add_many(
        self, jobs: Iterable[NewJob | Mapping[str, Any]], *, connection: Any = None, savepoint: bool = False
    ) -> list[Added]:
        """
        Insert all of *jobs* in one transaction, each as `add` would; mappings have the names of its arguments.

        Raises as `add` does, and `InvalidArgument` for an unknown option; then none of them is inserted.
        """
        return self._adder.add_many([self._wish(job) for job in jobs], connection=connection, savepoint=savepoint)

    def _wish(self, job: NewJob | Mapping[str, Any]) -> NewJob:
        if isinstance(job, NewJob):
            return job if job.id else job.made(self._adder.new_id())
        if type(job) is not dict and not isinstance(job, Mapping):  # the latter takes 0.3 µs
            raise InvalidArgument(
                f"add_many takes mappings with the names of add()'s arguments, or NewJobs, not {job!r}."
            )
        return as_new_job(job) if job.get("id") is not None else as_new_job({**job, "id": self._adder.new_id()}).made()

    # Tasks

    @overload
    def task(
        self, function: Callable[Concatenate[Lease, P], R], /, **settings: Unpack[TaskSettings]
    ) -> Task[Concatenate[Lease, P], P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /, **settings: Unpack[TaskSettings]) -> Task[P, P, R]: ...

    @overload
    def task(self, function: None = None, /, **settings: Unpack[TaskSettings]) -> Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **settings: Unpack[TaskSettings]) -> Any:
        """
        Make a function the handler of the jobs that carry its name; use as `@router.task` or `@router.task(queue=…)`.

        A first parameter called `lease` gets the lease; the others are the job's payload, by name. A `def` runs on a
        thread, an `async def` on the event loop, and with `process=True` a `def` runs in a process that can be killed.

        Raises `InvalidArgument` for a function that cannot be one, or whose name another task has.
        """
        if function is None:
            return functools.partial(self.task, **settings)
        return self._registry.register(function, settings)

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The guards so far, by name."""
        return MappingProxyType(self._registry.guards.named)

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        """The tasks so far, by name."""
        return MappingProxyType(self._registry.tasks)

    # Owners

    claim = owners.claim
    claim_many = owners.claim_many
    lease = owners.lease

    # Workers

    @suggestions.advising("router.worker", suggestions.WORK)
    def worker(
        self,
        *,
        concurrency: int = 16,
        queues: Sequence[str] | None = None,
        name: str | None = None,
        grace_seconds: float = 25.0,
    ) -> Worker:
        """
        Return a worker that runs the handlers of this router's tasks, *concurrency* at a time, inside its `with` block.

        It works in the background, beside a web application or in a script, and handles no signals. In an `async with`
        block, async handlers run on the caller's event loop. At the end of the block it claims no more, waits
        *grace_seconds* for its handlers, and hands back what is not done.
        """
        from ..worker.worker import Worker

        return Worker(
            self._shop(),
            concurrency=concurrency,
            queues=None if queues is None else inputs.queues(queues),
            name=name,
            grace_seconds=grace_seconds,
        )

    @suggestions.advising("router.work", suggestions.WORK)
    def work(
        self,
        *,
        concurrency: int = 16,
        queues: Sequence[str] | None = None,
        name: str | None = None,
        grace_seconds: float = 25.0,
        until_empty: bool = False,
    ) -> Tally:
        """
        Run the handlers of this router's tasks until SIGTERM or SIGINT; return the counts by outcome.

        With *until_empty*, stop as soon as nothing is pending or running in *queues*. Jobs in paused queues and of
        tasks that this router does not know are not waited for; the tally counts them as left. At a signal it claims no
        more, waits *grace_seconds* for its handlers, and releases the jobs that are not done; a second signal releases
        them at once.

        Raises `Unsupported` on the thread of a running event loop. Errors of handlers are recorded, not raised.
        """
        worker = self.worker(concurrency=concurrency, queues=queues, name=name, grace_seconds=grace_seconds)
        return worker.run(until_empty=until_empty)

    def drain(
        self, *, queues: Sequence[str] | None = None, advance: bool = False, raise_errors: bool = False
    ) -> list[Job]:
        """
        Run the handlers of what is due, here and now and one after the other, for tests; return each job after its run.

        Errors are settled as a worker would; with *raise_errors* the first is raised then. With *advance*, the clock,
        which must be one like `ManualClock`, is moved to whatever is due next, until nothing is. No lease is renewed
        meanwhile, `run_seconds` is not enforced, and `process=True` runs in this process too.

        Raises `Conflict` for a job that no task here can handle, or that comes back for ever, and `Unsupported` if the
        clock cannot advance.
        """
        from ..worker.drain import drained

        return drained(self._shop(), self._clock, queues, advance=advance, raise_errors=raise_errors)

    def _shop(self) -> Shop:
        from ..worker.shop import Shop

        registry = self._registry
        registry.load()
        return Shop(
            self._store,
            registry.tasks,
            registry.hooks,
            self._listeners,
            self._lease_us,
            self._retention,
            registry.guards.on_taken_back,
            registry.guards.seal_open if registry.guards else None,
            self.redaction,
        )

    def around(self, hook: Hook) -> Hook:
        """
        Wrap every handler: code before the `yield` of *hook* runs first, code after it runs last. Use as a decorator.

        The function gets the lease and yields once. An `async` one wraps async handlers only. The first that is given
        is the outermost.
        """
        return self._registry.hooks.add_around(hook)

    def lifespan(self, hook: Hook) -> Hook:
        """Wrap every worker: *hook*, plain or async, yields once, while the worker runs. Use it as a decorator."""
        return self._registry.hooks.add_lifespan(hook)

    def on(self, event: str) -> Callable[[Hook], Hook]:
        """
        Call a function with each *event* of this process's workers. Use it as a decorator: `@router.on("failed")`.

        Events: claimed, started, settled, refused, lost, failed, cancelled; `leasehold.worker.events` has their types.
        The function is called on a thread for listeners, after the fact and at most once: it delays no job. What it
        raises is logged.

        Raises `InvalidArgument` for another event, and for a function that is async or does not take the event.
        """

        def decorate(listener: Hook) -> Hook:
            from ..worker.events import listen

            listen(self._listeners, event, listener)
            return listener

        return decorate

    # Operators

    transfer = operators.transfer
    cancel = operators.cancel
    replay = operators.replay
    requeue = operators.requeue
    complete = operators.complete
    resolve = operators.resolve
    pause = queue_verbs.pause
    resume = queue_verbs.resume
    workers = worker_verbs.workers
    bulk = bulk_verbs.bulk
    guard = guard_verbs.guard
    seal = guard_verbs.seal

    reclaim = upkeep.reclaim
    prune = upkeep.prune
    advance = upkeep.advance
    verify = upkeep.verify

    # Readers

    def result(self, id: str | Added | Job, *, wait_seconds: float | None = 0) -> Any:
        """
        Return the result of the job once it is done, waiting for it up to *wait_seconds*; None waits for ever.

        If the router knows the job's task, the result is what its return annotation says; else it is as JSON has it.
        Raises `JobFailed` if the job failed or was cancelled; `NotFinished`, a TimeoutError, if it may still be done;
        `UnknownJob`.
        """
        for pause in pauses(wait_seconds):
            with suppress(NotFinished):
                return self._result(id)
            time.sleep(pause)

        def why(job: Job) -> str:  # only at the last look, since it asks the store again
            from ..core.explanation import waits_for  # on use: for an error

            return waits_for(job, self._clock.now(), queues=self._store.queues())

        return result_of(self.job(id_of(id)), self._registry.tasks, why)

    def _result(self, id: str | Added | Job) -> Any:
        """Look once."""
        return result_of(self.job(id_of(id)), self._registry.tasks)

    job = readers.job
    jobs = readers.jobs
    snapshot = readers.snapshot
    ownerships = readers.ownerships
    effects = readers.effects
    events = readers.events
    counts = readers.counts
    search = searching.search
    explain = searching.explain
    observations = observing.observations
    queues = queue_verbs.queues


def _facade() -> type[AsyncRouter]:
    from .aio import AsyncRouter  # which stands on this module

    return AsyncRouter


warn_on_loops(Router, _facade, "router")
