"""
Which transaction a verb is part of: by thread, by task, by savepoint, at the end of a handler; on both stores.

Long on purpose: each test is one row of a table, which transaction a verb joins, and all share the fixtures.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.sqlite.joining import in_thread

from leasehold import Conflict, InDoubt, Lease, Settled, StaleEpoch, StoreUnavailable
from leasehold.lease import worker_side
from leasehold.transaction import Block
from leasehold.worker.calling import call, call_async, settlement

from .libraries import Driver, run
from .stages import Stage


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, sqlite: Stage, postgres: Stage) -> Stage:
    """Each store in turn."""
    return sqlite if request.param == "sqlite" else postgres


@pytest.fixture
def lease(stage: Stage) -> Lease:
    """A lease on a job."""
    stage.router.add("mine")
    made = stage.router.claim("worker")
    assert made is not None
    return made


@pytest.fixture
def own(stage: Stage) -> Iterator[Any]:
    """A connection of the caller's own."""
    library = Driver(stage.database)
    run(library.connect(), is_async=False)
    with closing(library.connection) as connection:
        yield connection


INSERT = "insert into results values ('', 'mine')"


def test_rows_and_completion_of_a_block_are_one_commit(stage: Stage, lease: Lease) -> None:
    """Without `connection=`."""
    with lease.transaction() as connection:
        connection.execute(INSERT)
        lease.complete(7)
        assert stage.router.job("mine").status == "running", "nothing is settled before the commit"

    assert (stage.router.job("mine").status, stage.router.job("mine").result) == ("done", 7)
    assert stage.rows("") == ["mine"]


def test_a_block_that_fails_settles_nothing(stage: Stage, lease: Lease) -> None:
    """Neither the rows nor the completion nor the checkpoint."""

    def failing() -> None:
        with lease.transaction() as connection:
            connection.execute(INSERT)
            lease.progress(0.5, checkpoint={"row": 1})
            lease.complete(7)
            raise KeyError

    with pytest.raises(KeyError):
        failing()

    job = stage.router.job("mine")
    assert (job.status, job.result, job.progress, job.checkpoint) == ("running", None, None, None)
    assert stage.rows("") == []
    lease.complete(8)
    assert stage.router.job("mine").result == 8


def test_a_completion_beside_the_fenced_rows_is_refused_and_loses_nothing(stage: Stage, lease: Lease, own: Any) -> None:
    """What users of an ORM forget: `connection=`."""
    own.execute(INSERT)
    lease.fence(own)
    with pytest.raises(Conflict, match="connection="):
        lease.complete(7)
    own.commit()

    assert stage.rows("") == ["mine"]
    assert stage.router.job("mine").status == "running"
    lease.complete(8)
    assert stage.router.job("mine").result == 8


def test_a_savepoint_that_is_rolled_back_forgets_the_settlement(stage: Stage, lease: Lease) -> None:
    """Of the block's own verbs, too."""
    with lease.transaction() as connection:
        connection.execute(INSERT)
        connection.execute("savepoint attempt")
        lease.complete(7, savepoint=True)
        with pytest.raises(Settled):
            lease.progress(0.5, savepoint=True)
        connection.execute("rollback to savepoint attempt")
        connection.execute("release savepoint attempt")
        lease.check()
        lease.progress(0.5)

    job = stage.router.job("mine")
    assert (job.status, job.result, job.progress) == ("running", None, 0.5)
    assert stage.rows("") == ["mine"]


@pytest.mark.parametrize("commits", [True, False])
def test_threads_and_tasks_that_inherit_the_context_are_inside(stage: Stage, lease: Lease, commits: bool) -> None:
    """They run one at a time on the block's connection, and commit or roll back with it."""

    async def block() -> None:
        async with lease.aio.transaction():
            await asyncio.gather(
                *(asyncio.to_thread(lease.add, f"thread-{n}") for n in range(8)),
                *(asyncio.create_task(lease.aio.add(f"task-{n}")) for n in range(8)),
            )
            if not commits:
                raise KeyError

    if commits:
        asyncio.run(block())
    else:
        with pytest.raises(KeyError):
            asyncio.run(block())

    assert len(stage.router.jobs(parent="mine")) == (16 if commits else 0)


def test_a_copied_context_that_outlives_the_block_is_outside(stage: Stage, lease: Lease) -> None:
    """Its verbs commit by themselves again."""
    with lease.transaction():
        copied = contextvars.copy_context()
        lease.progress(0.25)

    copied.run(lease.progress, 0.5)

    assert stage.router.job("mine").progress == 0.5


def test_a_thread_without_the_context_is_outside(stage: Stage, lease: Lease) -> None:
    """It commits separately on PostgreSQL, and waits on SQLite."""
    with lease.transaction() as connection:
        connection.execute(INSERT)
        if stage.database.is_sqlite:
            with pytest.raises(StoreUnavailable):
                in_thread(lambda: lease.progress(0.5))
        else:
            in_thread(lambda: lease.progress(0.5))
            assert stage.router.job("mine").progress == 0.5

    assert stage.rows("") == ["mine"]


@pytest.mark.parametrize(
    "settle", [lambda lease: lease.complete(7), lambda lease: lease.fail("broken"), lambda lease: lease.release()]
)
def test_a_thread_cannot_settle_beside_the_callers_transaction(
    stage: Stage, lease: Lease, own: Any, settle: Callable[[Lease], None]
) -> None:
    """The rows would be lost."""
    own.execute(INSERT)
    lease.fence(own)
    with pytest.raises(Conflict, match="still open"):
        in_thread(lambda: settle(lease))
    own.commit()

    assert stage.rows("") == ["mine"]
    in_thread(lambda: settle(lease))
    assert stage.router.job("mine").status != "running"


@pytest.mark.parametrize(
    "verb",
    [
        lambda lease: lease.progress(0.5),
        lambda lease: lease.add("child"),
        lambda lease: lease.once("charge", lambda key: key),
        lambda lease: lease.transaction().__enter__(),
    ],
    ids=["progress", "add", "once", "transaction"],
)
def test_no_verb_of_the_lease_commits_beside_the_callers_transaction(
    stage: Stage, lease: Lease, own: Any, verb: Callable[[Lease], Any]
) -> None:
    """In another thread, which does not have the context, as little as in this one."""
    own.execute(INSERT)
    lease.fence(own)
    with pytest.raises(Conflict, match="connection="):
        verb(lease)
    with pytest.raises(Conflict, match="still open"):
        in_thread(lambda: verb(lease))
    in_thread(lease.check)
    own.commit()

    assert stage.rows("") == ["mine"]
    assert (stage.router.job("mine").progress, stage.router.jobs(parent="mine")) == (None, [])
    lease.progress(0.5)


def test_a_fence_of_another_task_counts_for_the_whole_lease(stage: Stage, lease: Lease, own: Any) -> None:
    """The task that fences has a copy of the context, which is gone when it ends."""

    async def body() -> None:
        own.execute(INSERT)
        await asyncio.create_task(lease.aio.fence(own))
        with pytest.raises(Conflict, match="still open"):
            await lease.aio.progress(0.5)
        with pytest.raises(Conflict, match="still open"):
            await lease.aio.complete()

    asyncio.run(body())
    own.commit()

    assert stage.rows("") == ["mine"]
    lease.complete()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_leaves_its_transaction_open_fails_and_says_so(
    stage: Stage, lease: Lease, own: Any, kind: str
) -> None:
    """Its job would be done otherwise, and its rows lost without a word."""

    def careless(lease: Lease) -> None:
        own.execute(INSERT)
        lease.fence(own)

    async def careless_on_a_loop(lease: Lease) -> None:
        careless(lease)

    task: Any = stage.router.task(careless if kind == "plain" else careless_on_a_loop)
    hooks = stage.router._registry.hooks
    grant = worker_side.grant_of(lease)
    end = call(task, grant, lease, hooks) if kind == "plain" else asyncio.run(call_async(task, grant, lease, hooks))
    own.rollback()

    assert isinstance(end.error, Conflict)
    assert "commit it, or roll it back" in str(end.error)
    said = settlement(task, grant, lease, end)
    assert said is not None
    assert said.outcome == "fail"


@pytest.mark.parametrize("verb", [Lease.check, Lease.renew], ids=["check", "renew"])
def test_after_a_settlement_in_the_callers_transaction_the_exempt_verbs_are_settled_too(
    stage: Stage, lease: Lease, own: Any, verb: Callable[[Lease], Any]
) -> None:
    """As they are in a block; caught, it spoils nothing."""
    own.execute(INSERT)
    lease.complete(7, connection=own)
    with pytest.raises(Settled):
        verb(lease)
    own.commit()

    assert (stage.router.job("mine").result, stage.rows("")) == (7, ["mine"])


@pytest.mark.parametrize("verb", [Lease.check, Lease.renew], ids=["check", "renew"])
def test_the_exempt_verbs_work_beside_a_transaction_that_a_savepoint_has_unsettled(
    stage: Stage, lease: Lease, own: Any, verb: Callable[[Lease], Any]
) -> None:
    """The transaction itself remembers the settlement, and so it forgets it too."""
    own.execute(INSERT)
    lease.fence(own)
    own.execute("savepoint attempt")
    lease.release(connection=own, savepoint=True)
    own.execute("rollback to savepoint attempt")
    own.execute("release savepoint attempt")
    verb(lease)
    own.commit()

    assert stage.router.job("mine").status == "running"


def test_a_renewal_from_a_loop_uses_the_callers_connection_on_its_own_thread(
    stage: Stage, lease: Lease, own: Any
) -> None:
    """sqlite3 lets no other thread near the connection."""

    async def body() -> None:
        await lease.aio.fence(own)
        await lease.aio.renew()
        await lease.aio.check()

    asyncio.run(body())
    own.execute(INSERT)
    own.commit()
    assert stage.rows("") == ["mine"]


def test_a_task_may_report_while_another_one_writes_rows(stage: Stage, lease: Lease) -> None:
    """On two threads and one connection; SQLite stopped the whole process when the two met."""

    async def body() -> None:
        async with lease.aio.transaction() as connection:

            def write() -> None:
                for _ in range(300):
                    connection.execute(INSERT)

            async def report() -> None:
                for number in range(30):
                    await lease.aio.progress(number / 30, checkpoint={"row": number})

            await asyncio.gather(asyncio.to_thread(write), report(), report())

    asyncio.run(body())

    assert len(stage.rows("")) == 300
    assert stage.router.job("mine").checkpoint == {"row": 29}


def test_a_refused_verb_of_another_task_undoes_no_row(stage: Stage, lease: Lease) -> None:
    """It undoes what it has done itself, and the caller's rows come before or after all of it."""

    async def body() -> None:
        async with lease.aio.transaction() as connection:
            lease.complete()

            def write() -> None:
                for _ in range(200):
                    connection.execute(INSERT)

            async def refused() -> None:
                for _ in range(30):
                    with pytest.raises(Settled):
                        await lease.aio.progress(0.5)

            await asyncio.gather(asyncio.to_thread(write), refused())

    asyncio.run(body())

    assert stage.router.job("mine").status == "done"
    assert len(stage.rows("")) == 200


def test_verbs_of_many_blocks_do_not_wait_for_each_others_threads(stage: Stage) -> None:
    """Those that wait for a unique key would fill the shared threads, which the one that has it needs to go on."""
    count = 2 * min(32, (os.cpu_count() or 1) + 4)
    assert stage.router.store.transactions is not None
    if stage.router.store.transactions.exclusive:
        count = 2  # there, one block at a time is open
    stage.router.add_many([{"id": f"mine-{number}"} for number in range(count)])
    leases = stage.router.claim_many("worker", limit=count)

    async def handle(lease: Lease) -> None:
        async with lease.aio.transaction():
            await lease.aio.add("report", unique="daily-report")
            await lease.aio.complete()

    async def body() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(handle(lease) for lease in leases))

    asyncio.run(body())

    assert {stage.router.job(lease.job_id).status for lease in leases} == {"done"}


def test_ctrl_c_at_the_end_of_a_block_leaves_none_open(
    stage: Stage, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later verb of this context would be refused."""

    def interrupted(block: Block) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Block, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), lease.transaction() as connection:
        connection.execute(INSERT)

    stage.router.add("later")
    lease.complete()
    assert stage.rows("") == []


def test_a_renewal_in_a_block_moves_the_leases_deadline_with_its_commit(stage: Stage, lease: Lease) -> None:
    """On SQLite it is part of the block, even in a savepoint; on PostgreSQL it takes effect at once."""

    def failing() -> None:
        with lease.transaction() as connection:
            connection.execute("savepoint attempt")
            lease.renew(7200)
            raise KeyError

    before = lease.expires_at
    with pytest.raises(KeyError):
        failing()
    rolled_back = stage.router.job("mine").expires_at
    assert lease.expires_at == rolled_back
    assert stage.database.is_sqlite is (rolled_back == before)

    with lease.transaction():
        renewed = lease.renew(8000)

    assert lease.expires_at == renewed == stage.router.job("mine").expires_at


def test_a_renewal_in_a_savepoint_of_the_callers_works(stage: Stage, lease: Lease, own: Any) -> None:
    """Rolled back, the lease is what it was before."""
    own.execute(INSERT)
    lease.fence(own)
    own.execute("savepoint attempt")
    lease.renew(7200)
    lease.check()
    own.execute("release savepoint attempt")
    own.commit()

    assert stage.rows("") == ["mine"]


def adding(stage: Stage, lease: Lease, own: Any, where: str, *, fails: bool) -> None:
    """Add two children of one name in a transaction that commits, or rolls back."""
    if where == "block":
        with lease.transaction():
            lease.add("page", {"n": 1})
            lease.add("page", {"n": 2})
            if fails:
                raise KeyError
        return
    try:
        own.execute(INSERT)
        lease.add("page", {"n": 1}, connection=own)
        lease.add("page", {"n": 2}, connection=own)
        if fails:
            raise KeyError
    except KeyError:
        own.rollback()
        raise
    own.commit()


@pytest.mark.parametrize("where", ["block", "own"])
def test_a_transaction_that_is_run_again_asks_for_the_same_children(
    stage: Stage, lease: Lease, own: Any, where: str
) -> None:
    """Else a second run of the job, which counts from one, would find them missing and add them a second time."""
    for _ in range(2):
        with pytest.raises(KeyError):
            adding(stage, lease, own, where, fails=True)
    adding(stage, lease, own, where, fails=False)
    lease.add("page", {"n": 3})

    pages = {job.id: job.payload["n"] for job in stage.router.jobs(parent="mine")}
    assert pages == {"mine/page": 1, "mine/page#2": 2, "mine/page#3": 3}


def test_a_savepoint_that_is_rolled_back_takes_its_children_along(stage: Stage, lease: Lease, own: Any) -> None:
    """The next child of that name in the same transaction gets its number."""
    own.execute(INSERT)
    lease.add("page", {"n": 1}, connection=own)
    own.execute("savepoint attempt")
    lease.add("page", {"n": 2}, connection=own, savepoint=True)
    own.execute("rollback to savepoint attempt")
    own.execute("release savepoint attempt")
    lease.add("page", {"n": 3}, connection=own)
    own.commit()

    pages = {job.id: job.payload["n"] for job in stage.router.jobs(parent="mine")}
    assert pages == {"mine/page": 1, "mine/page#2": 3}


@pytest.mark.parametrize("where", ["block", "own"])
def test_a_second_run_that_is_rolled_back_once_finds_the_first_ones_children(
    stage: Stage, lease: Lease, own: Any, where: str
) -> None:
    """That a child exists does not tell that this run's transaction has committed."""
    if where == "own" and stage.database.is_sqlite:
        pytest.skip("SQLite does not tell how a transaction on another connection has ended")
    adding(stage, lease, own, where, fails=False)
    stage.router.requeue(stage.router.job("mine"), by="ops")
    again = stage.router.claim("worker", queues=["default"])
    assert again is not None
    assert again.job_id == "mine"
    with pytest.raises(KeyError):
        adding(stage, again, own, where, fails=True)
    adding(stage, again, own, where, fails=False)

    assert {job.id for job in stage.router.jobs(parent="mine")} == {"mine/page", "mine/page#2"}


def test_a_savepoint_of_a_block_that_commits_takes_its_children_along(stage: Stage, lease: Lease) -> None:
    """After the block, too, the next child of that name gets the number."""
    with lease.transaction() as connection:
        connection.execute("savepoint attempt")
        lease.add("page", {"n": 1}, savepoint=True)
        connection.execute("rollback to savepoint attempt")
        connection.execute("release savepoint attempt")
    lease.add("page", {"n": 2})

    assert {job.id: job.payload["n"] for job in stage.router.jobs(parent="mine")} == {"mine/page": 2}


@pytest.mark.parametrize("inside", [True, False])
def test_children_of_one_name_with_keys_of_their_own_are_numbered_alike_in_each_run(
    stage: Stage, lease: Lease, inside: bool
) -> None:
    """One that meets another job's unique key is counted, though no job has its id."""
    stage.router.add("holder", unique="k1")

    def both(lease: Lease) -> None:
        for key in ("k1", "k2"):
            lease.add("note", unique=key)

    def run(lease: Lease) -> None:
        if inside:
            with lease.transaction():
                both(lease)
        else:
            both(lease)

    run(lease)
    stage.router.requeue(stage.router.job("mine"), by="ops")
    again = next(one for one in stage.router.claim_many("worker") if one.job_id == "mine")
    run(again)

    assert [job.id for job in stage.router.jobs(parent="mine")] == ["mine/note#2"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_task_that_outlives_a_block_which_failed_is_refused(stage: Stage, lease: Lease, commits: bool) -> None:
    """It would settle the job without the rows that it was to be settled with."""

    async def body() -> None:
        go = asyncio.Event()

        async def late() -> None:
            await go.wait()
            await lease.aio.complete(7)

        try:
            async with lease.aio.transaction() as connection:
                connection.execute(INSERT)
                task = asyncio.create_task(late())
                await asyncio.sleep(0)
                if not commits:
                    raise KeyError
        except KeyError:
            pass
        go.set()
        await task

    if commits:
        asyncio.run(body())
        assert stage.router.job("mine").result == 7
    else:
        with pytest.raises(Conflict, match="has not committed"):
            asyncio.run(body())
        assert stage.router.job("mine").status == "running"
        lease.check()
        lease.complete(8)


def test_an_effect_is_not_concluded_beside_a_transaction_that_its_call_left_open(
    stage: Stage, lease: Lease, own: Any
) -> None:
    """Its rows may yet roll back, and then the effect would be known for ever."""

    def charge(key: str) -> str:
        own.execute(INSERT)
        lease.fence(own)
        return key

    with pytest.raises(Conflict):
        lease.once("charge", charge)
    own.rollback()

    with pytest.raises(InDoubt):
        lease.once("charge", charge)


def test_a_renewal_that_a_savepoint_has_undone_does_not_move_the_deadline(stage: Stage, lease: Lease) -> None:
    """On PostgreSQL a renewal is not part of the block."""
    with lease.transaction() as connection:
        connection.execute("savepoint attempt")
        lease.renew(90_000)
        connection.execute("rollback to savepoint attempt")
        connection.execute("release savepoint attempt")

    assert lease.expires_at == stage.router.job("mine").expires_at


def test_an_error_behind_the_commit_of_the_leases_own_settlement_is_no_refusal(
    stage: Stage, lease: Lease, own: Any
) -> None:
    """Of an on_commit hook, say: the rows and the completion are there."""
    own.execute(INSERT)
    lease.complete(7, connection=own)
    own.commit()

    for behind in (ValueError("the mail server is down"), ConnectionRefusedError("the mail server is down")):
        assert StaleEpoch.find(behind, lease) is None
    assert stage.rows("") == ["mine"]


def test_the_refusal_of_another_lease_is_not_found_for_this_one(stage: Stage, lease: Lease) -> None:
    """While one lease's refusal is handled, an error of the other's own is raised."""
    stage.router.add("other")
    other = stage.router.claim("worker")
    assert other is not None
    stage.router.transfer("other", to="b", epoch=other.epoch, by="ops")
    error = ValueError("mine")
    with pytest.raises(StaleEpoch) as refused:
        other.complete()
    error.__context__ = refused.value

    assert StaleEpoch.find(error, lease) is None
    assert StaleEpoch.find(error) is StaleEpoch.find(error, other) is refused.value
    assert not lease.lost


def test_a_refusal_that_is_found_for_a_lease_marks_it_lost(stage: Stage, lease: Lease) -> None:
    """It may come from a COMMIT of the caller's own, of which the lease knows nothing."""
    refusal = StaleEpoch.of_job("mine", presented=lease.epoch, current=lease.epoch + 1)

    assert StaleEpoch.find(refusal, lease) is refusal
    assert lease.lost


def test_the_refusal_of_a_guard_that_had_the_epoch_is_the_leases(stage: Stage, lease: Lease) -> None:
    """The job may be its own all the same: a guard compares with other jobs, too."""
    refusal = StaleEpoch("", resource="file:q3.csv", presented=lease.epoch, current=lease.epoch + 1)

    assert StaleEpoch.find(refusal, lease) is refusal
    assert not lease.lost


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_a_forked_child_that_leaves_the_block_does_not_end_the_parents_transaction(
    stage: Stage, lease: Lease, raises: bool, commits: bool
) -> None:
    """Neither commits nor rolls back: it is the parent's to end."""
    reader, writer = os.pipe()
    parent = os.getpid()

    def forking() -> None:
        with lease.transaction() as connection:
            connection.execute(INSERT)
            child = os.fork()
            if child != 0:
                os.waitpid(child, 0)
            if (raises and child == 0) or (not commits and child != 0):
                raise KeyError

    try:
        forking()
    except BaseException as error:
        if os.getpid() == parent and not isinstance(error, KeyError):
            raise
        if os.getpid() != parent:
            os.write(writer, type(error).__name__.encode())
    finally:
        if os.getpid() != parent:
            os._exit(0)

    os.close(writer)
    with os.fdopen(reader) as end:
        assert end.read() == ("KeyError" if raises else "NotInTransaction")
    assert stage.rows("") == (["mine"] if commits else [])
    lease.complete()
