"""
The connection that `lease.transaction()` lends, how it is taken back, and who else may end it.

Long on purpose: each test ends the same block in another way, and they share the sessions that do so.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, sql
from psycopg.types.numeric import FloatLoader
from tests.support import until

from leasehold import (
    Conflict,
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    StaleEpoch,
    StoreUnavailable,
    UnknownJob,
)
from leasehold.core.job import new_job
from leasehold.errors import StaleSnapshot
from leasehold.lease import Lease
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.schema import configure, functions
from leasehold.testing import elsewhere

from .fixtures import Place
from .staging import ISOLATIONS, Call, entered_elsewhere, session, until_blocked


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store, a table of the caller's own beside it, and a job."""
    made = place.store()
    with place.connect(made) as connection:
        connection.execute("create table results (what text)")
    made.add([new_job("a")])
    yield made
    assert made.verify() == []


def lease_of(store: PostgresStore, lease_us: int | None = None) -> Lease:
    """A lease on the next job."""
    [grant] = store.claim("worker", lease_us=lease_us)
    return Lease(store, grant)


def rows(store: PostgresStore) -> int:
    """How many rows were committed."""
    with psycopg.connect(store.database.url) as connection:
        [(count,)] = connection.execute("select count(*) from results").fetchall()
    return int(count)


def outlived(store: PostgresStore) -> int:
    """How many epochs are noted whose transactions are still to be ended."""
    query = sql.SQL("select count(*) from {}").format(sql.Identifier(store.database.schema, "outlived"))
    with psycopg.connect(store.database.url) as connection:
        [(count,)] = psycopg.ClientCursor(connection).execute(query).fetchall()
    return int(count)


def unended(store: PostgresStore) -> None:
    """Let a takeover end nobody's session, as if its process had died before it came to that."""
    store.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]


def overtaken(store: PostgresStore, lease: Lease, work: Callable[[Any], object] = lambda connection: None) -> None:
    """A block whose job is handed to somebody else while it is open."""
    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
        store.transfer(lease.job_id, lease.epoch, to="b", by="ops")
        work(connection)


# The connection


def test_a_connection_is_lent_to_one_block_at_a_time(store: PostgresStore) -> None:
    """Also after a block whose COMMIT was refused, whose connection is given back like any other."""
    store.add([new_job("b"), new_job("c")])
    unended(store)
    refused = lease_of(store)
    with pytest.raises(StaleEpoch):
        overtaken(store, refused)
    assert refused.lost

    with lease_of(store).transaction() as one, entered_elsewhere(lease_of(store).transaction()) as two:
        assert one.info.backend_pid != two.info.backend_pid


def test_the_connection_of_a_block_is_of_no_use_after_it(store: PostgresStore) -> None:
    """A thread that outlived the block, or a slip behind it, would write unfenced, or in the next job's block."""
    store.add([new_job("b")])
    first, second = lease_of(store), lease_of(store)
    with first.transaction() as old:
        cursor = old.cursor()
        cursor.execute("insert into results values ('mine')")
    with second.transaction() as new:
        for use in (
            lambda: old.execute("insert into results values ('late')"),
            lambda: cursor.execute("insert into results values ('late')"),
            lambda: cursor.copy("copy results from stdin").__enter__(),
            lambda: first.complete(connection=old),
        ):
            with pytest.raises((psycopg.OperationalError, LeaseholdError)):
                use()
        assert new is not old
        new.execute("insert into results values ('new')")

    assert rows(store) == 2
    assert store.job(first.job_id).status == "running"


def test_blocks_of_one_thread_that_end_in_another_order_are_undone(store: PostgresStore) -> None:
    """As those of two tasks on one event loop do: what was begun last is not what is undone first."""
    store.add([new_job("b")])
    leases = [lease_of(store), lease_of(store)]
    blocks = [lease.transaction() for lease in leases]
    contexts = [contextvars.Context(), contextvars.Context()]
    connections = [context.run(block.__enter__) for context, block in zip(contexts, blocks, strict=True)]
    pids = [connection.info.backend_pid for connection in connections]
    for context, block in zip(contexts, blocks, strict=True):
        error = KeyError("mine")
        context.run(block.__exit__, KeyError, error, None)

    with psycopg.connect(store.database.url) as other:
        query = "select count(*) from pg_stat_activity where pid = any(%s) and state like 'idle in transaction%%'"
        assert other.execute(query, [pids]).fetchone() == (0,)


def test_a_stale_owner_gets_no_block(store: PostgresStore) -> None:
    """It is told why, and its lease knows."""
    lease = lease_of(store)
    store.transfer("a", lease.epoch, to="b", by="ops")

    with pytest.raises(StaleEpoch) as refused, lease.transaction():
        pytest.fail("the block was entered")

    assert refused.value.owner == "b"
    assert lease.lost
    assert len(store.events(kind="refused")) == 1


def test_a_block_inherits_nothing_from_the_one_before(store: PostgresStore) -> None:
    """Neither settings, nor a role, nor temporary tables, nor locks, nor how rows look."""
    lease = lease_of(store)
    with lease.transaction() as connection:
        first = connection.info.backend_pid
        connection.execute("set statement_timeout = '77s'")
        connection.execute("select set_config('work_mem', '77MB', false), pg_advisory_lock(77)")
        connection.execute("create temporary table results (what text)")
        connection.execute("set role pg_read_all_data")
        connection.row_factory = psycopg.rows.dict_row
        connection.cursor_factory = psycopg.ClientCursor

    with lease.transaction() as connection:
        assert connection.info.backend_pid == first
        asked = "select current_setting('statement_timeout'), current_setting('work_mem') = '77MB', current_user, "
        asked += "(select count(*) from pg_locks where objid = 77), to_regclass('pg_temp.results')"
        assert connection.execute(asked).fetchall() == [("0", False, "postgres", 0, None)]
        with pytest.raises(Conflict):
            connection.execute("commit")


@pytest.mark.parametrize("commits", [True, False])
def test_a_block_inherits_nothing_that_its_statements_do_not_show(store: PostgresStore, commits: bool) -> None:
    """A function may leave settings, tables and locks; and the driver's object has settings of its own."""
    with psycopg.connect(store.database.url) as other:
        other.execute(
            "create function leave() returns void language plpgsql as $$ begin "
            "perform set_config('work_mem', '77MB', false), pg_advisory_lock(77); create table pg_temp.kept (x int); "
            "end $$"
        )
    lease = lease_of(store)
    notices: list[object] = []
    with suppress(KeyError), lease.transaction() as connection:
        first = connection.info.backend_pid
        connection.execute("select leave()")
        connection.execute("create table pg_temp.results (what text)")
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.add_notice_handler(notices.append)
        connection.prepare_threshold = 0
        if not commits:
            raise KeyError

    for _ in range(2):  # after a block that was rolled back, too
        with suppress(KeyError), lease.transaction() as connection:
            assert connection.info.backend_pid == first
            asked = "select current_setting('work_mem') = '77MB', (select count(*) from pg_locks where objid = 77), "
            asked += "to_regclass('pg_temp.results'), to_regclass('pg_temp.kept'), 0.1::numeric"
            assert connection.execute(asked).fetchall() == [(False, 0, None, None, Decimal("0.1"))]
            connection.execute("drop table if exists missing")
            assert connection.prepare_threshold != 0
            raise KeyError
    assert notices == []


def test_a_forked_child_has_connections_of_its_own(store: PostgresStore) -> None:
    """The parent's session goes on, whatever the child does."""
    lease = lease_of(store)
    with lease.transaction() as connection:
        mine = connection.info.backend_pid
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        with lease.transaction() as connection:
            os.write(writer, str(connection.info.backend_pid).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert int(os.read(reader, 20)) != mine
    with lease.transaction() as connection:
        assert connection.info.backend_pid == mine
    os.close(reader)
    os.close(writer)


def test_a_block_that_ends_its_transaction_all_the_same_is_told(store: PostgresStore) -> None:
    """Below the driver's own verbs, say. Nothing that follows would be fenced, so nothing follows."""
    lease = lease_of(store)

    def evading() -> None:
        with lease.transaction() as connection:
            connection.pgconn.exec_(b"commit")
            with pytest.raises(NotInTransaction):
                connection.execute("insert into results values ('unfenced')")

    with pytest.raises(NotInTransaction):
        evading()

    assert rows(store) == 0


@pytest.mark.parametrize("text", ["select 1; commit", "insert into results values ('x'); rollback; select 1"])
def test_a_block_is_not_ended_by_a_later_statement_of_a_text(store: PostgresStore, text: str) -> None:
    """Nor is the first one run."""
    lease = lease_of(store)

    with lease.transaction() as connection, pytest.raises(Conflict, match=r"lease\.transaction"):
        connection.execute(text)

    assert rows(store) == 0


@pytest.mark.parametrize("text", ["/* so */ commit", "-- so\n rollback", "; end", "rollback work"])
def test_the_end_of_a_transaction_is_recognised_behind_comments(store: PostgresStore, text: str) -> None:
    """And what is no end is let through."""
    with lease_of(store).transaction() as connection:
        with pytest.raises(Conflict, match=r"lease\.transaction"):
            connection.execute(text)
        with pytest.raises(Conflict, match=r"lease\.transaction"):
            connection.cursor().executemany(sql.SQL(text), [()])
        connection.execute("savepoint s")
        connection.execute("rollback work to savepoint s")
        connection.execute("insert into results values ('mine')")
    assert rows(store) == 1


# Who else ends a transaction


def test_an_owner_whose_session_was_ended_in_the_middle_is_told_why(store: PostgresStore) -> None:
    """The driver only says that the server hung up; the store says why, and the lease knows."""
    lease = lease_of(store)

    with pytest.raises(StaleEpoch) as refused:
        overtaken(store, lease, lambda connection: connection.execute("select 1"))

    assert (refused.value.owner, refused.value.reason) == ("b", "manual")
    assert isinstance(refused.value.__cause__, psycopg.OperationalError)
    assert lease.lost
    assert rows(store) == 0


def in_a_block(kind: str, lease: Lease, work: Callable[[Any], object]) -> None:
    """Do *work* in a block of that kind."""
    if kind == "sync":
        with lease.transaction() as connection:
            work(connection)
        return

    async def block() -> None:
        async with lease.aio.transaction() as connection:
            work(connection)

    asyncio.run(block())


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken over", "current"])
def test_a_statement_on_a_lost_connection_is_explained(store: PostgresStore, kind: str, taken: bool) -> None:
    """By who has the job now, or as a store that did not answer; the driver's error is the cause."""
    unended(store)
    lease = lease_of(store)

    def work(connection: Any) -> None:
        connection.execute("insert into results values ('mine')")
        if taken:
            store.transfer("a", lease.epoch, to="b", by="ops")
        with psycopg.connect(store.database.url, autocommit=True) as operator:
            operator.execute("select pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
        connection.execute("select 1")

    with pytest.raises(StaleEpoch if taken else StoreUnavailable) as ended:
        in_a_block(kind, lease, work)

    assert isinstance(ended.value.__cause__, psycopg.OperationalError)
    assert lease.lost == taken
    assert rows(store) == 0


Verb = Callable[..., Any]  # of a lease, or of its async facade; with the options of every verb

_VERBS: list[Verb] = [
    lambda lease, **options: lease.progress(0.5, **options),
    lambda lease, **options: lease.add("child", **options),
    lambda lease, **options: lease.complete(**options),
]


@pytest.mark.parametrize("taken", [True, False], ids=["taken over", "current"])
@pytest.mark.parametrize("where", ["block", "own", "async"])
@pytest.mark.parametrize("verb", _VERBS, ids=["progress", "add", "complete"])
def test_a_verb_on_a_lost_connection_is_explained(store: PostgresStore, where: str, taken: bool, verb: Verb) -> None:
    """By who has the job now: the session may have been ended because of the takeover."""
    unended(store)
    lease = lease_of(store)

    def end(connection: Any) -> None:
        if taken:
            store.transfer("a", lease.epoch, to="b", by="ops")
        with psycopg.connect(store.database.url, autocommit=True) as operator:
            operator.execute("select pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])

    def refused() -> Any:
        return pytest.raises(StaleEpoch if taken else StoreUnavailable)

    def in_block() -> None:
        with lease.transaction() as connection:
            elsewhere(lambda: end(connection))
            verb(lease)

    async def on_a_loop() -> None:
        async with await psycopg.AsyncConnection.connect(store.database.url) as connection:
            await lease.aio.fence(connection)
            elsewhere(lambda: end(connection))
            with refused():
                await verb(lease.aio, connection=connection)

    if where == "block":
        with refused():
            in_block()
    elif where == "own":
        with psycopg.connect(store.database.url) as connection:
            lease.fence(connection)
            elsewhere(lambda: end(connection))
            with refused():
                verb(lease, connection=connection)
    else:
        asyncio.run(on_a_loop())

    assert lease.lost == taken


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_error_of_a_blocks_own_is_raised_as_it_is(store: PostgresStore, kind: str) -> None:
    """With where it came from, and nothing else."""
    problem = KeyError("mine")

    def work(connection: Any) -> None:
        raise problem

    with pytest.raises(KeyError) as raised:
        in_a_block(kind, lease_of(store), work)

    assert raised.value is problem
    assert problem.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(problem.__traceback__)]
    assert names[-1] == "work"
    assert not any("undo" in name for name in names)


def test_an_error_of_the_blocks_own_stays_that(store: PostgresStore) -> None:
    """Also of an owner that has lost its job, as long as the server has not hung up."""
    unended(store)

    def failing(connection: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        overtaken(store, lease_of(store), failing)


@pytest.mark.parametrize("by", ["reclaim", "claim"])
def test_what_one_process_did_not_come_to_end_another_one_ends(place: Place, store: PostgresStore, by: str) -> None:
    """The first has taken the job over and died: the rows of the paused owner are locked until the next sweep."""
    taker, other = place.again(store), place.again(store)
    unended(taker)
    lease = lease_of(store, lease_us=1)
    with psycopg.connect(store.database.url) as paused:
        lease.fence(paused)
        paused.execute("lock table results in exclusive mode")
        assert [grant.owner for grant in taker.claim("b")] == ["b"]
        assert outlived(store) == 1
        with psycopg.connect(store.database.url) as waiting:
            waiting.execute("set statement_timeout = '100s'")  # so that this test ends in any case
            insert = Call(lambda: waiting.execute("insert into results values ('next')").rowcount)
            until_blocked(store, insert)

            if by == "reclaim":
                other.reclaim()
            else:
                other.upkeep.ended_us = 0  # a second has passed
                other.tend()

            assert insert.result() == 1
        with pytest.raises(psycopg.OperationalError):
            paused.commit()
    other.reclaim()
    assert outlived(store) == 0


def test_a_sweep_ends_no_current_owner(place: Place, store: PostgresStore) -> None:
    """Neither of this store nor of the epoch that the paused one lost."""
    store.add([new_job("b")])
    unended(store)
    mine = lease_of(store)
    lost = lease_of(store)
    with (
        psycopg.connect(store.database.url) as paused,
        mine.transaction() as current,
        psycopg.connect(store.database.url) as innocent,
    ):
        elsewhere(lost.fence, paused)
        # Somebody else's lock, of a name that looks like a fence of an epoch that is over.
        innocent.execute("select pg_advisory_lock_shared(%s)", [mine.epoch + 5])
        new = Lease(store, store.transfer(lost.job_id, lost.epoch, to="b", by="ops"))
        with entered_elsewhere(new.transaction()) as successor:
            place.again(store).reclaim()

            assert current.execute("select 1").fetchall() == [(1,)]
            assert successor.execute("select 1").fetchall() == [(1,)]
            assert innocent.execute("select 1").fetchall() == [(1,)]
        with pytest.raises(psycopg.OperationalError):
            paused.execute("select 1")


@contextmanager
def stopped_before_it_ends_anybody(store: PostgresStore) -> Iterator[Callable[[], object]]:
    """Let whoever has found a session to end wait, until what this yields is called."""
    [script] = [script for script in functions(store.database.schema) if "end_fenced(p_epochs" in script]
    head, begin, body = script.partition("end_fenced(p_epochs")
    assert body.count("    LOOP\n") == 1
    paused = head + begin + body.replace("    LOOP\n", "    LOOP PERFORM pg_advisory_xact_lock_shared(77);\n")
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        connection.execute(paused)
        try:
            connection.execute("select pg_advisory_lock(77)")
            yield lambda: connection.execute("select pg_advisory_unlock(77)")
        finally:
            connection.execute("select pg_advisory_unlock_all()")
            connection.execute(script)
            configure(connection, store.database.schema)  # a function that is replaced loses its settings


@pytest.mark.parametrize("ended", ["committed", "rolled back", "not"])
def test_a_session_that_has_ended_its_fenced_transaction_meanwhile_is_spared(store: PostgresStore, ended: str) -> None:
    """It was found, and has begun another transaction before it could be ended: that one has lost nothing."""
    unended(store)
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as owner:
        lease.fence(owner)
        store.transfer("a", lease.epoch, to="b", by="ops")
        with stopped_before_it_ends_anybody(store) as go_on:
            ending = Call(lambda: store.database.call("end_fenced", None))
            until_blocked(store, ending)
            if ended == "committed":
                with pytest.raises(psycopg.Error):
                    owner.commit()
            if ended != "not":
                owner.rollback()
                owner.execute("insert into results values ('innocent')")

            go_on()

            assert ending.result() == [(int(ended == "not"),)]
        if ended == "not":
            with pytest.raises(psycopg.OperationalError):
                owner.execute("select 1")
        else:
            owner.commit()
    assert rows(store) == int(ended != "not")
    assert outlived(store) == int(ended == "not")  # until the next look


def test_two_who_end_the_same_transaction_do_not_end_each_other(store: PostgresStore) -> None:
    """Whoever looks whether a fence is still held has it for a moment itself."""
    unended(store)
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as owner, session(store) as other:
        lease.fence(owner)
        store.transfer("a", lease.epoch, to="b", by="ops")
        with stopped_before_it_ends_anybody(store) as go_on:
            ending = Call(lambda: other.ask("end_fenced", None))
            until_blocked(store, ending)
            owner.rollback()
            go_on()
            assert ending.result() == [(0,)]  # and its transaction stays open

        with session(store) as late:
            late.connection.execute("set local lock_timeout = '100s'")
            second = Call(lambda: late.ask("end_fenced", None))
            until_blocked(store, second)
            assert other.connection.execute("select 1").fetchall() == [(1,)]
            other.connection.commit()
            assert second.result() == [(0,)]
    assert outlived(store) == 0


def test_two_who_end_the_same_transaction_spare_the_session_behind_it(store: PostgresStore) -> None:
    """Both have found it, and it has begun another one: that the first has the fence now is no reason to end that."""
    unended(store)
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as owner, session(store) as one, session(store) as other:
        lease.fence(owner)
        store.transfer("a", lease.epoch, to="b", by="ops")
        with stopped_before_it_ends_anybody(store) as go_on:
            calls = {ender: Call(partial(ender.ask, "end_fenced", None)) for ender in (one, other)}
            until(lambda: waiting_for_locks(store) == 2)
            owner.rollback()
            owner.execute("insert into results values ('innocent')")
            go_on()

            while calls:  # their transactions stay open after the call
                until(lambda: not all(call.waits for call in calls.values()))
                ender, call = next((ender, call) for ender, call in calls.items() if not call.waits)
                assert call.result() == [(0,)]
                ender.connection.commit()
                del calls[ender]
        owner.commit()
    assert rows(store) == 1
    assert outlived(store) == 0


def test_of_two_transactions_of_one_owner_the_one_that_has_ended_is_spared(store: PostgresStore) -> None:
    """The other one still has the fence of both."""
    unended(store)
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as owner, psycopg.connect(store.database.url) as paused:
        lease.fence(owner)
        lease.fence(paused)
        store.transfer("a", lease.epoch, to="b", by="ops")
        with stopped_before_it_ends_anybody(store) as go_on:
            ending = Call(lambda: store.database.call("end_fenced", None))
            until_blocked(store, ending)
            owner.rollback()
            owner.execute("insert into results values ('innocent')")
            go_on()
            assert ending.result() == [(1,)]
        owner.commit()
        with pytest.raises(psycopg.OperationalError):
            paused.execute("select 1")
    assert rows(store) == 1
    assert outlived(store) == 1  # until the next look


def waiting_for_locks(store: PostgresStore) -> int:
    """How many sessions wait for a lock that another one has."""
    [(count,)] = store.database.read("select count(*) from pg_locks where not granted")
    return int(count)


def test_a_takeover_that_may_not_end_a_session_is_done_all_the_same(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The schema's owner has no right over a superuser's session: that is logged once, and the fence refuses."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("drop role if exists plain")
        connection.execute("create role plain login")
        connection.execute(
            sql.SQL("grant create on database {} to plain").format(sql.Identifier(connection.info.dbname))
        )
    url = place.url.replace("postgres@", "plain@")
    store = PostgresStore(url, schema="of a plain role")
    try:
        store.add([new_job("a"), new_job("b")])
        lost = [Lease(store, grant) for grant in store.claim("worker", limit=2)]
        caplog.set_level(logging.WARNING, "leasehold")
        with psycopg.connect(place.url) as paused:
            for lease in lost:
                lease.fence(paused)
                assert store.transfer(lease.job_id, lease.epoch, to="b", by="ops").owner == "b"
            store.reclaim()

            with pytest.raises(psycopg.Error) as refused:
                paused.commit()

        assert StaleEpoch.find(refused.value) is not None
        assert len([record for record in caplog.records if "could not end" in record.message]) == 1
        store.reclaim()
        assert outlived(store) == 0
    finally:
        store.close()
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute("drop owned by plain cascade")
            connection.execute("drop role plain")


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: level.name)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_fence_in_the_middle_of_a_takeover_waits_for_its_outcome(
    store: PostgresStore, isolation: IsolationLevel, outcome: str
) -> None:
    """The takeover has looked for fences already, and would not come back for this one."""
    lease = lease_of(store)
    with session(store) as other, psycopg.connect(store.database.url) as connection:
        connection.isolation_level = isolation
        connection.execute("select count(*) from results")
        other.call("transfer", "a", lease.epoch, "b", "ops", None, None, 30_000_000, 1000)
        fence = Call(lambda: lease.fence(connection))
        until_blocked(store, fence)

        getattr(other.connection, outcome)()

        if isolation is not IsolationLevel.READ_COMMITTED:
            with pytest.raises(StaleSnapshot):
                fence.result()
        elif outcome == "commit":
            with pytest.raises(StaleEpoch):
                fence.result()
        else:
            fence.result()
        connection.rollback()
    assert lease.lost is (outcome == "commit" and isolation is IsolationLevel.READ_COMMITTED)


# A transaction that is idle for too long


def test_a_block_is_idle_for_an_hour_at_most(store: PostgresStore) -> None:
    """Or for as long as it says, or as the server's own setting does; and that ends with the block."""
    lease = lease_of(store)

    def seen(connection: Any) -> str:
        [(value,)] = connection.execute("show idle_in_transaction_session_timeout").fetchall()
        return str(value)

    with lease.transaction() as connection:
        assert seen(connection) == "1h"
    with lease.transaction(idle_seconds=90) as connection:
        assert seen(connection) == "90s"
    with lease.transaction(idle_seconds=None) as connection:
        assert seen(connection) == "0"
    for wrong in (0, -1, "1h"):
        with pytest.raises(InvalidArgument, match="idle_seconds"), lease.transaction(idle_seconds=wrong):  # type: ignore[arg-type]  # that is the point
            pytest.fail("the block was entered")


@pytest.mark.parametrize("notices", ["a statement", "the end of the block"])
def test_a_block_that_was_idle_for_too_long_is_undone(store: PostgresStore, notices: str) -> None:
    """Its owner is current, so it is not called stale: it may run the block again."""
    lease = lease_of(store)

    def silent() -> None:
        with lease.transaction(idle_seconds=0.05) as connection:
            connection.execute("insert into results values ('mine')")
            backend = connection.info.backend_pid
            until(lambda: not store.database.read("select from pg_stat_activity where pid = %s", [backend]))
            if notices == "a statement":
                connection.execute("select 1")

    with pytest.raises(StoreUnavailable, match="nothing was committed"):
        silent()

    assert rows(store) == 0
    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
    assert rows(store) == 1


# What the fence says when there is nothing to say


@pytest.mark.parametrize("settle", [False, True], ids=["fence", "complete"])
def test_a_job_that_is_gone_refuses_the_commit(store: PostgresStore, settle: bool) -> None:
    """Taken over, finished and pruned while the owner was paused: there is no current epoch to name."""
    lease = lease_of(store)
    unended(store)

    def forgotten(connection: Any) -> None:
        elsewhere(Lease(store, store.lease("a", "b")).complete)
        assert store.prune(0, keep_ids_us=0).jobs == 1

    with psycopg.connect(store.database.url) as connection:
        if settle:
            lease.complete(connection=connection)
        else:
            lease.fence(connection)
        with pytest.raises(UnknownJob):
            elsewhere(overtaken, store, Lease(store, lease._grant), forgotten)
        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

    asked = StaleEpoch.find(RuntimeError("of the caller's own, without the refusal"), lease)
    for found, verb in ((StaleEpoch.find(refused.value), "complete" if settle else "fence"), (asked, "check")):
        assert found is not None
        assert (found.job_id, found.presented, found.current, found.verb) == ("a", lease.epoch, 0, verb)
        assert "the store no longer has this job" in str(found)
    assert StaleEpoch.find(refused.value, lease) is not None
    assert lease.lost
    assert rows(store) == 0


def test_a_settlement_that_was_committed_is_not_refused_because_its_job_is_gone(store: PostgresStore) -> None:
    """Its record was pruned with the job, so the error of a hook behind the COMMIT finds neither."""
    lease = lease_of(store)
    with psycopg.connect(store.database.url) as connection:
        lease.complete(connection=connection)
        connection.commit()
    assert store.prune(0, keep_ids_us=0).jobs == 1

    assert StaleEpoch.find(RuntimeError("of a hook"), lease) is None
    assert not lease.lost


# Pipelines


@pytest.mark.parametrize("settle", [False, True], ids=["fence", "complete"])
@pytest.mark.parametrize("autocommit", [False, True], ids=["implicit", "transaction()"])
def test_a_fence_in_a_pipeline_is_not_waited_for_and_holds(
    store: PostgresStore, settle: bool, autocommit: bool
) -> None:
    """A current owner commits; of a stale one nothing that was sent behind the fence does."""
    lease = lease_of(store)
    unended(store)

    def write(connection: psycopg.Connection[Any], what: str) -> None:
        lease.complete(connection=connection) if settle and what == "stale" else lease.fence(connection)
        connection.execute("insert into results values (%s)", [what])

    def piped(what: str) -> None:
        with psycopg.connect(store.database.url, autocommit=autocommit) as connection, connection.pipeline():
            if autocommit:
                with connection.transaction():
                    write(connection, what)
            else:
                write(connection, what)
                connection.commit()

    piped("mine")
    assert rows(store) == 1

    store.transfer("a", lease.epoch, to="b", by="ops")
    with pytest.raises(psycopg.Error) as refused:
        piped("stale")

    found = StaleEpoch.find(refused.value)
    assert found is not None
    assert (found.owner, found.presented) == ("b", lease.epoch)
    assert rows(store) == 1


def test_a_pipeline_without_a_transaction_is_refused(store: PostgresStore) -> None:
    """Its statements commit with the next one that is waited for."""
    lease = lease_of(store)

    with psycopg.connect(store.database.url, autocommit=True) as connection, connection.pipeline():
        connection.execute("insert into results values ('mine')")
        with pytest.raises(NotInTransaction):
            lease.fence(connection)


def test_a_later_transaction_behind_a_fence_in_a_pipeline_is_not_the_leases(store: PostgresStore) -> None:
    """The number of the fenced one was never read, so the server is asked for its lock."""
    lease = lease_of(store)
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        with connection.transaction():
            with connection.pipeline():
                lease.fence(connection)
                with pytest.raises(Conflict):
                    lease.complete()
            with pytest.raises(Conflict):
                lease.complete()
        with connection.transaction():
            connection.execute("insert into results values ('of something else')")
            lease.complete()
    assert store.job("a").status == "done"
