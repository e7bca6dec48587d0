"""The SQLite store: one file, many processes of one machine. Each verb is a program in a transaction of its own."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from ...core import checks
from ...core.clock import Clock, Countdown, SystemClock
from ...core.job import Added, Counts, Effect, Grant, Job, NewJob, Progress, Settlement, Status
from ...core.lifecycle import Verb, reclaimed_in_part
from ...core.ownership import RECOVERY_EVERY_US, Event, Ownership, Process
from ...core.parking import known_tasks
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.workers import WorkerReport, WorkerStatus
from ...errors import LeaseholdError, NoLease, StaleEpoch, StoreUnavailable, UnknownJob
from ...liveness import is_gone, this_process
from ...store import Begun, Pruned, Refusal, Renewal, ids_before
from ...transaction import is_inside, refuse_inside
from .._versions import Migrated
from ..policy import EVENTS, IDS, PORTION, WORKERS, Pass, Place
from ..reclaimed import Reclaimed
from .claiming import Claiming
from .database import Database
from .pruning import Pruning
from .reading import Reading
from .rows import Program
from .sql import statements
from .transactions import JoinedVerbs, SqliteTransactions

log = logging.getLogger("leasehold")

T = TypeVar("T")

_POLL_SECONDS = 0.005


class Verbs(Claiming, Pruning, Reading):
    """Every program of the store."""


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
        self.database = Database(
            path, sql, schema, clock=self._clock, busy_seconds=busy_seconds, synchronous=synchronous
        )
        self._verbs = Verbs(sql, trace=trace)
        self._joined = joined = JoinedVerbs(sql, trace=trace)
        joined.apart = self._verbs.apart
        self.transactions = SqliteTransactions(self, self.database, self._clock, joined)
        self._wait_for_changes()
        self._recovered_us = 0
        self._reclaimed = Reclaimed()
        self._pass = Pass()
        _stores.add(self)

    # Running programs

    def _write(self, make: Callable[[int], Program[T]]) -> T:
        refuse_inside(self.database.key)
        value = self.database.write(make, self._verbs)
        if self._awaited:
            self.changed()
        return value

    def _admitted(self, make: Callable[[int], Program[T | Refusal]]) -> T:
        value = self._write(make)  # commits the record of a refusal, too
        if isinstance(value, StaleEpoch | UnknownJob):
            raise value
        return value

    def _record_apart(self) -> None:
        """
        Record the refusals that could not be recorded when they happened, unless somebody is writing.

        That may be the very transaction in which they happened, so a reader does not wait for it.
        """
        if self._verbs.apart and not is_inside(self.database.key):
            try:
                self.database.write_soon(lambda now: _nothing(), self._verbs)
            except LeaseholdError as error:
                log.debug("%d refusals are still to be recorded: %s", len(self._verbs.apart), error)

    def record_refusals(self) -> None:
        """Record them; the turn to write is held."""
        if self._verbs.apart:
            self.database.write_in_turn(lambda now: _nothing(), self._verbs)

    def record_all(self) -> None:
        """Record them as the last thing that is asked of this store: wait for it, and say so if it cannot be done."""
        if self._verbs.apart:
            try:
                self._write(lambda now: _nothing())
            except LeaseholdError as error:
                log.warning("%d refusals could not be recorded: %s", len(self._verbs.apart), error)
            self._verbs.apart.clear()

    def _wait_for_changes(self) -> None:
        # `with` a Condition runs lines of Python around its lock, and Ctrl-C in between would lock it for ever; `with`
        # the lock itself does not.
        self._changing = threading.RLock()
        self._changed = threading.Condition(self._changing)
        self._awaited = False
        self._woken = 0

    def changed(self) -> None:
        """Wake the claims of this process that wait; those of others look at the file."""
        with self._changing:
            self._awaited = False
            self._changed.notify_all()

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Keep each job that is new, all in one atomic step; say for each whether this call made it."""
        return self._write(lambda now: self._verbs.add(jobs, now))

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
        verbs, known = self._verbs, known_tasks(tasks)
        queues = None if queues is None else sorted(set(queues))
        asked = owner, limit, queues, lease_us, default_lease_us, claim_id, process, known

        countdown, woken = Countdown(self._clock, wait_us), self._woken
        while True:
            grants, more, ended = self._write(lambda now: verbs.claim(*asked, now))
            self._note(ended)
            if grants:
                return grants
            if more:
                continue
            if countdown.left() <= 0 or not self._wait(countdown, queues, known, woken):
                return []

    def _wait(
        self, countdown: Countdown, queues: Sequence[str] | None, known: frozenset[str | None] | None, woken: int
    ) -> bool:
        """Return True once a claim may find something, False when the time is over."""
        database, verbs = self.database, self._verbs
        version, look = None, 0
        while True:
            now = self._clock.now()
            seen = database.version()
            if seen != version:
                version = seen
                ready, look = database.read(verbs.waiting(queues, known))
                if ready:
                    return True
            if now >= look:
                return True
            if countdown.left() <= 0 or self._woken != woken:
                return False
            self._pause()

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon."""
        with self._changing:
            self._woken += 1
            self._changed.notify_all()

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        return self.database.read(self._verbs.claimed(claim_id))

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        countdown, version = Countdown(self._clock, wait_us), None
        while True:
            left, seen = countdown.left(), self.database.version()
            if seen != version or left <= 0:
                version = seen
                try:
                    grant, picked_up = self.database.read(self._verbs.lease(job_id, owner))
                except NoLease:
                    if left <= 0:
                        raise
                else:
                    # Inside a transaction of the caller's nothing else can be written; the first renewal marks it, too.
                    if not picked_up and not is_inside(self.database.key):
                        self._pick_up(job_id, grant.epoch)
                    return grant
            self._pause()

    def _pick_up(self, job_id: str, epoch: int) -> None:
        self._write(lambda now: self._verbs.pick_up(job_id, epoch))

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        return self.database.read(self._verbs.transfers(owner))

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        return self._write(lambda now: self._verbs.accept(owner, transfers, claim_id, process, now))

    def _pause(self) -> None:
        """Wait until this process writes, or until it is time to look whether another one has."""
        with self._changing:
            self._awaited = True
            self._changed.wait(_POLL_SECONDS)

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        now = self._clock.now()
        reply = self.database.read(self._joined.check(holders, now))
        self._record_apart()
        return reply

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """Move each lease's deadline to now plus its duration; return the new deadlines."""
        return self._write(lambda now: self._verbs.renew(renewals, now))

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        return self._write(lambda now: self._verbs.progress(reports, now))

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        return self._admitted(lambda now: self._verbs.add_children(job_id, epoch, jobs, now))

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """End each lease as its owner says."""
        return self._write(lambda now: self._verbs.settle(settlements, now))

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        return self._admitted(lambda now: self._verbs.begin_effect(job_id, epoch, name, again, now))

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        return self._admitted(lambda now: self._verbs.end_effect(job_id, epoch, name, outcome, now))

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
        return self._admitted(
            lambda now: self._verbs.transfer(job_id, epoch, to, by, note, lease_us, default_lease_us, now)
        )

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
        return self._admitted(lambda now: self._verbs.override(verb, kind, job_id, epoch, by, note, result, now))

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        return self._admitted(lambda now: self._verbs.resolve(job_id, epoch, name, by, outcome, note, now))

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        return self._write(lambda now: self._verbs.pause(queue, by, note, now))

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        return self._write(lambda now: self._verbs.resume(queue, by, now))

    # Workers

    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        # Without `changed`. A waiting claim notices the commit by the file's data version and reads, as for every
        # commit; since no job is due, it opens no transaction to write.
        self.database.write(lambda now: self._verbs.report(report, now), self._verbs)

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        self.database.write(lambda now: self._verbs.retire(name), self._verbs)

    # The store itself

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        ended: list[Ownership] = []
        try:
            while batch := self._note(self._write(self._verbs.sweep)):
                ended += batch
            return ended + self._recover(always=True)
        except StoreUnavailable as error:
            raise reclaimed_in_part(error, len(ended)) from error.__cause__

    def _recover(self, *, always: bool = False) -> list[Ownership]:
        # Looking up processes costs system calls, so an idle poll looks at most once a second.
        now = self._clock.now()
        lately = 0 <= now - self._recovered_us < RECOVERY_EVERY_US  # false also for a clock that was set back
        if lately and not always:
            return []
        self._recovered_us = now
        mine = this_process()
        known = self.database.read(self._verbs.processes())
        gone = [process for process in known if process != mine and is_gone(process)]
        return self._note(self._write(lambda now: self._verbs.recover(gone, now))) if gone else []

    def _note(self, ended: list[Ownership]) -> list[Ownership]:
        self._reclaimed.note((held.job_id, held.epoch) for held in ended)
        return ended

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self._reclaimed.take()

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        return self._write(lambda now: self._verbs.prune(now - keep_us, ids_before(now, keep_ids_us), limit))

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        _, next_us = self.database.read(self._verbs.waiting(None))
        if next_us <= self._clock.now():
            self._note(self._write(self._verbs.sweep))
        self._recover()
        self._record_apart()
        return self._pass.portion(self._clock.now(), retention, functools.partial(self._prune_due, retention))

    def _prune_due(self, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
        verbs, now = self._verbs, self._clock.now()
        before_us, ids_us = now - keep_us, ids_before(now, retention.keep_us(IDS))
        if kind == IDS:
            return place if self._write(lambda now: verbs.prune_ids(before_us, PORTION)) else None
        if kind == WORKERS:
            if self.database.read(verbs.may_forget_workers(before_us)):
                self.database.write(lambda now: verbs.forget_workers(before_us), verbs)
            return None
        if kind == EVENTS:
            numbers, following = self.database.read(verbs.due_events(before_us, place[0], PORTION))
            if numbers:
                self._write(lambda now: verbs.prune_due_events(before_us, place[0], PORTION))
            return following
        seqs, following = self.database.read(verbs.due(kind, before_us, place, PORTION))
        if seqs:
            self._write(lambda now: verbs.prune_due(kind, before_us, place, PORTION, ids_us))
        return following

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; it is issued to nobody."""
        return self._write(lambda now: self._verbs.advance(above, now))

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        return self.database.read(self._verbs.verify())

    def migrate(
        self, *, dry_run: bool = False, wait_seconds: float = 0, say: Callable[[str], None] = log.info
    ) -> Migrated:
        """
        Bring the schema up to date, or make it; with *dry_run*, only say what that would be.

        Nobody else may have the file open, and nobody is waited for: who uses it has to be stopped first.
        """
        checks.microseconds(wait_seconds, "wait_seconds", zero=True)
        return self.database.migrate(dry_run=dry_run)

    # Readers

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        return self.database.read(self._verbs.job(job_id))

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
        return self.database.read(self._verbs.jobs(status, after, limit, fits))

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        return self.database.read(self._verbs.ownerships(job_id))

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        return self.database.read(self._verbs.effects(job_id))

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        self._record_apart()
        return self.database.read(self._verbs.events(job_id, kind, after, limit))

    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        return self.database.read(self._verbs.configured())

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        return self.database.read(self._verbs.workers(self._clock.now()))

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        return self.database.read(self._verbs.counts())

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        try:
            self.record_all()
        finally:
            self.database.close()
            self.changed()

    def before_fork(self) -> None:
        """Let go of the file: no connection may be carried into a forked child."""
        self.database.before_fork()

    def forked_parent(self) -> None:
        """Go on in the parent."""
        self.database.forked_parent()

    def forked_child(self) -> None:
        """Start afresh in the child: the parent's locks are the parent's."""
        self._wait_for_changes()
        self._verbs.apart.clear()  # the parent records them
        self.transactions.forked_child()
        self.database.forked_child()


def _nothing() -> Program[None]:
    yield from ()


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _for_each_store(step: Callable[[SqliteStore], None]) -> Callable[[], None]:
    def every() -> None:
        for store in list(_stores):
            step(store)

    return every


atexit.register(_for_each_store(SqliteStore.record_all))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_for_each_store(SqliteStore.before_fork),
        after_in_parent=_for_each_store(SqliteStore.forked_parent),
        after_in_child=_for_each_store(SqliteStore.forked_child),
    )
