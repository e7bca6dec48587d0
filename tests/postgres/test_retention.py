"""Pruning a store that others work with: in portions, behind nobody's back, and in nobody's way."""

from __future__ import annotations

import functools
import json

import pytest
from psycopg import sql

from leasehold import Retention, Router
from leasehold.core.job import NewJob, Outcome, Settlement, new_job
from leasehold.core.workers import WorkerReport
from leasehold.liveness import this_process
from leasehold.store import EVENTS_AT_ONCE, Renewal
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.owning import PATIENCE_MS
from leasehold.stores.postgres.rows import wishes

from .fixtures import Place
from .staging import Call, Session, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


def finished(store: PostgresStore, *jobs: NewJob) -> None:
    """Add jobs and complete them, together."""
    store.add(jobs)
    grants = store.claim("worker", limit=len(jobs), process=this_process())
    said = [Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, "null") for grant in grants]
    assert store.settle(said) == [None] * len(jobs)


def prune(other: Session) -> int:
    """Prune everything, and stay in the transaction; return how many jobs that were."""
    [(removed, *_)] = other.call("prune", 0, 1_000, EVENTS_AT_ONCE, 0, PATIENCE_MS)
    return int(removed)


def wish(*ids: str) -> str:
    """What the function `add` takes, of plain jobs."""
    return json.dumps(wishes([new_job(id_) for id_ in ids]))


def count(store: PostgresStore, table: str) -> int:
    """How many rows a table of the store has."""
    name = sql.Identifier(store.database.schema, table).as_string(None).replace("%", "%%")
    [(rows,)] = store.database.read(f"select count(*) from {name}")
    return int(rows)


# Portions


def test_one_prune_removes_a_bounded_number_of_events(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are old: the oldest first, and no transaction is long because of it."""
    monkeypatch.setattr("leasehold.stores.postgres.store.EVENTS_AT_ONCE", 3)
    for _ in range(8):
        store.advance()
    oldest = [event.number for event in store.events()]

    left = []
    for _ in range(4):
        store.prune(0)
        left.append([event.number for event in store.events()])

    assert left == [oldest[3:], oldest[6:], [], []]


def test_a_router_prunes_events_until_none_is_old(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there are more of them than one prune removes, and no job has finished."""
    monkeypatch.setattr("leasehold.stores.postgres.store.EVENTS_AT_ONCE", 3)
    for _ in range(8):
        store.advance()

    with Router(store.database.url, schema=store.database.schema) as router:
        assert router.prune(keep_seconds=3600).jobs == 0
        assert len(router.events()) == 8
        assert router.prune(keep_seconds=0) == (0, 8, 0)
        assert router.events() == []


def test_upkeep_goes_over_the_events_in_portions(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One portion for each call; the next pass is a minute later."""
    monkeypatch.setattr("leasehold.stores.postgres.claiming.PORTION", 3)
    for _ in range(8):
        store.advance()
    now = Retention(events_seconds=0)

    left = []
    for _ in range(4):
        more = store.tend(now)
        left.append((more, len(store.events())))
    store.advance()

    assert left == [(True, 5), (True, 2), (False, 0), (False, 0)]
    assert store.tend(now) is False
    assert len(store.events()) == 1


def test_one_prune_removes_a_bounded_number_of_processes(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that hold nothing; a process that holds a lease is kept, so that its death can be proved."""
    monkeypatch.setattr("leasehold.stores.postgres.store.EVENTS_AT_ONCE", 3)
    store.add([new_job(f"job-{number}") for number in range(8)])
    here = this_process()
    assert here is not None
    grants = [store.claim("w", process=here._replace(pid=number))[0] for number in range(1, 9)]
    store.settle([Settlement(grant.spec.id, grant.epoch, Outcome.RELEASE) for grant in grants[1:]])

    left = []
    for _ in range(4):
        store.prune(0)
        left.append(count(store, "processes"))

    assert left == [5, 2, 1, 1]


def test_what_was_pruned_before_an_interruption_stays_pruned(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each portion is a transaction of its own."""
    monkeypatch.setattr("leasehold.stores.postgres.store.EVENTS_AT_ONCE", 3)
    finished(store, *(new_job(f"job-{number}") for number in range(9)))
    for _ in range(9):
        store.advance()
    portions = iter(range(100))

    def interrupt(what: str) -> None:
        if what == "prune" and next(portions) == 2:
            raise KeyboardInterrupt

    with Router(store.database.url, schema=store.database.schema) as router:
        assert isinstance(router.store, PostgresStore)
        monkeypatch.setattr(router.store, "prune", functools.partial(router.store.prune, limit=2))
        router.store.database.point = interrupt
        with pytest.raises(KeyboardInterrupt):
            router.prune(keep_seconds=0)

        assert (len(store.jobs()), len(store.events())) == (5, 3)
        assert router.prune(keep_seconds=0).jobs == 5
    assert (len(store.jobs()), len(store.events())) == (0, 0)


# Not what recovery needs


def claim_here(other: Session) -> None:
    """Claim a job for this process, and stay in the transaction."""
    here = this_process()
    assert here is not None
    rows = other.call("claim", "other", 1, None, None, None, 30_000_000, None, *here, *[None] * 7, False)
    assert len(rows) == 2


def test_a_process_that_claims_its_first_job_during_a_prune_is_kept(store: PostgresStore) -> None:
    """The leases and the processes are read as they were at one moment: else its death could not be proved."""
    store.add([new_job("a")])
    with session(store) as other:
        name = sql.Identifier(store.database.schema, "processes")
        other.connection.execute(sql.SQL("lock table {} in share mode").format(name))  # so that no row can be removed
        pruning = Call(lambda: store.prune(0))
        until_blocked(store, pruning)
        claim_here(other)
        other.connection.commit()
        pruning.result()

    assert count(store, "processes") == 1


def test_the_process_of_a_worker_that_reports_is_kept(store: PostgresStore) -> None:
    """It may be claiming at this moment: a lease of a process that was forgotten would wait for its deadline."""
    finished(store, new_job("a"))
    here = this_process()
    store.report(WorkerReport("worker-1", "worker", here, None, (), 1, 0, 0))
    store.add([new_job("b")])
    with session(store) as other:
        claim_here(other)
        store.prune(0)
        other.connection.commit()
    assert count(store, "processes") == 1

    store.retire("worker-1")
    store.cancel("b", store.job("b").epoch, by="ops")
    store.prune(0)
    assert count(store, "processes") == 0


# In nobody's way


def test_nobody_waits_for_a_prune_that_stands_still(place: Place, store: PostgresStore) -> None:
    """What it has locked, none of those who work needs: claims, settlements, renewals, reclaims, new jobs."""
    finished(store, new_job("old", unique="u"), new_job("older"))  # and its process holds nothing any more
    store.advance()
    store.add([new_job("fails"), new_job("ends", lock="k"), new_job("expires")])
    fails, ends, _ = store.claim("worker", limit=3, lease_us=1)
    longer = [Renewal(grant.spec.id, grant.epoch, 60_000_000) for grant in (fails, ends)]
    store.renew(longer)
    with session(store) as other:
        assert prune(other) == 2

        def work() -> list[str]:
            store.add([new_job("plain")])
            store.add([new_job("unique", unique="u"), new_job("behind", lock="k")])
            store.renew(longer)
            assert [ended.job_id for ended in store.reclaim()] == ["expires"]
            then = (new_job("then"),)
            said = [
                Settlement("fails", fails.epoch, Outcome.FAIL, error="boom", retry=False),
                Settlement("ends", ends.epoch, Outcome.COMPLETE, "null", then),
            ]
            assert store.settle(said) == [None, None]
            grants = store.claim("worker", limit=10, process=this_process())
            store.settle([Settlement(one.spec.id, one.epoch, Outcome.COMPLETE, "null") for one in grants])
            return [grant.spec.id for grant in grants]

        assert Call(work).result() == ["expires", "plain", "unique", "behind", "then"]

        assert count(store, "processes") == 1  # its transaction is open still
        other.connection.commit()
    assert store.prune(0).jobs == 7
    assert (len(store.jobs()), len(store.events()), count(store, "processes")) == (0, 0, 0)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_add_of_what_is_being_pruned_waits_for_that_portion(store: PostgresStore, ends: str) -> None:
    """Only then is it known whether the job is there; if it is gone, it is added anew."""
    finished(store, new_job("again"))
    with session(store) as other:
        prune(other)
        adding = Call(lambda: store.add([new_job("again")]))
        until_blocked(store, adding)

        getattr(other.connection, ends)()

        assert adding.result()[0].created == (ends == "commit")
    assert store.job("again").status == ("pending" if ends == "commit" else "done")


@pytest.mark.parametrize("unique", [None, "u"], ids=["plain", "unique"])
def test_a_job_that_was_there_when_the_add_looked_and_is_pruned_since(store: PostgresStore, unique: str | None) -> None:
    """The add has met the job, waits for another one, and finds the first gone: it is added, and not taken for new."""
    finished(store, new_job("pruned", unique=unique))
    with session(store) as other:
        other.call("add", store.database.store_id, wish("waited for"), True, False, None)
        adding = Call(lambda: store.add([new_job("pruned", unique=unique), new_job("waited for")]))
        until_blocked(store, adding)
        assert store.prune(0, keep_ids_us=0).jobs == 1

        other.connection.commit()

        assert [one.created for one in adding.result()] == [True, False]
    assert [store.job(name).status for name in ("pruned", "waited for")] == ["pending", "pending"]
