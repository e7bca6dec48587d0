"""The PostgreSQL store: many machines, one database. Each verb is one call of a function in the server."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...core import checks
from ...core.backlog import Lately, Oldest
from ...core.clock import Clock, SystemClock
from ...core.counts import Counts
from ...core.effects import Effect, effect_key
from ...core.invariants import violation
from ...core.job import Added, Grant, Job, NewJob, Progress, Settlement, Status, new_state
from ...core.lifecycle import Verb
from ...core.observations import Observation, Observed
from ...core.ownership import Event, LiveLease, Note, Ownership, Process, sane
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.search import Page, Search, collect
from ...core.workers import WorkerReport, WorkerStatus
from ...errors import LeaseholdError, StaleEpoch
from ...logs import log
from ...store import EVENTS_AT_ONCE, Begun, OpenKeys, Pruned, Refusal, Renewal
from .._versions import Migrated
from ..rows import grant_of, job_of, worker_of
from . import owning, reading
from .claiming import Claiming, Upkeep
from .database import Database
from .owning import PATIENCE_MS, Batches, in_parts
from .rights import grants, revocations
from .rows import (
    Claim,
    Row,
    added,
    admitted_children,
    alike,
    as_json,
    counts_of,
    event_of,
    refusal_of,
    why_not,
    wishes,
)
from .transactions import PostgresTransactions


class PostgresStore:
    """Keeps jobs in one schema of a PostgreSQL database, which many machines may share."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        trace: bool = False,
        schema: str = "leasehold",
        connections: int = 20,
        wait_seconds: float = 30,
    ) -> None:
        self._clock = clock
        self._timer = clock or SystemClock()
        self._trace = trace
        self.database = Database(url, schema, now=self._now, connections=connections, wait_seconds=wait_seconds)
        self.transactions = PostgresTransactions(self, self.database, self._now, trace=trace)
        self.upkeep = Upkeep(self.database, self._timer, self._now)
        self.claiming = Claiming(self.database, self.upkeep, self._timer, self._now, by_hand=clock is not None)
        self.batches = Batches(self.database, self._now, trace=trace)

    def _now(self) -> int | None:
        """Return the instant for the functions: None for the server's own clock, which alone counts."""
        return None if self._clock is None else sane(self._clock.now())

    def _call(self, function: str, *args: Any, again: bool = False) -> list[Row]:
        return self.database.call(function, *args, self._now(), again=again)

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Keep each job that is new, all in one atomic step; say for each whether this call made it."""
        self.database.open()
        lost = False
        if not self._trace and (same := alike(jobs)) is not None:
            [(now,)], lost = self.database.call_again("add_alike", *same, PATIENCE_MS, self._now())
            if now is not None:
                return [Added(new_state(job, now), True) for job in jobs]
        asked = self.database.store_id, as_json(wishes(jobs)), True, self._trace, PATIENCE_MS
        rows, lost_again = self.database.call_again("add", *asked, self._now())
        answer = added(jobs, rows)
        return owning.added(jobs, answer) if lost or lost_again else answer

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
        claim = Claim(
            owner,
            limit,
            None if queues is None else tuple(sorted(set(queues))),
            None if tasks is None else tuple(tasks),
            lease_us,
            default_lease_us,
            claim_id,
            process,
            self._trace,
        )
        return self.claiming.claim(claim, wait_us)

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon: one that listens, after its next poll."""
        self.claiming.wake()

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        return [grant_of(row) for row in self._read(self.database.statements.claimed, claim_id=claim_id)]

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        return self.batches.check(holders)

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """
        Move each lease's deadline to now plus its duration; return the new deadlines.

        A lease whose row another transaction has locked is passed over, and asked for again once the others are
        renewed. If it is still locked then, `StoreUnavailable` is raised: the others are renewed all the same.
        """
        return self.batches.renew(renewals)

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        return in_parts(reports, self.batches.progress)

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise."""
        asked = job_id, epoch, as_json(wishes(jobs)), PATIENCE_MS, self._trace, self._now()
        rows, lost = self.database.call_again("add_children", *asked)
        try:
            answer = admitted_children(job_id, epoch, jobs, rows)
        except StaleEpoch as refusal:
            if not lost:
                raise
            refused = refusal
        else:
            return owning.added(jobs, answer) if lost else answer
        return owning.children(refused, jobs, self.job, self.ownerships)

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """
        End each lease as its owner says.

        A batch that meets another transaction's lock is split, so that only what collides waits. If that takes too
        long, `StoreUnavailable` is raised and the others are settled: to repeat the call is safe (C27).
        """
        return in_parts(settlements, self.batches.settle)

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise."""
        self.database.open()
        assert self.database.store_id is not None
        key = effect_key(self.database.store_id, job_id, name)
        [(refused, fresh, key, begun, outcome)] = self._call(
            "begin_effect", job_id, epoch, name, key, again, PATIENCE_MS
        )
        if refused is not None:
            raise refusal_of(job_id, epoch, "once", refused)
        return Begun(Effect(job_id, name, key, begun, outcome is not None, outcome), fresh)

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """Record the outcome of an effect; None for "it did not happen", which clears the intent."""
        args = (job_id, epoch, name, outcome, PATIENCE_MS, self._now())
        [(answer,)], lost = self.database.call_again("end_effect", *args)
        if answer is None or (lost and outcome is None and "begun" in json.loads(answer)):
            return
        refusal = why_not(job_id, epoch, "once", answer, name=name)
        if not (lost and isinstance(refusal, StaleEpoch)):
            raise refusal
        owning.concluded(refusal, name, outcome, self.effects)

    # Workers

    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        name, given_name, process, queues, tasks, *rest = report
        documents = [None if value is None else json.dumps(value) for value in (process, queues, tasks)]
        self._call("report_worker", name, given_name, *documents, *rest, PATIENCE_MS, again=True)

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        self._call("retire_worker", name, PATIENCE_MS, again=True)

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        return [worker_of(row, alive) for *row, alive in self._call("known_workers", again=True)]

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        return self.claiming.lease(job_id, owner, wait_us)

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        rows = self._read(self.database.statements.transfers, owner=owner)
        return [(job_id, epoch) for job_id, epoch in rows]

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        return self.claiming.accept(owner, transfers, claim_id, process)

    def record(self, note: Note) -> None:
        """Record what happened at a guarded resource, as an event of the note's kind."""
        args = (note.kind.value, note.job_id, note.epoch, note.owner, json.dumps(note.facts), PATIENCE_MS)
        [(refused,)] = self._call("record_note", *args)
        if refused is not None:
            raise refusal_of(str(note.job_id), note.epoch, "seal", refused)

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
        [row] = self._call("transfer", job_id, epoch, to, by, note, lease_us, default_lease_us, PATIENCE_MS)
        return grant_of(self._moved(row, job_id, epoch, Verb.TRANSFER))

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        return self._override(Verb.CANCEL, job_id, epoch, by, note)

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Put a finished job back to be claimed, due now."""
        return self._override(Verb.REPLAY, job_id, epoch, by, note)

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """Take a running job from its owner and put it back to be claimed, due now."""
        return self._override(Verb.REQUEUE, job_id, epoch, by, note)

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        return self._override(Verb.FINISH, job_id, epoch, by, note, result)

    def _override(
        self, verb: Verb, job_id: str, epoch: int, by: str, note: str | None, result: str | None = None
    ) -> Job:
        [row] = self._call("override", verb.value, job_id, epoch, by, note, result, PATIENCE_MS)
        return job_of(self._moved(row, job_id, epoch, verb))

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        [row] = self._call("resolve", job_id, epoch, name, by, outcome, note, PATIENCE_MS)
        return job_of(self._moved(row, job_id, epoch, "resolve", name=name))

    def _moved(self, row: Row, job_id: str, epoch: int, verb: str, *, name: str = "") -> Row:
        answer, fenced, *after = row
        if answer is not None:
            raise why_not(job_id, epoch, verb, answer, name=name)
        if fenced:
            self.upkeep.end_fenced(fenced)
        return after

    def prune_job(
        self, job_id: str, epoch: int, *, by: str, note: str | None = None, keep_ids_us: int | None = KEEP_IDS_US
    ) -> None:
        """Remove this finished job, whenever it finished, with all that is kept of it."""
        [(answer,)] = self._call("prune_job", job_id, epoch, by, note, keep_ids_us, PATIENCE_MS)
        if answer is not None:
            raise why_not(job_id, epoch, "prune", answer)

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        [(now,)] = self._call("pause", queue, by, note, PATIENCE_MS)
        return Queue(queue, now, by, note)

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        self._call("resume", queue, by, PATIENCE_MS)
        return Queue(queue)

    # The store itself

    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        """Return keys of *guards* whose job has ended without a successor that would seal them."""
        return reading.open_keys(self.database, self._now(), guards, after, limit)

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        return Pruned(*self._call("prune", keep_us, limit, EVENTS_AT_ONCE, keep_ids_us, PATIENCE_MS)[0])

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        self.transactions.record()
        return self.upkeep.tend(retention)

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        return self.upkeep.reclaim()

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self.upkeep.reclaimed.take()

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """
        Record that *found* is what there is to be observed, by a look that began at *round*.

        After a lost reply it is asked again, and False may mean that the first call has counted.
        """
        return reading.observe(self.database, self._now(), round, found)

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; no owner gets it."""
        [(epoch,)] = self._call("advance", above, PATIENCE_MS)
        return int(epoch)

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        rows = self.database.read(self.database.statements.verify, {}, patient=True)
        return [violation(kind, *json.loads(facts)) for kind, facts in rows]

    # The schema

    def migrate(
        self, *, dry_run: bool = False, wait_seconds: float = 300, say: Callable[[str], None] = log.info
    ) -> Migrated:
        """Bring the schema up to date, or make it, in one transaction; with *dry_run*, only say what that would be."""
        checks.microseconds(wait_seconds, "wait_seconds", zero=True)
        return self.database.migrate(dry_run=dry_run, wait_seconds=wait_seconds, say=say)

    def index_meta(self, *, dry_run: bool = False) -> list[str]:
        """Index the meta of jobs, while others go on writing; return the statements, none if it is indexed already."""
        return self.database.index_meta(dry_run=dry_run)

    def grant(self, role: str, kinds: Sequence[str], *, dry_run: bool = False) -> list[str]:
        """Give *role* the rights of each kind (see `rights.KINDS`); return the statements that do so."""
        return self.database.administer(role, lambda it, schema: grants(it, schema, role, kinds), dry_run=dry_run)

    def revoke(self, role: str, *, dry_run: bool = False) -> list[str]:
        """Take from *role* every right in the schema; return the statements that do so."""
        return self.database.administer(role, lambda _, schema: revocations(schema, role), dry_run=dry_run)

    # Readers

    def _read(self, statement: str, **params: Any) -> list[Row]:
        return self.database.read(statement, params)

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        return reading.job(self._read, self.database.statements, job_id)

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
        conditions = {"queue": queue, "owner": owner, "task": task, "parent": parent, "limit": limit}
        return reading.jobs(self._read, self.database.statements, status, after, conditions)

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the jobs that *search* describes."""
        look = functools.partial(reading.look, self._read, self.database.schema, search)
        return collect(search, limit, cursor, look)

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        return reading.ownerships(self._read, self.database.statements, job_id)

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        return reading.effects(self._read, self.database.statements, job_id)

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return what was recorded, oldest first, beginning behind the event numbered *after*."""
        self.transactions.record(surely=True)
        rows = self._read(self.database.statements.events, job_id=job_id, kind=kind, after=after, limit=limit)
        return [event_of(row) for row in rows]

    def identity(self) -> str:
        """Return the id of this store."""
        self.database.open()
        return str(self.database.store_id)

    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        return [Queue(*row) for row in self._read(self.database.statements.queues)]

    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        return [LiveLease(*row) for row in self._read(self.database.statements.live_leases)]

    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        return reading.oldest(self.database, self._now())

    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        return reading.lately(self.database, self._now())

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        return reading.observed(self.database, self._now())

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        return counts_of(self._read(self.database.statements.counts))

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        try:
            self.transactions.record(surely=True)
        except LeaseholdError as error:
            log.warning("could not record refusals of stale owners in the jobs' events: %s", error)
        self.transactions.close()
        self.database.close()
        self.claiming.listening.close()
