"""The front door: producers add jobs, owners claim them, operators move them, readers look."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack

from .aio import Facade, abandonable, joined, threaded
from .core import values
from .core.clock import Clock, SystemClock
from .core.job import Added, Counts, Effect, Grant, Job, JobOptions, NewJob, Status, new_job
from .core.ownership import CLOCK_LIMIT, EPOCH_LIMIT, Event, Ownership, Process
from .errors import InvalidArgument, StaleEpoch, StoreUnavailable
from .lease import Lease, as_new_job
from .process import this_process
from .store import Store, Transactions
from .stores import open_store

log = logging.getLogger("leasehold")

_SELF: Final = Process("", "", "", 0, 0)  # "the process that calls"
_CLAIM_LIMIT = 10_000

_claims = itertools.count()
_run = ""  # what the ids of all claims of this process begin with


def _begin_run() -> None:
    global _run
    _run = os.urandom(8).hex() + "-"


_begin_run()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_run)  # it counts on where its parent was


class Router:
    """
    Adds jobs, claims them, moves them and shows them, in the store that *url* names.

    Makes no connection, thread or file; the first verb does. Safe to share between threads. A claim's `lease_seconds`
    beats the job's, which beats the Router's.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lease_seconds: float = 30,
        clock: Clock | None = None,
        trace: bool = False,
        schema: str = "leasehold",
    ) -> None:
        self.url = url
        self._lease_us = values.microseconds(lease_seconds, "lease_seconds")
        self._clock = clock or SystemClock()
        self._store: Store = open_store(url, clock=clock, trace=trace, schema=schema)

    def __repr__(self) -> str:
        return f"<Router {values.shown_url(self.url or 'memory:')}>"

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every connection; later verbs raise `StoreUnavailable`."""
        self._store.close()

    @property
    def store(self) -> Store:
        """The store itself, whose verbs take and return lists."""
        return self._store

    @property
    def aio(self) -> AsyncRouter:
        """The same verbs for async callers."""
        return AsyncRouter(self)

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
        Keep a job, unless one with this *id* exists; `created` says which.

        An id of None becomes a UUID, made before anything is sent. With *connection*, the job is part of the
        transaction that the caller has open there. Options: task, queue, priority (larger first), delay_seconds or
        run_at, lock (one running job per key), unique (one unfinished per key), retry, lease_seconds, stall_seconds.
        """
        job = new_job(values.new_id(self._clock.now()) if id is None else id, payload, **options)
        return self._add([job], connection, savepoint, one=True)  # type: ignore[no-any-return]  # see _add

    def add_many(
        self, jobs: Iterable[NewJob | Mapping[str, Any]], *, connection: Any = None, savepoint: bool = False
    ) -> list[Added]:
        """Keep all of *jobs* in one transaction, each as `add` would; mappings have the names of its arguments."""
        return self._add([self._wish(job) for job in jobs], connection, savepoint, one=False)  # type: ignore[no-any-return]  # see _add

    def _wish(self, job: NewJob | Mapping[str, Any]) -> NewJob:
        if isinstance(job, NewJob):
            return job
        if not isinstance(job, Mapping):
            raise InvalidArgument(f"add_many takes mappings with the names of add()'s arguments, not {job!r}.")
        return as_new_job(job if job.get("id") is not None else {**job, "id": values.new_id(self._clock.now())})

    def _add(self, jobs: list[NewJob], connection: Any, savepoint: bool, *, one: bool) -> Any:
        if connection is not None:
            return joined(self._store, connection, lambda verbs: self._adding(verbs, jobs, one), savepoint=savepoint)
        added = self._compared(jobs, self._store.add(jobs))
        return added[0] if one else added

    def _adding(self, verbs: Transactions, jobs: list[NewJob], one: bool) -> Generator[Any, Any, Any]:
        added = self._compared(jobs, (yield from verbs.add(jobs)))
        return added[0] if one else added

    def _compared(self, jobs: list[NewJob], added: list[Added]) -> list[Added]:
        for wish, (found, created) in zip(jobs, added, strict=True):
            if not created and found.id == wish.id and found.spec.document != wish.document:
                log.warning("job %r exists with another payload; it is left as it is", wish.id)
        return added

    # Owners

    def claim(
        self,
        owner: str,
        *,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = _SELF,
    ) -> Lease | None:
        """
        Lease the next due job to *owner*, or return None if there is none within *wait_seconds*.

        The calling process is recorded, so that its death frees the job at once; pass `process=None` when claiming
        for somebody else.
        """
        grants = self._claim(owner, 1, queues, lease_seconds, wait_seconds, process)
        return Lease(self._store, grants[0]) if grants else None

    def claim_many(
        self,
        owner: str,
        *,
        limit: int = 100,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = _SELF,
    ) -> list[Lease]:
        """Lease up to *limit* due jobs to *owner*, in one transaction."""
        values.whole(limit, "limit", least=1, most=_CLAIM_LIMIT)
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
        if process is _SELF:
            process = this_process()
        claim_id = _run + str(next(_claims))
        if queues is not None:
            queues = _queues(queues)
        try:
            return self._store.claim(
                values.name(owner, "owner"),
                limit=limit,
                queues=queues,
                lease_us=None if lease_seconds is None else values.microseconds(lease_seconds, "lease_seconds"),
                default_lease_us=self._lease_us,
                claim_id=claim_id,
                process=process,
                wait_us=0 if wait_seconds == 0 else values.microseconds(wait_seconds, "wait_seconds", zero=True),
            )
        except StoreUnavailable as failure:
            # The reply is lost, and maybe not the claim: jobs leased to an owner that does not know would wait
            # for their deadline. The claim's own id tells them from those of a namesake.
            return self._found(claim_id, failure)

    def _found(self, claim_id: str, failure: StoreUnavailable) -> list[Grant]:
        try:
            grants = self._store.claimed(claim_id)
        except StoreUnavailable:
            raise failure from None
        if not grants:
            raise failure
        return grants

    def lease(self, job_id: str, *, owner: str) -> Lease:
        """Return the live lease of *owner* on the job, in whatever process; `NoLease` says who holds it instead."""
        return Lease(self._store, self._store.lease(values.name(job_id, "a job's id"), values.name(owner, "owner")))

    # Operators: each names the epoch that it saw, or passes a Job just read, and says who acts

    def transfer(
        self,
        job: Job | str,
        *,
        to: str,
        by: str,
        epoch: int | None = None,
        note: str | None = None,
        lease_seconds: float | None = None,
    ) -> Lease:
        """Give the job to *to* under a new epoch, and return the new owner's lease. Whoever had it is refused."""
        job_id, seen = _seen(job, epoch)
        grant = self._store.transfer(
            job_id,
            seen,
            to=values.name(to, "to"),
            by=values.name(by, "by"),
            note=_note(note),
            lease_us=None if lease_seconds is None else values.microseconds(lease_seconds, "lease_seconds"),
            default_lease_us=self._lease_us,
        )
        return Lease(self._store, grant)

    def cancel(self, job: Job | str, *, by: str, epoch: int | None = None, note: str | None = None) -> Job:
        """End the job as cancelled. Whoever had it is refused."""
        return self._store.cancel(*_seen(job, epoch), by=values.name(by, "by"), note=_note(note))

    def replay(self, job: Job | str, *, by: str, epoch: int | None = None, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now, its budgets new."""
        return self._store.replay(*_seen(job, epoch), by=values.name(by, "by"), note=_note(note))

    def complete(
        self, job: Job | str, *, by: str, result: object = None, epoch: int | None = None, note: str | None = None
    ) -> Job:
        """Complete the job by hand. Whoever had it is refused."""
        document = values.encode(result, "result")
        return self._store.finish(*_seen(job, epoch), by=values.name(by, "by"), note=_note(note), result=document)

    def resolve(
        self,
        job: Job | str,
        name: str,
        *,
        by: str,
        outcome: object = None,
        happened: bool = True,
        epoch: int | None = None,
        note: str | None = None,
    ) -> Job:
        """
        Record how the effect *name*, which is in doubt, ended: with *outcome*, or not at all (`happened=False`).

        The next owner's `once` returns the outcome without calling, or begins anew.
        """
        return self._store.resolve(
            *_seen(job, epoch),
            values.name(name, "the name of an effect"),
            by=values.name(by, "by"),
            outcome=values.encode(outcome, "outcome") if happened else None,
            note=_note(note),
        )

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, stalled, or whose process is gone; claims do it too. Return the ended ownerships."""
        return self._store.reclaim()

    def prune(self, *, keep_seconds: float) -> int:
        """Remove jobs that finished more than *keep_seconds* ago; return how many. Epochs go on where they were."""
        keep, removed = values.microseconds(keep_seconds, "keep_seconds", zero=True), 0
        while batch := self._store.prune(keep):
            removed += batch
        return removed

    def advance(self, *, above: int = 0) -> int:
        """
        Raise the store's epoch counter above every epoch issued so far, the clock and *above*; return where it is now.

        For what no store can see: a backup restored under a running process, a clock that was set back. Owners whose
        epochs are still current stay so.
        """
        return self._store.advance(values.whole(above, "above", least=0, most=CLOCK_LIMIT - 1))

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant of the store; an empty list is good news."""
        return self._store.verify()

    # Readers

    def job(self, id: str) -> Job:
        """Return the job as it is now, or raise `UnknownJob`."""
        return self._store.job(values.name(id, "a job's id"))

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
            status=None if status is None else _status(status),
            queue=queue,
            owner=owner,
            task=task,
            parent=parent,
            after=after,
            limit=_limit(limit),
        )

    def snapshot(self) -> dict[str, Job]:
        """Return every job by its id."""
        return {job.id: job for job in self._store.jobs()}

    def ownerships(self, id: str) -> list[Ownership]:
        """Return who has held the job, oldest first: from when, until when, how it began, how it ended, by whom."""
        return self._store.ownerships(values.name(id, "a job's id"))

    def effects(self, id: str) -> list[Effect]:
        """Return the named effects of the job, known and in doubt."""
        return self._store.effects(values.name(id, "a job's id"))

    def events(
        self, id: str | None = None, *, kind: str | None = None, after: int = 0, limit: int | None = 1000
    ) -> list[Event]:
        """Return what was recorded, oldest first; *after* is the number of the last one already seen."""
        seen = values.whole(after, "after", least=0, most=2**53)
        return self._store.events(job_id=id, kind=kind, after=seen, limit=_limit(limit))

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        return self._store.counts()


def _queues(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        raise InvalidArgument(f"queues is a list of names: write [{queues!r}].")
    named = [values.name(queue, "queue") for queue in queues]
    if not named:
        raise InvalidArgument("queues is empty, so nothing could ever be claimed: name some, or pass None for all.")
    return named


def _seen(job: Job | str, epoch: int | None) -> tuple[str, int]:
    if isinstance(job, Job):
        return job.id, job.epoch if epoch is None else values.whole(epoch, "epoch", least=0, most=EPOCH_LIMIT)
    if epoch is None:
        raise InvalidArgument(
            f"say which epoch of job {job!r} you saw: pass epoch=…, or the Job that router.job({job!r}) returns. "
            "A job that has moved since must not be moved again by mistake."
        )
    return values.name(job, "a job's id"), values.whole(epoch, "epoch", least=0, most=EPOCH_LIMIT)


def _note(note: str | None) -> str | None:
    return None if note is None else values.text(note, "note")


def _limit(limit: int | None) -> int | None:
    return None if limit is None else values.whole(limit, "limit", least=0, most=2**53)


def _status(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        raise InvalidArgument(f"no status is called {status!r}: there are {', '.join(Status)}.") from None


def _give_back(leases: list[Lease]) -> None:
    for lease in leases:
        with suppress(StaleEpoch, StoreUnavailable):  # taken over already, or waiting for its deadline
            lease.release()


class AsyncRouter(Facade):
    """The verbs of a `Router`, to be awaited."""

    add = threaded(Router.add)
    add_many = threaded(Router.add_many)
    lease = threaded(Router.lease)
    transfer = threaded(Router.transfer)
    cancel = threaded(Router.cancel)
    replay = threaded(Router.replay)
    complete = threaded(Router.complete)
    resolve = threaded(Router.resolve)
    reclaim = threaded(Router.reclaim)
    prune = threaded(Router.prune)
    advance = threaded(Router.advance)
    verify = threaded(Router.verify)
    job = threaded(Router.job)
    jobs = threaded(Router.jobs)
    snapshot = threaded(Router.snapshot)
    ownerships = threaded(Router.ownerships)
    effects = threaded(Router.effects)
    events = threaded(Router.events)
    counts = threaded(Router.counts)
    close = threaded(Router.close)

    async def claim_many(
        self,
        owner: str,
        *,
        limit: int = 100,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = _SELF,
    ) -> list[Lease]:
        """Lease up to *limit* due jobs, as `Router.claim_many` does; a call that is cancelled gives them back."""
        router: Router = self._sync
        claim = functools.partial(
            router.claim_many, owner, limit=limit, queues=queues, lease_seconds=lease_seconds, process=process
        )
        values.microseconds(wait_seconds, "wait_seconds", zero=True)

        def wait(abandoned: Callable[[], bool]) -> list[Lease]:
            # In short waits, so that the thread of a call that was cancelled does not go on waiting for jobs.
            left = wait_seconds
            while not (leases := claim(wait_seconds=min(left, 0.1))) and left > 0.1 and not abandoned():
                left -= 0.1
            return leases

        return await abandonable(wait, _give_back)

    async def claim(
        self,
        owner: str,
        *,
        queues: Sequence[str] | None = None,
        lease_seconds: float | None = None,
        wait_seconds: float = 0,
        process: Process | None = _SELF,
    ) -> Lease | None:
        """Lease the next due job to *owner*, as `Router.claim` does."""
        leases = await self.claim_many(
            owner, limit=1, queues=queues, lease_seconds=lease_seconds, wait_seconds=wait_seconds, process=process
        )
        return leases[0] if leases else None
