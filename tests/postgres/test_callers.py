"""The fence and the verbs in a caller's transaction, through the libraries that callers have."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.support import lease_of

from leasehold import Conflict, InvalidArgument, NotInTransaction, Router, Settled, StaleEpoch, Unsupported
from leasehold.stores.postgres.fenced import FencedConnection
from leasehold.testing import elsewhere

from .fixtures import Place, path_of, without_path
from .staging import entered_elsewhere, store_of

pytestmark = pytest.mark.usefixtures("kept_sessions")

SYNC = ["psycopg", "connection", "session"]
ASYNC = ["psycopg", "sqlalchemy psycopg", "sqlalchemy asyncpg", "session asyncpg"]


@pytest.fixture
def router(place: Place) -> Iterator[Router]:
    """A router on a store of its own, and a table of the caller's own beside it."""
    store = place.store()
    with place.connect(store) as connection:
        connection.execute("create table results (what text)")
    with Router(store.database.url, schema=store.database.schema) as router:
        yield router
        assert router.verify() == []


def engine_of(router: Router, driver: str, make: Callable[..., Any], **options: Any) -> Any:
    """An engine on the database of *router*."""
    url = store_of(router).database.url
    plain = without_path(url).replace("postgresql://", f"postgresql+{driver}://")
    path = {"options": f"-csearch_path={path_of(url)}"}
    if driver == "asyncpg":
        path = {"server_settings": {"search_path": path_of(url)}}  # type: ignore[dict-item]  # its own form
    return make(plain, connect_args=path, **options)


def written(router: Router) -> int:
    """How many rows the callers have committed."""
    with psycopg.connect(store_of(router).database.url) as connection:
        [(count,)] = connection.execute("select count(*) from results").fetchall()
        return int(count)


def in_sync(router: Router, how: str, work: Callable[[Any], object]) -> None:
    """Write a row and do *work* in one transaction of the library."""
    if how == "psycopg":
        # Closed apart: `with connection` leaves it open if its COMMIT fails.
        with closing(psycopg.connect(store_of(router).database.url)) as own, own as connection:
            connection.execute("insert into results values ('mine')")
            work(connection)
        return
    engine = engine_of(router, "psycopg", sqlalchemy.create_engine)
    try:
        if how == "connection":
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text("insert into results values ('mine')"))
                work(connection)
        else:
            with Session(engine) as session, session.begin():
                session.execute(sqlalchemy.text("insert into results values ('mine')"))
                work(session)
    finally:
        engine.dispose()


def in_async(router: Router, how: str, work: Callable[[Any], Awaitable[Any]]) -> None:
    """The same on an event loop."""

    async def run() -> None:
        if how == "psycopg":
            own = await psycopg.AsyncConnection.connect(store_of(router).database.url)
            try:
                await own.execute("insert into results values ('mine')")
                await work(own)
                await own.commit()
            finally:
                await own.close()
            return
        engine = engine_of(router, how.split()[1], create_async_engine)
        try:
            if how.startswith("session"):
                async with AsyncSession(engine) as session, session.begin():
                    await session.execute(sqlalchemy.text("insert into results values ('mine')"))
                    await work(session)
            else:
                async with engine.begin() as connection:
                    await connection.execute(sqlalchemy.text("insert into results values ('mine')"))
                    await work(connection)
        finally:
            await engine.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("how", SYNC)
def test_rows_and_completion_are_one_commit(router: Router, how: str) -> None:
    """With children, follow-ups and other jobs, through every library."""
    lease = lease_of(router)

    def work(connection: Any) -> None:
        lease.fence(connection)
        assert lease.add("child", connection=connection).created
        assert router.add("other", connection=connection).created
        lease.complete(7, then=[{"id": "then"}], connection=connection)

    in_sync(router, how, work)

    assert written(router) == 1
    assert (router.job("a").status, router.job("a").result) == ("done", 7)
    assert set(router.snapshot()) == {"a", "a/child", "other", "a/then"}


@pytest.mark.parametrize("how", ASYNC)
def test_rows_and_completion_are_one_commit_on_a_loop(router: Router, how: str) -> None:
    """The connection belongs to its loop, and is used there."""
    lease = lease_of(router)

    async def work(connection: Any) -> None:
        await lease.aio.fence(connection)
        assert (await lease.aio.add("child", connection=connection)).created
        assert not (await router.aio.add("a", connection=connection)).created
        await lease.aio.complete(7, then=[{"id": "then"}], connection=connection)

    in_async(router, how, work)

    assert written(router) == 1
    assert (router.job("a").status, router.job("a").result) == ("done", 7)
    assert set(router.snapshot()) == {"a", "a/child", "a/then"}


@pytest.mark.parametrize("how", SYNC)
def test_a_refusal_at_the_commit_is_found_in_the_librarys_error(router: Router, how: str) -> None:
    """Whatever the library wraps around it, the facts are there."""
    lease = lease_of(router)
    store_of(router).upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that the fence itself refuses

    def work(connection: Any) -> None:
        lease.complete(connection=connection)
        elsewhere(router.transfer, lease.job_id, epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(Exception, match="stale epoch") as refused:
        in_sync(router, how, work)

    found = StaleEpoch.find(refused.value)
    assert found is not None
    assert (found.job_id, found.presented, found.owner, found.reason) == ("a", lease.epoch, "b", "manual")
    assert (found.verb, type(found)) == ("complete", StaleEpoch)
    assert written(router) == 0


@pytest.mark.parametrize("how", ASYNC)
def test_a_refusal_at_the_commit_is_found_on_a_loop(router: Router, how: str) -> None:
    """The same."""
    lease = lease_of(router)
    store_of(router).upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # see above

    async def work(connection: Any) -> None:
        await lease.aio.fence(connection)
        elsewhere(router.transfer, lease.job_id, epoch=lease.epoch, to="b", by="ops")

    with pytest.raises(Exception, match="stale epoch") as refused:
        in_async(router, how, work)

    found = StaleEpoch.find(refused.value)
    assert found is not None
    assert (found.current, found.owner) == (router.job("a").epoch, "b")
    assert written(router) == 0


@pytest.mark.parametrize("how", SYNC)
def test_a_stale_owner_is_told_before_its_commit_if_it_can_be(router: Router, how: str) -> None:
    """Each verb looks first, and raises leasehold's own error."""
    lease = lease_of(router)
    router.transfer(lease.job_id, epoch=lease.epoch, to="b", by="ops")

    for verb in (lease.fence, lambda c: lease.add("x", connection=c), lambda c: lease.complete(connection=c)):
        with pytest.raises(StaleEpoch) as refused:
            in_sync(router, how, verb)
        assert refused.value.owner == "b"

    assert written(router) == 0
    assert len(router.events(kind="refused")) == 3


def test_sqlalchemys_autocommit_is_refused(router: Router) -> None:
    """A fence would protect nothing."""
    lease = lease_of(router)
    engine = engine_of(router, "psycopg", sqlalchemy.create_engine, isolation_level="AUTOCOMMIT")

    with engine.connect() as connection, pytest.raises(NotInTransaction):
        lease.fence(connection)

    engine.dispose()


def test_a_connection_of_something_else_is_refused(router: Router) -> None:
    """And the refusal names what would do."""
    lease = lease_of(router)

    with pytest.raises(Unsupported, match="psycopg"):
        lease.fence(object())


def test_a_connection_to_another_kind_of_database_is_refused(router: Router) -> None:
    """Whichever library it is of, and before anything is sent."""
    lease = lease_of(router)

    engine = sqlalchemy.create_engine("sqlite://", poolclass=NullPool)
    with closing(sqlite3.connect(":memory:")) as plain, engine.connect() as core:
        for connection in (plain, core):
            with pytest.raises(InvalidArgument, match="is to sqlite, and this call needs one to postgresql"):
                lease.fence(connection)


@pytest.mark.parametrize("how", ["connection", "session"])
def test_a_savepoint_that_sqlalchemy_knows_of_is_refused_before_anything_is_sent(router: Router, how: str) -> None:
    """So that nothing has failed in it, and it goes on."""
    lease = lease_of(router)

    def verbs(connection: Any) -> None:
        with connection.begin_nested():
            with pytest.raises(Conflict, match=r"inside a savepoint.*savepoint=True"):
                lease.fence(connection)
            connection.execute(sqlalchemy.text("insert into results values ('inside')"))

    in_sync(router, how, verbs)

    assert written(router) == 2


def test_a_snapshot_from_before_the_claim_is_its_own_message(router: Router) -> None:
    """It cannot see whether the epoch is current: not stale, but to be run again."""
    with psycopg.connect(store_of(router).database.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        router.add("a")
        connection.execute("select count(*) from results")
        lease = router.claim("worker")
        assert lease is not None

        with pytest.raises(Exception, match="before the job was claimed") as refused:
            lease.fence(connection)

        assert type(refused.value).__name__ == "StaleSnapshot"
        connection.rollback()
        lease.fence(connection)


@pytest.mark.parametrize(
    "ending", ["commit", "rollback", "close", "COMMIT", "rollback ;", " begin", "PREPARE TRANSACTION 'x'"]
)
def test_the_end_of_the_block_ends_the_transaction_and_nothing_else(router: Router, ending: str) -> None:
    """What followed a commit of the user's own would be unfenced."""
    lease = lease_of(router)

    with lease.transaction() as connection:
        with pytest.raises(Conflict, match=r"lease\.transaction"):
            getattr(connection, ending)() if ending in ("commit", "rollback", "close") else connection.execute(ending)
        connection.execute("insert into results values ('mine')")
        connection.execute("savepoint s")
        connection.execute("rollback to savepoint s")
        connection.execute("release savepoint s")
        lease.complete(connection=connection)

    assert written(router) == 1
    assert router.job("a").status == "done"


def test_an_exception_rolls_the_block_back(router: Router) -> None:
    """Rows, completion and all; the lease is as it was, and the connection is used again."""
    lease = lease_of(router)

    def failing() -> None:
        with lease.transaction() as connection:
            connection.execute("insert into results values ('mine')")
            lease.complete(connection=connection)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()

    assert written(router) == 0
    lease.check()
    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
    assert written(router) == 1


def test_a_stale_owners_block_does_not_begin(router: Router) -> None:
    """It is told why, and none of its block is run."""
    lease = lease_of(router)
    router.transfer("a", to="other", epoch=lease.epoch, by="ops")

    with pytest.raises(StaleEpoch), lease.transaction():
        pytest.fail("the block was run")


def test_the_connection_of_a_block_that_was_refused_is_lent_to_one_at_a_time(router: Router) -> None:
    """Two blocks on one connection would be one transaction, with the fence of either."""
    lease = lease_of(router)
    router.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[attr-defined]  # so that COMMIT refuses

    def outlived() -> None:
        with lease.transaction():
            elsewhere(router.transfer, "a", to="other", epoch=lease.epoch, by="ops")

    with pytest.raises(StaleEpoch):
        outlived()
    b, c = lease_of(router, "b"), lease_of(router, "c")

    with b.transaction() as one, entered_elsewhere(c.transaction()) as another:
        assert one is not another


def test_an_async_block_commits_too(router: Router) -> None:
    """`lease.aio.transaction()`, whose connection is a synchronous one."""
    lease = lease_of(router)

    async def run() -> None:
        async with lease.aio.transaction() as connection:
            connection.execute("insert into results values ('mine')")
            lease.complete(connection=connection)

    asyncio.run(run())

    assert written(router) == 1


@pytest.mark.parametrize("result", [1, 2])
def test_a_settlement_that_was_committed_is_not_repeated_with_rows(router: Router, result: int) -> None:
    """Whatever it says: the rows beside it would be written twice."""
    lease = lease_of(router)
    in_sync(router, "psycopg", lambda connection: lease.complete(1, connection=connection))

    with pytest.raises(Settled):
        in_sync(router, "psycopg", lambda connection: lease.complete(result, connection=connection))

    lease.complete(1)  # by itself it may be


def test_a_block_that_is_refused_at_its_beginning_raises_the_refusal_itself(router: Router) -> None:
    """There is no connection to undo anything on."""
    lease = lease_of(router)
    router.cancel(router.job("a"), by="operator")

    with pytest.raises(StaleEpoch), lease.transaction():
        pytest.fail("it had begun")


def test_a_block_that_is_refused_at_its_end_leaves_no_connection_to_two_others(router: Router) -> None:
    """Refused, it is undone too: were it kept for the next one twice, two owners would share one transaction."""
    lease = lease_of(router)
    with pytest.raises(StaleEpoch), lease.transaction():
        elsewhere(router.cancel, router.job("a"), by="operator")
    router.add("b")
    router.add("c")
    one, other = router.claim_many("worker", limit=2)

    with one.transaction() as first, entered_elsewhere(other.transaction()) as second:
        assert first is not second


def test_ctrl_c_when_a_block_has_begun_leaves_no_transaction_open(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come when the store has opened the transaction, and before the lease knows of it."""
    lease = lease_of(router)
    verbs = store_of(router).transactions
    begin = verbs.begin

    def interrupted(job_id: str, epoch: int, **options: Any) -> Any:
        begun.append(begin(job_id, epoch))
        raise KeyboardInterrupt

    begun: list[Any] = []
    monkeypatch.setattr(verbs, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt), lease.transaction():
        pytest.fail("it had begun")

    assert begun[0].info.transaction_status != psycopg.pq.TransactionStatus.INTRANS


def test_a_connection_that_is_ended_just_when_it_is_used_again_is_replaced(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a takeover may do to it, for the sake of an owner that had it before."""
    lease = lease_of(router)
    with lease.transaction() as connection:
        pid = connection.info.backend_pid
    monkeypatch.setattr(FencedConnection, "is_alive", lambda connection: True)  # it was, when it was looked at
    with psycopg.connect(store_of(router).database.url) as other:
        assert other.execute("select pg_terminate_backend(%s, 60000)", [pid]).fetchone() == (True,)

    with lease.transaction() as connection:
        assert connection.info.backend_pid != pid


def test_a_block_that_fails_takes_back_the_numbers_of_its_own_children_only(router: Router) -> None:
    """Another thread may add children under the same lease meanwhile, and must not be made to ask for them again."""
    lease = lease_of(router)

    def failing() -> None:
        with lease.transaction() as connection:
            lease.add("inside", connection=connection)
            elsewhere(lease.add, "outside")
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()

    assert [lease.add(name).job.id for name in ("outside", "inside")] == ["a/outside#2", "a/inside"]


@pytest.mark.parametrize(
    ("how", "verb"),
    [("psycopg", "add_many"), ("psycopg", "task"), ("psycopg", "child"), ("connection", "add"), ("session", "add")],
)
def test_a_job_is_not_added_inside_a_savepoint(router: Router, how: str, verb: str) -> None:
    """It would vanish with the savepoint alone, and the caller was told that it is there; unless they know better."""
    lease = lease_of(router)

    @router.task
    def work(n: int) -> None: ...

    def add(connection: Any, **options: Any) -> None:
        if verb == "add":
            router.add("other", connection=connection, **options)
        elif verb == "add_many":
            router.add_many([{"id": "other"}, {"id": "another"}], connection=connection, **options)
        elif verb == "task":
            work.options(id="other", connection=connection, **options).add(1)
        else:
            lease.add("child", connection=connection, **options)

    def nested(connection: Any, **options: Any) -> None:
        with connection.transaction() if how == "psycopg" else connection.begin_nested():
            add(connection, **options)

    def refused(connection: Any) -> None:
        with pytest.raises(Conflict, match=r"inside a savepoint.*savepoint=True"):
            nested(connection)

    in_sync(router, how, refused)
    assert (written(router), set(router.snapshot())) == (1, {"a"})  # the savepoint was left, and the rest committed

    in_sync(router, how, lambda connection: nested(connection, savepoint=True))
    assert len(router.snapshot()) > 1


@pytest.mark.parametrize("how", ASYNC)
def test_a_job_is_not_added_inside_a_savepoint_on_a_loop(router: Router, how: str) -> None:
    """Likewise."""

    async def nested(connection: Any, **options: Any) -> None:
        async with connection.transaction() if how == "psycopg" else connection.begin_nested():
            await router.aio.add("other", connection=connection, **options)

    async def refused(connection: Any) -> None:
        with pytest.raises(Conflict, match=r"inside a savepoint.*savepoint=True"):
            await nested(connection)

    in_async(router, how, refused)
    assert (written(router), router.snapshot()) == (1, {})

    in_async(router, how, lambda connection: nested(connection, savepoint=True))
    assert set(router.snapshot()) == {"other"}


def test_a_job_is_added_after_a_savepoint(router: Router) -> None:
    """One that was released or rolled back is over, also for a transaction that wrote nothing outside of it."""

    def work(connection: Any) -> None:
        for ending in ("release s", "rollback to s; release s"):
            connection.execute("savepoint s; insert into results values ('inside')")
            connection.execute(ending)
        assert router.add("other", connection=connection).created
        with connection.transaction():
            assert not router.add("other", connection=connection).created  # adds nothing that could vanish

    in_sync(router, "psycopg", work)
    assert set(router.snapshot()) == {"other"}
