"""A worker that is stopped anywhere in its fenced transaction, and one that only takes long: in every library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.support import until

from leasehold import StaleEpoch
from leasehold.core.job import Grant, Progress, new_job
from leasehold.lease import Lease
from leasehold.stores.postgres import PostgresStore
from leasehold.testing import elsewhere

from .fixtures import Place
from .libraries import LIBRARIES, Transaction, transaction
from .staging import ISOLATIONS, Call

pytestmark = pytest.mark.usefixtures("kept_sessions")

STEPS = ["begun", "fenced", "written", "completed"]
AT_ONCE_MS = 30_000  # what waits for longer than that, waits for somebody

# All of it for psycopg; of the other libraries each step once, and each isolation; the rest where it may take longer.
STOPPED = [
    *product(["psycopg"], ISOLATIONS, STEPS),
    *product(LIBRARIES[1:], ISOLATIONS[:1], STEPS[1:]),
    *product(LIBRARIES[1:], ISOLATIONS[1:], STEPS[-1:]),
]
REST = [case for case in product(LIBRARIES, ISOLATIONS, STEPS) if case not in STOPPED]


def named(value: object) -> str:
    """What a test is called by."""
    return value.name if isinstance(value, IsolationLevel) else str(value)


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store whose sessions, and those of its callers, give up what they would have to wait for."""
    yield from prepared(place, place.store())


def prepared(place: Place, made: PostgresStore) -> Iterator[PostgresStore]:
    """Make the caller's own tables beside the store; at the end it is whole."""
    with place.connect(made) as connection:
        connection.execute("create table results (what text)")
        connection.execute("create table stock (id int primary key, n int)")
        connection.execute("insert into stock values (1, 10)")
    yield made
    assert made.verify() == []


def successor(place: Place, store: PostgresStore) -> PostgresStore:
    """The store as another process has it; it waits for nobody."""
    url, path = store.database.url.split("options=")
    made = PostgresStore(f"{url}options={path}%20-cstatement_timeout%3D{AT_ONCE_MS}", schema=store.database.schema)
    place.others.append(made)
    return made


def one(store: PostgresStore, owner: str, lease_us: int | None = None) -> Grant:
    """Claim exactly one job."""
    [grant] = store.claim(owner, lease_us=lease_us)
    return grant


def go(opened: Transaction, lease: Lease, *, after: str | None = None, until: str = "completed") -> None:
    """Do the steps of the fenced transaction that come after *after*, up to *until*."""
    first = 0 if after is None else STEPS.index(after) + 1
    for step in STEPS[first : STEPS.index(until) + 1]:
        match step:
            case "begun":
                opened.execute("select n from stock")
            case "fenced":
                opened.fence(lease)
            case "written":
                opened.execute("update stock set n = n - 1 where id = 1")
                opened.execute("insert into results values ('mine')")
            case "completed":
                opened.complete(lease)


def goes_on(opened: Transaction, lease: Lease, stopped: str) -> None:
    """Do the rest, and commit."""
    go(opened, lease, after=stopped)
    opened.commit()


def rows(store: PostgresStore) -> tuple[int, int]:
    """What the callers have committed."""
    with psycopg.connect(store.database.url) as connection:
        [found] = connection.execute("select (select count(*) from results), (select n from stock)").fetchall()
    return int(found[0]), int(found[1])


@pytest.mark.parametrize(
    ("library", "isolation", "stop"),
    [*STOPPED, *(pytest.param(*case, marks=pytest.mark.soak) for case in REST)],
    ids=named,
)
def test_a_worker_that_was_stopped_and_goes_on_is_refused(
    place: Place, store: PostgresStore, library: str, isolation: IsolationLevel, stop: str
) -> None:
    """By the fence itself: nobody ends its session. Its successor has not waited for it, and finishes the job."""
    other = successor(place, store)
    other.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that the fence is all there is
    store.add([new_job("a")])
    grant = one(store, "worker", lease_us=1)
    lease = Lease(store, grant)
    with transaction(library, store.database.url, isolation) as opened:
        go(opened, lease, until=stop)

        new = one(other, "successor")

        with pytest.raises(Exception) as refused:  # noqa: PT011  # of any library
            goes_on(opened, lease, stop)
    found = StaleEpoch.find(refused.value, lease)
    assert found is not None
    assert (found.job_id, found.presented, found.current) == ("a", grant.epoch, new.epoch)
    assert (found.owner, found.reason) == ("successor", "timeout")
    assert rows(store) == (0, 10)
    Lease(other, new).complete()
    assert store.job("a").status == "done"


@pytest.mark.parametrize(
    ("library", "isolation"),
    [
        *product(["psycopg"], ISOLATIONS),
        *product(LIBRARIES[1:], ISOLATIONS[:1]),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in product(LIBRARIES[1:], ISOLATIONS[1:])),
    ],
    ids=named,
)
@pytest.mark.parametrize("stop", ["written", "completed"])
def test_what_a_stopped_worker_had_locked_is_free(
    place: Place, store: PostgresStore, library: str, isolation: IsolationLevel, stop: str
) -> None:
    """It does not go on at all: who takes the job over ends its session, and may write the same rows."""
    other = successor(place, store)
    store.add([new_job("a")])
    lease = Lease(store, one(store, "worker", lease_us=1))
    with transaction(library, store.database.url, isolation) as opened:
        go(opened, lease, until=stop)
        new = Lease(other, one(other, "successor"))

        with transaction("psycopg", other.database.url) as next_one:
            go(next_one, new)
            next_one.commit()

        with pytest.raises(Exception) as refused:  # noqa: PT011  # of any library
            opened.commit()
    found = StaleEpoch.find(refused.value, lease)
    assert found is not None
    assert found.presented == lease.epoch
    assert rows(store) == (1, 9)
    assert store.job("a").status == "done"


@pytest.mark.parametrize(
    ("library", "isolation"),
    [*product(LIBRARIES, ISOLATIONS)],
    ids=named,
)
def test_an_owner_that_takes_long_is_not_refused(
    place: Place, store: PostgresStore, library: str, isolation: IsolationLevel
) -> None:
    """Past its deadline too, and with its own renewals, progress and sweeps in between."""
    other = successor(place, store)
    store.add([new_job("a"), new_job("b")])
    lease = Lease(store, one(store, "worker"))
    with transaction(library, store.database.url, isolation) as opened:
        for before, step in zip([None, *STEPS], STEPS, strict=False):
            go(opened, lease, after=before, until=step)
            elsewhere(lease.renew)
            store.progress([Progress(lease.job_id, lease.epoch, 0.5, None, f'{{"at":"{step}"}}')])
            other.reclaim()
        elsewhere(Lease(other, one(other, "somebody else")).complete)  # the job b
        elsewhere(lease.renew, 0.000_001)

        opened.commit()

    assert rows(store) == (1, 9)
    assert (store.job("a").status, store.job("b").status) == ("done", "done")


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=named)
@pytest.mark.parametrize("compared", [False, True], ids=["before it is compared", "after it was compared"])
def test_a_worker_is_stopped_inside_its_commit(
    place: Place, store: PostgresStore, isolation: IsolationLevel, compared: bool
) -> None:
    """Until the epoch is compared the job can be taken over; from then on the owner has been in time."""
    other = successor(place, store)
    other.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that the fence is all there is
    store.add([new_job("a")])
    grant = one(store, "worker", lease_us=1)
    lease = Lease(store, grant)
    with transaction("psycopg", store.database.url, isolation) as opened, psycopg.connect(store.database.url) as held:
        # A deferred trigger of the caller's own, which waits; they fire in the order in which they were queued.
        opened.execute(
            "create function waits() returns trigger language plpgsql as "
            "$$begin perform pg_advisory_xact_lock(4711); return null; end$$"
        )
        opened.execute(
            "create constraint trigger waits after insert on results deferrable initially deferred "
            "for each row execute function waits()"
        )
        opened.commit()
        held.execute("select pg_advisory_xact_lock(4711)")
        if compared:
            opened.fence(lease)
        opened.execute("insert into results values ('mine')")
        if not compared:
            opened.fence(lease)
        commit = Call(opened.commit)
        until(lambda: held.execute("select from pg_locks where not granted and objid = 4711").rowcount == 1)

        taken = other.claim("successor")
        held.rollback()

        if compared:
            assert taken == []
            commit.result()
            assert [one(other, "successor").owner] == ["successor"]
        else:
            with pytest.raises(psycopg.Error) as refused:
                commit.result()
            found = StaleEpoch.find(refused.value, lease)
            assert found is not None
            assert (found.owner, found.current) == ("successor", taken[0].epoch)
    assert rows(store)[0] == compared


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("lost", [None, "a", "b"])
def test_two_fences_in_one_transaction(place: Place, store: PostgresStore, order: str, lost: str | None) -> None:
    """Both must be current, in whichever order they were asked for; the refusal names the one that is not."""
    other = successor(place, store)
    other.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that the fence is all there is
    store.add([new_job("a"), new_job("b")])
    leases = {grant.spec.id: Lease(store, grant) for grant in store.claim("worker", limit=2)}
    with transaction("psycopg", store.database.url) as opened:
        for job_id in order:
            opened.fence(leases[job_id])
        for job_id in reversed(order):
            opened.complete(leases[job_id])
        opened.execute("insert into results values ('mine')")
        other.renew([])
        if lost is not None:
            other.transfer(lost, leases[lost].epoch, to="successor", by="ops")

        if lost is None:
            opened.commit()
        else:
            with pytest.raises(psycopg.Error) as refused:
                opened.commit()
            found = StaleEpoch.find(refused.value)
            assert found is not None
            assert (found.job_id, found.owner) == (lost, "successor")

    done = lost is None
    assert rows(store)[0] == done
    assert {store.job(job_id).status for job_id in "ab"} == ({"done"} if done else {"running"})


@pytest.fixture
def fresh(place: Place) -> Iterator[PostgresStore]:
    """
    A store in tables that no test has used before.

    What a SERIALIZABLE transaction has read, PostgreSQL knows by the page of an index. In tables full of dead rows an
    update finds no room beside the old row and adds to such a page, which fails with 40001 although no two owners have
    anything in common (7 times in 700, in a schema that was emptied as often). That is for the caller to run again.
    """
    yield from prepared(place, place.store(untouched=True))


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=named)
def test_owners_of_different_jobs_do_not_disturb_each_other(fresh: PostgresStore, isolation: IsolationLevel) -> None:
    """All of them are open at once, at SERIALIZABLE too: nothing that the fence reads is what another one writes."""
    store = fresh
    store.add([new_job(f"job {number}") for number in range(4)])
    leases = [Lease(store, grant) for grant in store.claim("worker", limit=4)]
    with ExitStack() as stack:
        opened = [stack.enter_context(transaction("psycopg", store.database.url, isolation)) for _ in leases]
        for mine, lease in zip(opened, leases, strict=True):
            mine.fence(lease)
        for mine, lease in zip(opened, leases, strict=True):
            mine.execute("insert into results values ('mine')")
            mine.complete(lease)
        for mine in opened:
            mine.commit()

    assert rows(store) == (4, 10)
    assert store.counts().done == 4
