"""
The verbs inside a caller's own transaction: what commits together, what is refused, and who waits for whom.

Long on purpose: every property is tried with every kind of caller, and they share their fixtures.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from tests.patience import PATIENCE_SECONDS
from tests.sqlite.joining import (
    AUTOCOMMITTING,
    CALLERS,
    AlwaysInside,
    AsyncCore,
    AsyncOrm,
    Caller,
    CoreConnection,
    Elsewhere,
    Explicit,
    OrmSession,
    Plain,
    Watchable,
    in_thread,
)
from tests.support import claimed, overtaken

from leasehold import (
    Conflict,
    InvalidArgument,
    Lease,
    LeaseholdError,
    NotInTransaction,
    Router,
    Settled,
    StaleEpoch,
    StaleSnapshot,
    Status,
    StoreUnavailable,
    UnknownJob,
    Unsupported,
)
from leasehold.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with a table of the caller's own."""
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table results (what text not null unique)")
    return path


@pytest.fixture
def router(path: str, clock: ManualClock) -> Iterator[Router]:
    """The store in that file; it is whole at the end."""
    with Router(f"sqlite:///{path}?busy_seconds=10&synchronous=normal", clock=clock) as router:
        yield router
        assert router.store.verify() == []


@pytest.fixture
def hasty(path: str, clock: ManualClock) -> Iterator[Router]:
    """Another process's Router, as good as: connections of its own, and no patience with a file that is busy."""
    with Router(f"sqlite:///{path}?busy_seconds=0.02&synchronous=normal", clock=clock) as router:
        yield router


@pytest.fixture
def lease(router: Router) -> Lease:
    """A lease on job "a"."""
    router.add("a", {"total": 10})
    return claimed(router, "worker-0")


@pytest.fixture(params=CALLERS, ids=lambda kind: kind.__name__)
def caller(request: pytest.FixtureRequest, path: str) -> Caller:
    """Somebody with rows in the same file, through each driver in turn."""
    kind: type[Caller] = request.param
    return kind(path)


@pytest.fixture(params=[kind for kind in CALLERS if kind is not AlwaysInside], ids=lambda kind: kind.__name__)
def ending(request: pytest.FixtureRequest, path: str) -> Caller:
    """A caller whose driver shows that a transaction has ended, which one with autocommit=False does not."""
    kind: type[Caller] = request.param
    return kind(path)


@pytest.fixture(
    params=[*(kind for kind in CALLERS if not issubclass(kind, Plain)), Watchable], ids=lambda kind: kind.__name__
)
def watched(request: pytest.FixtureRequest, path: str) -> Caller:
    """Somebody whose connection can be looked at without keeping it alive, which a plain sqlite3 one cannot."""
    kind: type[Caller] = request.param
    return kind(path)


def rows(path: str) -> list[str]:
    """What has been committed, as a newcomer sees it."""
    with closing(sqlite3.connect(path)) as connection:
        return [what for (what,) in connection.execute("select what from results order by what")]


def refusals(router: Router) -> list[tuple[int, str]]:
    """The epoch and the verb of every refusal on record."""
    return [(event.facts["presented"], event.facts["verb"]) for event in router.events(kind="refused")]


# Together or not at all


def test_a_job_and_the_callers_row_commit_together(caller: Caller, router: Router, path: str) -> None:
    """Before the commit nobody sees either of them, after it everybody sees both."""
    assert router.snapshot() == {}

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.write(connection)
            [added] = await caller.verbs(router).add_many([{"id": "a", "payload": 1}], connection=connection)
            again = await caller.verbs(router).add("a", 1, connection=connection)
            assert (added.job.id, added.created, again.created) == ("a", True, False)
            with pytest.raises(UnknownJob):
                router.job("a")

    asyncio.run(body())

    assert rows(path) == ["mine"]
    assert router.job("a").payload == 1


def test_a_job_and_the_callers_row_roll_back_together(caller: Caller, router: Router, path: str) -> None:
    """An exception in the caller's block leaves neither."""

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.write(connection)
            await caller.verbs(router).add("a", connection=connection)
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError):
        asyncio.run(body())

    assert rows(path) == []
    assert router.snapshot() == {}


def test_a_completion_its_children_and_the_row_are_one_commit(
    caller: Caller, router: Router, lease: Lease, path: str
) -> None:
    """Nothing is settled until then."""

    async def body() -> None:
        verbs = caller.verbs(lease)
        async with caller.transaction() as connection:
            await verbs.fence(connection)
            await caller.write(connection)
            await verbs.add("mail", {"to": "x"}, connection=connection)
            await verbs.complete({"ok": True}, then=[{"id": "next"}], connection=connection)
            assert set(router.snapshot()) == {"a"}
            assert router.job("a").status is Status.RUNNING

    asyncio.run(body())

    assert rows(path) == ["mine"]
    assert (router.job("a").status, router.job("a").result) == (Status.DONE, {"ok": True})
    assert {job.id for job in router.jobs(parent="a")} == {"a/mail", "a/next"}


def test_a_completion_its_children_and_the_row_roll_back_together(
    caller: Caller, router: Router, lease: Lease, path: str
) -> None:
    """The owner still holds the job, and may do it all again."""

    async def body(fails: bool) -> None:
        verbs = caller.verbs(lease)
        async with caller.transaction() as connection:
            await caller.write(connection)
            await verbs.complete(1, then=[{"id": "next"}], connection=connection)
            if fails:
                raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError):
        asyncio.run(body(fails=True))

    assert rows(path) == []
    assert set(router.snapshot()) == {"a"}
    lease.check()
    asyncio.run(body(fails=False))
    assert rows(path) == ["mine"]
    assert {job.id: str(job.status) for job in router.jobs()} == {"a": "done", "a/next": "pending"}


def test_a_failure_and_a_release_are_part_of_the_transaction_too(
    caller: Caller, router: Router, lease: Lease, path: str
) -> None:
    """Each settles the job with the caller's row."""

    async def body(lease: Lease, what: str) -> None:
        async with caller.transaction() as connection:
            await caller.write(connection, what)
            if what == "release":
                await caller.verbs(lease).release(delay_seconds=0, connection=connection)
            else:
                await caller.verbs(lease).fail("no luck", delay_seconds=0, connection=connection)

    asyncio.run(body(lease, "release"))
    assert (router.job("a").status, router.job("a").errors) == (Status.PENDING, 0)

    asyncio.run(body(claimed(router, "worker-1"), "fail"))
    assert (router.job("a").status, router.job("a").last_error) == (Status.PENDING, "no luck")
    assert rows(path) == ["fail", "release"]
    assert [(past.ended, past.owner) for past in router.ownerships("a")] == [
        ("release", "worker-0"),
        ("retry", "worker-1"),
    ]


def test_a_users_row_factory_is_left_alone(path: str, router: Router, lease: Lease) -> None:
    """The store reads its own rows as tuples, and the user's cursor goes on as it was."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        lease.fence(connection)
        lease.complete(then=[{"id": "next"}], connection=connection)
        [row] = connection.execute("select 'seven' as number")
        connection.commit()

    assert row["number"] == b"seven"
    assert router.job("a").status is Status.DONE


def test_sessions_flush_what_they_hold_into_the_same_transaction(path: str, router: Router, lease: Lease) -> None:
    """Also through a scoped_session."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    try:
        session.execute(text("insert into results values ('mine')"))
        lease.complete(connection=session)
        session.commit()
    finally:
        session.remove()

    assert rows(path) == ["mine"]
    assert router.job("a").status is Status.DONE


def test_an_engine_that_begins_by_an_event_can_be_joined(path: str, router: Router, lease: Lease) -> None:
    """SQLAlchemy's own recipe for true transactions: the driver begins nothing, the engine's event does."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _: object) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.connect() as connection:
        lease.complete(connection=connection)
        connection.rollback()
    lease.check()
    with engine.begin() as connection:
        lease.complete(connection=connection)

    assert router.job("a").status is Status.DONE


# The stale owner

STALE_VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "fence": lambda verbs, connection: verbs.fence(connection),
    "add": lambda verbs, connection: verbs.add("mail", connection=connection),
    "complete": lambda verbs, connection: verbs.complete(1, then=[{"id": "next"}], connection=connection),
    "fail": lambda verbs, connection: verbs.fail("late", connection=connection),
    "release": lambda verbs, connection: verbs.release(connection=connection),
}


@pytest.mark.parametrize("verb", STALE_VERBS)
def test_a_stale_owner_is_refused_and_its_row_is_never_committed(
    verb: str, caller: Caller, router: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """The refusal has the facts, and leaves the caller's block like any exception."""
    successor = overtaken(router, clock, "worker-0")
    before = router.snapshot()

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.write(connection)
            await STALE_VERBS[verb](caller.verbs(lease), connection)

    with pytest.raises(StaleEpoch) as refused:
        asyncio.run(body())

    refusal = refused.value
    assert (refusal.presented, refusal.current, refusal.owner) == (lease.epoch, successor.epoch, "worker-0")
    assert (refusal.reason, refusal.verb, refusal.__cause__) == ("timeout", verb, None)
    assert lease.lost
    assert rows(path) == []
    assert router.snapshot() == before
    successor.complete()


def test_a_refusal_that_the_caller_swallows_is_recorded_once_and_apart(
    caller: Caller, router: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """The caller commits its row all the same, unfenced as it then is; nothing of the job moved."""
    successor = overtaken(router, clock, "worker-0")

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.write(connection, "knowingly")
            with pytest.raises(StaleEpoch):
                await caller.verbs(lease).complete(connection=connection)

    asyncio.run(body())

    assert rows(path) == ["knowingly"]
    assert refusals(router) == refusals(router) == [(lease.epoch, "complete")]
    successor.renew()
    assert refusals(router) == [(lease.epoch, "complete")]


def test_a_refusal_that_rolls_back_is_recorded_once_and_apart(
    caller: Caller, router: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """What the refused transaction wrote is gone, the record of it is not: the next owner's write carries it."""
    successor = overtaken(router, clock, "worker-0")

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.verbs(lease).fence(connection)

    with pytest.raises(StaleEpoch):
        asyncio.run(body())
    successor.complete()

    with closing(sqlite3.connect(path)) as connection:  # as it is on disk, and not by a reader who completes it
        assert connection.execute("select count(*) from leasehold_events where kind = 'refused'").fetchone() == (1,)
    assert refusals(router) == [(lease.epoch, "fence")]


def test_a_refusal_is_recorded_when_the_router_is_closed(path: str, clock: ManualClock) -> None:
    """Nothing else need be asked of the store in between."""
    with Router(f"sqlite:///{path}", clock=clock) as router:
        router.add("a")
        lease = claimed(router, "worker-0")
        overtaken(router, clock, "worker-0")
        with pytest.raises(StaleEpoch), lease.transaction():
            pass

    with Router(f"sqlite:///{path}", clock=clock) as router:
        assert refusals(router) == [(lease.epoch, "fence")]


def test_a_settled_owner_is_told_that_it_settled(caller: Caller, router: Router, lease: Lease, path: str) -> None:
    """Whatever it says now: the rows beside it would be written twice. By itself, the same may be said again."""
    lease.complete(1)

    async def body(result: int) -> None:
        async with caller.transaction() as connection:
            await caller.write(connection)
            await caller.verbs(lease).complete(result, connection=connection)

    for result in (1, 2):
        with pytest.raises(Settled):
            asyncio.run(body(result))
    assert rows(path) == []
    lease.complete(1)


def test_a_swallowed_error_after_a_completion_leaves_the_job_running(
    caller: Caller, router: Router, lease: Lease
) -> None:
    """The store says so truly, whatever the handler believes: nothing but a commit settles."""

    async def body() -> None:
        try:
            async with caller.transaction() as connection:
                await caller.verbs(lease).complete(connection=connection)
                raise RuntimeError("after the completion")
        except RuntimeError:
            pass

    asyncio.run(body())

    assert router.job("a").status is Status.RUNNING
    assert not lease.lost
    assert router.lease("a", owner="worker-0").epoch == lease.epoch


# The fence that has passed holds until the commit


def test_a_takeover_waits_for_the_commit_of_a_fenced_transaction(
    caller: Caller, router: Router, hasty: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """The lease has expired, and yet nobody takes the job between the fence and the commit."""
    clock.advance(31)

    async def body() -> None:
        async with caller.transaction() as connection:
            await caller.verbs(lease).fence(connection)
            for takeover in (lambda: hasty.claim("worker-1"), hasty.reclaim):
                with pytest.raises(StoreUnavailable, match="has held the only write lock"):
                    in_thread(takeover)
            await caller.write(connection)

    asyncio.run(body())
    assert rows(path) == ["mine"]

    successor = claimed(hasty, "worker-1")
    assert successor.epoch > lease.epoch
    with pytest.raises(StaleEpoch):
        lease.check()


def test_a_takeover_by_another_process_waits_too(
    router: Router, lease: Lease, clock: ManualClock, path: str, tmp_path: Path
) -> None:
    """A real one."""
    program = (
        "import sys\n"
        "from leasehold import Router, StoreUnavailable\n"
        "from leasehold.testing import ManualClock\n"
        "clock = ManualClock(); clock.advance(31)\n"
        f"with Router({f'sqlite:///{path}?busy_seconds=0.02'!r}, clock=clock) as router:\n"
        "    try: print(router.claim('worker-1').epoch)\n"
        "    except StoreUnavailable: print('busy')\n"
    )

    def takeover() -> str:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
        assert takeover() == "busy\n"

    assert rows(path) == ["mine"]
    assert int(takeover()) > lease.epoch


def test_a_thread_that_meets_a_fenced_transaction_waits_and_then_succeeds(router: Router, lease: Lease) -> None:
    """It is told nothing: to it, the store is only slow."""
    order: list[str] = []
    started = threading.Event()

    def add() -> None:
        started.set()
        router.add("b")
        order.append("added")

    with lease.transaction():
        elsewhere = Elsewhere(add)
        assert started.wait(PATIENCE_SECONDS)
        order.append("end of the block")
    elsewhere.result()

    assert order == ["end of the block", "added"]
    assert router.job("b").status is Status.PENDING


def test_a_thread_past_its_transaction_is_not_refused_for_that_of_another(
    router: Router, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are used again, and a block that has ended says nothing about the next."""
    router.add("b")
    other = claimed(router, "worker-1")
    with lease.transaction():
        pass
    entered, leave = threading.Event(), threading.Event()

    def transaction() -> None:
        with other.transaction():
            entered.set()
            assert leave.wait(PATIENCE_SECONDS)

    elsewhere = Elsewhere(transaction)
    assert entered.wait(PATIENCE_SECONDS)
    database = router.store.database  # type: ignore[attr-defined]  # a SqliteStore
    write = database.write

    def writing(*args: Any) -> Any:
        leave.set()  # only when this thread has not been refused, and is about to wait
        return write(*args)

    monkeypatch.setattr(database, "write", writing)
    try:
        router.add("c")
    finally:
        leave.set()
        elsewhere.result()

    assert router.job("c").status is Status.PENDING


# Not Explicit: its BEGIN IMMEDIATE has the write lock before the read.
@pytest.mark.parametrize(
    "caller", [kind for kind in CALLERS if kind is not Explicit], indirect=True, ids=lambda kind: kind.__name__
)
def test_a_stale_read_is_a_snapshot_error_and_can_be_run_again(
    caller: Caller, router: Router, hasty: Router, lease: Lease, path: str
) -> None:
    """The caller read, somebody else wrote, and then the fence: SQLite lets that transaction write no more."""

    async def body(disturb: bool) -> None:
        async with caller.transaction() as connection:
            if disturb:
                await caller.read_first(connection)
                in_thread(lambda: hasty.add("b"))
            await caller.verbs(lease).fence(connection)
            await caller.write(connection)

    with pytest.raises(StaleSnapshot, match="run it again") as stale:
        asyncio.run(body(disturb=True))

    assert isinstance(stale.value, StoreUnavailable)
    assert rows(path) == []
    assert not lease.lost
    assert refusals(router) == []
    asyncio.run(body(disturb=False))
    assert rows(path) == ["mine"]


# What cannot be joined


@pytest.mark.parametrize("kind", AUTOCOMMITTING)
@pytest.mark.parametrize("verb", STALE_VERBS)
def test_a_connection_that_commits_by_itself_is_refused(
    verb: str, kind: type[Caller], router: Router, lease: Lease, path: str
) -> None:
    """A fence would protect nothing there, so nothing happens at all."""
    caller = kind(path)
    before = router.snapshot()

    async def body() -> None:
        async with caller.connected() as connection:
            with pytest.raises(NotInTransaction, match="begin one first"):
                await STALE_VERBS[verb](caller.verbs(lease), connection)
            with pytest.raises(NotInTransaction):
                await caller.verbs(router).add("b", connection=connection)
            assert await caller.execute(connection, "select * from results") == []
            lease.check()

    asyncio.run(body())

    assert router.snapshot() == before
    assert refusals(router) == []
    assert not lease.lost


@pytest.mark.parametrize("kind", [CoreConnection, OrmSession, AsyncCore, AsyncOrm])
def test_a_savepoint_is_refused_unless_the_caller_insists(
    kind: type[Caller], router: Router, lease: Lease, path: str
) -> None:
    """Rolled back alone, it would leave the caller's rows without the completion."""
    caller = kind(path)

    async def body() -> None:
        verbs = caller.verbs(lease)
        async with caller.transaction() as connection:
            await verbs.fence(connection)
            await caller.write(connection)
            nested = connection.begin_nested()
            if caller.is_async:
                await nested
            for refused in (
                verbs.fence(connection),
                verbs.complete(connection=connection),
                verbs.fail("no", connection=connection),
                verbs.release(connection=connection),
                verbs.add("child", connection=connection),
                caller.verbs(router).add("b", connection=connection),
                caller.verbs(router).add_many([{"id": "b"}], connection=connection),
            ):
                with pytest.raises(Conflict, match="savepoint=True"):
                    await refused
            await verbs.add("child", connection=connection, savepoint=True)
            await verbs.complete(connection=connection, savepoint=True)
            if caller.is_async:
                await nested.commit()
            else:
                nested.commit()

    asyncio.run(body())

    assert rows(path) == ["mine"]
    assert {job.id: str(job.status) for job in router.jobs()} == {"a": "done", "a/child": "pending"}


@pytest.mark.parametrize("kind", [CoreConnection, OrmSession, AsyncCore, AsyncOrm])
def test_a_savepoint_that_may_be_the_whole_transaction_is_refused_in_any_case(
    kind: type[Caller], router: Router, lease: Lease, path: str
) -> None:
    """sqlite3 begins nothing before a SAVEPOINT; the end of the first one commits, and the rest would be unfenced."""
    caller = kind(path)

    async def body() -> None:
        async with caller.connected() as connection:
            await caller.verbs(lease).fence(connection)
            await caller.commit(connection)  # that fence is past
            nested = connection.begin_nested()
            if caller.is_async:
                await nested
            with pytest.raises(Conflict, match="before the savepoint"):
                await caller.verbs(lease).fence(connection, savepoint=True)
            await caller.rollback(connection)

    asyncio.run(body())
    lease.complete()


@pytest.mark.parametrize("kind", [Plain, CoreConnection, OrmSession, AsyncCore, AsyncOrm])
@pytest.mark.parametrize("where", ["another file", "memory"])
def test_a_connection_to_another_database_is_refused_by_both_names(
    where: str, kind: type[Caller], router: Router, lease: Lease, path: str, tmp_path: Path
) -> None:
    """Rows in two files never commit together."""
    other = ":memory:" if where == "memory" else str(tmp_path / "other.db")
    caller = kind(other)

    async def body() -> None:
        async with caller.connected() as connection:
            await caller.execute(connection, "create table results (what text)")
            await caller.write(connection)
            await caller.verbs(lease).complete(connection=connection)

    with pytest.raises(InvalidArgument, match="only rows in the same file") as refused:
        asyncio.run(body())

    assert path in str(refused.value)
    assert ("a database in memory" if where == "memory" else other) in str(refused.value)
    lease.check()


def test_the_same_file_by_another_name_is_the_same_file(router: Router, lease: Lease, path: str) -> None:
    """A link is not another file."""
    link = Path(path).with_name("link.db")
    link.symlink_to(path)
    with closing(sqlite3.connect(link)) as connection:
        lease.complete(connection=connection)
        connection.commit()

    assert router.job("a").status is Status.DONE


@pytest.mark.parametrize("kind", [AsyncCore, AsyncOrm])
def test_a_sync_verb_says_how_to_use_an_async_connection(
    kind: type[Caller], router: Router, lease: Lease, path: str
) -> None:
    """It belongs to its loop."""
    caller = kind(path)

    async def body() -> None:
        async with caller.transaction() as connection:
            verbs: list[Callable[[], Any]] = [
                lambda: lease.complete(connection=connection),
                lambda: lease.fence(connection),
            ]
            for verb in verbs:
                with pytest.raises(Unsupported, match=r"is an async connection.*\.aio"):
                    verb()
            with pytest.raises(Unsupported, match=r"\.aio"):
                router.add("b", connection=connection)

    asyncio.run(body())
    lease.check()


@pytest.mark.parametrize("thing", [object(), "sqlite:///jobs.db", 7], ids=lambda thing: type(thing).__name__)
def test_what_is_no_connection_is_refused(thing: object, router: Router, lease: Lease) -> None:
    """The message names its type, and what would do."""
    with pytest.raises(Unsupported, match=rf"connection is a builtins\.{type(thing).__name__}.*SQLAlchemy"):
        lease.fence(thing)
    with pytest.raises(Unsupported, match="connection of sqlite3"):
        router.add("b", connection=thing)


def test_a_closed_connection_is_the_drivers_own_error(router: Router, lease: Lease, path: str) -> None:
    """Nothing was asked of the store, so nothing may have happened."""
    connection = sqlite3.connect(path)
    connection.close()

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        lease.complete(connection=connection)

    lease.check()


def test_the_memory_store_says_which_stores_have_transactions() -> None:
    """There is no database that the caller's rows could share."""
    with Router() as router, closing(sqlite3.connect(":memory:")) as connection:
        router.add("a")
        lease = claimed(router, "worker-0")

        for verb in (
            lambda: lease.transaction().__enter__(),
            lambda: lease.fence(connection),
            lambda: lease.complete(connection=connection),
            lambda: router.add("b", connection=connection),
            lambda: asyncio.run(lease.aio.transaction().__aenter__()),
        ):
            with pytest.raises(Unsupported, match=r"memory store has none.*sqlite:///jobs\.db"):
                verb()
        lease.complete()


# The first verb


@pytest.mark.parametrize("kind", CALLERS)
def test_the_first_verb_migrates_inside_the_callers_transaction(
    kind: type[Caller], clock: ManualClock, tmp_path: Path
) -> None:
    """On an empty file: the tables come and go with the transaction, and another attempt finds nothing half made."""
    path = str(tmp_path / "empty.db")
    caller = kind(path)

    async def body(router: Router, fails: bool) -> None:
        async with caller.transaction() as connection:
            await caller.verbs(router).add("a", 1, connection=connection)
            if fails:
                raise RuntimeError("the caller's own")

    with Router(f"sqlite:///{path}", clock=clock) as router:
        with pytest.raises(RuntimeError):
            asyncio.run(body(router, fails=True))
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("select name from sqlite_master").fetchall() == []

        asyncio.run(body(router, fails=False))
        assert router.job("a").payload == 1
        claimed(router, "worker-0").complete()


def test_a_reader_that_would_have_to_open_the_file_does_not_wait_for_its_own_caller(
    clock: ManualClock, tmp_path: Path
) -> None:
    """The first verb was the caller's, so this process has not opened the file yet; it is told at once."""
    path = str(tmp_path / "empty.db")
    with Router(f"sqlite:///{path}?busy_seconds=3", clock=clock) as router:
        with create_engine(f"sqlite:///{path}", poolclass=NullPool).connect() as connection:
            router.add("a", connection=connection)
            with pytest.raises(Conflict, match="is open here"):
                router.job("a")
            connection.commit()
        assert router.job("a").status is Status.PENDING


# Outside of the transaction that is open here


def verbs_of_others(router: Router, lease: Lease) -> dict[str, Callable[[], Any]]:
    """Every kind of write that is not part of the block of *lease*."""
    return {
        "add": lambda: router.add("b"),
        "claim": lambda: router.claim("worker-1"),
        "once": lambda: lease.once("charge", lambda key: None),
        "transaction": lambda: lease.transaction().__enter__(),
        "cancel": lambda: router.cancel("a", epoch=lease.epoch, by="operator"),
        "reclaim": router.reclaim,
    }


def test_a_verb_of_somebody_else_inside_a_block_is_told_at_once(router: Router, lease: Lease) -> None:
    """It would wait for itself. Readers wait for nobody, and after the block everything works again."""
    before = router.snapshot()
    with lease.transaction():
        for verb in verbs_of_others(router, lease).values():
            with pytest.raises(Conflict, match="is open here"):
                verb()
        assert router.snapshot() == before
        lease.check()

    lease.renew()
    router.add("b")
    lease.complete()


def test_a_verb_without_connection_inside_a_joined_transaction_is_told_at_once(
    ending: Caller, router: Router, lease: Lease
) -> None:
    """From the first verb that joined it to its end, the lease's verbs name the transaction that they belong to."""

    async def body() -> None:
        async with ending.connected() as connection:
            for end in (ending.commit, ending.rollback):
                await ending.begin(connection)
                await ending.verbs(lease).fence(connection)
                for verb in (lease.complete, lambda: lease.progress(0.5), lambda: router.add("b")):
                    with pytest.raises(Conflict, match=r"still open|is open here"):
                        verb()
                with pytest.raises(Conflict, match=r"still open|is open here"):
                    await lease.aio.progress(0.5)
                lease.check()
                if not ending.is_async:
                    lease.renew()
                await end(connection)
                lease.renew()
            await ending.begin(connection)
            await ending.verbs(lease).fence(connection)
            await ending.rollback(connection)
        lease.renew()

    asyncio.run(body())
    lease.complete()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit=False before Python 3.12")
def test_a_verb_without_connection_beside_one_with_autocommit_false_waits_and_names_the_remedy(
    path: str, router: Router, lease: Lease, hasty: Router
) -> None:
    """Its driver begins anew with each COMMIT, so the end of the fenced transaction cannot be seen."""
    impatient = hasty.lease("a", owner=lease.owner)

    async def body() -> None:
        caller = AlwaysInside(path)
        async with caller.connected() as connection:
            impatient.fence(connection)
            with pytest.raises(StoreUnavailable, match=r"pass connection=…\)\. Nothing was changed"):
                impatient.complete()
            await caller.commit(connection)
            lease.complete()

    asyncio.run(body())


def test_a_verb_without_connection_after_a_refused_fence_is_told_at_once(
    watched: Caller, router: Router, lease: Lease, clock: ManualClock
) -> None:
    """The transaction has the write lock all the same."""
    caller = watched
    successor = overtaken(router, clock, "worker-0")

    async def body() -> None:
        async with caller.transaction() as connection:
            with pytest.raises(StaleEpoch):
                await caller.verbs(lease).fence(connection)
            with pytest.raises(Conflict, match="is open here"):
                successor.renew()
        successor.renew()

    asyncio.run(body())


def test_a_verb_without_connection_beside_a_plain_connection_is_told_when_the_file_was_busy_for_too_long(
    path: str, hasty: Router, lease: Lease
) -> None:
    """To watch a plain sqlite3 connection would be to keep it, and its locks, after its user has dropped it."""
    with closing(sqlite3.connect(path)) as connection:
        hasty.add("b", connection=connection)
        with pytest.raises(StoreUnavailable, match="inside a transaction of your own"):
            hasty.add("c")
        connection.commit()
    hasty.add("c")


def test_a_connection_that_was_closed_is_no_open_transaction(router: Router, lease: Lease, path: str) -> None:
    """Closing it has rolled it back."""
    connection = sqlite3.connect(path)
    lease.fence(connection)
    connection.close()

    lease.complete()


def test_a_store_in_another_file_is_not_concerned(
    router: Router, lease: Lease, clock: ManualClock, tmp_path: Path
) -> None:
    """Its write lock is another one."""
    with Router(f"sqlite:///{tmp_path / 'other.db'}", clock=clock) as other, lease.transaction():
        other.add("b")
        assert other.job("b").status is Status.PENDING


def test_another_router_on_the_same_file_is_concerned(
    router: Router, hasty: Router, lease: Lease, path: str, clock: ManualClock
) -> None:
    """It would wait for the same lock, by whatever name it knows the file."""
    link = Path(path).with_name("link.db")
    link.symlink_to(path)
    with Router(f"sqlite:///{link}?busy_seconds=3", clock=clock) as linked, lease.transaction():
        for another in (hasty, linked):
            with pytest.raises(Conflict, match="is open here"):
                another.add("b")


# lease.transaction()


def test_the_block_commits_the_rows_and_the_completion(router: Router, lease: Lease, path: str) -> None:
    """As one; without a completion, the rows alone, and the lease goes on."""
    with lease.transaction() as connection:
        connection.execute("insert into results values ('first')")
    lease.check()
    with lease.transaction() as connection:
        connection.executemany("insert into results values (?)", [("second",), ("third",)])
        lease.add("mail", connection=connection)
        router.add("apart", connection=connection)
        lease.complete(3, then=[{"id": "next"}], connection=connection)

    assert rows(path) == ["first", "second", "third"]
    assert router.job("a").result == 3
    assert set(router.snapshot()) == {"a", "a/mail", "apart", "a/next"}


def test_an_exception_in_the_block_rolls_back_and_comes_out_as_it_is(router: Router, lease: Lease, path: str) -> None:
    """Rows, completion and children are gone; the lease goes on."""
    error = RuntimeError("the handler's own")
    with pytest.raises(RuntimeError) as raised, lease.transaction() as connection:  # noqa: PT012  # a block is tested
        connection.execute("insert into results values ('mine')")
        lease.complete(then=[{"id": "next"}], connection=connection)
        raise error

    assert raised.value is error
    assert rows(path) == []
    assert set(router.snapshot()) == {"a"}
    lease.complete()


def test_a_child_that_was_rolled_back_is_not_counted(router: Router, lease: Lease) -> None:
    """A second attempt asks for the same id, so that a second run finds its children."""
    with pytest.raises(RuntimeError), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        assert lease.add("mail", connection=connection).job.id == "a/mail"
        assert lease.add("mail", connection=connection).job.id == "a/mail#2"
        raise RuntimeError
    with lease.transaction() as connection:
        assert lease.add("mail", connection=connection).job.id == "a/mail"
    assert lease.add("mail").job.id == "a/mail#2"


def test_a_stale_owner_never_enters_the_block(router: Router, lease: Lease, clock: ManualClock) -> None:
    """So it cannot even read what it would then act upon."""
    successor = overtaken(router, clock, "worker-0")
    entered = False
    with pytest.raises(StaleEpoch) as refused, lease.transaction():
        entered = True

    assert not entered
    assert lease.lost
    assert (refused.value.presented, refused.value.current) == (lease.epoch, successor.epoch)
    successor.complete()  # the lock is free again
    assert refusals(router) == [(lease.epoch, "fence")]


def test_the_lease_of_a_job_that_is_gone_never_enters_the_block(
    router: Router, lease: Lease, clock: ManualClock
) -> None:
    """Unknown means refused."""
    router.cancel("a", epoch=lease.epoch, by="operator")
    clock.advance(1)
    assert router.prune(keep_seconds=0, keep_ids_seconds=0).jobs == 1

    with pytest.raises(UnknownJob), lease.transaction():
        pass
    assert lease.lost
    router.add("b")


class Ends:
    """Ways to end a transaction that is not one's own."""

    @staticmethod
    def commit(connection: sqlite3.Connection) -> None:
        connection.commit()

    @staticmethod
    def rollback(connection: sqlite3.Connection) -> None:
        connection.rollback()

    @staticmethod
    def close(connection: sqlite3.Connection) -> None:
        connection.close()

    @staticmethod
    def with_connection(connection: sqlite3.Connection) -> None:
        with connection:
            connection.execute("insert into results values ('within')")

    @staticmethod
    def execute_commit(connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    @staticmethod
    def execute_end(connection: sqlite3.Connection) -> None:
        connection.cursor().execute("/* now */ end transaction")

    @staticmethod
    def execute_rollback(connection: sqlite3.Connection) -> None:
        connection.execute("rollback")

    @staticmethod
    def executescript(connection: sqlite3.Connection) -> None:
        connection.executescript("insert into results values ('script');")

    @staticmethod
    def script_of_a_cursor(connection: sqlite3.Connection) -> None:
        connection.cursor().executescript("commit; insert into results values ('script');")

    @staticmethod
    def isolation_level(connection: sqlite3.Connection) -> None:
        connection.isolation_level = None

    @staticmethod
    def autocommit(connection: sqlite3.Connection) -> None:
        if sys.version_info < (3, 12):
            pytest.skip("autocommit came with Python 3.12")
        connection.autocommit = True


ENDS = [name for name in vars(Ends) if not name.startswith("_")]


@pytest.mark.parametrize("end", ["commit", "rollback", "close", "with_connection"])
def test_the_users_own_ways_to_end_the_block_are_refused_with_the_right_one(end: str, lease: Lease) -> None:
    """By name, and with what follows."""
    with lease.transaction() as connection, pytest.raises(Conflict, match="the end of the block commits"):
        getattr(Ends, end)(connection)


@pytest.mark.parametrize("end", ENDS)
def test_the_block_is_not_its_users_to_end(
    end: str, router: Router, hasty: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """What followed a commit of the user's own would be unfenced; so there is none, and the fence still holds."""
    clock.advance(31)
    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
        with pytest.raises((Conflict, sqlite3.DatabaseError)):
            getattr(Ends, end)(connection)
        assert rows(path) == []
        with pytest.raises(StoreUnavailable):
            in_thread(lambda: hasty.claim("worker-1"))

    assert "mine" in rows(path)
    lease.complete()


@pytest.mark.parametrize("end", ENDS)
def test_an_attempt_to_end_the_block_that_is_not_caught_rolls_it_back(
    end: str, router: Router, lease: Lease, path: str
) -> None:
    """Like any exception."""
    with pytest.raises((Conflict, sqlite3.DatabaseError)), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        connection.execute("insert into results values ('mine')")
        getattr(Ends, end)(connection)

    assert rows(path) == []
    lease.complete()


@pytest.mark.parametrize(
    "after",
    [
        "insert into results values ('unfenced')",
        "insert into results values ('mine')",  # as before, so that sqlite3 has it prepared already
        "with more(what) as (select 'unfenced') insert into results select what from more",
        "create table unfenced (x)",
        "begin",
        "savepoint unfenced",
    ],
)
def test_nothing_is_written_after_sqlite_itself_rolled_back(
    after: str, router: Router, lease: Lease, path: str
) -> None:
    """A statement may end the transaction by its own error; a write behind it would commit by itself, unfenced."""
    with pytest.raises(NotInTransaction, match="nothing was committed"), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        connection.execute("insert into results values ('mine')")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("insert or rollback into results values ('mine')")
        with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
            connection.execute(after)

    assert rows(path) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select * from sqlite_master where name = 'unfenced'").fetchall() == []
    lease.complete()


def test_an_error_by_which_sqlite_rolled_back_comes_out_as_it_is(router: Router, lease: Lease, path: str) -> None:
    """And the next block is as good as the first."""
    with pytest.raises(sqlite3.IntegrityError), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        connection.execute("insert into results values ('mine')")
        connection.execute("insert or rollback into results values ('mine')")

    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
    assert rows(path) == ["mine"]


def test_a_users_row_factory_does_not_outlive_the_block(router: Router, lease: Lease) -> None:
    """The connection is used again, by somebody else."""
    with lease.transaction() as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        lease.add("child", connection=connection)
    with lease.transaction() as connection:
        assert connection.execute("select 'one'").fetchone() == ("one",)


# lease.aio.transaction()


def test_the_async_block_commits_rolls_back_and_refuses(
    router: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """As the synchronous one does; its connection is a synchronous one."""

    async def body(lease: Lease, what: str, fails: bool = False) -> None:
        async with lease.aio.transaction() as connection:
            connection.execute("insert into results values (?)", [what])
            with pytest.raises(Conflict, match="is open here"):
                await router.aio.add("b")
            await lease.aio.add("mail")
            await router.aio.add(what, connection=connection)
            if fails:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(body(lease, "undone", fails=True))
    assert set(router.snapshot()) == {"a"}
    asyncio.run(body(lease, "first"))
    assert set(router.snapshot()) == {"a", "a/mail", "first"}

    for name in ("a/mail", "first"):
        router.cancel(router.job(name), by="operator")
    successor = overtaken(router, clock, "worker-0")
    with pytest.raises(StaleEpoch):
        asyncio.run(body(lease, "stale"))
    assert lease.lost
    assert rows(path) == ["first"]
    successor.complete()


def test_a_cancelled_wait_for_an_async_block_leaves_no_lock_behind(router: Router, lease: Lease) -> None:
    """Whatever the wait gets after its task has gone is given back."""
    router.add("b")
    other = claimed(router, "worker-1")
    entered, leave = threading.Event(), threading.Event()

    def transaction() -> None:
        with other.transaction():
            entered.set()
            assert leave.wait(PATIENCE_SECONDS)

    async def wait() -> None:
        async with lease.aio.transaction():
            raise AssertionError("cancelled before")

    async def body() -> None:
        elsewhere = Elsewhere(transaction)
        assert await asyncio.to_thread(entered.wait, 10)
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)  # lets it begin to wait
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leave.set()
        await asyncio.to_thread(elsewhere.result)
        await asyncio.wait_for(router.aio.add("c"), 8)

    asyncio.run(body())


def test_many_who_wait_do_not_keep_an_async_block_from_its_commit(router: Router, lease: Lease) -> None:
    """The threads that wait for the lock must not be those that its holder needs to let it go."""

    async def add(number: int) -> None:
        await router.aio.add(f"job-{number}")

    async def body() -> None:
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            loop.set_default_executor(pool)
            context = contextvars.copy_context()  # without the transaction
            async with lease.aio.transaction():
                tasks = [loop.create_task(add(number), context=context) for number in range(8)]
                await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.gather(*tasks), 8)

    asyncio.run(body())
    assert router.counts().pending == 8


# Digging a refusal out


def test_find_digs_the_refusal_out_of_whatever_wraps_it(lease: Lease) -> None:
    """Causes, contexts, groups, and an ORM's `orig`, however deep."""
    refusal = StaleEpoch.of_job("a", presented=1, current=2)
    wrapped = OperationalError("select 1", {}, refusal)
    caused = RuntimeError()
    caused.__cause__ = wrapped
    in_context = RuntimeError()
    in_context.__context__ = caused
    group = ExceptionGroup("several", [ValueError(), ExceptionGroup("inner", [KeyError(), in_context])])
    circle = RuntimeError()
    circle.__cause__ = circle

    for error in (refusal, wrapped, caused, in_context, group):
        assert StaleEpoch.find(error) is refusal
    for other in (None, circle, ValueError(), OperationalError("select 1", {}, ValueError())):
        assert StaleEpoch.find(other) is None
        assert StaleEpoch.find(other, lease) is None


def test_find_asks_the_store_if_the_error_does_not_say(router: Router, lease: Lease, clock: ManualClock) -> None:
    """A connection that was hung up has no facts; the store has them. A job that is gone has no current epoch."""
    successor = overtaken(router, clock, "worker-0")
    found = StaleEpoch.find(ConnectionError("hung up"), lease)
    assert found is not None
    assert (found.presented, found.current) == (lease.epoch, successor.epoch)

    successor.complete()
    clock.advance(1)
    assert router.prune(keep_seconds=0, keep_ids_seconds=0).jobs == 1
    found = StaleEpoch.find(ConnectionError("hung up"), lease)
    assert found is not None
    assert (found.presented, found.current) == (lease.epoch, 0)


def test_a_refusal_raised_inside_an_orms_hook_is_found(
    router: Router, lease: Lease, clock: ManualClock, path: str
) -> None:
    """A fence in `before_commit`, where a session keeps it for every commit."""
    overtaken(router, clock, "worker-0")
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with Session(engine) as session:
        event.listen(session, "before_commit", lease.fence)
        session.execute(text("insert into results values ('mine')"))
        with pytest.raises(LeaseholdError) as raised:
            session.commit()

    assert StaleEpoch.find(raised.value) is not None
    assert rows(path) == []


def test_readers_answer_inside_a_transaction_that_was_refused(tmp_path: Path) -> None:
    """A swallowed refusal waits to be recorded until its transaction has ended; to look and to check go on."""
    clock = ManualClock()
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}", clock=clock) as router, closing(sqlite3.connect(path)) as connection:
        router.add("job")
        stale = router.claim("a")
        assert stale is not None
        clock.advance(31)
        assert router.claim("b") is not None

        with pytest.raises(StaleEpoch):
            stale.fence(connection)

        assert router.events("job", kind="refused") == []
        with pytest.raises(StaleEpoch):
            stale.check()
        connection.rollback()
        assert [event.facts["verb"] for event in router.events("job", kind="refused")] == ["fence", "check"]
