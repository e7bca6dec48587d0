"""
Two stores, asked the same: memory, and one beside it. Each answer is foretold from what readers saw before; then
everything is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

from hypothesis.stateful import RuleBasedStateMachine
from tests.stateful import promises
from tests.stateful.beside import Beside, Sqlite
from tests.stateful.draws import GIVEN, OWNERS, POOL, SECOND, WORKERS, Aim, Saying
from tests.stateful.promises import Ledger, Snapshot, Step

from leasehold.core.children import new_child
from leasehold.core.job import Grant, NewJob, Outcome, Settlement, Status
from leasehold.core.lifecycle import FINISHED
from leasehold.core.ownership import Process, Reason
from leasehold.core.workers import WorkerReport
from leasehold.errors import Conflict, LeaseholdError, StaleEpoch, UnknownJob
from leasehold.store import Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

T = TypeVar("T")


class Both(RuleBasedStateMachine):
    """What the rules are made of; it has none itself."""

    other: ClassVar[Callable[[], Beside]] = Sqlite

    def __init__(self) -> None:
        super().__init__()
        self.beside = type(self).other()
        self.clocks = ManualClock(), ManualClock()
        self.stores: list[Store] = []
        self.ledger = Ledger()
        self.stalls: dict[str, int] = {}  # when each running job stalls: no reader shows it
        self.awaited: dict[str, tuple[int, str]] = {}  # transfers that were not picked up: their epochs and owners
        self.accepts: set[tuple[str, str, int]] = set()  # claim ids, and what was accepted under each
        self.said: list[Settlement] = []  # and accepted
        self.keys: list[dict[tuple[str, str], str]] = [{}, {}]
        self.step = Step()
        self.sound = False
        self.looks = 0

    def open(self, trace: bool) -> None:
        """Open both stores, at the same instant."""
        self.trace = trace
        self.stores = [MemoryStore(clock=self.clocks[0], trace=trace), self.beside.open(self.clocks[1], trace)]
        assert self.stores[1].verify() == []  # which opens it
        self.seen = Snapshot.of(self.stores[0], self.now)

    @property
    def now(self) -> int:
        return self.clocks[0].now()

    def later(self, seconds: float) -> None:
        """Move both clocks."""
        for clock in self.clocks:
            clock.advance(seconds)
        self.beside.later(self.now)

    def ask(self, verb: Callable[[Store], T]) -> T | LeaseholdError:
        """Ask both, hold the answers against each other, and return one of them."""
        self.sound = False
        memory, other = (promises.answer(verb, store) for store in self.stores)
        promises.same(promises.plain(memory), promises.plain(other))
        return memory

    def done(self, verb: Callable[[Store], T]) -> T:
        """Ask for what is never refused."""
        answer = self.ask(verb)
        assert not isinstance(answer, LeaseholdError), f"refused: {answer!r}"
        return answer

    def look(self) -> None:
        """After a step: the promises hold, and both stores show the same (on a slow one, after some steps)."""
        before, step, ledger = self.seen, self.step, self.ledger
        after = Snapshot.of(self.stores[0], self.now)
        self.looks += 1
        if self.looks % self.beside.every == 0:
            self.compare(after)
        promises.p9_the_loser_is_told(ledger, after, step)
        promises.p8_operators_are_recorded(ledger, after, step)
        promises.p1_epochs_only_rise(ledger, before, after, step)
        promises.p2_one_owner(ledger, after)
        promises.p3_only_the_current_epoch_writes(before, after, step)
        promises.p5_every_hand_over_says_why(before, after, step)
        promises.p6_nothing_is_lost(before, after, self.stores[0].verify())
        promises.p7_nothing_follows_a_refused_completion(before, after, step)
        ledger.events_seen = max([ledger.events_seen, *(event.number for event in after.events)])
        self.seen, self.step, self.sound = after, Step(), True

    def compare(self, after: Snapshot) -> None:
        """The other store shows the same as memory, and is sound."""
        other = Snapshot.of(self.stores[1], self.now)
        promises.same_state(after, other)
        self.seen = after
        self.shown_transfers(self.stores)
        assert self.stores[1].verify() == []
        for keys, snapshot in zip(self.keys, (after, other), strict=True):
            for effect in (effect for found in snapshot.effects.values() for effect in found):
                assert keys.setdefault((effect.job_id, effect.name), effect.key) == effect.key  # C29

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

    # Workers, and what is transferred to them

    def awaits(self, job_id: str) -> bool:
        """Whether the job was transferred under its current epoch, and not picked up."""
        epoch, _ = self.awaited.get(job_id, (0, ""))
        return self.seen.may_write(job_id, epoch)

    def picked_up(self, job_id: str) -> None:
        self.awaited.pop(job_id, None)

    def shown_transfers(self, stores: Sequence[Store]) -> None:
        """Each owner is shown what was transferred to it and not picked up, and nothing else (C61)."""
        for owner in {*OWNERS, *WORKERS, *GIVEN}:
            waiting = [(job_id, epoch) for job_id, (epoch, to) in self.awaited.items() if to == owner]
            expected = sorted((one for one in waiting if self.awaits(one[0])), key=lambda one: one[1])
            for store in stores:
                assert store.transfers(owner) == expected

    def recipients(self, to: str) -> list[str]:
        """The names that a transfer to *to* may be for: one of them, or it is a conflict (C60)."""
        alive = [worker for worker in self.seen.workers if self.now - worker.seen_us < 30 * SECOND]
        if to in [worker.name for worker in alive]:
            return [to]
        return [worker.name for worker in alive if worker.given_name == to] or [to]

    def reported(self, report: WorkerReport) -> None:
        self.done(lambda store: store.report(report))
        [worker] = [one for one in self.stores[0].workers() if one.name == report.name]
        assert (worker.seen_us, worker.alive, worker.given_name) == (self.now, True, report.given_name)

    def accepted(self, owner: str, holders: list[tuple[str, int]], claim_id: str) -> None:
        """What is still the owner's and was not picked up is accepted, and what this id has accepted before (C62)."""
        may = [
            (job_id, epoch)
            for job_id, epoch in holders
            if self.seen.may_write(job_id, epoch)
            and self.seen.jobs[job_id].owner == owner
            and (self.awaits(job_id) or (claim_id, job_id, epoch) in self.accepts)
        ]
        grants = self.done(lambda store: store.accept(owner, holders, claim_id=claim_id, process=None))
        assert [(grant.spec.id, grant.epoch) for grant in grants] == may
        for grant in grants:
            assert (grant.claim_id, grant.expires_us) == (claim_id, self.now + grant.lease_us)
            self.accepts.add((claim_id, grant.spec.id, grant.epoch))
            self.step.moved.add(grant.spec.id)
            self.picked_up(grant.spec.id)
            self.moves(grant.spec)

    def charged(self, overdue: Iterable[str]) -> None:
        """What was taken back has cost a reclaim, unless it was never picked up (C36)."""
        for job_id in overdue:
            was, job = self.seen.jobs[job_id], self.stores[0].job(job_id)
            assert job.reclaims == was.reclaims + (not self.awaits(job_id))

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
        self,
        owner: str,
        limit: int,
        queues: list[str] | None,
        lease_us: int | None,
        process: Process | None,
        tasks: tuple[str, ...] | None = None,
    ) -> None:
        overdue = self.overdue()
        grants = self.done(
            lambda store: store.claim(
                owner,
                limit=limit,
                queues=queues,
                lease_us=lease_us,
                claim_id=f"claim of {owner}",
                process=process,
                tasks=tasks,
            )
        )
        self.charged(overdue)
        self.step.taken_back, self.step.granted = dict(overdue), grants
        self.step.moved = {*overdue, *(grant.spec.id for grant in grants)}
        for grant in grants:
            job = self.seen.jobs[grant.spec.id]
            assert job.run_us <= self.now or job.id in overdue
            assert grant.reason == overdue.get(job.id, job.reason or Reason.CLAIM)  # C16
            assert grant.lease_us == (lease_us or job.spec.lease_us or 30 * SECOND)  # C15
            assert (grant.granted_us, grant.expires_us) == (self.now, self.now + grant.lease_us)
            assert grant.checkpoint == job.checkpoint_document  # C22
            assert job.queue not in self.seen.paused()  # C49
            assert tasks is None or (job.task or "") in tasks  # C57
            self.moves(grant.spec)
        self.first_come_first_served([grant.spec.id for grant in grants], limit, queues, tasks)

    def moves(self, spec: NewJob) -> None:
        """A lease begins, or the work moves: the stall deadline runs from here."""
        self.stalls.pop(spec.id, None)
        if spec.stall_us is not None:
            self.stalls[spec.id] = self.now + spec.stall_us

    def first_come_first_served(
        self, granted: list[str], limit: int, queues: list[str] | None, tasks: tuple[str, ...] | None
    ) -> None:
        """Grants go by rank; what was due, known and free is left waiting only behind a full batch (C13, C14, C57)."""
        after = Snapshot.of(self.stores[0], self.now)
        ranks = [after.rank(job_id) for job_id in granted]
        assert ranks == sorted(ranks)
        firsts = set[tuple[str | None, str]]()
        for job in after.due():
            if tasks is not None and (job.task or "") not in tasks:
                continue
            # Behind a key that is free, the first of each queue must be waiting to be claimed, and only that one.
            first = job.lock is None or (job.lock not in after.held() and (job.lock, job.queue) not in firsts)
            firsts.add((job.lock, job.queue))
            if first and (queues is None or job.queue in queues) and job.queue not in after.paused():
                assert len(granted) == limit, f"{job} was free and not claimed"
                assert after.rank(job.id) > ranks[-1], f"{job} was passed over"

    def held(self) -> list[tuple[str, int]]:
        return [(job.id, job.epoch) for job in self.seen.jobs.values() if job.status is Status.RUNNING]

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
            case Outcome.CRASH:
                return Settlement(job_id, epoch, saying.outcome, error=saying.word)
        return Settlement(job_id, epoch, saying.outcome, delay_us=saying.delay_us)

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

    def consequences(self, said: Settlement) -> None:
        """What an accepted settlement has made of the job: C24, C25, C26; a crash counts a reclaim."""
        was, job = self.seen.jobs[said.job_id], self.stores[0].job(said.job_id)
        assert (job.epoch, job.reclaims) == (was.epoch, was.reclaims + (said.outcome is Outcome.CRASH))
        assert job.errors == was.errors + (said.outcome is Outcome.FAIL)
        if said.outcome is Outcome.COMPLETE:
            assert (job.status, job.result_document) == (Status.DONE, said.result)
            assert all(self.stores[0].job(child.id) for child in said.then if child.unique is None)
        elif (
            said.outcome is Outcome.FAIL and (job.errors >= was.retry.max_errors or not said.retry)
        ) or job.reclaims > max(was.reclaims, was.retry.max_reclaims):
            assert job.status is Status.FAILED
        else:
            assert job.status is Status.PENDING
            assert job.run_us == self.now + said.delay_us if said.delay_us else job.run_us <= self.now

    # Operators

    def operated(self, kind: str, job_id: str, epoch: int, note: str | None, answer: object) -> bool:
        """Whether a manual verb was done. It is refused iff its epoch is not the one on record (C31)."""
        job = self.seen.jobs.get(job_id)
        if job is None or job.epoch != epoch:
            promises.refused_with_the_facts(answer, self.seen, job_id, epoch)
            self.step.refusals += [answer] if isinstance(answer, StaleEpoch) else []
            return False
        if isinstance(answer, LeaseholdError):
            assert isinstance(answer, Conflict), f"{answer!r} for the current epoch of {job}"
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
            assert ([answer.owner], answer.reason, answer.process) == (self.recipients(to), Reason.MANUAL, None)
            self.step.granted = [answer]
            self.awaited[job_id] = answer.epoch, answer.owner
            self.moves(answer.spec)

    # The store itself

    def restart(self) -> None:
        """A process that starts now sees what the last one left (C1)."""
        self.stores[1].close()
        self.stores[1] = self.beside.open(self.clocks[1], self.trace)

    def taken_back(self, more: dict[str, Reason]) -> None:
        overdue = {**more, **self.overdue()}
        ended = self.done(lambda store: store.reclaim())
        self.charged(overdue)
        assert {ownership.job_id: ownership.ended for ownership in ended} == overdue
        self.step.taken_back, self.step.moved = dict(overdue), set(overdue)
        for job_id in overdue:
            was, job = self.seen.jobs[job_id], self.stores[0].job(job_id)
            spent = job.reclaims > max(was.reclaims, was.retry.max_reclaims)
            assert (job.status, job.errors) == (Status.FAILED if spent else Status.PENDING, was.errors)
            assert job.status is Status.FAILED or job.run_us <= self.now, f"{job} is not due at once"  # C36

    def prune(self, keep_us: int, limit: int) -> None:
        jobs = self.seen.jobs
        old = [
            job
            for job in jobs.values()
            if job.finished_us is not None
            and job.finished_us < self.now - keep_us
            and job.parent not in jobs  # which has no narrow rows
        ]
        old.sort(key=lambda job: job.finished_us or 0)
        if limit < len(old) and old[limit - 1].finished_us == old[limit].finished_us:
            limit = len(old)  # which of two that finished at the same instant goes first is nobody's promise
        assert self.done(lambda store: store.prune(keep_us, limit=limit, keep_ids_us=0)).jobs == len(old[:limit])
        self.step.pruned = {job.id for job in old[:limit]}
        self.said = [said for said in self.said if said.job_id not in self.step.pruned]

    def prune_one(self, job_id: str, epoch: int) -> None:
        """One job, under the epoch that was seen; the rest of it is as in a prune (C73)."""
        if job_id in self.seen.jobs and self.seen.jobs[job_id].finished_us == self.now:
            return  # it would leave a narrow row, as long as it is that instant (C52); here are none
        answer = self.ask(lambda store: store.prune_job(job_id, epoch, by="op", keep_ids_us=0))
        job = self.seen.jobs.get(job_id)
        if job is None or job.epoch != epoch:
            promises.refused_with_the_facts(answer, self.seen, job_id, epoch)
            self.step.refusals += [answer] if isinstance(answer, StaleEpoch) else []
            return
        doubted = any(not effect.known for effect in self.seen.effects.get(job_id, []))
        if job.finished_us is None or job.parent in self.seen.jobs or doubted:
            assert isinstance(answer, Conflict), f"{answer!r} for {job}"
            return
        assert answer is None
        self.step.pruned = {job_id}
        self.said = [said for said in self.said if said.job_id != job_id]

    def advance(self, above: int) -> None:
        least = max(self.ledger.highest + above, self.now)
        assert self.done(lambda store: store.advance(self.ledger.highest + above if above else 0)) >= least

    # The end

    def teardown(self) -> None:
        """At the end, whatever happened, every unfinished job can still be claimed and completed: P6."""
        try:
            if self.sound:
                self.compare(self.seen)
                self.drain()
        finally:
            for store in self.stores:
                store.close()
            self.beside.close()

    def drain(self) -> None:
        for name in self.seen.paused():
            self.done(lambda store, name=name: store.resume(name, by="op"))  # type: ignore[misc]  # bound now
        self.look()
        rounds = len(self.seen.jobs) + 1
        while rounds and any(job.status not in FINISHED for job in self.seen.jobs.values()):
            rounds -= 1
            self.later(3600)
            self.claimed("drain", 100, None, None, None)
            self.look()
            self.complete_all()
            self.look()
        assert rounds, f"nobody can claim {[job for job in self.seen.jobs.values() if job.status not in FINISHED]}"

    def complete_all(self) -> None:
        self.step.moved = {job.id for job in self.seen.jobs.values() if job.status is Status.RUNNING}
        ended = [Settlement(job_id, self.seen.jobs[job_id].epoch, Outcome.COMPLETE) for job_id in self.step.moved]
        self.done(lambda store: store.settle(ended))
