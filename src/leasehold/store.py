"""
CONTRACT: the verbs of a store, as numbered clauses.

A store keeps jobs and decides who may work on them. `leasehold.testing.store_contract` checks each clause under its
number, and a store of your own can run it. Arguments arrive checked (`core.checks`, `core.job.new_job`): a store need
not look at them again. Instants and durations are whole microseconds; documents are JSON text.

Verbs take and return lists, so that many leases cost one transaction. In a reply, a refusal stands as a value where its
item stood, and the other items are done.

The promises P1 to P9, which the clauses carry, are in docs/explanation/promises.md. The verbs inside a caller's own
transaction, with their clauses, are `transaction.Transactions`.

Throughout:

C1.   No epoch is issued twice, and every later ownership of a job, and of a lock key, has a greater epoch than all
      earlier ones: over every verb, and over a restart.
C2.   A job is leased to at most one owner at a time, and two running jobs never share a lock key.
C3.   Every write of an owner compares the epoch and writes in one atomic step. A write with any epoch but the current
      one changes nothing, however the owner is named.
C4.   Time only permits a takeover. An owner past its deadline whose job was not taken over may still renew,
      progress, add children and settle, under the same epoch.
C5.   A refused write is `StaleEpoch` with the epoch presented, the current epoch, the current owner and why the
      presented ownership ended; it is `Settled`, with no reason, if its own owner ended it. It is recorded as an
      event of kind `refused` with the same facts; but the check of an owner that has settled the job itself is not,
      since it writes nothing. It also names who moved the job and the note; and of a finished job, its status, when
      it finished and by whom, as far as the record of ownerships says.
C6.   A presented epoch above the highest that the store has issued is refused, and recorded as `alarm`.
C7.   Every unfinished job is in exactly one of: waiting to be claimed, parked (behind a lock key, or behind a task that
      its claimer did not know), leased. `verify` returns a sentence for every violation of this and of C2, and nothing
      else. Lock keys and tasks have namespaces of their own.
C8.   A verb that raises has changed nothing, unless it is `StoreUnavailable` with `outcome_unknown`: then it may have.
C9.   The store's clock is the only one that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .core.backlog import Lately, Oldest
from .core.counts import Counts
from .core.effects import Effect
from .core.job import Added, Grant, Job, NewJob, Progress, Renewal, Settlement, Status
from .core.ownership import Event, LiveLease, Note, Ownership, Process
from .core.queues import Queue
from .core.retention import DEFAULT_RETENTION, KEEP_IDS_US, Retention
from .core.workers import WorkerReport, WorkerStatus
from .errors import StaleEpoch, UnknownJob
from .transaction import Program, Transactions

if TYPE_CHECKING:  # imported on use: a producer needs none of them
    from .core.observations import Observation, Observed
    from .core.search import Page, Search

__all__ = [
    "EVENTS_AT_ONCE",
    "Begun",
    "OpenKey",
    "OpenKeys",
    "Program",
    "Pruned",
    "Refusal",
    "Renewal",
    "Store",
    "Transactions",
    "ids_before",
]

Refusal = StaleEpoch | UnknownJob

EVENTS_AT_ONCE = 10_000  # a bound on what one `prune` removes, so that no verb waits long for it


def ids_before(now: int, keep_ids_us: int | None) -> int:
    """Return the instant before which a job must have finished for its id to be forgotten; None keeps ids for ever."""
    return 0 if keep_ids_us is None else now - keep_ids_us


class Begun(NamedTuple):
    """An effect, and whether the caller is the one that may now bring it about."""

    effect: Effect
    fresh: bool


class Pruned(NamedTuple):
    """How many jobs, events, and ids of jobs pruned earlier a prune has removed."""

    jobs: int
    events: int
    ids: int = 0


class OpenKey(NamedTuple):
    """A key that a job which has ended may still write to; *epoch* is the one that the job ended with."""

    job_id: str
    epoch: int
    guard: str
    key: str


class OpenKeys(NamedTuple):
    """Some of the open keys, and where to go on for the rest."""

    keys: list[OpenKey]
    following: int | None


class Store(Protocol):
    """Keeps jobs and decides who may work on them, by the clauses of this module."""

    @property
    def transactions(self) -> Transactions | None:
        """The verbs inside a caller's own transaction, or None where a store has no database to share."""
        ...

    # Producers

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """
        Keep each job that is new, all in one atomic step; say for each whether this call made it.

        C10.  A job whose id exists is left as it is: the reply has the existing job and `created=False`.
        C11.  A job whose `unique` key belongs to a pending or running job is not added: the reply has that job.
              A finished job gives its key back.
        C12.  The same holds between the jobs of one call, in their order.
        C55.  A job keeps its `meta` as it was added: a reader and every owner get it, and no later verb changes it.
        """
        ...

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
        """
        Lease up to *limit* due jobs to *owner*; wait up to *wait_us* for the first.

        *tasks* are those that the caller can handle, "" for jobs without one; None: all of them.

        C13.  Order: larger priority first, then earlier `run_at`, then insertion; only jobs that are due.
        C14.  A job whose lock key is held is passed over and parked behind the key, as its `Job.parked` says: it is
              never lost, it never holds up the jobs behind it, and it waits to be claimed again once the key is free.
        C15.  The lease lasts *lease_us*, else what the job asks for, else *default_lease_us*.
        C16.  A grant's reason says why the job was free: `claim` the first time, else what freed it.
        C17.  First, what has expired or stalled is reclaimed (see `reclaim`). A waiting claim wakes for an add, for a
              job that becomes due, for one that is parked behind a task that it knows, and for the next deadline.
        C56.  A job with `start_within_us` that was not claimed for the first time within it, counted from when it was
              due, is cancelled in the same way: by the store, with the reason `cancellation`, a new epoch and a note,
              in the event and as `last_error`. Once it was claimed, or moved by an operator, that deadline is void.
        C18.  The leases of one *claim_id* can be asked for with `claimed`, by an owner whose reply was lost.
        C45.  `wake` makes a claim of this store object that waits return soon, with nothing.
        C57.  A due job whose task is not among *tasks* is passed over and parked behind the name of its task, once, and
              its `Job.parked` says by whose claim. That issues no epoch, and counts against no budget. It never holds
              up others: if its lock key is free, the first of its queue that is parked behind the key waits to be
              claimed.
        C58.  A claim that knows the task takes the job from behind it as if it were waiting to be claimed: in the order
              of C13, together with all others, unless its queue is paused. If its lock key is held, it is parked behind
              the key instead (C14).

        Not promised: that the previous owner has stopped. It has only lost the right to write.
        """
        ...

    def wake(self) -> None:
        """Make the claims that wait here, on other threads, return soon (C45)."""
        ...

    def claimed(self, claim_id: str) -> list[Grant]:
        """Return the live leases that the claim *claim_id* granted (C18)."""
        ...

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """
        Return the live lease of *owner* on the job; wait up to *wait_us* for it.

        C19.  `NoLease`, with who holds it instead, if the job is not leased to *owner*, or not by the end of the wait.
              No epoch is issued; a transfer counts as picked up from here on (C61). A waiting call wakes for a
              transfer, and for a claim by that owner; `wake` does not end it.
        """
        ...

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """
        Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first.

        C61.  A transfer is picked up by `lease`, `accept` or a renewal under its epoch, and by nothing else: `job`,
              `jobs`, `ownerships` and this verb show it as it is. A claim is picked up by itself.
        """
        ...

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """
        Pick up those of *transfers* that are still *owner*'s, and return their leases.

        C62.  Each is compared and picked up in one atomic step: its lease then has *claim_id* and *process*, and lasts
              from now on, as does its stall deadline. What has moved since, what is another owner's, and what was
              picked up before is left out, unless that was under the same *claim_id*: so the call can be repeated
              after a lost reply, and of two calls with different ids one gets the lease.
        """
        ...

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each (job id, epoch) None if it is current, else the refusal that a write would meet."""
        ...

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """
        Move each lease's deadline to now plus its duration; return the new deadlines.

        C20.  A renewal moves the deadline and nothing else, the stall deadline least of all. `Job.renewed_us` says when
              that was, or when the lease was granted if it was not renewed; an `accept` counts as a renewal.
        """
        ...

    def progress(self, reports: Sequence[Progress]) -> list[Refusal | None]:
        """
        Record that the work moves.

        C21.  Progress moves the stall deadline to now plus the job's `stall_us`, and not the lease's.
        C22.  What is None stays as it was. A checkpoint is durable on return, and the next owner's grant has it.
        """
        ...

    def add_children(self, job_id: str, epoch: int, jobs: Sequence[NewJob]) -> list[Added]:
        """
        Add *jobs*, whose parent is this one, if *epoch* is current; raise the refusal otherwise.

        C23.  A refused call adds none of them. What exists already is left as it is.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """
        End each lease as its owner says.

        C24.  A completion and its `then` jobs commit together; a refused one adds none.
        C25.  A failure counts an error: the job goes back, due after the settlement's delay, until `max_errors` is
              reached or the owner asked not to retry; then it is failed.
        C26.  A release puts the job back, due after its delay, and counts against no budget; the job keeps the error
              of the release, if it has one, as its last error. Without a delay, a job that goes back keeps its place,
              and is due. A crash (the process that handled the job has died, and the owner says how) counts a reclaim,
              as in C36; the job keeps as its last error how the process ended.
        C27.  The epoch stays the owner's. Repeating the same settlement under the same epoch succeeds and changes
              nothing, whatever has happened since; a different one is refused with `Settled`.
        C28.  Whatever ends a lease frees its lock key, and of each queue the first job parked behind it waits to be
              claimed again.
        """
        ...

    def begin_effect(self, job_id: str, epoch: int, name: str, *, again: bool = False) -> Begun:
        """
        Record the intent of a named effect, if *epoch* is current; raise the refusal otherwise.

        C29.  The first call for a name is `fresh` and gets a key that every later owner gets too. Later calls get
              what is recorded: the outcome if it is known, else an effect in doubt, `fresh` only if *again*.
        """
        ...

    def end_effect(self, job_id: str, epoch: int, name: str, outcome: str | None) -> None:
        """
        Record the outcome of an effect; None for "it did not happen", which clears the intent.

        C30.  Only the current epoch may, and it raises the refusal otherwise. An unknown outcome stays in doubt.
        """
        ...

    def record(self, note: Note) -> None:
        """
        Record what happened at a guarded resource, as an event of the note's kind.

        C64.  `guarded`, the keys that an owner is about to write to, is a write of that owner: only the current epoch
              may, and it raises the refusal otherwise. The other kinds report what has happened elsewhere, and are
              recorded whatever the epoch. Nothing but the event is written, and which keys are open (C67).
        """
        ...

    # Operators: each names the epoch that it saw, and who acts

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
        """
        Give the job to *to* under a new epoch.

        C31.  Every operator's verb is refused with the facts unless *epoch* is the job's current one (0 if it was
              never claimed), issues a new epoch, and is recorded with *by* and *note*.
        C32.  What the job's state forbids is `Conflict`: what the transition table does not list, an effect that is not
              in doubt, a replay whose unique key an unfinished job has. `InvalidArgument` never depends on the state.
        C33.  A transfer to a job whose lock key another job holds is a `Conflict`: P2 has no exception for operators.
        C60.  If *to* is the name of a live worker, or the given name of exactly one, the new owner is that worker,
              under its name; if several live workers were given it, that is a `Conflict` that names them. Any other
              name is the new owner's as it is.
        """
        ...

    def cancel(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """End the job as cancelled; its owner, if any, is refused from now on."""
        ...

    def replay(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """
        Put a finished job back to be claimed, due now.

        C34.  Its budgets start anew; its attempt, checkpoint and effects stay. Its `unique` key must be free.
        """
        ...

    def requeue(self, job_id: str, epoch: int, *, by: str, note: str | None = None) -> Job:
        """
        Take a running job from its owner and put it back to be claimed.

        C48.  It is due now, at its old place in the order of claims, and counts against no budget: errors, reclaims,
              checkpoint and effects stay. The next grant's reason is `manual`. Its owner is refused from now on, with
              who requeued the job and the note.
        """
        ...

    def finish(self, job_id: str, epoch: int, *, by: str, note: str | None = None, result: str | None = None) -> Job:
        """Complete the job by hand; its owner, if any, is refused from now on."""
        ...

    def resolve(
        self, job_id: str, epoch: int, name: str, *, by: str, outcome: str | None, note: str | None = None
    ) -> Job:
        """
        Record how an effect in doubt ended; None for "it did not happen".

        C35.  The next owner gets that outcome, or begins anew. No epoch is issued: ownership does not move.
        """
        ...

    def prune_job(
        self, job_id: str, epoch: int, *, by: str, note: str | None = None, keep_ids_us: int | None = KEEP_IDS_US
    ) -> None:
        """
        Remove this finished job, whenever it finished, with all that is kept of it. Its events go by their age.

        C73.  It is refused with the facts unless *epoch* is the job's current one, as in C31; no epoch is issued. It is
              `Conflict` for an unfinished job, for a child whose parent is kept (C38), for a job with an effect in
              doubt or with open keys (C67), and for one that is pruned already. A chosen id leaves its narrow row, as
              in C52. The event `pruned` is recorded in the same atomic step, with the epoch, *by* and *note*.
        """
        ...

    def pause(self, queue: str, *, by: str, note: str | None = None) -> Queue:
        """
        Have claims take nothing from *queue*; return the queue as it is now.

        C49.  A claim that begins after this has returned takes nothing from *queue*, whether or not it names it: the
              jobs there are passed over, and not parked. Leases on its jobs go on. What is added, retried, released,
              reclaimed, requeued or replayed waits there, and operators' verbs work on it. Claims take the jobs of
              other queues as if the paused ones were not there: also behind the same lock key, and at the same cost
              however many are paused.
        C50.  To pause a paused queue replaces who, when and why; to resume one that is not paused changes nothing.
              Both are recorded, as `paused` and `resumed`, with the queue, *by* and *note*.
        """
        ...

    def resume(self, queue: str, *, by: str) -> Queue:
        """Have claims take from *queue* again; those that wait wake for what is there (C17, C50)."""
        ...

    # Workers

    def report(self, report: WorkerReport) -> None:
        """
        Note that the worker is there, and what it says of itself.

        C59.  `workers` lists it from its first report until `retire`, or for a day after its last report, until the
              next `tend`. It is alive for 30 seconds after a report, on the store's clock. A report wakes no claim and
              moves no lease.
        """
        ...

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended (C59); one that is not known changes nothing."""
        ...

    # The store itself

    def reclaim(self) -> list[Ownership]:
        """
        Take back what expired (`timeout`), does not progress (`stall`), or whose process is gone (`recovery`).

        C36.  Each counts a reclaim and gets a new epoch and no owner. The job is due at once; one reclaim more than
              `max_reclaims`, and it is failed with that reason. A transfer that was not picked up counts none.
        C37.  Recovery takes back only from a process whose death is proved; without one recorded, there is only time.
        """
        ...

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """
        Return the job id and epoch of each ownership that claims and reclaims of this store object have ended.

        C51.  Each is returned once, to whichever caller asks first; the oldest are dropped after 10,000. What was ended
              by a call whose reply was lost may be missing.
        """
        ...

    def open_keys(self, guards: Collection[str], *, after: int = 0, limit: int = 1_000) -> OpenKeys:
        """
        Return keys of *guards* whose job has ended without a successor that would seal them.

        C67.  A key that `guarded` names is open until a `sealed` note of the job under a higher epoch names it. The job
              has failed, was cancelled, or was completed under another epoch than the one of the note. A key is
              forgotten if the owner that recorded it has completed the job. No verb prunes a job that has open keys,
              of whatever guard: its last owner could write to them for good.
        C68.  Looks at the jobs behind *after* which have such keys, whatever their guards: at no more than have *limit*
              keys together. `following` is where the next call goes on; None at the end.
        """
        ...

    def prune(self, keep_us: int, *, limit: int = 1_000, keep_ids_us: int | None = KEEP_IDS_US) -> Pruned:
        """
        Remove up to *limit* jobs that finished more than *keep_us* ago, oldest first, with all that is kept of them.
        Events that old go too, at most `EVENTS_AT_ONCE` of them. Return how many of each.

        C38.  Never an unfinished job, never one with open keys (C67), and never a child before its parent: a replay of
              the parent would add it again. A job with an effect in doubt goes too: to prune by hand is to decide so.
              The epoch counter stays, and so do the `guarded` notes of a job that is unfinished or has open keys.
        C52.  A job whose id the caller chose (`NewJob.chosen`) leaves a narrow row until *keep_ids_us* after its end,
              None for ever: its id, status, epoch and `finished_at`. An add of that id is left as it is (C10), a late
              owner is refused with these facts (C5), and `Settled` under the epoch that ended the job; every
              operator's verb is `Conflict`. `job` shows it, with `pruned`; `jobs` and `counts` do not.
        """
        ...

    def tend(self, retention: Retention = DEFAULT_RETENTION) -> bool:
        """
        Do the upkeep that no claim does, as far as it is due; return whether more of it is due at once.

        C53.  Takes back what expired or stalled, and at most once a second what belongs to a process that is gone (see
              `reclaim`), and ends what such a process has left open. A claim does only the former.
        C54.  Prunes by *retention*, in portions, and each minute at most goes over all again: what finished longer ago
              than its status is kept, or than the job itself asks for (`Options.keep_us`). Kept in any case: what C38
              keeps, a job with an effect in doubt, and the events of an unfinished job. No other verb prunes.
        """
        ...

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """
        Record that *found* is what there is to be observed, by a look that began at *round*; return whether it counts.

        C72.  The round is compared and raised in the same atomic step as the rest is written: a look that began before
              another one was recorded changes nothing, and returns False. So over many processes each observation is
              recorded once as `observed`, when it was not there the last time, and once as `cleared`, when it is no
              longer there. No job and no lease changes.
        """
        ...

    def advance(self, above: int = 0) -> int:
        """Return a new epoch, above every epoch issued so far, the clock and *above*; no owner gets it (C1)."""
        ...

    def verify(self) -> list[str]:
        """Return a sentence for every broken invariant (C7); an empty list is good news."""
        ...

    # Readers

    def job(self, job_id: str) -> Job:
        """Return the job, or raise `UnknownJob`."""
        ...

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
        ...

    def search(self, search: Search, *, limit: int, cursor: str | None = None) -> Page:
        """
        Return a page of the jobs that *search* describes, at most *limit* of them, beginning behind *cursor*.

        C65.  Finished jobs of one status come in the order of their end, jobs whose ids begin alike in the order of
              their ids, and all others in that of their insertion; newest or oldest first. Going on with the cursor of
              each page lists every job that fits all the while, once.
        C66.  Running jobs, and finished jobs of one status, are found by an index. For what is compared job by job, at
              most 10,000 jobs are looked at: then the page is not `complete`, and has the cursor to go on. A payload
              without the path that is asked for does not fit, whatever its shape. No claim waits for a search.
        """
        ...

    def ownerships(self, job_id: str) -> list[Ownership]:
        """
        Return every ownership of the job, oldest first.

        C39.  Each has its epoch, owner, instant of grant, deadline, how it began and, once ended, how, by whom and
              with what note.
        """
        ...

    def effects(self, job_id: str) -> list[Effect]:
        """Return the named effects of the job."""
        ...

    def events(
        self, *, job_id: str | None = None, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """
        Return what was recorded, oldest first, beginning behind the event numbered *after*.

        C40.  What is not an owner's ordinary work is always recorded, as `refused`, `alarm`, `retried`, `released`,
              `crashed`, `failed`, `reclaimed`, `transferred`, `cancelled`, `finished`, `replayed`, `requeued`,
              `resolved`, `pruned` (by its id), `paused`, `resumed`, `advanced`, `guarded`, `doubted`, `unsealed`,
              `sealed`, `bulk`, `break-glass`, `observed` or `cleared`. A store that traces records the rest too, as
              `added`, `claimed`, `renewed`, `progressed`, `completed`.
        """
        ...

    def identity(self) -> str:
        """
        Return the id of this store.

        C63.  It is made with the store and stays: every process, and every later time, gets the same. Guards write it
              beside the epochs that this store has issued.
        """
        ...

    def queues(self) -> list[Queue]:
        """Return the queues that are paused, by name."""
        ...

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name (C59)."""
        ...

    def counts(self) -> Counts:
        """Return how many jobs stand where."""
        ...

    def oldest(self) -> list[Oldest]:
        """
        Return since when the oldest due job of each queue waits, by queue.

        C69.  Of each queue with a due job there is one row with the earliest `run_at` among its due jobs: those that
              wait to be claimed, in a paused queue too, and those that are parked. A job that is not due does not
              count. There is one more row for each task behind which due jobs of the queue are parked. A few rows are
              read for each queue, priority, task and held lock key, however many jobs wait. Of jobs that have become
              due since a claim or a `tend` looked last, the first 10,000 count.
        """
        ...

    def lately(self) -> Lately:
        """
        Return how many jobs of each queue were added and how many have finished within the last five minutes.

        C70.  It is exact for up to 2,000 jobs each way. Of more, a sample of 2,000 is split by queue; and if more than
              10,000 have finished (on the memory store: or were added), only the last 10,000 are looked at, and the
              time since the first of them. A job that was pruned meanwhile does not count, and a replayed one counts
              as added once.
        """
        ...

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then (C72)."""
        ...

    def leases(self) -> list[LiveLease]:
        """
        Return every lease that lasts, by insertion of its job.

        C71.  Each has when its owner renewed it last, and when its work moved last, as `job` says.
        """
        ...

    def close(self) -> None:
        """Let go of every resource; later verbs raise `StoreUnavailable`."""
        ...
