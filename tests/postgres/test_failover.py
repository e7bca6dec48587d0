"""
Failover: a primary dies, and a standby that has not heard of the last epochs takes its place.

Real servers stream to each other, are cut off, killed and promoted. What has been issued the tests keep themselves, as
a guarded resource would: a database cannot be asked what it has forgotten.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from leasehold import Lease, Retry, Router, StaleEpoch, StoreUnavailable, UnknownJob
from leasehold.cli.app import run
from leasehold.testing import elsewhere

from .fixtures import NEWEST, must_have
from .marks import MANY, Mark, claimed
from .server import Address, Server, address, server, standby, wait_until

REWINDABLE = {
    "wal_log_hints": "on",
    "wal_keep_size": "256MB",  # a standby that is promoted must still have the log from before its promotion
    "wal_retrieve_retry_interval": "100ms",
}


@dataclass
class Cluster:
    """A primary, two standbys that have been cut off from it, and an address that leads to the primary."""

    primary: Server
    standbys: list[Server]  # which know many jobs, and `known`, and nothing later
    known: list[Lease]
    address: Address
    stack: ExitStack
    mark: Mark = field(default_factory=Mark)

    def router(self, url: str | None = None) -> Router:
        """A Router by the common address, or by another URL."""
        return self.stack.enter_context(Router(url or self.address.url(), lease_seconds=600))

    def fail_over(self, to: Server) -> None:
        """Kill every process of the primary, promote *to*, and let the address lead there."""
        self.primary.stop(signal.SIGKILL)
        to.promote()
        self.address.lead_to(to)
        self.primary = to


@contextmanager
def made(version: str) -> Iterator[Cluster]:
    """Start a cluster."""
    must_have(version)
    with ExitStack() as stack:
        primary, common = stack.enter_context(server(version, REWINDABLE)), stack.enter_context(address())
        common.lead_to(primary)
        cluster = Cluster(primary, [], [], common, stack)
        router = cluster.router()
        router.add_many([{"id": f"job-{number}"} for number in range(8 * MANY)])
        cluster.known += claimed(router, 3)
        cluster.mark.seal(cluster.known)
        cluster.standbys += [stack.enter_context(standby(primary)) for _ in range(2)]
        for follower in cluster.standbys:
            follower.catch_up(primary)
            follower.cut_off()
        yield cluster


@pytest.fixture
def cluster(version: str) -> Iterator[Cluster]:
    """A cluster for one test."""
    with made(version) as cluster:
        yield cluster


on_newest = pytest.mark.parametrize("version", [NEWEST])


def backend_of(router: Router) -> int:
    """The server's process at the other end of the connection that the Router's next verb will have."""
    [(process,)] = router.store.database.read("select pg_backend_pid()")  # type: ignore[attr-defined]  # this one has it
    return int(process)


# Epochs


@on_newest
def test_trap_1_and_3_epochs_rise_over_promotions(cluster: Cluster) -> None:
    """
    Both standbys go to timeline 2 from the same data, one after the other, the first with a session that outlives it;
    then the first primary is rewound, follows, and is promoted again.

    No epoch comes again and none is lower, through whatever connection.
    """
    old, (first, second) = cluster.primary, cluster.standbys
    by_address = cluster.router()
    hosts = ",".join(str(one.folder) for one in (first, old, second))
    by_hosts = cluster.router(f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write")
    for setting in ("wal_log_hints = on", "wal_keep_size = '256MB'"):  # for the recovery with which pg_rewind begins
        old.ask(f"alter system set {setting}")
    survivor = cluster.router(first.url())
    process = backend_of(survivor)
    forgotten = claimed(by_address)
    cluster.mark.seal(forgotten)
    cluster.mark.seal(claimed(by_hosts))

    cluster.fail_over(first)
    cluster.mark.seal(claimed(survivor))
    cluster.mark.seal(claimed(by_address))
    cluster.mark.seal(claimed(by_hosts))

    assert (first.timeline, backend_of(survivor)) == (2, process)

    cluster.fail_over(second)
    cluster.mark.seal(claimed(by_hosts))
    cluster.mark.seal(claimed(by_address))

    assert second.timeline == 2

    old.follow(second)
    old.cut_off()
    cluster.mark.seal(claimed(by_address))
    cluster.fail_over(old)
    cluster.mark.seal(claimed(by_hosts))
    cluster.mark.seal(claimed(by_address))

    assert old.timeline == 3
    assert not any(cluster.mark.admits(lease) for lease in forgotten)
    advanced = by_address.events(kind="advanced")  # the second's, and its own
    assert [it.facts["found"] for it in advanced] == ["another timeline, another start of the server"] * 2
    assert by_address.verify() == []


# Owners from before


@dataclass
class Aftermath:
    """A cluster after a failover that has forgotten, and who had a lease on the old primary."""

    cluster: Cluster
    router: Router
    known: Lease  # has been replicated
    taken_over: tuple[Lease, Lease]  # has been replicated; and the lease that ended it, which has not
    forgotten: list[Lease]
    of_unknown_job: Lease
    inside: tuple[Lease, AbstractContextManager[Any]]  # forgotten, in the middle of its own transaction


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """A cluster for many tests, whose first standby may have become the primary; the second stays what it is."""
    with made(NEWEST) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def after(shared: Cluster) -> Aftermath:
    """One failover for the tests below, each of which has jobs of its own."""
    cluster, router = shared, shared.router()
    known, taken, _ = cluster.known
    later = router.transfer(taken.job_id, to="other", epoch=taken.epoch, by="supervisor")
    router.add("late", priority=9)
    [late] = claimed(router, 1)
    forgotten = claimed(router)
    cluster.mark.seal([later, late, *forgotten])
    lease = forgotten.pop()
    block = lease.transaction()
    elsewhere(block.__enter__).execute("create table unfenced (what text)")
    cluster.fail_over(cluster.standbys[0])
    return Aftermath(cluster, router, known, (taken, later), forgotten, late, (lease, block))


def refused(verb: Callable[[], object]) -> StaleEpoch:
    """The refusal that *verb* must meet."""
    with pytest.raises(StaleEpoch) as caught:
        verb()
    return caught.value


def write(lease: Lease, table: str = "written") -> None:
    """A transaction of the owner's own."""
    with lease.transaction() as connection:
        connection.execute(f"create table {table} (what text)")


def never(key: str) -> None:
    """An effect that must not be brought about."""
    raise AssertionError(key)


WRITES: dict[str, Callable[[Lease], object]] = {
    "renew": lambda lease: lease.renew(),
    "progress": lambda lease: lease.progress(0.5, checkpoint={"page": 1}),
    "check": lambda lease: lease.check(),
    "add": lambda lease: lease.add("child"),
    "once": lambda lease: lease.once("charge", never),
    "complete": lambda lease: lease.complete(then=[{"id": "then"}]),
    "fail": lambda lease: lease.fail("why"),
    "release": lambda lease: lease.release(),
    "fence": write,
}


def test_an_owner_that_the_new_primary_has_forgotten_is_refused_whatever_it_says(after: Aftermath) -> None:
    """Before anybody has claimed there, and after: with what the new primary knows of the job."""
    for (name, verb), lease in zip(WRITES.items(), after.forgotten, strict=False):
        said = refused(partial(verb, lease))
        assert (said.presented, said.current, said.owner, said.verb) == (lease.epoch, 0, None, name)
        assert "has no record of this claim" in str(said)
        assert lease.lost

    leases = claimed(after.router)
    after.cluster.mark.seal(leases)
    now = {lease.job_id: lease.epoch for lease in leases}

    for (name, verb), lease in zip(WRITES.items(), after.forgotten, strict=False):
        said = refused(partial(verb, lease))
        assert (said.presented, said.current, said.owner, said.verb) == (lease.epoch, now[lease.job_id], "worker", name)
    assert after.cluster.standbys[0].ask("select to_regclass('written')") == [(None,)]
    assert after.router.jobs(parent=after.forgotten[0].job_id) == []
    assert after.router.verify() == []


def test_an_owner_whose_job_the_new_primary_has_forgotten_is_told_so(after: Aftermath) -> None:
    """The producer's word is lost too: there is no job to be refused."""
    for verb in WRITES.values():
        with pytest.raises(UnknownJob):
            verb(after.of_unknown_job)

    assert after.router.add("late", queue="elsewhere").created


def test_a_transaction_that_was_open_at_the_failover_may_have_committed_on_the_old_primary(after: Aftermath) -> None:
    """Its connection was lost in COMMIT, and the new primary does not know how that ended elsewhere."""
    lease, block = after.inside

    with pytest.raises(StoreUnavailable) as lost:
        block.__exit__(None, None, None)

    assert lost.value.outcome_unknown
    assert refused(lease.complete).presented == lease.epoch
    assert after.cluster.standbys[0].ask("select to_regclass('unfenced')") == [(None,)]


def test_an_owner_that_the_new_primary_knows_goes_on(after: Aftermath) -> None:
    """A failover takes nothing from a lease that has been replicated."""
    after.known.renew()
    with after.known.transaction() as connection:
        connection.execute("create table fenced (what text)")
        after.known.complete(connection=connection)

    assert after.router.job(after.known.job_id).status == "done"


def test_a_takeover_that_is_forgotten_does_not_let_the_earlier_owner_write_outside(after: Aftermath) -> None:
    """The new primary takes the earlier owner for the current one. A mark outside refuses it, and admits the next."""
    earlier, later = after.taken_over

    assert after.router.job(earlier.job_id).epoch == earlier.epoch
    assert not after.cluster.mark.admits(earlier)
    assert refused(later.renew).current == earlier.epoch

    again = after.router.transfer(earlier.job_id, to="other", epoch=earlier.epoch, by="supervisor")
    after.cluster.mark.seal([again])
    assert refused(earlier.renew).current == again.epoch


# A standby can be read, and no more


def test_a_standby_can_be_read(shared: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs, ownerships, events, counts, and whether all is well."""
    url = shared.standbys[1].url()
    router = shared.router(url)
    assert router.job("job-2").owner == "worker"
    assert [job.id for job in router.jobs(limit=2)] == ["job-0", "job-1"]
    assert [job.id for job in router.jobs(owner="worker")] == ["job-0", "job-1", "job-2"]
    assert [held.epoch for held in router.ownerships("job-2")] == shared.mark.issued[2:3]
    assert router.events() == []
    assert (router.counts().running, router.verify()) == (3, [])
    assert router.lease("job-2", owner="worker").epoch == shared.mark.issued[2]

    assert run(["store", "check", url]) == 0
    assert "Every invariant holds." in capsys.readouterr().out


MOVES: dict[str, Callable[[Router], object]] = {
    "add": lambda router: router.add("new"),
    "claim": lambda router: router.claim("other"),
    "claim and wait": lambda router: router.claim("other", wait_seconds=60),
    "transfer": lambda router: router.transfer(router.job("job-2"), to="other", by="ops"),
    "cancel": lambda router: router.cancel(router.job("job-2"), by="ops"),
    "requeue": lambda router: router.requeue(router.job("job-2"), by="ops"),
    "replay": lambda router: router.replay(router.job("job-2"), by="ops"),
    "complete": lambda router: router.complete(router.job("job-2"), by="ops"),
    "reclaim": lambda router: router.reclaim(),
    "prune": lambda router: router.prune(keep_seconds=1),
    "advance": lambda router: router.advance(),
}


def test_a_standby_changes_and_issues_nothing_and_says_why(shared: Cluster) -> None:
    """Every verb; also `check`, which would answer for a moment that is past."""
    router = shared.router(shared.standbys[1].url())
    lease = router.lease("job-2", owner="worker")
    verbs = [partial(verb, router) for verb in MOVES.values()] + [partial(verb, lease) for verb in WRITES.values()]

    for verb in verbs:
        with pytest.raises(StoreUnavailable, match=r"is read-only.*the primary.*Nothing was changed"):
            verb()

    assert not lease.lost
    assert router.job("job-2").epoch == lease.epoch


def test_a_store_is_not_made_on_a_standby(shared: Cluster) -> None:
    """The first verb on a schema that is not there says the same."""
    router = shared.stack.enter_context(Router(shared.standbys[1].url(), schema="other"))

    with pytest.raises(StoreUnavailable, match="is read-only: "):
        router.add("a")


def test_a_router_that_met_a_standby_finds_the_primary_at_the_same_address(shared: Cluster) -> None:
    """An address may lead to a standby for a while. The sessions there are alive, and are not kept all the same."""
    shared.address.lead_to(shared.standbys[1])
    router = shared.router()
    lease = router.lease("job-2", owner="worker")
    for verb in (lambda: router.claim("worker"), lease.renew, lambda: write(lease)):
        with pytest.raises(StoreUnavailable, match="read-only"):
            verb()

    shared.address.lead_to(shared.primary)

    shared.mark.seal(claimed(router, 1))
    write(lease, "by_another_way")
    lease.renew()


# One server, killed


@on_newest
def test_trap_2_no_epoch_is_lost_with_an_asynchronous_commit(version: str) -> None:
    """
    The role commits asynchronously, nobody writes the log for it, and one process of the server is killed.

    The postmaster lives, and restarts the others: afterwards nothing in the fingerprint shows that something was lost.
    So nothing that was issued may be. Then every process is killed.
    """
    must_have(version)
    mark = Mark()
    quiet = {"bgwriter_lru_maxpages": "0", "autovacuum": "off", "checkpoint_timeout": "1h"}
    with server(version, quiet, durable=True) as running:
        running.ask("create table control (what text)")
        running.ask("alter role postgres set synchronous_commit = off")
        with Router(running.url(), lease_seconds=600) as router:
            router.add_many([{"id": f"job-{number}"} for number in range(4 * MANY)])
            mark.seal(claimed(router))
            [(writer, started)] = running.ask(WRITER)
            os.kill(writer, signal.SIGSTOP)
            mark.seal(claimed(router))
            running.ask("insert into control values ('committed')")

            os.kill(writer, signal.SIGKILL)
            wait_until(lambda: writer not in running.children and is_up(running))
            mark.seal(claimed(router))

            assert running.ask("select what from control") == []  # so it was lost, and the epochs were not
            assert running.ask(WRITER)[0][1] == started
            assert router.events(kind="advanced") == []

            running.stop(signal.SIGKILL)
            running.start()
            mark.seal(claimed(router))

            assert len(router.events(kind="advanced")) == 1
            assert router.verify() == []


WRITER = "select pid, pg_postmaster_start_time() from pg_stat_activity where backend_type = 'walwriter'"


def is_up(server: Server) -> bool:
    """Whether the server takes sessions, and has all its processes again."""
    try:
        return bool(server.ask(WRITER))
    except psycopg.OperationalError:
        return False


# Over and over


class Workers:
    """Threads that claim all the time, and note what they got and during which reign."""

    def __init__(self, url: str, count: int) -> None:
        self.reign = 0  # counts the primaries; odd while there is none
        self.got: list[tuple[int, int, int]] = []  # the reign before the claim, and after it, and the epoch
        self._router = Router(url, lease_seconds=0.2)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(f"worker-{number}",)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self, name: str) -> None:
        while not self._stopped.is_set():
            before = self.reign
            try:
                leases = self._router.claim_many(name, limit=5)
            except StoreUnavailable:
                self._stopped.wait(0.01)
                continue
            self.got += [(before, self.reign, lease.epoch) for lease in leases]
            with suppress(StoreUnavailable, StaleEpoch, UnknownJob):
                for lease in leases[1:]:  # the first is left to expire
                    lease.release()

    def in_reign(self, reign: int) -> list[int]:
        """The epochs of claims that began and ended under one primary."""
        return [epoch for before, after, epoch in list(self.got) if before == after == reign]

    def stop(self) -> None:
        """End them."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._router.close()


@pytest.mark.soak
def test_no_epoch_comes_again_over_failovers_under_load() -> None:
    """Workers claim without a pause, while one primary after another is killed, each with its last claims forgotten."""
    must_have(NEWEST)
    with ExitStack() as stack:
        common = stack.enter_context(address())
        primary = stack.enter_context(server(NEWEST, REWINDABLE))
        common.lead_to(primary)
        with Router(common.url()) as router:
            router.add_many([{"id": f"job-{number}", "retry": Retry(max_reclaims=10**6)} for number in range(200)])
        workers = Workers(common.url(), 4)
        stack.callback(workers.stop)
        for _ in range(12):
            reign = workers.reign
            follower = stack.enter_context(standby(primary))
            follower.catch_up(primary)
            follower.cut_off()
            known = len(workers.in_reign(reign))
            wait_until(lambda: len(workers.in_reign(reign)) > known + 2 * MANY)  # noqa: B023  # called at once
            workers.reign += 1
            primary.stop(signal.SIGKILL)
            follower.promote()
            common.lead_to(follower)
            workers.reign += 1
            primary = follower
            wait_until(lambda: bool(workers.in_reign(workers.reign)))
        workers.stop()

        with Router(common.url()) as router:
            assert router.verify() == []
    issued = [epoch for _, _, epoch in workers.got]
    assert len(issued) == len(set(issued))
    reigns = [workers.in_reign(reign) for reign in range(0, workers.reign + 1, 2)]
    assert all(max(earlier) < min(later) for earlier, later in pairwise(reigns))
