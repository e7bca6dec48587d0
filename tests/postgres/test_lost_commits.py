"""A COMMIT whose reply is lost, on a caller's own connection and at the end of `lease.transaction()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import psycopg
import pytest
from tests.support import lease_of, until

from leasehold import Conflict, Router, StaleEpoch, StoreUnavailable
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.fenced import FencedConnection
from leasehold.testing import elsewhere

from .fixtures import Place, path_of, with_path
from .libraries import Transaction, transaction
from .proxy import Proxy, Where

LIBRARIES = ["psycopg", "sqlalchemy", "sqlalchemy async", "django"]
CUTS = [Where.BEFORE, Where.AFTER]


@pytest.fixture
def store(place: Place) -> PostgresStore:
    """A store with a table of the caller's beside it."""
    made = place.store()
    with place.connect(made, autocommit=True) as connection:
        connection.execute("create table results (name text)")
    return made


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    """The way to the server that will be cut."""
    with Proxy(server_url) as made:
        yield made


def url_through(proxy: Proxy, store: PostgresStore) -> str:
    """The caller's URL, through the proxy."""
    return with_path(proxy.url, path_of(store.database.url))


def rows(store: PostgresStore) -> int:
    """How many rows of the caller's are committed."""
    with psycopg.connect(store.database.url) as connection:
        [(count,)] = connection.execute("select count(*) from results").fetchall()
    return int(count)


def move(router: Router) -> None:
    """Have the job taken over."""
    elsewhere(lambda: router.transfer(router.job("a"), to="b", by="ops"))


@pytest.mark.parametrize("where", CUTS, ids=lambda where: where.name.lower())
@pytest.mark.parametrize(("complete", "taken"), list(product([False, True], repeat=2)), ids=lambda it: str(it).lower())
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_refusal_is_found_only_if_the_transaction_was_refused(
    store: PostgresStore, proxy: Proxy, library: str, complete: bool, taken: bool, where: Where
) -> None:
    """Not if it had been committed: neither because it has settled the job itself, nor because of a later takeover."""
    committed = where is Where.AFTER
    with Router(store.database.url, schema=store.database.schema) as router:
        lease = lease_of(router)
        with transaction(library, url_through(proxy, store)) as opened:
            opened.fence(lease)
            opened.execute("insert into results values ('mine')")
            if complete:
                opened.complete(lease)
            proxy.cut(where, "COMMIT")
            with pytest.raises(Exception) as lost:  # noqa: PT011  # of any library
                opened.commit()
            assert proxy.cuts == 1
            if taken and not (complete and committed):
                move(router)

            found = StaleEpoch.find(lost.value, lease)

            assert (found is not None) is (taken and not committed)
            assert lease.is_settled() is (complete and committed)
        assert rows(store) == committed
        assert router.job("a").status == ("done" if complete and committed else "running")


@pytest.mark.parametrize("where", CUTS, ids=lambda where: where.name.lower())
@pytest.mark.parametrize(("complete", "taken"), list(product([False, True], repeat=2)), ids=lambda it: str(it).lower())
def test_the_end_of_a_block_says_what_is_known(
    store: PostgresStore, proxy: Proxy, complete: bool, taken: bool, where: Where
) -> None:
    """Committed, refused, rolled back, or not known: rows alone leave no record, and a takeover tells nothing."""
    committed = where is Where.AFTER
    url, schema = url_through(proxy, store), store.database.schema
    with Router(url, schema=schema) as router, Router(store.database.url, schema=schema) as other:
        lease = lease_of(router)
        assert isinstance(router.store, PostgresStore)
        moves: list[Callable[[], None]] = [lambda: move(other)] if taken and not (complete and committed) else []

        def take(what: str) -> None:
            while proxy.cuts and moves:
                moves.pop()()

        def write() -> None:
            with lease.transaction() as connection:
                connection.execute("insert into results values ('mine')")
                if complete:
                    lease.complete()
                proxy.cut(where, "COMMIT")

        router.store.database.point = take
        try:
            if complete and committed:
                write()
            else:
                with pytest.raises((StaleEpoch, StoreUnavailable)) as raised:
                    write()
                assert isinstance(raised.value, StaleEpoch) is (taken and not committed)
                assert getattr(raised.value, "outcome_unknown", False) is committed
        finally:
            router.store.database.point = None
        assert not moves
    assert rows(store) == committed


def lost_block(
    router: Router, proxy: Proxy, where: Where, work: Callable[[Any], object], then: Callable[[], object]
) -> Exception | None:
    """Return what a block raises whose COMMIT is cut; *then* happens before its owner can ask the store."""
    assert isinstance(router.store, PostgresStore)
    database, later = router.store.database, [then]

    def happen(what: str) -> None:
        while proxy.cuts and later:
            later.pop()()

    def write() -> None:
        with lease.transaction() as connection:
            connection.execute("insert into results values ('mine')")
            work(connection)
            proxy.cut(where, "COMMIT")

    lease = lease_of(router)
    database.point = happen
    try:
        write()
    except Exception as error:
        return error
    finally:
        database.point = None
    return None


def completed_beside(store: PostgresStore) -> None:
    """Have another holder of the epoch complete the job."""
    with Router(store.database.url, schema=store.database.schema) as router:
        elsewhere(lambda: router.lease("a", owner="worker").complete())


def test_a_block_is_not_committed_because_another_holder_of_the_epoch_says_the_same(
    store: PostgresStore, proxy: Proxy
) -> None:
    """The record has the words of the block; the server knows that its transaction was rolled back."""
    with Router(url_through(proxy, store), schema=store.database.schema) as router:
        raised = lost_block(
            router, proxy, Where.BEFORE, lambda _: current_completes(router), lambda: completed_beside(store)
        )

    assert isinstance(raised, StaleEpoch)
    assert rows(store) == 0


def current_completes(router: Router) -> None:
    """Complete the job in its open block."""
    router.lease("a", owner="worker").complete()


def test_a_refusal_is_found_though_another_holder_of_the_epoch_says_the_same(
    store: PostgresStore, proxy: Proxy
) -> None:
    """The same, on a caller's own connection."""
    with Router(store.database.url, schema=store.database.schema) as router:
        lease = lease_of(router)
        with transaction("psycopg", url_through(proxy, store)) as opened:
            opened.execute("insert into results values ('mine')")
            opened.complete(lease)
            completed_beside(store)
            proxy.cut(Where.BEFORE, "COMMIT")
            with pytest.raises(psycopg.Error) as lost:
                opened.commit()

            assert StaleEpoch.find(lost.value, lease) is not None
    assert rows(store) == 0


def test_another_lease_that_is_settled_in_a_block_says_nothing_about_it(store: PostgresStore, proxy: Proxy) -> None:
    """What the block has settled is looked for in the record, and not what the other lease was settled with."""
    with Router(url_through(proxy, store), schema=store.database.schema) as router:
        router.add("b", queue="other")
        other = router.claim("worker", queues=["other"])
        assert other is not None

        def work(connection: Any) -> None:
            current_completes(router)
            other.complete("another result", connection=connection)

        assert lost_block(router, proxy, Where.AFTER, work, lambda: None) is None
    assert rows(store) == 1


def test_a_completion_that_was_rolled_back_to_a_savepoint_is_not_looked_for(store: PostgresStore, proxy: Proxy) -> None:
    """It is not on record, and the rows around it are committed: after a takeover that is unknown, and not refused."""
    with (
        Router(url_through(proxy, store), schema=store.database.schema) as router,
        Router(store.database.url, schema=store.database.schema) as direct,
    ):

        def work(connection: Any) -> None:
            connection.execute("savepoint s")
            router.lease("a", owner="worker").complete(savepoint=True)
            connection.execute("rollback to s")

        raised = lost_block(router, proxy, Where.AFTER, work, lambda: move(direct))

    assert isinstance(raised, StoreUnavailable)
    assert raised.outcome_unknown
    assert rows(store) == 1


def test_a_completion_of_an_earlier_transaction_is_not_looked_for(store: PostgresStore, proxy: Proxy) -> None:
    """The first transaction rolls its completion back, the second commits rows alone, and its reply is lost."""
    with Router(store.database.url, schema=store.database.schema) as router:
        lease = lease_of(router)
        with psycopg.connect(url_through(proxy, store)) as connection:
            lease.complete(connection=connection)
            connection.rollback()
            lease.fence(connection)
            connection.execute("insert into results values ('mine')")
            proxy.cut(Where.AFTER, "COMMIT")
            with pytest.raises(psycopg.Error) as lost:
                connection.commit()
            move(router)

            assert StaleEpoch.find(lost.value, lease) is None
    assert rows(store) == 1


@pytest.mark.parametrize("library", ["psycopg", "sqlalchemy", "sqlalchemy async", "asyncpg", "django"])
@pytest.mark.parametrize("asked", [False, True], ids=["", "noticed by another verb"])
def test_a_refusal_is_found_beside_a_later_transaction_that_has_committed(
    place: Place, store: PostgresStore, library: str, asked: bool
) -> None:
    """Two transactions of one lease: the second commits, and a takeover ends the session of the first."""
    with Router(store.database.url, schema=store.database.schema) as router, place.connect(store) as second:
        lease = lease_of(router)
        with transaction(library, store.database.url) as first:
            first.fence(lease)
            first.execute("insert into results values ('first')")
            lease.fence(second)
            second.execute("insert into results values ('second')")
            second.commit()
            move(router)
            with pytest.raises(Exception) as lost:  # noqa: PT011  # of any library
                until_it_fails(first)
            if asked:
                with pytest.raises(StaleEpoch):
                    lease.progress(0.5)

            found = StaleEpoch.find(lost.value, lease)

            assert found is not None
            assert found.owner == "b"
    assert rows(store) == 1


def until_it_fails(opened: Transaction | psycopg.Connection) -> None:
    """Use a transaction whose session the server is about to end."""
    while True:
        opened.execute("select 1")


def test_a_lost_commit_is_not_refused_because_of_another_session_that_was_ended(
    place: Place, store: PostgresStore, proxy: Proxy
) -> None:
    """Two sessions of one lease are lost. One has committed, and the error may be of that one."""
    with (
        Router(store.database.url, schema=store.database.schema) as router,
        place.connect(store) as ended,
        psycopg.connect(url_through(proxy, store)) as committed,
    ):
        lease = lease_of(router)
        lease.fence(committed)
        committed.execute("insert into results values ('committed')")
        lease.fence(ended)
        proxy.cut(Where.AFTER, "COMMIT")
        with pytest.raises(psycopg.Error) as lost:
            committed.commit()
        move(router)
        with pytest.raises(psycopg.Error):
            until_it_fails(ended)

        assert StaleEpoch.find(lost.value, lease) is None
    assert rows(store) == 1


def test_transactions_of_several_threads_are_all_remembered(place: Place, store: PostgresStore) -> None:
    """A thread that looks whether one is open does not forget what another has joined meanwhile."""
    with Router(store.database.url, schema=store.database.schema) as router, place.connect(store) as connection:
        assert isinstance(router.store, PostgresStore)
        lease = lease_of(router)
        with place.connect(store) as earlier:
            elsewhere(lambda: lease.fence(earlier))
            earlier.rollback()
            earlier.execute("select 1")  # another transaction: only the server knows that the fenced one has ended
            begun = [lambda: lease.fence(connection)]

            def join(what: str) -> None:
                while begun:
                    elsewhere(begun.pop())

            router.store.database.point = join
            try:
                lease.progress(0.5)
            finally:
                router.store.database.point = None
            assert not begun

            with pytest.raises(Conflict, match="still open"):
                lease.progress(0.5)


def coming_through(monkeypatch: pytest.MonkeyPatch, store: PostgresStore, commit: Callable[[], object]) -> None:
    """Let a COMMIT whose connection was lost succeed at the moment when the store is asked who has the job."""
    check = store.check

    def checked(holders: Any) -> Any:
        monkeypatch.undo()
        commit()
        return check(holders)

    monkeypatch.setattr(store, "check", checked)


def test_a_commit_that_comes_through_while_the_store_is_asked_is_not_refused(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have received it before the connection was lost, and not have come to it yet."""
    with Router(store.database.url, schema=store.database.schema) as router:
        assert isinstance(router.store, PostgresStore)
        lease = lease_of(router)
        with place.connect(store) as connection:
            connection.execute("insert into results values ('mine')")
            lease.complete(connection=connection)
            coming_through(monkeypatch, router.store, connection.commit)

            assert StaleEpoch.find(psycopg.OperationalError("the connection was lost"), lease) is None

    assert rows(store) == 1


def test_the_commit_of_a_block_that_comes_through_while_the_store_is_asked_is_not_refused(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, at the end of `lease.transaction()`."""
    with Router(store.database.url, schema=store.database.schema) as router:
        kept = router.store
        assert isinstance(kept, PostgresStore)
        lease = lease_of(router)
        with lease.transaction() as connection:
            connection.execute("insert into results values ('mine')")
            lease.complete()

            def lost(session: FencedConnection) -> None:
                coming_through(monkeypatch, kept, lambda: psycopg.Connection.commit(session))
                raise psycopg.OperationalError("the connection was lost")

            monkeypatch.setattr(FencedConnection, "commit", lost)

    assert rows(store) == 1


def test_a_refusal_at_the_commit_of_a_callers_connection_is_recorded_once(place: Place, store: PostgresStore) -> None:
    """By whoever converts the driver's error, however often."""
    with Router(store.database.url, schema=store.database.schema) as router:
        assert isinstance(router.store, PostgresStore)
        router.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that COMMIT refuses
        lease = lease_of(router)
        with place.connect(store) as connection:
            lease.fence(connection)
            connection.execute("insert into results values ('mine')")
            move(router)
            with pytest.raises(psycopg.Error) as refused:
                connection.commit()

            first, second = StaleEpoch.find(refused.value), StaleEpoch.find(refused.value, lease)

        assert first is not None
        assert second is not None
        assert (first.owner, first.moved_by) == ("b", "ops")
        [event] = router.events("a", kind="refused")
        assert (event.owner, event.facts["presented"], event.facts["verb"]) == ("b", lease.epoch, "fence")
        assert set(event.facts) <= {"presented", "current", "verb", "reason", "by"}
    assert rows(store) == 0


def test_a_refusal_of_another_store_is_recorded_by_none_of_ours(place: Place, store: PostgresStore) -> None:
    """A store records what it has refused itself."""
    other = place.store()
    with (
        Router(store.database.url, schema=store.database.schema) as router,
        Router(other.database.url, schema=other.database.schema) as beside,
    ):
        assert isinstance(router.store, PostgresStore)
        router.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that COMMIT refuses
        beside.counts()
        lease = lease_of(router)
        with place.connect(store) as connection:
            lease.fence(connection)
            move(router)
            with pytest.raises(psycopg.Error) as refused:
                connection.commit()
        assert StaleEpoch.find(refused.value) is not None

        assert beside.events(kind="refused") == []
        until(lambda: len(router.events(kind="refused")) == 1)
