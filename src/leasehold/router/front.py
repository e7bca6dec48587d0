"""`Router`: every public verb, for callers that may block."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from ..aio import alone
from ..core import checks, inputs, redaction, suggestions
from ..core.clock import Clock, Countdown, SystemClock
from ..core.ids import new_claim_id
from ..core.job import (
    Added,
    Counts,
    Effect,
    Grant,
    Job,
    JobOptions,
    NewJob,
    Status,
    as_new_job,
    new_job,
    unknown_options,
)
from ..core.ownership import CLOCK_LIMIT, Event, Ownership, Process
from ..core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ..errors import InvalidArgument, NoLease, NotFinished, StoreUnavailable
from ..lease import Lease
from ..liveness import SELF, this_process
from ..store import Pruned, Store
from ..stores import open_store
from ..tasks import Backend, Registry
from ..tasks.hooks import Hook
from . import guards as guard_verbs
from . import operators
from . import queues as queue_verbs
from . import workers as worker_verbs
from .results import id_of, pauses, result_of, waited, waits_for

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

log = logging.getLogger("leasehold")

_CLAIM_LIMIT = 10_000


class Router:
    """
    Adds jobs, claims them, moves them and shows them, in the store that *url* names.

    Makes no connection, thread or file; the first verb does. Safe to share between threads. A claim's `lease_seconds`
    beats the job's, which beats the Router's.

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
    ) -> None:
        self._registry = Registry(inputs.modules(imports))
        self._adder = self._registry.adder
        self._listeners: dict[str, list[Listener]] = {}  # by the name of their event
        self._lease_us = checks.microseconds(lease_seconds, "lease_seconds")
        self._trace = trace
        self._retention = inputs.retention(retention)
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
        from .aio import AsyncRouter  # which stands on this module

        return AsyncRouter(self)

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
            return job if job.id else job.like(self._adder.new_id(), job.document).made()
        if not isinstance(job, Mapping):
            raise InvalidArgument(f"add_many takes mappings with the names of add()'s arguments, not {job!r}.")
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

    def claim(
        self,
        owner: str,
        *,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = SELF,
    ) -> Lease | None:
        """
        Lease the next due job to *owner*, or return None if there is none within *wait_seconds*.

        The calling process is recorded, so that its death frees the job at once; pass `process=None` when claiming
        for an owner in another process. Raises `StoreUnavailable` if the store does not answer, or is closed meanwhile.
        """
        grants = self._claim(owner, 1, queues, lease_seconds, wait_seconds, process)
        return Lease(self._adder.store, grants[0]) if grants else None

    def claim_many(
        self,
        owner: str,
        *,
        limit: int = 100,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = SELF,
    ) -> list[Lease]:
        """Lease up to *limit* due jobs to *owner*, in one transaction. Raises as `claim` does."""
        checks.whole(limit, "limit", least=1, most=_CLAIM_LIMIT)
        grants = self._claim(owner, limit, queues, lease_seconds, wait_seconds, process)
        return [Lease(self._store, grant) for grant in grants]

    def _claim(
        self,
        owner: str,
        limit: int,
        queues: Sequence[str] | None,
        lease_seconds: float | None,
        wait_seconds: float,
        process: Process | None,
    ) -> list[Grant]:
        claim_id, process = new_claim_id(), this_process() if process is SELF else process
        queues = None if queues is None else inputs.queues(queues)
        lease_us = None if lease_seconds is None else checks.microseconds(lease_seconds, "lease_seconds")
        wait_us = 0 if wait_seconds == 0 else checks.microseconds(wait_seconds, "wait_seconds", zero=True)
        countdown = Countdown(self._clock, wait_us) if wait_us else None
        store = alone(self._adder.store)
        checks.name(owner, "owner")
        try:
            while True:
                grants = store.claim(
                    owner,
                    limit=limit,
                    queues=queues,
                    lease_us=lease_us,
                    default_lease_us=self._lease_us,
                    claim_id=claim_id,
                    process=process,
                    wait_us=wait_us,
                )
                # A worker that stops wakes every waiting claim of its store, including this one.
                if grants or countdown is None or (wait_us := countdown.left()) <= 0:
                    return grants
        except StoreUnavailable as failure:
            # The reply was lost, and the claim may have been granted: its jobs would wait for their deadline. They are
            # found by the id of the claim, since another owner may have the same name.
            return self._found(claim_id, failure)

    def _found(self, claim_id: str, failure: StoreUnavailable) -> list[Grant]:
        try:
            grants = self._store.claimed(claim_id)
        except StoreUnavailable:
            raise failure from None
        if not grants:
            raise failure
        return grants

    def lease(self, job_id: str, *, owner: str, wait_seconds: float = 0) -> Lease:
        """
        Return the live lease of *owner* on the job, in whatever process, waiting for it up to *wait_seconds*.

        This picks up a job that was transferred to *owner*: from here on, its expiry counts a reclaim.

        Raises `NoLease`, which says who holds it instead, and `UnknownJob`.
        """
        try:
            return self._lease(job_id, owner=owner, wait_seconds=wait_seconds)
        except NoLease as error:
            raise waited(error, wait_seconds) from None

    def _lease(self, job_id: str, *, owner: str, wait_seconds: float) -> Lease:
        wait_us = checks.microseconds(wait_seconds, "wait_seconds", zero=True)
        store = alone(self._store) if wait_us else self._store
        return Lease(
            store, store.lease(checks.name(job_id, "a job's id"), checks.name(owner, "owner"), wait_us=wait_us)
        )

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
        return Shop(self._store, registry.tasks, registry.hooks, self._listeners, self._lease_us, self._retention)

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
    guard = guard_verbs.guard
    seal = guard_verbs.seal

    def reclaim(self) -> list[Ownership]:
        """
        Take back what expired, stalled, or whose process is gone. Return the ended ownerships.

        Then do the rest of the upkeep that workers do: prune what `retention` no longer keeps.
        """
        ended = alone(self._store).reclaim()
        while alone(self._store).tend(self._retention):
            pass
        return ended

    def prune(self, *, keep_seconds: float, keep_ids_seconds: float | None = KEEP_IDS_US / 1_000_000) -> Pruned:
        """
        Remove jobs that finished more than *keep_seconds* ago, and events that old; return how many of each.

        Of a job whose id you chose, the id, status, epoch and end are kept until *keep_ids_seconds* after its end, None
        for ever: adding that id again still does nothing. `job` shows it with `pruned=True`.

        Each portion is a short transaction of its own: what was removed before an interruption stays removed. The epoch
        counter is not touched.
        """
        keep = checks.microseconds(keep_seconds, "keep_seconds", zero=True)
        ids = None if keep_ids_seconds is None else checks.microseconds(keep_ids_seconds, "keep_ids_seconds", zero=True)
        removed = Pruned(0, 0)
        while any(portion := alone(self._store).prune(keep, keep_ids_us=ids)):
            removed = Pruned(*map(sum, zip(removed, portion, strict=True)))
        return removed

    def advance(self, *, above: int = 0) -> int:
        """
        Raise the store's epoch counter above every epoch issued so far, the clock and *above*; return where it is now.

        For what a store cannot detect: a backup restored under a running process, a clock that was set back. Current
        owners stay current.
        """
        return alone(self._store).advance(checks.whole(above, "above", least=0, most=CLOCK_LIMIT - 1))

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant of the store; an empty list if all hold."""
        return self._store.verify()

    # Readers

    def job(self, id: str) -> Job:
        """Return the job as it is now. Raises `UnknownJob`."""
        return self._store.job(checks.name(id, "a job's id"))

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
            return waits_for(job, self._store.queues(), self._clock.now())

        return result_of(self.job(id_of(id)), self._registry.tasks, why)

    def _result(self, id: str | Added | Job) -> Any:
        """Look once."""
        return result_of(self.job(id_of(id)), self._registry.tasks)

    def jobs(
        self,
        *,
        status: Status | str | None = None,
        queue: str | None = None,
        owner: str | None = None,
        task: str | None = None,
        parent: str | None = None,
        after: str | None = None,
        limit: int | None = 1000,
    ) -> list[Job]:
        """Return the jobs that fit, in the order of their insertion; *after* is the id of the last one already seen."""
        return self._store.jobs(
            status=None if status is None else inputs.status(status),
            queue=queue,
            owner=owner,
            task=task,
            parent=parent,
            after=after,
            limit=inputs.limit(limit),
        )

    def snapshot(self) -> dict[str, Job]:
        """Return every job by its id."""
        return {job.id: job for job in self._store.jobs()}

    def ownerships(self, id: str) -> list[Ownership]:
        """Return who held the job, oldest first: from when to when, how it began and ended. Raises `UnknownJob`."""
        return self._store.ownerships(checks.name(id, "a job's id"))

    def effects(self, id: str) -> list[Effect]:
        """Return the named effects of the job, known and in doubt. Raises `UnknownJob`."""
        return self._store.effects(checks.name(id, "a job's id"))

    def events(
        self, id: str | None = None, *, kind: str | None = None, after: int = 0, limit: int | None = 1000
    ) -> list[Event]:
        """Return what was recorded, oldest first; *after* is the number of the last one already seen."""
        seen = checks.whole(after, "after", least=0, most=2**53)
        return self._store.events(job_id=id, kind=kind, after=seen, limit=inputs.limit(limit))

    queues = queue_verbs.queues

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        return self._store.counts()
