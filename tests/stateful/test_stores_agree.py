"""
Random verbs on a SQLite store and a memory store side by side: they answer the same, and keep every promise.

Several owners add, claim, renew, progress, settle, bring about effects and die; operators transfer, cancel, finish,
replay and resolve; time jumps; the SQLite file is reopened. Epochs are presented that are current, ended, another
job's, from the future, or of no job at all. Each answer is foretold from what readers saw before the step, and
`promises` looks at everything after it. At the end of a run, every job that is left can still be claimed and completed.

What this is worth was tried by breaking the stores on purpose. In one store, the answers or the states disagree
(`same`, `same_state`). In both alike, the check named here goes red:

    settle accepts any epoch while the job is leased       refused_with_the_facts, or same_state
    the end of a lease wakes nobody behind its lock        p6_nothing_is_lost
    only the first queue behind a lock is woken            p6_nothing_is_lost
    renew moves the stall deadline                         p5_every_hand_over_says_why ("still leased, though overdue")
    reclaim draws no epoch                                 p1_epochs_only_rise
    a different settlement passes for a repeated one       settled
    a refused completion adds its children                 p7_nothing_follows_a_refused_completion
    a refusal is not recorded                              p9_the_loser_is_told
    operators need not name the current epoch              refused_with_the_facts
    the record of a transfer drops the note                p8_operators_are_recorded

and in one store only:

    an expired lease may not write (P4)                    same
    a transfer ignores who holds the lock (P2)             same
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.stateful import promises
from tests.stateful.promises import Ledger, Snapshot, Step

from leasehold.core.job import Grant, NewJob, Outcome, Progress, Settlement, Status, new_child, new_job
from leasehold.core.lifecycle import FINISHED
from leasehold.core.ownership import Process, Reason
from leasehold.core.retry import Retry
from leasehold.errors import InvalidArgument, LeaseholdError, StaleEpoch, UnknownJob
from leasehold.process import this_process
from leasehold.store import Begun, Renewal, Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

T = TypeVar("T")

SECOND = 1_000_000
IDS = tuple("abcdefghijklmnop")
CHILDREN = ("x", "y")
POOL = (*IDS, *(f"{parent}/{child}" for parent in IDS for child in CHILDREN))
OWNERS = ("ann", "bob", "cy")
QUEUES = ("default", "mail")


class Aim(NamedTuple):
    """Which job, under which epoch: resolved when the step runs, so that most steps hit something."""

    at: str
    n: int


class Saying(NamedTuple):
    """A settlement, but for whom it is about."""

    aim: Aim
    outcome: Outcome
    word: str
    then: tuple[NewJob, ...]
    retry: bool
    delay_us: int


def specs(ids: tuple[str, ...]) -> st.SearchStrategy[NewJob]:
    """Jobs that often collide: few ids, keys, queues and instants."""
    return st.builds(
        new_job,
        st.sampled_from(ids),
        st.sampled_from([None, 1]),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 5]),
        delay_seconds=st.sampled_from([None, None, None, None, 7, 40]),
        lock=st.sampled_from([None, None, "k", "l"]),
        unique=st.sampled_from([None, None, "u"]),
        retry=st.builds(Retry, max_errors=st.integers(1, 3), max_reclaims=st.integers(0, 3)),
        lease_seconds=st.sampled_from([None, 10]),
        stall_seconds=st.sampled_from([None, 4, 4]),
    )


def aims(*more: str) -> st.SearchStrategy[Aim]:
    """Mostly the current epoch; else one that ended, one from the future, another job's, none, or no job at all."""
    at = ["current"] * 10 + ["granted", "granted", "issued", "above", "crossed", "zero", "unknown", *more]
    return st.builds(Aim, st.sampled_from(at), st.integers(0, 7))


children = st.lists(specs(CHILDREN), max_size=2).map(tuple)
sayings = st.builds(
    Saying,
    aims("again", "again"),
    st.sampled_from([Outcome.COMPLETE, *Outcome]),
    st.sampled_from(["1", "2"]),
    children,
    st.booleans() | st.just(True),
    st.sampled_from([0, 0, 7 * SECOND]),
)
owners = st.sampled_from(OWNERS)
lasting = st.sampled_from([None, None, 3 * SECOND, 60 * SECOND])
notes = st.sampled_from([None, "because"])
effects = st.sampled_from(["charge", "charge", "mail"])
outcomes = st.sampled_from([None, "1", "null"])
owned = precondition(lambda self: bool(self.ledger.grants))


class StoresAgree(RuleBasedStateMachine):
    """Asks both stores the same, foretells the answer from what readers saw before, and looks at everything after."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="leasehold-")
        self.clocks = ManualClock(), ManualClock()
        self.ledger = Ledger()
        self.stalls: dict[str, int] = {}  # when each running job stalls: no reader shows it
        self.said: list[Settlement] = []  # and accepted
        self.keys: list[dict[tuple[str, str], str]] = [{}, {}]
        self.step = Step()
        self.sound = False

    @initialize(trace=st.booleans(), jobs=st.lists(specs(IDS), min_size=3, max_size=8), limit=st.integers(1, 4))
    def begin(self, trace: bool, jobs: list[NewJob], limit: int) -> None:
        """Some jobs, and some of them claimed: a run that draws neither rule often would have nothing to talk about."""
        self.trace = trace
        self.stores: list[Store] = [MemoryStore(clock=self.clocks[0], trace=trace), self.open_sqlite()]
        assert self.stores[1].verify() == []  # opens the file, so that both stores begin at the same instant
        self.seen = Snapshot.of(self.stores[0], self.now)
        self.add(jobs)
        self.look()
        self.claimed("ann", limit, None, None, None)

    def open_sqlite(self) -> SqliteStore:
        path = Path(self.folder.name, "jobs.db")
        return SqliteStore(str(path), clock=self.clocks[1], trace=self.trace, synchronous="normal")

    @property
    def now(self) -> int:
        return self.clocks[0].now()

    def ask(self, verb: Callable[[Store], T]) -> T | LeaseholdError:
        """Ask both, hold the answers against each other, and return one of them."""
        self.sound = False
        memory, sqlite = (promises.answer(verb, store) for store in self.stores)
        promises.same(promises.plain(memory), promises.plain(sqlite))
        return memory

    def done(self, verb: Callable[[Store], T]) -> T:
        """Ask for what is never refused."""
        answer = self.ask(verb)
        assert not isinstance(answer, LeaseholdError), f"refused: {answer!r}"
        return answer

    def look(self) -> None:
        """After a step: both stores show the same, and the promises hold."""
        before, step, ledger = self.seen, self.step, self.ledger
        after, other = (Snapshot.of(store, self.now) for store in self.stores)
        promises.same_state(after, other)
        promises.p9_the_loser_is_told(ledger, after, step)
        promises.p8_operators_are_recorded(ledger, after, step)
        promises.p1_epochs_only_rise(ledger, before, after, step)
        promises.p2_one_owner(ledger, after)
        promises.p3_only_the_current_epoch_writes(before, after, step)
        promises.p5_every_hand_over_says_why(before, after, step)
        promises.p6_nothing_is_lost(before, after, [said for store in self.stores for said in store.verify()])
        promises.p7_nothing_follows_a_refused_completion(before, after, step)
        for keys, snapshot in zip(self.keys, (after, other), strict=True):
            for effect in (effect for found in snapshot.effects.values() for effect in found):
                assert keys.setdefault((effect.job_id, effect.name), effect.key) == effect.key  # C29
        ledger.events_seen = max([ledger.events_seen, *(event.number for event in after.events)])
        self.seen, self.step, self.sound = after, Step(), True

    @invariant()
    def everything_holds(self) -> None:
        self.look()

    # Who is meant

    def meant(self, aim: Aim, *, running: bool = True) -> tuple[str, int]:
        jobs = list(self.seen.jobs.values())
        at = {
            "granted": self.ledger.grants,
            "issued": self.ledger.issued,
            "again": [(said.job_id, said.epoch) for said in self.said],
        }.get(aim.at)
        if at:
            return at[-1 - aim.n % len(at)]
        absent = [job_id for job_id in (*POOL, "nobody") if job_id not in self.seen.jobs]
        if aim.at == "unknown" or not jobs:
            return absent[aim.n % len(absent)], aim.n
        jobs = ([job for job in jobs if job.status is Status.RUNNING] if running else []) or jobs
        job, other = jobs[aim.n % len(jobs)], jobs[(aim.n + 1) % len(jobs)]
        epochs = {"above": max(self.ledger.highest, self.now) + 1 + aim.n, "crossed": other.epoch, "zero": 0}
        return job.id, epochs.get(aim.at, job.epoch)

    def judged(self, job_id: str, epoch: int, answer: object) -> bool:
        """Whether a write was accepted, which must be iff the epoch is current: P3, P4 and P9."""
        if self.seen.may_write(job_id, epoch):
            assert not isinstance(answer, StaleEpoch | UnknownJob), f"the current owner was refused: {answer!r}"
            return True
        promises.refused_with_the_facts(answer, self.seen, job_id, epoch)
        if isinstance(answer, StaleEpoch):
            self.step.refusals.append(answer)
        return False

    # Time and the process

    @rule(seconds=st.sampled_from([0.000001, 1, 1, 4, 4, 7, 11, 31]))
    def pass_time(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)

    def restart(self) -> None:
        """A process that starts now sees what the last one left (C1)."""
        self.stores[1].close()
        self.stores[1] = self.open_sqlite()

    # Producers

    @rule(jobs=st.lists(specs(IDS), min_size=1, max_size=4))
    def add(self, jobs: list[NewJob]) -> None:
        self.step.added = {job.id for job in jobs}
        for job, added in zip(jobs, self.done(lambda store: store.add(jobs)), strict=True):
            assert added.job.id == job.id or (added.job.unique == job.unique is not None and not added.created)
            assert added.created or added.job.id in self.seen.jobs or added.job.id in self.step.added

    # Owners

    def overdue(self) -> dict[str, Reason]:
        """What a claim or a reclaim must take back now: C17, C36."""
        overdue: dict[str, Reason] = {}
        for job in self.seen.jobs.values():
            if job.expires_us is not None and job.expires_us <= self.now:
                overdue[job.id] = Reason.TIMEOUT
            elif job.expires_us is not None and self.stalls.get(job.id, self.now + 1) <= self.now:
                overdue[job.id] = Reason.STALL
        return overdue

    def claimed(
        self, owner: str, limit: int, queues: list[str] | None, lease_us: int | None, process: Process | None
    ) -> None:
        overdue = self.overdue()
        grants = self.done(
            lambda store: store.claim(
                owner, limit=limit, queues=queues, lease_us=lease_us, claim_id=f"claim of {owner}", process=process
            )
        )
        self.step.taken_back, self.step.granted = dict(overdue), grants
        self.step.moved = {*overdue, *(grant.spec.id for grant in grants)}
        for grant in grants:
            job = self.seen.jobs[grant.spec.id]
            assert job.run_us <= self.now or job.id in overdue
            assert grant.reason == overdue.get(job.id, job.reason or Reason.CLAIM)  # C16
            assert grant.lease_us == (lease_us or job.spec.lease_us or 30 * SECOND)  # C15
            assert (grant.granted_us, grant.expires_us) == (self.now, self.now + grant.lease_us)
            assert grant.checkpoint == job.checkpoint_document  # C22
            self.moves(grant.spec)
        self.first_come_first_served([grant.spec.id for grant in grants], limit, queues)

    def moves(self, spec: NewJob) -> None:
        """A lease begins, or the work moves: the stall deadline runs from here."""
        self.stalls.pop(spec.id, None)
        if spec.stall_us is not None:
            self.stalls[spec.id] = self.now + spec.stall_us

    def first_come_first_served(self, granted: list[str], limit: int, queues: list[str] | None) -> None:
        """Grants go by rank, and what was due and free is left waiting only behind a full batch (C13, C14)."""
        after = Snapshot.of(self.stores[0], self.now)
        ranks = [after.rank(job_id) for job_id in granted]
        assert ranks == sorted(ranks)
        firsts = set[tuple[str | None, str]]()
        for job in after.due():
            # Behind a key that is free, the first of each queue must be waiting to be claimed, and only that one.
            first = job.lock is None or (job.lock not in after.held() and (job.lock, job.queue) not in firsts)
            firsts.add((job.lock, job.queue))
            if first and (queues is None or job.queue in queues):
                assert len(granted) == limit, f"{job} was free and not claimed"
                assert after.rank(job.id) > ranks[-1], f"{job} was passed over"

    @rule(
        owner=owners,
        limit=st.integers(1, 4),
        queues=st.none() | st.lists(st.sampled_from(QUEUES), max_size=2),
        lease_us=lasting,
        recorded=st.booleans(),
    )
    def claim(self, owner: str, limit: int, queues: list[str] | None, lease_us: int | None, recorded: bool) -> None:
        self.claimed(owner, limit, queues, lease_us, this_process() if recorded else None)

    @precondition(lambda self: this_process() is not None)
    @rule(limit=st.integers(1, 3), moves=st.booleans())
    def claim_and_die(self, limit: int, moves: bool) -> None:
        """
        An owner's process is gone: what it still holds is recovered, and not what was moved to somebody else.

        In one step, because a claim in between may look for dead processes or not: it does so about once a second.
        """
        mine = this_process()
        assert mine is not None
        self.claimed("dee", limit, None, None, mine._replace(started=mine.started + 1))
        held = [grant.spec.id for grant in self.step.granted]
        self.look()
        if moves and held:
            self.transferred(held[0], self.seen.jobs[held.pop(0)].epoch, "bob", None, None)
            self.look()
        self.taken_back(dict.fromkeys(held, Reason.RECOVERY))

    @owned
    @rule(aimed=st.lists(aims(), min_size=1, max_size=3))
    def check(self, aimed: list[Aim]) -> None:
        holders = [self.meant(aim) for aim in aimed]
        for (job_id, epoch), answer in zip(holders, self.done(lambda store: store.check(holders)), strict=True):
            self.judged(job_id, epoch, answer)

    @owned
    @rule(aimed=st.lists(st.tuples(aims(), lasting), min_size=1, max_size=3))
    def renew(self, aimed: list[tuple[Aim, int | None]]) -> None:
        renewals = [Renewal(*self.meant(aim), lease_us) for aim, lease_us in aimed]
        for renewal, answer in zip(renewals, self.done(lambda store: store.renew(renewals)), strict=True):
            if self.judged(renewal.job_id, renewal.epoch, answer):
                self.step.moved.add(renewal.job_id)
                assert renewal.lease_us is None or answer == self.now + renewal.lease_us

    @owned
    @rule(
        aimed=st.lists(
            st.tuples(
                aims(), st.sampled_from([None, 0.25, 1.0]), notes, st.sampled_from([None, '{"page":1}', '{"page":2}'])
            ),
            min_size=1,
            max_size=3,
        )
    )
    def progress(self, aimed: list[tuple[Aim, float | None, str | None, str | None]]) -> None:
        reports = [Progress(*self.meant(aim), fraction, note, checkpoint) for aim, fraction, note, checkpoint in aimed]
        for report, answer in zip(reports, self.done(lambda store: store.progress(reports)), strict=True):
            if self.judged(report.job_id, report.epoch, answer):
                self.step.moved.add(report.job_id)
                self.moves(self.seen.jobs[report.job_id].spec)

    @owned
    @rule(aim=aims(), jobs=children)
    def add_children(self, aim: Aim, jobs: tuple[NewJob, ...]) -> None:
        job_id, epoch = self.meant(aim)
        born = [new_child(job_id, child, nth) for nth, child in enumerate(jobs, 1)]
        if self.judged(job_id, epoch, self.ask(lambda store: store.add_children(job_id, epoch, born))):
            self.step.added = {child.id for child in born}

    @owned
    @rule(said=st.lists(sayings, min_size=1, max_size=4))
    def settle(self, said: list[Saying]) -> None:
        batch: list[Settlement] = []
        for saying in said:
            born = [child.id for earlier in batch for child in earlier.then] if saying.aim.at == "unknown" else []
            batch.append(self.settlement(saying, born))
        self.settled(batch)

    @rule(owner=owners, limit=st.integers(1, 4), said=st.lists(sayings, max_size=3))
    def work(self, owner: str, limit: int, said: list[Saying]) -> None:
        """Claim, and let the owners of what runs now settle some of it at once, so that jobs come and go."""
        self.claimed(owner, limit, None, None, None)
        self.look()
        self.settled([self.settlement(saying, [], held) for saying, held in zip(said, self.held(), strict=False)])

    def held(self) -> list[tuple[str, int]]:
        return [(job.id, job.epoch) for job in self.seen.jobs.values() if job.status is Status.RUNNING]

    def settled(self, batch: list[Settlement]) -> None:
        answers = self.done(lambda store: store.settle(batch))
        running = dict(self.held())
        for one, answer in zip(batch, answers, strict=True):
            if running.get(one.job_id) == one.epoch:
                assert answer is None, f"the current owner was refused: {answer!r}"
                del running[one.job_id]
                self.said.append(one)
                self.step.moved.add(one.job_id)
                self.step.added.update(child.id for child in one.then)
                self.consequences(one)
            elif any(one[:2] == past[:2] and one.fingerprint() == past.fingerprint() for past in self.said):
                assert answer is None, f"the same was said before, and is refused: {answer!r}"  # C27
            elif one.job_id in self.step.moved or one.job_id in self.step.added:
                assert isinstance(answer, StaleEpoch | UnknownJob)  # this batch has changed what its facts are
                self.step.refusals += [answer] if isinstance(answer, StaleEpoch) else []
            else:
                assert not self.judged(one.job_id, one.epoch, answer)

    def settlement(self, saying: Saying, born: list[str], whose: tuple[str, int] | None = None) -> Settlement:
        """What *saying* says about the lease *whose*, or about whom it aims at: maybe a job *born* in this batch."""
        if saying.aim.at == "again" and self.said and whose is None:
            return self.said[-1 - saying.aim.n % len(self.said)]
        job_id, epoch = whose or self.meant(saying.aim)
        if born:
            job_id = born[saying.aim.n % len(born)]
        match saying.outcome:
            case Outcome.COMPLETE:
                then = tuple(new_child(job_id, child, nth) for nth, child in enumerate(saying.then, 1))
                return Settlement(job_id, epoch, saying.outcome, saying.word, then)
            case Outcome.FAIL:
                return Settlement(
                    job_id, epoch, saying.outcome, error=saying.word, retry=saying.retry, delay_us=saying.delay_us
                )
        return Settlement(job_id, epoch, saying.outcome, delay_us=saying.delay_us)

    def consequences(self, said: Settlement) -> None:
        """What an accepted settlement has made of the job: C24, C25, C26."""
        was, job = self.seen.jobs[said.job_id], self.stores[0].job(said.job_id)
        assert (job.epoch, job.reclaims) == (was.epoch, was.reclaims)
        assert job.errors == was.errors + (said.outcome is Outcome.FAIL)
        if said.outcome is Outcome.COMPLETE:
            assert (job.status, job.result_document) == (Status.DONE, said.result)
            assert all(self.stores[0].job(child.id) for child in said.then if child.unique is None)
        elif said.outcome is Outcome.FAIL and (job.errors >= was.retry.max_errors or not said.retry):
            assert job.status is Status.FAILED
        else:
            assert job.status is Status.PENDING
            assert job.run_us == self.now + said.delay_us if said.delay_us else job.run_us <= self.now

    # Effects

    @owned
    @rule(aim=aims(), name=effects, verb=st.sampled_from(["begin", "again", "end"]), outcome=outcomes)
    def effect(self, aim: Aim, name: str, verb: str, outcome: str | None) -> None:
        job_id, epoch = self.meant(aim)

        def effect(store: Store) -> Begun | None:
            if verb == "end":
                store.end_effect(job_id, epoch, name, outcome)
                return None
            return store.begin_effect(job_id, epoch, name, again=verb == "again")

        if self.judged(job_id, epoch, self.ask(effect)):
            self.step.moved.add(job_id)

    # Operators

    def operated(self, kind: str, job_id: str, epoch: int, note: str | None, answer: object) -> bool:
        """Whether a manual verb was done. It is refused iff its epoch is not the one on record (C31)."""
        job = self.seen.jobs.get(job_id)
        if job is None or job.epoch != epoch:
            promises.refused_with_the_facts(answer, self.seen, job_id, epoch)
            self.step.refusals += [answer] if isinstance(answer, StaleEpoch) else []
            return False
        if isinstance(answer, LeaseholdError):
            assert isinstance(answer, InvalidArgument), f"{answer!r} for the current epoch of {job}"
            return False
        self.step.moved.add(job_id)
        self.step.acts.append((kind, job_id, "op", note))
        return True

    def transferred(self, job_id: str, epoch: int, to: str, note: str | None, lease_us: int | None) -> None:
        def verb(store: Store) -> Grant:
            return store.transfer(job_id, epoch, to=to, by="op", note=note, lease_us=lease_us)

        answer = self.ask(verb)
        if self.operated("transferred", job_id, epoch, note, answer):
            assert isinstance(answer, Grant)
            assert (answer.owner, answer.reason, answer.process) == (to, Reason.MANUAL, None)
            self.step.granted = [answer]
            self.moves(answer.spec)

    @rule(aim=aims(), running=st.booleans(), to=owners, note=notes, lease_us=lasting)
    def transfer(self, aim: Aim, running: bool, to: str, note: str | None, lease_us: int | None) -> None:
        self.transferred(*self.meant(aim, running=running), to, note, lease_us)

    @rule(aim=aims(), running=st.booleans(), verb=st.sampled_from(["cancel", "finish", "replay"]), note=notes)
    def override(self, aim: Aim, running: bool, verb: str, note: str | None) -> None:
        job_id, epoch = self.meant(aim, running=running and verb != "replay")
        match verb:
            case "cancel":
                answer = self.ask(lambda store: store.cancel(job_id, epoch, by="op", note=note))
                self.operated("cancelled", job_id, epoch, note, answer)
            case "finish":
                answer = self.ask(lambda store: store.finish(job_id, epoch, by="op", note=note, result="3"))
                self.operated("finished", job_id, epoch, note, answer)
            case "replay":
                answer = self.ask(lambda store: store.replay(job_id, epoch, by="op", note=note))
                if self.operated("replayed", job_id, epoch, note, answer):
                    job = self.stores[0].job(job_id)
                    assert (job.status, job.errors, job.reclaims, job.run_us) == (Status.PENDING, 0, 0, self.now)  # C34

    @precondition(lambda self: any(self.seen.effects.values()))
    @rule(aim=aims(), name=effects, outcome=outcomes, note=notes)
    def resolve(self, aim: Aim, name: str, outcome: str | None, note: str | None) -> None:
        job_id, epoch = self.meant(aim, running=False)
        if aim.at == "current":
            begun = [effect for found in self.seen.effects.values() for effect in found]
            job_id, name, *_ = begun[aim.n % len(begun)]
            epoch = self.seen.jobs[job_id].epoch
        answer = self.ask(lambda store: store.resolve(job_id, epoch, name, by="op", outcome=outcome, note=note))
        self.operated("resolved", job_id, epoch, note, answer)

    # The store itself

    def taken_back(self, more: dict[str, Reason]) -> None:
        overdue = {**more, **self.overdue()}
        ended = self.done(lambda store: store.reclaim())
        assert {ownership.job_id: ownership.ended for ownership in ended} == overdue
        self.step.taken_back, self.step.moved = dict(overdue), set(overdue)
        for job_id in overdue:
            was, job = self.seen.jobs[job_id], self.stores[0].job(job_id)
            assert (job.reclaims, job.errors) == (was.reclaims + 1, was.errors)
            assert job.status is (Status.FAILED if job.reclaims > was.retry.max_reclaims else Status.PENDING)
            assert job.status is Status.FAILED or job.run_us <= self.now, f"{job} is not due at once"  # C36

    def prune(self, keep_us: int, limit: int) -> None:
        jobs = self.seen.jobs
        old = [
            job
            for job in jobs.values()
            if job.finished_us is not None
            and job.finished_us < self.now - keep_us
            and (job.parent not in jobs or jobs[job.parent].status in FINISHED)
        ]
        old.sort(key=lambda job: job.finished_us or 0)
        if limit < len(old) and old[limit - 1].finished_us == old[limit].finished_us:
            limit = len(old)  # which of two that finished at the same instant goes first is nobody's promise
        assert self.done(lambda store: store.prune(keep_us, limit=limit)) == len(old[:limit])
        self.step.pruned = {job.id for job in old[:limit]}
        self.said = [said for said in self.said if said.job_id not in self.step.pruned]

    def advance(self, above: int) -> None:
        least = max(self.ledger.highest + above, self.now)
        assert self.done(lambda store: store.advance(self.ledger.highest + above if above else 0)) >= least

    @rule(
        verb=st.sampled_from(["reclaim", "reclaim", "reclaim", "prune", "prune", "advance", "restart"]),
        keep_us=st.sampled_from([0, 5 * SECOND, 20 * SECOND]),
        limit=st.sampled_from([1, 2, 1000]),
        above=st.sampled_from([0, 0, 1, 10**6]),
    )
    def upkeep(self, verb: str, keep_us: int, limit: int, above: int) -> None:
        """One rule, or rules with few arguments would be drawn more often than all the others."""
        match verb:
            case "reclaim":
                self.taken_back({})
            case "prune":
                self.prune(keep_us, limit)
            case "advance":
                self.advance(above)
            case "restart":
                self.restart()

    # Readers

    @rule(
        owner=owners,
        status=st.none() | st.sampled_from(Status),
        queue=st.none() | st.sampled_from(QUEUES),
        behind=st.none() | st.sampled_from(IDS),
        limit=st.none() | st.integers(0, 3),
        aim=aims(),
    )
    def read(
        self, owner: str, status: Status | None, queue: str | None, behind: str | None, limit: int | None, aim: Aim
    ) -> None:
        """Readers agree, too, and issue nothing. Two of them are for an owner whose reply was lost: C18, C19."""
        job_id, _ = self.meant(aim)
        self.ask(lambda store: store.jobs(status=status, queue=queue, after=behind, limit=limit))
        self.ask(lambda store: store.jobs(owner=owner))
        self.ask(lambda store: store.jobs(parent=job_id))
        claimed = self.done(lambda store: store.claimed(f"claim of {owner}"))
        assert all(self.seen.may_write(grant.spec.id, grant.epoch) and grant.owner == owner for grant in claimed)
        lease = self.ask(lambda store: store.lease(job_id, owner))
        assert isinstance(lease, LeaseholdError) != (job_id in self.seen.jobs and self.seen.jobs[job_id].owner == owner)

    def teardown(self) -> None:
        """At the end, whatever happened, every unfinished job can still be claimed and completed: P6."""
        try:
            if self.sound:
                self.drain()
        finally:
            for store in getattr(self, "stores", []):
                store.close()
            self.folder.cleanup()

    def drain(self) -> None:
        rounds = len(self.seen.jobs) + 1
        while rounds and any(job.status not in FINISHED for job in self.seen.jobs.values()):
            rounds -= 1
            self.pass_time(3600)
            self.claimed("drain", 100, None, None, None)
            self.look()
            self.complete_all()
            self.look()
        assert rounds, f"nobody can claim {[job for job in self.seen.jobs.values() if job.status not in FINISHED]}"

    def complete_all(self) -> None:
        self.step.moved = {job.id for job in self.seen.jobs.values() if job.status is Status.RUNNING}
        ended = [Settlement(job_id, self.seen.jobs[job_id].epoch, Outcome.COMPLETE) for job_id in self.step.moved]
        self.done(lambda store: store.settle(ended))


NORMAL = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every epoch from the future is logged as an alarm; a failure should show what failed instead."""
    caplog.set_level(logging.CRITICAL, logger="leasehold")


def test_the_stores_agree_and_keep_the_promises() -> None:
    run_state_machine_as_test(StoresAgree, settings=NORMAL)


@pytest.mark.soak
def test_the_stores_agree_for_long() -> None:
    run_state_machine_as_test(StoresAgree, settings=settings(NORMAL, max_examples=3_000, stateful_step_count=80))
