"""
Random verbs on a memory store and, beside it, on SQLite or PostgreSQL: they answer the same, and keep every promise.

Several owners add, claim, renew, progress, settle, bring about effects and die; operators transfer, cancel, finish,
replay, requeue and resolve, and pause queues; workers report, retire, and pick up what is transferred to them; time
jumps; the file, or the schema, is reopened. Epochs are presented that are current, ended, another job's, from the
future, or of no job at all. Each answer is foretold from what readers saw before the step, and `promises` looks at
everything after it. At the end of a run, every job that is left can still be claimed and completed.

What this is worth was tried by breaking the stores on purpose. Where both were broken alike, so that they still agree,
the check named here went red:

    settle accepts any epoch while the job is leased       refused_with_the_facts, or same_state
    the end of a lease wakes nobody behind its lock        p6_nothing_is_lost, or first_come_first_served
    renew moves the stall deadline                         p5_every_hand_over_says_why ("still leased, though overdue")
    reclaim draws no epoch                                 p1_epochs_only_rise
    a different settlement passes for a repeated one       settled
    a refused completion adds its children                 p7_nothing_follows_a_refused_completion
    a refusal is not recorded                              p9_the_loser_is_told
    operators need not name the current epoch              refused_with_the_facts
    the record of a transfer drops the note                p8_operators_are_recorded
    an expiry before the pick-up counts a reclaim          charged
    a lease that is asked for is not picked up             shown_transfers, or charged
    accept compares no owner                               accepted

Where only one of them was broken:

    only the first queue behind a lock is woken            p6_nothing_is_lost
    an expired lease may not write (P4)                    same
    a transfer ignores who holds the lock (P2)             same
    a transfer of a running job counts no attempt          same
    what has stalled is recorded as timed out              same
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.postgres.fixtures import NEWEST, url_of
from tests.stateful.beside import Postgres, Sqlite
from tests.stateful.both import Both
from tests.stateful.draws import (
    GIVEN,
    IDS,
    QUEUES,
    SECOND,
    TASKS,
    WORKERS,
    Aim,
    Saying,
    aims,
    children,
    effects,
    lasting,
    notes,
    outcomes,
    owners,
    recipients,
    sayings,
    specs,
)

from leasehold.core.children import new_child
from leasehold.core.job import NewJob, Progress, Settlement, Status, new_job
from leasehold.core.ownership import Reason
from leasehold.core.queues import Queue
from leasehold.core.workers import WorkerReport
from leasehold.errors import LeaseholdError, StaleEpoch
from leasehold.liveness import this_process
from leasehold.store import Begun, Renewal, Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

owned = precondition(lambda self: bool(self.ledger.grants))


class StoresAgree(Both):
    """The verbs of the contract, as rules."""

    @initialize(trace=st.booleans(), jobs=st.lists(specs(IDS), min_size=3, max_size=8), limit=st.integers(1, 4))
    def begin(self, trace: bool, jobs: list[NewJob], limit: int) -> None:
        """Some jobs, and some of them claimed: a run that draws neither rule often would have nothing to talk about."""
        self.open(trace)
        self.add(jobs)
        self.look()
        self.claimed("ann", limit, None, None, None)

    @invariant()
    def everything_holds(self) -> None:
        self.look()

    # Time

    @rule(seconds=st.sampled_from([0.000001, 1, 1, 4, 4, 7, 11, 31]))
    def pass_time(self, seconds: float) -> None:
        self.later(seconds)

    # Producers

    @rule(jobs=st.lists(specs(IDS), min_size=1, max_size=4))
    def add(self, jobs: list[NewJob]) -> None:
        self.step.added = {job.id for job in jobs}
        for job, added in zip(jobs, self.done(lambda store: store.add(jobs)), strict=True):
            assert added.job.id == job.id or (added.job.unique == job.unique is not None and not added.created)
            assert added.created or added.job.id in self.seen.jobs or added.job.id in self.step.added

    # Owners

    @rule(
        owner=owners,
        limit=st.integers(1, 4),
        queues=st.none() | st.lists(st.sampled_from(QUEUES), max_size=2),
        lease_us=lasting,
        recorded=st.booleans(),
        tasks=st.none() | st.sampled_from(TASKS),
    )
    def claim(
        self,
        owner: str,
        limit: int,
        queues: list[str] | None,
        lease_us: int | None,
        recorded: bool,
        tasks: tuple[str, ...] | None,
    ) -> None:
        self.claimed(owner, limit, queues, lease_us, this_process() if recorded else None, tasks)

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
            self.transferred(held[0], self.seen.jobs[held.pop(0)].epoch, "cy", None, None)
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
                self.picked_up(renewal.job_id)
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

    @rule(
        owner=owners,
        limit=st.integers(1, 4),
        said=st.lists(sayings, max_size=3),
        tasks=st.none() | st.sampled_from(TASKS),
    )
    def work(self, owner: str, limit: int, said: list[Saying], tasks: tuple[str, ...] | None) -> None:
        """Claim, and let the owners of what runs now settle some of it at once, so that jobs come and go."""
        self.claimed(owner, limit, None, None, None, tasks)
        self.look()
        self.settled([self.settlement(saying, [], held) for saying, held in zip(said, self.held(), strict=False)])

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

    @rule(aim=aims(), running=st.booleans(), to=recipients, note=notes, lease_us=lasting)
    def transfer(self, aim: Aim, running: bool, to: str, note: str | None, lease_us: int | None) -> None:
        self.transferred(*self.meant(aim, running=running), to, note, lease_us)

    @rule(
        verb=st.sampled_from(["report", "report", "retire", "accept", "accept", "accept", "accept its own"]),
        name=st.sampled_from(WORKERS),
        given_name=st.sampled_from(GIVEN),
        to=recipients,
        aimed=st.lists(aims(), min_size=1, max_size=3, unique_by=lambda aim: aim.n),
        claim_id=st.sampled_from(["accept 1", "accept 2"]),
    )
    def worker(self, verb: str, name: str, given_name: str, to: str, aimed: list[Aim], claim_id: str) -> None:
        """Workers come and go, and pick up what was transferred to them, or to somebody else, or to nobody."""
        match verb:
            case "report":
                self.reported(WorkerReport(name, given_name, None, ("mail",), ("work",), 4, len(aimed), 0))
            case "retire":
                self.done(lambda store: store.retire(name))
            case "accept":
                holders = list(dict.fromkeys(self.meant(aim) for aim in aimed))
                self.accepted(to, holders, f"{claim_id} {len(self.accepts)}" if len(aimed) > 1 else claim_id)
            case "accept its own":
                owners = {owner for job_id, (_, owner) in self.awaited.items() if self.awaits(job_id)}
                for owner in sorted(owners)[:1]:
                    self.accepted(owner, self.stores[0].transfers(owner), f"own {len(self.ledger.issued)}")

    @rule(
        aim=aims(), running=st.booleans(), verb=st.sampled_from(["cancel", "finish", "replay", "requeue"]), note=notes
    )
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

            case "requeue":
                answer = self.ask(lambda store: store.requeue(job_id, epoch, by="op", note=note))
                if self.operated("requeued", job_id, epoch, note, answer):
                    was, job = self.seen.jobs[job_id], self.stores[0].job(job_id)
                    assert (was.status, job.status) == (Status.RUNNING, Status.PENDING)
                    assert (job.errors, job.reclaims) == (was.errors, was.reclaims)  # C48
                    assert job.run_us == min(was.run_us, self.now)

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

    @rule(queue=st.sampled_from(QUEUES), resumes=st.sampled_from([True, True, False]), note=notes)
    def pause(self, queue: str, resumes: bool, note: str | None) -> None:
        """No job changes; what claims may take is foretold from the queues that are paused."""
        was = {one.name: one for one in self.seen.queues}
        if resumes:
            assert self.done(lambda store: store.resume(queue, by="op")) == Queue(queue)
            was.pop(queue, None)
        else:
            was[queue] = Queue(queue, self.now, "op", note)
            assert self.done(lambda store: store.pause(queue, by="op", note=note)) == was[queue]
        assert self.stores[0].queues() == [was[name] for name in sorted(was)]

    # The store itself

    @rule(
        verb=st.sampled_from(["reclaim", "reclaim", "reclaim", "prune", "prune one", "advance", "restart"]),
        keep_us=st.sampled_from([0, 5 * SECOND, 20 * SECOND]),
        limit=st.sampled_from([1, 2, 1000]),
        above=st.sampled_from([0, 0, 1, 10**6]),
        aim=aims(),
    )
    def upkeep(self, verb: str, keep_us: int, limit: int, above: int, aim: Aim) -> None:
        """One rule, or rules with few arguments would be drawn more often than all the others."""
        match verb:
            case "reclaim":
                self.taken_back({})
            case "prune":
                self.prune(keep_us, limit)
            case "prune one":
                self.prune_one(*self.meant(aim, running=False))
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
        if not isinstance(lease, LeaseholdError):
            self.picked_up(job_id)


NORMAL = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every epoch from the future is logged as an alarm; a failure should show what failed instead."""
    caplog.set_level(logging.CRITICAL, logger="leasehold")


def on_a_server(every: int) -> type[StoresAgree]:
    """The same rules with PostgreSQL beside memory. It takes longer over a look at everything than over a step."""
    url = url_of(NEWEST)
    return type("PostgresAgrees", (StoresAgree,), {"other": staticmethod(lambda: Postgres(url, every=every))})


def test_the_stores_agree_and_keep_the_promises() -> None:
    beside_a_file = type("SqliteAgrees", (StoresAgree,), {"other": staticmethod(lambda: Sqlite(every=3))})
    run_state_machine_as_test(beside_a_file, settings=NORMAL)


def test_postgresql_agrees_too() -> None:
    run_state_machine_as_test(on_a_server(every=6), settings=settings(NORMAL, max_examples=14))


def test_a_refused_operator_is_named() -> None:
    """As the other stores do."""
    there, clock = Postgres(url_of(NEWEST)), ManualClock()
    try:
        for store in (MemoryStore(clock=clock), there.open(clock, trace=False)):
            store.add([new_job("a")])
            store.claim("worker")
            with pytest.raises(StaleEpoch):
                store.cancel("a", 0, by="op")

            [event] = store.events(kind="refused")
            assert event.facts.get("by") == "op", store
    finally:
        there.close()


@pytest.mark.soak
def test_the_stores_agree_for_long() -> None:
    run_state_machine_as_test(StoresAgree, settings=settings(NORMAL, max_examples=3_000, stateful_step_count=80))


@pytest.mark.soak
def test_postgresql_agrees_for_long() -> None:
    run_state_machine_as_test(on_a_server(every=1), settings=settings(NORMAL, max_examples=400, stateful_step_count=80))
