"""What must be true after every step, whatever the stores agree on: the promises, as functions of two snapshots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from leasehold.core.backlog import Lately
from leasehold.core.counts import Counts
from leasehold.core.effects import Effect
from leasehold.core.job import Added, Grant, Job, Status
from leasehold.core.lifecycle import FINISHED
from leasehold.core.ownership import Event, LiveLease, Ownership, Reason
from leasehold.core.queues import Queue
from leasehold.core.workers import WorkerStatus
from leasehold.errors import LeaseholdError, Settled, StaleEpoch, UnknownJob
from leasehold.store import Begun, Store

T = TypeVar("T")

BY_OWNER = {"done", "failed", "retry", "release"}  # how an ownership ends when its own owner settles
# And claims, transfers, exhausted jobs.
ISSUING = {"reclaimed", "cancelled", "replayed", "requeued", "finished", "advanced"}


@dataclass(frozen=True)
class Snapshot:
    """All that readers see of a store at one moment; jobs in the order of their insertion."""

    now: int
    jobs: dict[str, Job]
    ownerships: dict[str, list[Ownership]]
    effects: dict[str, list[Effect]]
    events: list[Event]
    counts: Counts
    queues: list[Queue]
    workers: list[WorkerStatus]
    leases: list[LiveLease]
    lately: Lately

    @classmethod
    def of(cls, store: Store, now: int) -> Snapshot:
        """
        Read everything, but for what a job is parked behind: how far a claim looks ahead is its store's affair.

        Whatever is said of that must fit the job (C14, C57).
        """
        seen = store.jobs()
        for job in seen:
            if job.parked is not None:
                assert (job.status, job.run_us <= now) == (Status.PENDING, True), job
                assert job.parked.behind == (job.lock if job.parked.kind == "lock" else job.task or ""), job.parked
        jobs = {job.id: plain(job) for job in seen}
        counts = store.counts()
        parked = Counter((job.task or "", job.queue) for job in seen if job.parked and job.parked.kind == "task")
        assert {
            (task, queue): count for task, queues in counts.parked.items() for queue, count in queues.items()
        } == parked
        due: dict[str, int] = {}
        for job in seen:
            if job.status is Status.PENDING and job.run_us <= now:
                due[job.queue] = min(due.get(job.queue, now), job.run_us)
        assert {row.queue: row.since_us for row in store.oldest() if row.task is None} == due
        return cls(
            now,
            jobs,
            {job_id: store.ownerships(job_id) for job_id in jobs},
            {job_id: store.effects(job_id) for job_id in jobs},
            store.events(),
            counts._replace(parked={}),
            store.queues(),
            store.workers(),
            store.leases(),
            store.lately(),
        )

    def may_write(self, job_id: str, epoch: int) -> bool:
        """Whether *epoch* is the current one of a running job. No deadline is looked at (P4)."""
        job = self.jobs.get(job_id)
        return job is not None and job.status is Status.RUNNING and job.epoch == epoch

    def paused(self) -> set[str]:
        """The queues that claims pass over."""
        return {queue.name for queue in self.queues}

    def held(self) -> set[str]:
        """The lock keys of the running jobs."""
        return {job.lock for job in self.jobs.values() if job.status is Status.RUNNING and job.lock is not None}

    def due(self) -> list[Job]:
        """The jobs that may be claimed now, if their keys are free, in the order of claims."""
        due = [job for job in self.jobs.values() if job.status is Status.PENDING and job.run_us <= self.now]
        return sorted(due, key=lambda job: self.rank(job.id))

    def rank(self, job_id: str) -> tuple[int, int, int]:
        """The place of the job in the order of claims."""
        job = self.jobs[job_id]
        return -job.priority, job.run_us, list(self.jobs).index(job_id)


@dataclass
class Step:
    """What one step was answered, and what it may therefore have changed."""

    granted: list[Grant] = field(default_factory=list)
    refusals: list[StaleEpoch] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)  # jobs that may differ from before
    added: set[str] = field(default_factory=set)  # jobs that may be new
    pruned: set[str] = field(default_factory=set)
    taken_back: dict[str, Reason] = field(default_factory=dict)
    acts: list[tuple[str, str, str, str | None]] = field(default_factory=list)  # kind, job, by, note


@dataclass
class Ledger:
    """Every epoch ever issued, by whom it was seen, and who was last granted each job."""

    highest: int = 0
    issued: list[tuple[str, int]] = field(default_factory=list)  # to nobody, too
    grants: list[tuple[str, int]] = field(default_factory=list)
    holder: dict[str, tuple[int, str]] = field(default_factory=dict)
    by_lock: dict[str, int] = field(default_factory=dict)
    events_seen: int = 0


def answer(verb: Callable[[Store], T], store: Store) -> T | LeaseholdError:
    """What *store* answers, a refusal as a value."""
    try:
        return verb(store)
    except LeaseholdError as error:
        return error


def plain(said: Any) -> Any:
    """
    An answer in a form that two stores share.

    Epochs stay as they are: both stores draw them by one rule from clocks that show the same. An effect's key is
    left out, since it also names the store.
    """
    match said:
        case StaleEpoch():
            return type(said), said.job_id, said.presented, said.current, said.owner, said.reason, said.verb
        case LeaseholdError():
            return type(said), str(said)
        case Begun(effect, fresh):
            return plain(effect), fresh
        case Effect():
            return said._replace(key="")
        case Job():
            return replace(said, parked=None)
        case Added(job, created):
            return plain(job), created
        case list():
            return [plain(one) for one in said]
    return said


def same(memory: object, other: object) -> None:
    """Both stores say the same."""
    assert memory == other, f"they disagree:\n  memory: {memory!r}\n  other: {other!r}"


def same_state(memory: Snapshot, other: Snapshot) -> None:
    """Both stores show the same: jobs in the same order, and events as often, in whatever order."""
    if memory.jobs != other.jobs:  # a job shows only its outline
        same([asdict(job) for job in memory.jobs.values()], [asdict(job) for job in other.jobs.values()])
    same(list(memory.jobs), list(other.jobs))
    same(memory.ownerships, other.ownerships)
    same(plain(list(memory.effects.values())), plain(list(other.effects.values())))
    here, there = (Counter(_recorded(event) for event in snapshot.events) for snapshot in (memory, other))
    same(here - there, there - here)
    same(memory.counts, other.counts)
    same(memory.queues, other.queues)
    same(memory.workers, other.workers)
    same(memory.leases, other.leases)
    same(memory.lately, other.lately)


def _recorded(event: Event) -> tuple[object, ...]:
    # 1 and 1.0 are one number, in JSON and here.
    facts = {name: float(fact) if isinstance(fact, int | float) else fact for name, fact in event.facts.items()}
    return event.at_us, event.kind, event.job_id, event.epoch, event.owner, json.dumps(facts, sort_keys=True)


def p1_epochs_only_rise(ledger: Ledger, before: Snapshot, after: Snapshot, step: Step) -> None:
    """Every epoch of this step is above all that were issued before it, and none is issued twice."""
    recent = [event for event in after.events if event.number > ledger.events_seen]
    exhausted = [event for event in recent if event.kind == "failed" and "reason" in event.facts]
    nobodys = [event for event in recent if event.kind in ISSUING] + exhausted
    issued = [(event.job_id or "", event.epoch or 0) for event in nobodys]
    granted = [(grant.spec.id, grant.epoch) for grant in step.granted]
    epochs = sorted(epoch for _, epoch in issued + granted)
    assert len(set(epochs)) == len(epochs), f"issued twice: {epochs}"
    assert not epochs or epochs[0] > ledger.highest, f"{epochs} after {ledger.highest}"

    for grant in step.granted:
        ledger.holder[grant.spec.id] = grant.epoch, grant.owner
        if grant.spec.lock is not None:
            assert grant.epoch > ledger.by_lock.get(grant.spec.lock, 0)
            ledger.by_lock[grant.spec.lock] = grant.epoch
    for job_id, job in after.jobs.items():
        was = before.jobs[job_id].epoch if job_id in before.jobs else 0
        assert job.epoch == was or (job_id, job.epoch) in issued + granted, f"{job}: nobody was told of its epoch"
        assert job.epoch >= was, f"{job} was at {was}"
    ledger.highest = max([ledger.highest, *epochs])
    ledger.issued += issued + granted
    ledger.grants += granted


def p2_one_owner(ledger: Ledger, after: Snapshot) -> None:
    """A running job belongs to its last grant, and shares its lock key with no other."""
    running = [job for job in after.jobs.values() if job.status is Status.RUNNING]
    for job in running:
        assert ledger.holder[job.id] == (job.epoch, job.owner), f"{job} was granted to {ledger.holder[job.id]}"
    keys = [job.lock for job in running if job.lock is not None]
    assert len(keys) == len(set(keys)), f"a lock is held twice: {keys}"


def p3_only_the_current_epoch_writes(before: Snapshot, after: Snapshot, step: Step) -> None:
    """Nothing has changed but what an accepted write, or a recorded transfer, was about."""
    assert set(before.jobs) - set(after.jobs) == step.pruned
    for job_id in set(after.jobs).intersection(before.jobs) - step.moved:
        assert after.jobs[job_id] == before.jobs[job_id]
        assert after.ownerships[job_id] == before.ownerships[job_id]
        assert after.effects[job_id] == before.effects[job_id]


def p5_every_hand_over_says_why(before: Snapshot, after: Snapshot, step: Step) -> None:
    """Each ownership begins for the reason that ended the one before, or by hand; the store's own are foretold."""
    for job_id, ownerships in after.ownerships.items():
        assert [o.epoch for o in ownerships] == sorted({o.epoch for o in ownerships})
        ended: str = Reason.CLAIM
        for ownership in ownerships:
            assert ownership.began in (ended, Reason.MANUAL), f"{ownership} after {ended}"
            assert (ownership.ended is None) == (
                ownership is ownerships[-1] and after.may_write(job_id, ownership.epoch)
            )
            assert (ownership.by is None) == (ownership.ended is None)
            ended = ownership.ended or ""
        was = {o.epoch for o in before.ownerships.get(job_id, []) if o.ended is not None}
        for ownership in ownerships:
            if ownership.by == "leasehold" and ownership.epoch not in was:
                assert ownership.ended == step.taken_back.pop(job_id)
    assert not step.taken_back, f"still leased, though overdue: {step.taken_back}"


def p6_nothing_is_lost(before: Snapshot, after: Snapshot, broken: Sequence[str]) -> None:
    """A job leaves `running` by an ownership that ended on record; every unfinished job is in one place."""
    assert not broken
    for job_id, job in before.jobs.items():
        if job.status is Status.RUNNING and not after.may_write(job_id, job.epoch):
            [left] = [o for o in after.ownerships[job_id] if o.epoch == job.epoch]
            assert left.ended is not None
            assert left.ended_us == after.now
    tally = Counter(job.status for job in after.jobs.values())
    assert after.counts[:5] == tuple(tally[status] for status in Status)
    assert after.counts.queues == {
        queue: {status: sum(1 for job in jobs if job.status == status) for status in ("pending", "running")}
        for queue in sorted({job.queue for job in after.jobs.values() if job.status not in FINISHED})
        if (jobs := [job for job in after.jobs.values() if job.queue == queue])
    }


def p7_nothing_follows_a_refused_completion(before: Snapshot, after: Snapshot, step: Step) -> None:
    """Whatever is new was added by a write that was accepted."""
    assert set(after.jobs) - set(before.jobs) <= step.added


def p8_operators_are_recorded(ledger: Ledger, after: Snapshot, step: Step) -> None:
    """Every manual verb leaves an event with who acted and why, under an epoch of its own."""
    recent = [event for event in after.events if event.number > ledger.events_seen]
    for kind, job_id, by, note in step.acts:
        [event] = [event for event in recent if (event.kind, event.job_id) == (kind, job_id)]
        assert (event.facts["by"], event.facts.get("note")) == (by, note)
        assert event.epoch == after.jobs[job_id].epoch


def p9_the_loser_is_told(ledger: Ledger, after: Snapshot, step: Step) -> None:
    """The refusals of this step, and no others, are on record with their facts; one from the future raises an alarm."""
    recent = [event for event in after.events if event.number > ledger.events_seen]
    recorded = [r for r in step.refusals if not (r.verb == "check" and isinstance(r, Settled))]  # C5
    told = Counter((r.job_id, r.presented, r.current, r.owner, r.reason, r.verb) for r in recorded)
    assert _refusals(recent, "refused") == told
    alarming = {facts: times for facts, times in told.items() if facts[1] > ledger.highest}
    assert _refusals(recent, "alarm") == alarming


def _refusals(events: list[Event], kind: str) -> Counter[tuple[object, ...]]:
    return Counter(
        (e.job_id, e.facts["presented"], e.epoch, e.owner, e.facts.get("reason"), e.facts["verb"])
        for e in events
        if e.kind == kind
    )


def refused_with_the_facts(refusal: object, before: Snapshot, job_id: str, presented: int) -> None:
    """The answer to a write, or to an operator, with any epoch but the current one."""
    job = before.jobs.get(job_id)
    if job is None:
        assert isinstance(refusal, UnknownJob), f"{refusal!r} for a job that does not exist"
        return
    held = next((o for o in before.ownerships[job_id] if o.epoch == presented), None)
    ended = None if held is None else held.ended
    # A crash that its owner reports is a settlement, too; recovery by the store is not.
    settled = ended in BY_OWNER or (held is not None and ended == Reason.RECOVERY and held.by == held.owner)
    reason = None if settled else Reason(ended) if ended else job.reason
    assert type(refusal) is (Settled if settled else StaleEpoch), f"{refusal!r} for epoch {presented} of {job}"
    assert (refusal.job_id, refusal.presented) == (job_id, presented)
    assert (refusal.current, refusal.owner, refusal.reason) == (job.epoch, job.owner, reason)
