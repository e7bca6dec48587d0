"""
Every verb of a store, for tests that break something in the middle of it.

Each is prepared, done, and looked at afterwards by somebody whose connections are whole. Several of them can share a
store if they are prepared backwards: claims would take back what is to be reclaimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from tests.support import until

from leasehold import Lease, Router
from leasehold.core.clock import SystemClock
from leasehold.core.job import Outcome, Settlement
from leasehold.core.ownership import Note, NoteKind
from leasehold.core.workers import WorkerReport
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.claiming import Floors
from leasehold.testing import ManualClock

ANSWERS, RAISES = True, False
LONG_SECONDS = 60.0


@dataclass
class Stage:
    """The two sides of a test: *router* is the one that things happen to, *seen* looks at what has happened."""

    router: Router
    seen: Router
    job: str = "a"  # and the queue of all that is added here, so that several stages may share a store

    def lease(self, name: str = "") -> Lease:
        """A job, claimed through the connections that will be broken."""
        name = name or self.job
        self.seen.add(name, queue=name)
        lease = self.router.claim("worker", queues=[name], lease_seconds=LONG_SECONDS)
        assert lease is not None
        return lease

    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.seen.jobs(queue=self.job))

    def empty(self) -> None:
        """Remove everything but the store itself."""
        assert isinstance(self.seen.store, PostgresStore)
        database = self.seen.store.database
        with psycopg.connect(database.url, autocommit=True) as connection:
            tables = connection.execute(
                "select tablename from pg_tables where schemaname = %s and tablename <> 'store'", [database.schema]
            ).fetchall()
            names = sql.SQL("; delete from ").join(sql.Identifier(database.schema, table) for (table,) in tables)
            connection.execute(sql.SQL("delete from results; delete from {}").format(names))
        assert isinstance(self.router.store, PostgresStore)
        self.router.store.claiming.floors = Floors(SystemClock())

    def count(self, kind: str, name: str | None = None) -> int:
        """How many events of that kind there are."""
        return len(self.seen.events(name, kind=kind))


@dataclass(frozen=True)
class Verb:
    """
    One verb: what it needs, itself, and how often it has happened.

    *asks* is what its request contains. *unheard* and *unanswered*: whether it answers, all the same, if its request or
    its reply was lost; it raises `StoreUnavailable` otherwise.
    """

    name: str
    asks: str
    unheard: bool
    unanswered: bool
    prepare: Callable[[Stage], Any]
    act: Callable[[Stage, Any], Any]
    times: Callable[[Stage, Any], int]


def _paused(stage: Stage) -> int:
    return sum(queue.paused for queue in stage.seen.queues() if queue.name == stage.job)


def _status(stage: Stage, name: str, status: str) -> int:
    return int(stage.seen.job(name).status == status)


def _complete_all(stage: Stage, leases: list[Lease]) -> None:
    said = [Settlement(lease.job_id, lease.epoch, Outcome.COMPLETE, "null") for lease in leases]
    assert stage.router.store.settle(said) == [None] * len(leases)


def _renewed(stage: Stage, lease: Lease) -> int:
    expires_at = stage.seen.job(stage.job).expires_at
    assert expires_at is not None
    return int((expires_at - lease.granted_at).total_seconds() > 2 * LONG_SECONDS)


def _in_doubt(stage: Stage) -> Lease:
    lease = stage.lease()

    def broken(key: str) -> None:
        raise ArithmeticError(key)

    try:
        lease.once("charge", broken)
    except ArithmeticError:
        return lease
    raise AssertionError("the effect was not tried")


def _expired(stage: Stage) -> None:
    stage.seen.add(stage.job, queue=stage.job)
    lease = stage.seen.claim("worker", queues=[stage.job], lease_seconds=0.001)
    assert lease is not None
    clock = SystemClock()
    until(lambda: clock.now() > lease.expires_at.timestamp() * 1_000_000 + 1_000)


def _claimed_before(stage: Stage) -> None:
    """Claim one of two jobs, so that the next claim goes the short way: no time passes until it looks at everything."""
    assert isinstance(stage.router.store, PostgresStore)
    stage.router.store.claiming.floors = Floors(ManualClock())
    stage.seen.add_many([{"id": f"{stage.job}{n}", "queue": stage.job} for n in "xy"])
    assert stage.router.claim("worker", queues=[stage.job], lease_seconds=LONG_SECONDS) is not None


def _claimed(stage: Stage) -> Any:
    """A lease whose claim has the name of its job."""
    stage.seen.add(stage.job, queue=stage.job)
    [grant] = stage.seen.store.claim("worker", queues=[stage.job], claim_id=stage.job)
    return grant


def _handed(stage: Stage) -> Any:
    """A job that was transferred to an owner with its name, and not picked up."""
    stage.seen.add(stage.job, queue=stage.job)
    return stage.seen.store.transfer(stage.job, 0, to=stage.job, by="ann", lease_us=60_000_000)


def _report(stage: Stage) -> WorkerReport:
    return WorkerReport(stage.job, stage.job, None, None, (), 1, 0, 0)


def _listed(stage: Stage) -> int:
    return sum(worker.name == stage.job for worker in stage.seen.store.workers())


def _finished(stage: Stage) -> Any:
    stage.seen.add(stage.job, queue=stage.job)
    lease = stage.seen.claim("worker", queues=[stage.job])
    assert lease is not None
    lease.complete()
    return stage.seen.job(stage.job)


def _write(stage: Stage, lease: Lease, *, complete: bool) -> None:
    with lease.transaction() as connection:
        connection.execute("insert into results values (%s)", [stage.job])
        if complete:
            lease.complete("done", connection=connection)


def _written(stage: Stage, lease: Lease) -> int:
    stage.seen.add(f"{stage.job}/count", queue=f"{stage.job}/count")
    counter = stage.seen.claim("counter", queues=[f"{stage.job}/count"])
    assert counter is not None
    with counter.transaction() as connection:
        [(count,)] = connection.execute("select count(*) from results where name = %s", [stage.job]).fetchall()
    return int(count)


def _read(name: str, asks: str, act: Callable[[Router, str], Any]) -> Verb:
    def read(stage: Stage, made: Any) -> Any:
        assert act(stage.router, stage.job) == act(stage.seen, stage.job)

    return Verb(name, asks, ANSWERS, ANSWERS, lambda stage: stage.lease(), read, lambda stage, made: 1)


def _moving(name: str, kind: str, act: Callable[[Router, Any], Any], *, finished: bool = False) -> Verb:
    """A verb of operators: it names the epoch that it saw, and an unknown outcome is for a person to look at."""

    def prepare(stage: Stage) -> Any:
        if finished:
            return _finished(stage)
        stage.lease()
        return stage.seen.job(stage.job)

    asks = ".transfer(" if name == "transfer" else ".override("
    return Verb(
        name,
        asks,
        RAISES,
        RAISES,
        prepare,
        lambda stage, job: act(stage.router, job),
        lambda stage, _: stage.count(kind, stage.job),
    )


READERS = [
    _read("job", ".seen WHERE id", lambda router, name: router.job(name)),
    _read("jobs", ".seen", lambda router, name: router.jobs(queue=name)),
    _read("jobs by owner", ".leases AS l", lambda router, name: router.jobs(owner="worker", queue=name)),
    _read("jobs behind one", "SELECT seq", lambda router, name: router.jobs(after=name, queue=name)),
    _read("ownerships", ".ownerships", lambda router, name: router.ownerships(name)),
    _read("effects", ".effects", lambda router, name: router.effects(name)),
    _read("events", ".events", lambda router, name: router.events(name)),
    _read("counts", ".counted(", lambda router, name: router.counts().queues[name]),
    _read("lease", ".lease_of(", lambda router, name: router.lease(name, owner="worker").epoch),
    _read("queues", ".known_queues(", lambda router, name: [it for it in router.queues() if it.name == name]),
    _read("workers", ".known_workers(", lambda router, name: [it for it in router.store.workers() if it.name == name]),
    _read("transfers", ".transfers_to(", lambda router, name: router.store.transfers(name)),
    _read("oldest", ".oldest_due(", lambda router, name: [it for it in router.store.oldest() if it.queue == name]),
    _read("lately", ".lately(", lambda router, name: router.store.lately().added.get(name)),
    _read("leases", ".live_leases(", lambda router, name: [it for it in router.store.leases() if it.job_id == name]),
    _read("observed", ".observed(", lambda router, name: router.store.observed().noted),
    _read("open keys", ".open_keys(", lambda router, name: router.store.open_keys(["files"])),
    Verb(
        "observe",
        ".observe(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.seen.store.observed().round,
        lambda stage, round: stage.router.store.observe(round, []),
        lambda stage, round: stage.seen.store.observed().round - round,
    ),
    _read("verify", ".broken(", lambda router, name: router.verify()),
    Verb(
        "leases of a claim",
        ".claim_leases(",
        ANSWERS,
        ANSWERS,
        _claimed,
        lambda stage, grant: [it.epoch for it in stage.router.store.claimed(stage.job)] == [grant.epoch] or 1 / 0,
        lambda stage, _: 1,
    ),
]

VERBS = [
    Verb(
        "reclaim",
        ".reclaim(",
        RAISES,
        RAISES,
        _expired,
        lambda stage, _: stage.router.store.reclaim()[0].job_id,
        lambda stage, _: stage.count("reclaimed", stage.job),
    ),
    Verb(
        "add",
        ".add_alike(",
        ANSWERS,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.add(stage.job, queue=stage.job).created or 1 / 0,
        lambda stage, _: stage.jobs(),
    ),
    Verb(
        "add_many",
        ".add_alike(",
        ANSWERS,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.add_many([{"id": f"{stage.job}{n}", "queue": stage.job} for n in "xy"]),
        lambda stage, _: stage.jobs() / 2,  # type: ignore[arg-type, return-value]  # half of them would fail
    ),
    Verb(
        "add of several kinds",
        ".add(",
        ANSWERS,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.add_many(
            [{"id": f"{stage.job}{n}", "queue": stage.job, "unique": f"{stage.job}{n}"} for n in "xy"]
        ),
        lambda stage, _: stage.jobs() / 2,  # type: ignore[arg-type, return-value]  # the same
    ),
    Verb(
        "claim",
        ".claim(",
        RAISES,
        ANSWERS,
        lambda stage: stage.seen.add(stage.job, queue=stage.job),
        lambda stage, _: stage.router.claim("worker", queues=[stage.job]).epoch,  # type: ignore[union-attr]  # None would fail
        lambda stage, _: len(stage.seen.jobs(status="running", queue=stage.job)),
    ),
    Verb(
        "claim, the short way",
        ".claim_next(",
        RAISES,
        ANSWERS,
        _claimed_before,
        lambda stage, _: stage.router.claim("worker", queues=[stage.job]).epoch,  # type: ignore[union-attr]  # the same
        lambda stage, _: len(stage.seen.jobs(status="running", queue=stage.job)) - 1,
    ),
    Verb(
        "renew",
        ".renew(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.renew(3600),
        lambda stage, lease: _renewed(stage, lease),
    ),
    Verb(
        "progress",
        ".progress(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.progress(0.5, checkpoint={"page": 1}),
        lambda stage, lease: int(stage.seen.job(stage.job).checkpoint == {"page": 1}),
    ),
    Verb(
        "complete, and nothing else",
        ".complete(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.complete(1),
        lambda stage, lease: _status(stage, stage.job, "done"),
    ),
    Verb(
        "complete two, and nothing else",
        ".complete(",
        ANSWERS,
        ANSWERS,
        lambda stage: [stage.lease(), stage.lease(f"{stage.job}, too")],
        lambda stage, leases: _complete_all(stage, leases),
        lambda stage, leases: min(_status(stage, lease.job_id, "done") for lease in leases),
    ),
    Verb(
        "complete",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.complete(1, then=[{"id": "next", "queue": stage.job}]),
        lambda stage, lease: _status(stage, stage.job, "done") * (stage.jobs() - 1),
    ),
    Verb(
        "retry",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.fail("why", delay_seconds=60),
        lambda stage, lease: stage.count("retried", stage.job),
    ),
    Verb(
        "fail",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.fail("why", retry=False),
        lambda stage, lease: stage.count("failed", stage.job),
    ),
    Verb(
        "release",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.release(),
        lambda stage, lease: stage.count("released", stage.job),
    ),
    Verb(
        "check",
        ".check_holders(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.check(),
        lambda stage, lease: 1,
    ),
    Verb(
        "record",
        ".record_note(",
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: stage.router.store.record(
            Note(NoteKind.GUARDED, stage.job, lease.epoch, lease.owner, {"keys": []})
        ),
        lambda stage, lease: len(stage.seen.events(stage.job, kind="guarded")),
    ),
    Verb(
        "once, its beginning",
        ".begin_effect(",
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: stage.router.store.begin_effect(stage.job, lease.epoch, "charge"),
        lambda stage, lease: len(stage.seen.effects(stage.job)),
    ),
    Verb(
        "once, its end",
        ".end_effect(",
        ANSWERS,
        ANSWERS,
        _in_doubt,
        lambda stage, lease: stage.router.store.end_effect(stage.job, lease.epoch, "charge", '"charged"'),
        lambda stage, lease: sum(effect.outcome == '"charged"' for effect in stage.seen.effects(stage.job)),
    ),
    Verb(
        "once, undone",
        ".end_effect(",
        ANSWERS,
        ANSWERS,
        _in_doubt,
        lambda stage, lease: stage.router.store.end_effect(stage.job, lease.epoch, "charge", None),
        lambda stage, lease: 1 - len(stage.seen.effects(stage.job)),
    ),
    Verb(
        "add a child",
        ".add_children(",
        ANSWERS,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.add("child", queue=stage.job).created or 1 / 0,
        lambda stage, lease: len(stage.seen.jobs(parent=stage.job)),
    ),
    _moving("transfer", "transferred", lambda router, job: router.transfer(job, to="b", by="ann")),
    _moving("cancel", "cancelled", lambda router, job: router.cancel(job, by="ann")),
    _moving("finish", "finished", lambda router, job: router.complete(job, by="ann")),
    _moving("requeue", "requeued", lambda router, job: router.requeue(job, by="ann")),
    _moving("replay", "replayed", lambda router, job: router.replay(job, by="ann"), finished=True),
    Verb(
        "resolve",
        ".resolve(",
        RAISES,
        RAISES,
        _in_doubt,
        lambda stage, lease: stage.router.resolve(stage.job, "charge", by="ann", outcome=1, epoch=lease.epoch),
        lambda stage, lease: stage.count("resolved", stage.job),
    ),
    Verb(  # before the next, which prunes this job too
        "prune one",
        ".prune_job(",
        RAISES,
        RAISES,
        _finished,
        lambda stage, job: stage.router.store.prune_job(job.id, job.epoch, by="ann"),
        lambda stage, _: 1 - stage.jobs(),
    ),
    Verb(
        "prune",
        ".prune(",
        RAISES,
        RAISES,
        _finished,
        lambda stage, _: stage.router.store.prune(0),
        lambda stage, _: 1 - stage.jobs(),
    ),
    Verb(
        "advance",
        ".advance(",
        RAISES,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.advance(above=7),
        lambda stage, _: sum(event.facts.get("above") == 7 for event in stage.seen.events(kind="advanced")),
    ),
    Verb(
        "begin a transaction",
        ".fence(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=False),
        _written,
    ),
    Verb(
        "commit",
        "COMMIT\0",  # and not BEGIN ISOLATION LEVEL READ COMMITTED
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=False),
        _written,
    ),
    Verb(
        "commit with a completion",
        "COMMIT\0",  # and not BEGIN ISOLATION LEVEL READ COMMITTED
        RAISES,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=True),
        _written,
    ),
    Verb(
        "pause",
        ".pause(",
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, _: stage.router.pause(stage.job, by="ann"),
        lambda stage, _: _paused(stage),
    ),
    Verb(
        "resume",
        ".resume(",
        RAISES,
        RAISES,
        lambda stage: stage.seen.pause(stage.lease().queue, by="ann"),
        lambda stage, _: stage.router.resume(stage.job, by="ann"),
        lambda stage, _: 1 - _paused(stage),
    ),
    Verb(
        "accept",
        ".accept(",
        ANSWERS,
        ANSWERS,
        _handed,
        lambda stage, grant: (
            stage.router.store.accept(stage.job, [(stage.job, grant.epoch)], claim_id=stage.job)[0].epoch
        ),
        lambda stage, grant: len(stage.seen.store.claimed(stage.job)),
    ),
    Verb(
        "lease, its pick-up",
        ".pick_up(",
        ANSWERS,
        ANSWERS,
        _handed,
        lambda stage, grant: stage.router.lease(stage.job, owner=stage.job).epoch,
        lambda stage, grant: 1 - len(stage.seen.store.transfers(stage.job)),
    ),
    Verb(
        "report",
        ".report_worker(",
        ANSWERS,
        ANSWERS,
        lambda stage: _report(stage),
        lambda stage, report: stage.router.store.report(report),
        lambda stage, _: _listed(stage),
    ),
    Verb(
        "retire",
        ".retire_worker(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.seen.store.report(_report(stage)),
        lambda stage, _: stage.router.store.retire(stage.job),
        lambda stage, _: 1 - _listed(stage),
    ),
    *READERS,
]
