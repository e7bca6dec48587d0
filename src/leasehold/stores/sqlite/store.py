"""The SQLite store: one file, many processes of one machine. Each verb is a program in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from ...core import checks
from ...core.backlog import Lately, Oldest
from ...core.clock import Clock, Countdown, SystemClock
from ...core.counts import Counts
from ...core.effects import Effect
from ...core.job import Added, Grant, Job, NewJob, Progress, Settlement, Status
from ...core.lifecycle import Verb
from ...core.observations import Observation, Observed
from ...core.ownership import Event, LiveLease, Note, Ownership, Process
from ...core.parking import known_tasks
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.search import Key, Looked, Page, Search, collect
from ...core.workers import WorkerReport, WorkerStatus
from ...errors import NoLease, StaleEpoch, UnknownJob
from ...logs import log
from ...store import Begun, OpenKeys, Pruned, Refusal, Renewal
from ...transaction import is_inside, refuse_inside
from .._versions import Migrated
from . import claiming, moving, owning, reading
from .connection import Changes, open_stores
from .database import Database
from .programs import Program, Session, statements
from .transactions import SqliteTransactions

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """Keeps jobs in one SQLite file, which many processes may share."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        trace: bool = False,
        schema: str = "leasehold",
        busy_seconds: float = 30,
        synchronous: str = "full",
    ) -> None:
        self._clock = clock or SystemClock()
        sql = statements(schema)
        self._schema = schema
        self.database: Database = Database(
            path, sql, schema, clock=self._clock, busy_seconds=busy_seconds, synchronous=synchronous
        )
        self._session = Session(sql, trace=trace)
        self._changes = Changes()
        self._joined = self._session.joined()
        # A lambda, since a forked child gets another `Changes`.
        self.transactions: SqliteTransactions = SqliteTransactions(
            self.database, self._clock, self._session, self._joined, lambda: self._changes.notify()
        )
        self.upkeep = claiming.Upkeep(self.database, self._session, self._clock, self._write)
        open_stores.add(self)

    # Running programs

    def _write(
        self, program: Callable[Concatenate[Session, int, P], Program[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run a program that takes the session and the time, and then the arguments, in a transaction of its own."""
        refuse_inside(self.database.key)
        value = self.database.write(self._session, program, *args, **options)
        if self._changes.awaited:
            self._changes.notify()
        return value

    def _admitted(
        self, program: Callable[Concatenate[Session, int, P], Program[T | Refusal]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run a program as `_write` does, and raise the refusal that it returns, whose record is committed by then."""
        value = self._write(program, *args, **options)
        if isinstance(value, StaleEpoch | UnknownJob):
            raise value
        return value

    def _read(self, program: Callable[Concatenate[Session, P], Program[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run a program that only reads."""
        return self.database.read(program(self._session, *args, **options))

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Insert each job that is new, all in one atomic step; return for each whether this call made it."""
        return self._write(owning.add, jobs)

    # Owners

    def claim(
        self,
        owner: str,
        *,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        lease_us: int | None = None,
        default_lease_us: int = 30_000_000,
        claim_id: str | None = None,
        process: Process | None = None,
        wait_us: int = 0,
        tasks: Collection[str] | None = None,
    ) -> list[Grant]:
        """Lease up to *limit* due jobs to *owner*; wait up to *wait_us* for the first."""
        known = known_tasks(tasks)
        queues = None if queues is None else sorted(set(queues))
        wanted = owner, limit, queues, lease_us, default_lease_us, claim_id, process, known
        countdown, interrupted = Countdown(self._clock, wait_us), self._changes.interrupted
        while True:
            grants, more, ended = self._write(claiming.claim, *wanted)
            if ended:
                self.upkeep.note(ended)
            if grants:
                return grants
            if more:
                continue
            if countdown.left() <= 0 or not self._wait(countdown, queues, known, interrupted):
                return []

    def _wait(
        self, countdown: Countdown, queues: Sequence[str] | None, known: frozenset[str | None] | None, interrupted: int
    ) -> bool:
        """Return True once a claim may find something, False when the time is over."""
        version, look = None, 0
        while True:
            now = self._clock.now()
            seen = self.database.version()
            if seen != version:
                version = seen
                ready, look = self._read(reading.waiting, queues, known)
                if ready:
                    return True
            if now >= look:
                return True
            if countdown.left() <= 0 or self._changes.interrupted != interrupted:
                return False
            self._changes.pause()

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon."""
        self._changes.interrupt()

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        return self._read(reading.claimed, claim_id)

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        countdown, version = Countdown(self._clock, wait_us), None
        while True:
            left, seen = countdown.left(), self.database.version()
            if seen != version or left <= 0:
                version = seen
                try:
                    grant, picked_up = self._read(reading.lease, job_id, owner)
                except NoLease:
                    if left <= 0:
                        raise
                else:
                    # Inside a transaction of the caller's nothing else can be written; the first renewal marks it, too.
                    if not picked_up and not is_inside(self.database.key):
                        self._write(moving.pick_up, job_id, grant.epoch)
                    return grant
            self._changes.pause()

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        return self._read(moving.transfers, owner)

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        return self._write(moving.accept, owner, transfers, claim_id, process)

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        reply = self.database.read(owning.check(self._joined, self._clock.now(), holders))
        self.transactions.record_soon()
        return reply

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """Move each lease's deadline to now plus its duration; return the new deadlines."""
        return self._write(owning.renew, renewals)

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        return self._write(owning.progress, reports)

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        return self._admitted(owning.add_children, job_id, epoch, jobs)

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """End each lease as its owner says."""
        return self._write(owning.settle, settlements)

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        return self._admitted(owning.begin_effect, job_id, epoch, name, again)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        return self._admitted(owning.end_effect, job_id, epoch, name, outcome)

    def record(self, note: Note) -> None:
        """Record what happened at a guarded resource, as an event of the note's kind."""
        return self._admitted(owning.record, note)

    # Operators

    def transfer(
        self,
        job_id: str,
        epoch: int,
        *,
        to: str,
        by: str,
        note: str | None = None,
        lease_us: int | None = None,
        default_lease_us: int = 30_000_000,
    ) -> Grant:
        """Give the job to *to* under a new epoch."""
        return self._admitted(moving.transfer, job_id, epoch, to, by, note, lease_us, default_lease_us)

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        return self._override(Verb.CANCEL, "cancelled", job_id, epoch, by, note)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now."""
        return self._override(Verb.REPLAY, "replayed", job_id, epoch, by, note)

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Take a running job from its owner and put it back to be claimed, due now."""
        return self._override(Verb.REQUEUE, "requeued", job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        return self._override(Verb.FINISH, "finished", job_id, epoch, by, note, result)

    def _override(
        self, verb: Verb, kind: str, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
    ) -> Job:
        return self._admitted(moving.override, verb, kind, job_id, epoch, by, note, result)

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        return self._admitted(moving.resolve, job_id, epoch, name, by, outcome, note)

    def prune_job(
        self, job_id: str, epoch: int, *, by: str, note: str | None = None, keep_ids_us: int | None = KEEP_IDS_US
    ) -> None:
        """Remove this finished job, whenever it finished, with all that is kept of it."""
        return self._admitted(moving.prune_job, job_id, epoch, by, note, keep_ids_us)

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        return self._write(moving.pause, queue, by, note)

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        return self._write(moving.resume, queue, by)

    # Workers

    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        # Without `notify`. A waiting claim notices the commit by the file's data version and reads, as for every
        # commit; since no job is due, it opens no transaction to write.
        self.database.write(self._session, moving.report, report)

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        self.database.write(self._session, moving.retire, name)

    # The store itself

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        return self.upkeep.reclaim()

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self.upkeep.reclaimed.take()

    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        """Return keys of *guards* whose job has ended without a successor that would seal them."""
        found, settled = self._read(reading.open_keys, guards, after, limit)
        if settled:
            self._write(claiming.forget_keys, settled)
        return found

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        return self._write(claiming.prune, keep_us, keep_ids_us, limit)

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        _, next_us = self._read(reading.waiting, None)
        if next_us <= self._clock.now():
            self.upkeep.sweep()
        self.upkeep.recover()
        self.transactions.record_soon()
        return self.upkeep.prune(retention)

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """Record that *found* is what there is to be observed, by a look that began at *round*."""
        # Without `notify`, as for a worker's report: no claim waits for it.
        return self.database.write(self._session, reading.observe, round, found)

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; no owner gets it."""
        return self._write(claiming.advance, above)

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        return self._read(reading.verify)

    def migrate(
        self, *, dry_run: bool = False, wait_seconds: float = 0, say: Callable[[str], None] = log.info
    ) -> Migrated:
        """
        Bring the schema up to date, or make it; with *dry_run*, only say what that would be.

        No other connection may be open, and none is waited for: stop what uses the file first.
        """
        checks.microseconds(wait_seconds, "wait_seconds", zero=True)
        return self.database.migrate(dry_run=dry_run)

    # Readers

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        return self._read(reading.job, job_id)

    def jobs(
        self,
        *,
        status: Status | None = None,
        queue: str | None = None,
        owner: str | None = None,
        task: str | None = None,
        parent: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Return the jobs that fit, in the order of their insertion, beginning behind the job *after*."""
        fits = {"queue": queue, "owner": owner, "task": task, "parent": parent}
        return self._read(reading.jobs, status, after, limit, fits)

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the jobs that *search* describes."""

        def look(key: Key | None, count: int, most: int) -> Looked:
            return self._read(reading.look, self._schema, search, key, count, most)

        return collect(search, limit, cursor, look)

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        return self._read(reading.ownerships, job_id)

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        return self._read(reading.effects, job_id)

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        self.transactions.record_soon()
        return self._read(reading.events, job_id, kind, after, limit)

    def identity(self) -> str:
        """Return the id of this store."""
        return self._read(reading.identity)

    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        return self._read(reading.queues)

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        return self._read(reading.workers, self._clock.now())

    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        return self._read(reading.leases)

    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        return self._read(reading.oldest, self._clock.now())

    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        return self._read(reading.lately, self._clock.now())

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        return self._read(reading.observed, self._clock.now())

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        return self._read(reading.counts)

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        try:
            self.transactions.record_all()
        finally:
            self.database.close()
            self._changes.notify()

    def forked_child(self) -> None:
        """Start afresh in the child: the parent's locks are the parent's."""
        self._changes = Changes()
        self._session.deferred.clear()  # the parent records them
        self.transactions.forked_child()
        self.database.forked_child()
