"""The PostgreSQL store: many machines, one database. Each verb is one call of a function in the server."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from ...core import checks
from ...core.clock import Clock, SystemClock
from ...core.job import (
    Added,
    Counts,
    Effect,
    Grant,
    Job,
    NewJob,
    Progress,
    Settlement,
    Status,
    effect_key,
    new_state,
)
from ...core.lifecycle import Verb
from ...core.ownership import Event, Note, Ownership, Process, sane
from ...core.queues import Queue
from ...core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from ...core.search import Page, Search, collect
from ...errors import LeaseholdError, StaleEpoch, UnknownJob
from ...store import EVENTS_AT_ONCE, Begun, Pruned, Refusal, Renewal
from .._versions import Migrated
from ..policy import Pass
from ..reclaimed import Reclaimed
from ..rows import grant_of, job_of
from . import lost_replies, searching
from .answers import admitted_children, why_not
from .database import Database
from .floors import Floors
from .parts import in_parts
from .pruning import prune_due
from .rights import grants, revocations
from .rows import (
    Row,
    added,
    alike,
    array_of,
    as_json,
    completions,
    event_of,
    granted,
    ownership_of,
    places,
    refusal_of,
    settlement,
    told,
    wishes,
)
from .transactions import PostgresTransactions
from .upkeep import Upkeep
from .waiting import Waiting
from .workers import NO_PROCESS, PATIENCE_MS, Workers

log = logging.getLogger("leasehold")

T = TypeVar("T")

BATCH_PATIENCE_MS = 200  # of a batch, with somebody else's lock; then it is split, and only who collides waits
_POLL_BY_HAND_SECONDS = 0.005  # where the clock is moved by hand, nobody tells us that it was
_AGAIN = 20  # how often a claim that met others looks again at once


class PostgresStore(Upkeep, Workers):
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
        self._waiting = Waiting(self.database)
        self._woken = 0  # how often claims that wait were told to return
        self._floors = Floors(self._timer)
        self._recovered_us = 0
        self._reclaimed = Reclaimed()
        self._pass = Pass()
        self._ended_us = self._timer.now()
        self._told_of_rights = False

    def _now(self) -> int | None:
        """What the functions take as the instant: None for the server's own clock, which alone counts."""
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
        return lost_replies.added(jobs, answer) if lost or lost_again else answer

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
        named = None if queues is None else sorted(set(queues))
        woken = self._woken
        known = None if tasks is None else array_of(tuple(tasks))
        asked = (
            None if named is None else array_of(tuple(named)),
            known,
            lease_us,
            default_lease_us,
            claim_id,
            *(process or NO_PROCESS),
        )
        plain = limit == 1 and not self._trace
        until, again = self._timer.now() + wait_us, 0  # how long to wait is the caller's affair, and on its clock
        while True:
            floors = self._floors.lent()
            if plain and floors is not None and len(floors[3]) == 1 and named in (None, floors[3]):
                *looked, [queue], [rank], [run_at], [seq] = floors
                rows = self._call("claim_next", owner, *asked, *looked, queue, rank, run_at, seq)
            else:
                rows = self._call("claim", owner, limit, *asked, *places(floors), self._trace)
            now, ended, more, bottom, next_us, found = told(rows[0], floors)
            self._floors.keep(found, lent=floors, bottom=bottom)
            if ended:
                self._note(ended)
            grants = [
                grant
                for row in rows
                for grant in granted(
                    row,
                    owner,
                    claim_id=claim_id,
                    process=process,
                    now=now,
                    lease_us=lease_us,
                    default_us=default_lease_us,
                )
            ]
            if grants:
                return grants
            if more and again < _AGAIN:  # others are deciding about keys right now, or many jobs were parked
                again += 1
                continue
            again = 0
            left = until - self._timer.now()
            if left <= 0 or self._woken != woken:
                return []
            self._pause(left if next_us is None else max(min(left, next_us), 0))

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon: one that listens, after its next poll."""
        self._woken += 1
        self._waiting.wake()

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted."""
        return [grant_of(row) for row in self._read(self.database.statements.claimed, claim_id=claim_id)]

    def _pause(self, us: int) -> None:
        """Wait until something may have changed, up to *us*."""
        if self._clock is not None:
            self._waiting.pause(_POLL_BY_HAND_SECONDS)
        else:
            self._waiting.wait(us)

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        items = as_json([{"id": job_id, "epoch": epoch} for job_id, epoch in holders])
        rows = self._call("check_holders", items, again=True)
        refused = {number: said for number, _, said in rows}
        return [
            refusal_of(job_id, epoch, "check", refused[number]) if number in refused else None
            for number, (job_id, epoch) in enumerate(holders, 1)
        ]

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """
        Move each lease's deadline to now plus its duration; return the new deadlines.

        A lease whose row somebody else has locked is passed over, and asked for again once the others are renewed. If
        it is still locked then, `StoreUnavailable` is raised: the others are renewed all the same.
        """
        reply = self._renew(renewals, wait=False)
        locked = [number for number, value in enumerate(reply) if value is None]
        if locked:
            waited = self._in_parts(
                [renewals[number] for number in locked], lambda part, ms: self._renew(part, wait=True, patience_ms=ms)
            )
            for number, value in zip(locked, waited, strict=True):
                reply[number] = value
        return [value for value in reply if value is not None]

    def _renew(
        self, renewals: Sequence[Renewal], *, wait: bool, patience_ms: int = BATCH_PATIENCE_MS
    ) -> list[int | Refusal | None]:
        items = as_json([{"id": job_id, "epoch": epoch, "lease_us": us} for job_id, epoch, us in renewals])
        rows = self._call("renew", items, wait, patience_ms, self._trace, again=True)
        return [
            at if said is None else refusal_of(renewal.job_id, renewal.epoch, "renew", said)
            for (_, at, said), renewal in zip(rows, renewals, strict=True)
        ]

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """Record that the work moves."""
        return self._in_parts(reports, self._progress)

    def _progress(self, reports: Sequence[Progress], patience_ms: int) -> list[Refusal | None]:
        items = as_json(
            [
                {"id": job_id, "epoch": epoch, "fraction": fraction, "note": note, "checkpoint": checkpoint}
                for job_id, epoch, fraction, note, checkpoint in reports
            ]
        )
        rows, lost = self.database.call_again("progress", items, patience_ms, self._trace, self._now())
        reply: list[Refusal | None] = [None] * len(reports)
        for number, _, said in rows:
            report = reports[number - 1]
            refusal = refusal_of(report.job_id, report.epoch, "progress", said)
            if lost and isinstance(refusal, StaleEpoch):
                raise lost_replies.unknown(refusal)
            reply[number - 1] = refusal
        return reply

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
            return lost_replies.added(jobs, answer) if lost else answer
        return lost_replies.children(refused, jobs, self.job, self.ownerships)

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """
        End each lease as its owner says.

        A batch that meets somebody else's lock is split, so that only who collides waits. If that takes too long,
        `StoreUnavailable` is raised and the others are settled: to say the same again is safe (C27).
        """
        return self._in_parts(settlements, self._settle) if settlements else []

    def _settle(self, settlements: Sequence[Settlement], patience_ms: int) -> list[Refusal | None]:
        left = list(range(len(settlements)))
        if not self._trace and (plain := completions(settlements)) is not None:
            [(done,)] = self._call("complete", *plain, patience_ms, again=True)
            if done is None:
                return [None] * len(settlements)
            done = set(done)
            left = [number for number in left if number + 1 not in done]
        # What is not plain, or not as it should be: one by one.
        reply: list[Refusal | None] = [None] * len(settlements)
        asked = [settlements[number] for number in left]
        items = as_json([settlement(said) for said in asked])
        for number, _, refused in self._call("settle", items, patience_ms, self._trace, again=True):
            said = asked[number - 1]
            reply[left[number - 1]] = refusal_of(said.job_id, said.epoch, said.outcome.value, refused)
        return reply

    def _in_parts(self, items: Sequence[Any], verb: Callable[[Sequence[Any], int], list[T]]) -> list[T]:
        """Run a batch, in ever smaller parts as long as one waits for somebody else's lock; who collides comes last."""
        return in_parts(items, verb, BATCH_PATIENCE_MS, PATIENCE_MS)

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
        lost_replies.concluded(refusal, name, outcome, self.effects)

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
        answer, fenced, *grant = row
        if answer is not None:
            raise why_not(job_id, epoch, Verb.TRANSFER, answer)
        if fenced:
            self._end_fenced(fenced)
        return grant_of(grant)

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
        return self._moved(row, job_id, epoch, verb)

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """Record how an effect in doubt ended; None for "it did not happen"."""
        [row] = self._call("resolve", job_id, epoch, name, by, outcome, note, PATIENCE_MS)
        return self._moved(row, job_id, epoch, "resolve", name=name)

    def _moved(self, row: Row, job_id: str, epoch: int, verb: str, *, name: str = "") -> Job:
        answer, fenced, *job = row
        if answer is not None:
            raise why_not(job_id, epoch, verb, answer, name=name)
        if fenced:
            self._end_fenced(fenced)
        return job_of(job)

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """Have claims take nothing from *queue*; return the queue as it is now."""
        [(now,)] = self._call("pause", queue, by, note, PATIENCE_MS)
        return Queue(queue, now, by, note)

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again."""
        self._call("resume", queue, by, PATIENCE_MS)
        return Queue(queue)

    # The store itself

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, and events that old."""
        [removed] = self._call("prune", keep_us, limit, EVENTS_AT_ONCE, keep_ids_us, PATIENCE_MS)
        return Pruned(*removed)

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        self._taken_back(self._call("reclaim"))
        self._recover()
        self._end_outlived()
        self.transactions.record()
        return self._pass.portion(self._timer.now(), retention, functools.partial(prune_due, self._call, retention))

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; it is issued to nobody."""
        [(epoch,)] = self._call("advance", above, PATIENCE_MS)
        return int(epoch)

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant; an empty list is good news."""
        rows = self.database.ask(self.database.statements.verify, {}, again=True, patient=True)
        return [sentence for (sentence,) in rows]

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
        return self.database.ask(statement, params, again=True)

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        rows = self._read(self.database.statements.job, id=job_id)
        if not rows:
            raise UnknownJob(job_id)
        return job_of(rows[0])

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
        first = 0
        if after is not None:
            rows = self._read(self.database.statements.seq, id=after)
            if not rows:
                raise UnknownJob(after)
            first = rows[0][0]
        statements = self.database.statements
        rows = self._read(
            statements.running_jobs if owner is not None or status is Status.RUNNING else statements.jobs,
            status=None if status is None else status.value,
            queue=queue,
            owner=owner,
            task=task,
            parent=parent,
            after=first,
            limit=limit,
        )
        return [job_of(row) for row in rows]

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the jobs that *search* describes."""
        look = functools.partial(searching.look, self._read, self.database.schema, search)
        return collect(search, limit, cursor, look)

    def ownerships(self, job_id: str) -> list[Ownership]:
        """Return every ownership of the job, oldest first."""
        rows = self._read(self.database.statements.ownerships, id=job_id)
        if not rows:
            raise UnknownJob(job_id)
        return [ownership_of(job_id, row) for row in rows[1:]]

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        rows = self._read(self.database.statements.effects, id=job_id)
        if not rows:
            raise UnknownJob(job_id)
        return [
            Effect(job_id, name, key, epoch, outcome is not None, outcome)
            for name, key, epoch, outcome in rows
            if name is not None
        ]

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

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        total = dict.fromkeys(Status, 0)
        queues: dict[str, dict[str, int]] = {}
        parked: dict[str, dict[str, int]] = {}
        for status, queue, count, task in self._read(self.database.statements.counts):
            if task is not None:
                parked.setdefault(task, {})[queue] = count
                continue
            total[Status(status)] += count
            if queue is not None:
                queues.setdefault(queue, {"pending": 0, "running": 0})[status] = count
        return Counts.of(total, queues, parked)

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        try:
            self.transactions.record(surely=True)
        except LeaseholdError as error:
            log.warning("refusals in callers' transactions could not be recorded: %s", error)
        self.transactions.close()
        self.database.close()
        self._waiting.close()
