"""
What careless and unlucky callers do: they leave settings behind, drop connections, press Ctrl-C, restore in place.

Each of these was once accepted, or locked the file for ever.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.patience import PATIENCE_SECONDS
from tests.sqlite.joining import in_thread

from leasehold import (
    Conflict,
    Lease,
    LeaseholdError,
    NotInTransaction,
    Router,
    StaleEpoch,
    StoreUnavailable,
)
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.connection import FencedConnection, Turn
from leasehold.stores.sqlite.database import Database

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
needs_alarm = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with a table of the caller's own."""
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table results (what text not null unique)")
    return path


@pytest.fixture
def router(path: str) -> Iterator[Router]:
    """The store in that file; it is whole at the end."""
    with Router(f"sqlite:///{path}?busy_seconds=2&synchronous=normal") as router:
        yield router
        assert router.store.verify() == []


@pytest.fixture
def lease(router: Router) -> Lease:
    """A lease on job "a"."""
    router.add("a")
    lease = router.claim("worker-0", lease_seconds=600)
    assert lease is not None
    return lease


def store(router: Router) -> SqliteStore:
    """The store of a Router."""
    assert isinstance(router.store, SqliteStore)
    return router.store


def moved(path: str, lease: Lease) -> None:
    """Give the job to somebody else, as another process does."""
    with Router(f"sqlite:///{path}") as other:
        other.transfer(lease.job_id, to="worker-1", by="operator", epoch=lease.epoch)


def rows(path: str) -> list[str]:
    """What has been committed."""
    with closing(sqlite3.connect(path)) as connection:
        return [what for (what,) in connection.execute("select what from results order by what")]


def is_free(path: str) -> bool:
    """Whether nobody holds the write lock of the file."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


# The connection of a block


def test_a_statement_that_ran_before_sqlite_rolled_back_does_not_run_after_it(path: str, lease: Lease) -> None:
    """SQLite asks the authorizer when it prepares a statement, so none may be prepared already."""
    write = "with v(x) as (values (?)) insert into results select x from v"
    with pytest.raises(NotInTransaction), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        connection.execute(write, ["before"])
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("insert or rollback into results values ('before')")
        in_thread(lambda: moved(path, lease))
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            connection.execute(write, ["stale"])
        with pytest.raises(NotInTransaction):
            connection.blobopen("results", "what", 1)

    assert rows(path) == []


def test_the_connection_is_closed_at_the_end_of_its_block(path: str, router: Router, lease: Lease) -> None:
    """A variable that outlives the block writes nothing and locks nothing."""
    with lease.transaction() as connection:
        connection.execute("insert into results values ('within')")
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("insert into results values ('after')")

    assert is_free(path)
    assert rows(path) == ["within"]
    lease.renew()


def test_a_cursor_that_is_still_reading_does_not_keep_a_failed_block_open(path: str, lease: Lease) -> None:
    """SQLite puts off closing a connection that has one."""
    with lease.transaction() as connection:
        connection.executemany("insert into results values (?)", [("one",), ("two",)])
    with pytest.raises(RuntimeError), lease.transaction() as connection:  # noqa: PT012  # a block is tested
        cursor = connection.execute("select what from results")
        cursor.fetchone()
        raise RuntimeError
    assert is_free(path)


def test_what_one_block_sets_is_not_there_in_the_next(path: str, lease: Lease) -> None:
    """Neither its settings nor its temporary tables."""
    with lease.transaction() as connection:
        connection.execute("create temp table stage (x)")
        connection.execute("pragma query_only = 1")
    with lease.transaction() as connection:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            connection.execute("select * from stage")
        connection.execute("insert into results values ('mine')")
    assert rows(path) == ["mine"]


def test_a_temporary_table_of_the_callers_does_not_shadow_the_stores(path: str, router: Router, lease: Lease) -> None:
    """The fence would compare with what is in there."""
    with closing(sqlite3.connect(path)) as connection:
        for table in ("leases", "jobs", "store"):
            connection.execute(f"create temp table leasehold_{table} as select * from main.leasehold_{table}")
        connection.commit()
        moved(path, lease)
        with pytest.raises(StaleEpoch):
            lease.fence(connection)
        router.add("b", connection=connection)
        connection.commit()
    assert router.job("b").epoch == 0


def test_a_prefix_that_begins_a_columns_name_is_no_table(tmp_path: Path) -> None:
    """`lease_us` is not a table of the schema "lease"."""
    with Router(f"sqlite:///{tmp_path / 'jobs.db'}", schema="lease") as router:
        router.add("a", lease_seconds=5)
        lease = router.claim("worker-0")
        assert lease is not None
        lease.complete()


def test_an_error_while_a_connection_is_set_up_is_not_masked(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a block refuses to be closed by its user, and must not refuse that to the store."""

    def broken(self: Database, connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Database, "_set_up", broken)
    with pytest.raises(StoreUnavailable, match="disk I/O error"), lease.transaction():
        pass


# A verb in the caller's transaction


def refuse_deletion(path: str) -> None:
    """Let the last step of a completion fail."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "create trigger audit before delete on leasehold_leases begin select raise(fail, 'audit says no'); end"
        )


def test_a_verb_that_fails_halfway_leaves_nothing_of_itself(path: str, router: Router, lease: Lease) -> None:
    """The caller may go on and commit its own rows."""
    refuse_deletion(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("insert into results values ('mine')")
        with pytest.raises(StoreUnavailable, match="audit says no"):
            lease.complete(then=[{"id": "next"}], connection=connection)
        connection.commit()

    assert rows(path) == ["mine"]
    assert router.store.verify() == []
    assert set(router.snapshot()) == {"a"}


def test_an_async_verb_that_fails_halfway_leaves_nothing_of_itself(path: str, router: Router, lease: Lease) -> None:
    """Likewise on a connection of an event loop."""
    refuse_deletion(path)

    async def body() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        async with engine.begin() as connection:
            with pytest.raises(StoreUnavailable, match="audit says no"):
                await lease.aio.complete(then=[{"id": "next"}], connection=connection)
            await connection.exec_driver_sql("insert into results values ('mine')")

    asyncio.run(body())
    assert rows(path) == ["mine"]
    assert router.store.verify() == []
    assert set(router.snapshot()) == {"a"}


def test_a_verb_that_is_interrupted_anywhere_leaves_all_of_itself_or_nothing(
    path: str, router: Router, lease: Lease
) -> None:
    """SQLite stops it after each number of steps in turn."""
    with closing(sqlite3.connect(path)) as connection:
        for stop in range(1, 1_000):
            steps = repeat(0, stop)
            connection.set_progress_handler(partial(next, steps, 1), 50)
            try:
                lease.complete(then=[{"id": "next"}], connection=connection)
            except LeaseholdError:
                connection.set_progress_handler(None, 0)
                connection.commit()
                assert router.store.verify() == []
            else:
                connection.set_progress_handler(None, 0)
                connection.commit()
                break
        else:
            raise AssertionError("it never got through")
    assert set(router.snapshot()) == {"a", "a/next"}


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # that is the point
def test_a_connection_that_was_dropped_is_not_kept(path: str, router: Router) -> None:
    """CPython closes it, which rolls back; the file is not locked for as long as the process lives."""
    engine = create_engine(f"sqlite:///{path}")
    for connect in (lambda: sqlite3.connect(path), engine.connect):
        connection: Any = connect()
        router.add("b", connection=connection)
        assert not is_free(path)
        del connection
        gc.collect()
        assert is_free(path)
        router.add("c")
    engine.dispose()  # the one that its pool has taken back
    assert set(router.snapshot()) == {"c"}


# Files that change under a process


def test_a_restore_in_place_is_noticed_and_not_undone(path: str, tmp_path: Path) -> None:
    """`cp` over the file and `rm` of its log: the process that had it open neither goes on nor writes its log back."""
    program = f"""
import os, shutil
from leasehold import Router, StoreUnavailable
with Router({f"sqlite:///{path}"!r}) as router:
    router.add_many([{{"id": str(n)}} for n in range(50)])
shutil.copyfile({path!r}, {path + ".bak"!r})
router = Router({f"sqlite:///{path}"!r})
lease = router.claim("worker-0", process=None)
shutil.copyfile({path + ".bak"!r}, {path!r})
os.unlink({path + "-wal"!r}); os.unlink({path + "-shm"!r})
for verb in (lease.renew, lease.complete, lease.check, router.counts, lambda: lease.transaction().__enter__()):
    try: verb(); print("accepted")
    except StoreUnavailable as error: assert "Restart this process" in str(error), error
router.close()
try: router.counts(); print("accepted")
except StoreUnavailable: print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "refused\n"
    assert Path(path).read_bytes() == Path(path + ".bak").read_bytes()
    with Router(f"sqlite:///{path}") as router:
        assert (router.counts().pending, router.counts().running) == (50, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced")
def test_a_callers_connection_to_a_file_that_was_replaced_is_refused(path: str, router: Router, lease: Lease) -> None:
    """Its path is the same, and the job has moved in the file that has it now."""
    with closing(sqlite3.connect(path)) as connection:
        with closing(sqlite3.connect(path + ".bak")) as backup:
            connection.backup(backup)
        os.replace(path + ".bak", path)
        for log in ("-wal", "-shm"):
            Path(path + log).unlink(missing_ok=True)
        lease.renew()
        moved(path, lease)
        with pytest.raises(StoreUnavailable, match="has been replaced"):
            lease.fence(connection)


# Ctrl-C and signals


def test_ctrl_c_at_the_end_of_begin_leaves_nothing_open(
    path: str, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python handles a signal when a call returns, and so behind any line."""

    def set_authorizer(self: FencedConnection, authorizer: Callable[..., int] | None) -> None:
        sqlite3.Connection.set_authorizer(self, authorizer)
        if authorizer is not None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(FencedConnection, "set_authorizer", set_authorizer)
    with pytest.raises(KeyboardInterrupt), lease.transaction():
        pass

    assert is_free(path)
    lease.renew()


@needs_alarm
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # of a Ctrl-C inside of sqlite3.connect
def test_ctrl_c_anywhere_leaves_no_turn_taken_and_no_transaction_open(path: str, router: Router, lease: Lease) -> None:
    """At some hundred moments, spread over a transaction and a renewal."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def once(seconds: float) -> None:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                with lease.transaction():
                    pass
                lease.renew()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, sqlite3.DatabaseError):  # the latter if it came in a call by SQLite
            pass

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(1, 400):
            once(number * 5e-6)
            assert is_free(path), number
            lease.renew()
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.collect()  # what was interrupted as it was opened, so that no later test is blamed


def test_a_turn_is_given_back_after_ctrl_c_behind_taking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threading.Lock.acquire would have returned with nobody there to know of it."""
    turn = Turn("write", "jobs.db")
    take = turn._take

    def interrupted(*args: Any) -> None:
        take(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(turn, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt), turn.taken(1):
        pass
    with pytest.raises(KeyboardInterrupt):
        turn.run(1, int)
    monkeypatch.undo()
    with turn.taken(0):
        pass


def test_a_turn_that_nobody_can_give_back_is_free() -> None:
    """As when Ctrl-C comes where the end of its `with` would have begun."""
    turn = Turn("write", "jobs.db")
    taken = turn.taken(1)
    taken.__enter__()
    del taken

    with turn.taken(0):
        pass


def test_turns_exclude_each_other_and_lose_nobody() -> None:
    """Eight threads count to four thousand, each step in two."""
    turn, count = Turn("write", "jobs.db"), [0]

    def add_one() -> None:
        before = count[0]
        threading.Event().wait(0)
        count[0] = before + 1

    def step() -> None:
        for _ in range(250):
            with turn.taken(30):
                add_one()
            turn.run(30, add_one)

    threads = [threading.Thread(target=step) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert count == [4_000]


def test_a_turn_may_be_given_back_by_another_thread() -> None:
    """As an async transaction does."""
    turn = Turn("write", "jobs.db")
    taken = turn.taken(1)
    taken.__enter__()
    thread = threading.Thread(target=taken.__exit__, args=(None, None, None))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    with turn.taken(0):
        pass


@pytest.mark.parametrize("where", ["before commit", "after commit"])
def test_a_verb_in_a_signal_handler_inside_a_write_is_told_at_once(where: str, router: Router, lease: Lease) -> None:
    """It would wait for the very thread that it interrupts."""
    database = store(router).database

    def handler(now: str) -> None:
        if now == where:
            database.point = None
            for verb in (lease.renew, lambda: lease.transaction().__enter__()):
                with pytest.raises(Conflict, match="signal handler"):
                    verb()

    database.point = handler
    router.add("b")
    assert database.point is None
    lease.renew()


# Records of refusals


def test_a_refused_block_is_on_record_at_once(path: str, router: Router, lease: Lease) -> None:
    """Whoever is told to stop may stop, without another word to the store."""
    moved(path, lease)
    with pytest.raises(StaleEpoch), lease.transaction():
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from leasehold_events where kind = 'refused'").fetchone() == (1,)


def test_a_refused_fence_is_on_record_when_the_process_ends(path: str, router: Router, lease: Lease) -> None:
    """Without a close."""
    moved(path, lease)
    program = f"""
import sqlite3
from leasehold import Router, StaleEpoch

router = Router({f"sqlite:///{path}"!r})
connection = sqlite3.connect({path!r})
try: router.store.transactions.run(connection, router.store.transactions.fence("a", {lease.epoch}))
except StaleEpoch: connection.rollback()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(router.events(kind="refused")) == 1


@needs_fork
def test_a_refusal_is_recorded_by_the_parent_and_not_by_its_child_too(path: str, router: Router, lease: Lease) -> None:
    """A forked child has a copy of everything but the duty."""
    moved(path, lease)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(StaleEpoch):
        lease.fence(connection)
    child = os.fork()
    if not child:
        router.add("b")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    router.add("c")
    assert len(router.events(kind="refused")) == 1


def test_a_reader_does_not_wait_for_the_plain_transaction_that_was_refused(
    path: str, router: Router, lease: Lease
) -> None:
    """The record of the refusal has to wait for it, and does so without the reader."""
    moved(path, lease)
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(StaleEpoch):
            lease.fence(connection)
        assert router.events(kind="refused") == []
        connection.rollback()
    assert len(router.events(kind="refused")) == 1


def test_close_closes_the_file_although_a_refusal_cannot_be_recorded(path: str, lease: Lease) -> None:
    """It is said in the log, and later verbs are refused."""
    with Router(f"sqlite:///{path}?busy_seconds=0.02") as router:
        moved(path, lease)
        stale = router.store.transactions
        assert stale is not None
        with closing(sqlite3.connect(path)) as connection, pytest.raises(StaleEpoch):
            stale.run(connection, stale.fence("a", lease.epoch))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            router.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            router.counts()
