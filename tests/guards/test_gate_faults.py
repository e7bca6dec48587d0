"""The gate: faults of its state, leases, and async callers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import CLEANER

from leasehold import GuardUnavailable, InvalidArgument, NoLease, Router, StaleEpoch, Unfenced
from leasehold.guards import Gate

from .gate_calls import NEW, NEWEST, OLD, Open, opened, shared, under
from .gates import Places, places

__all__ = ["opened", "places", "shared"]  # fixtures


# Faults of the state


def terminate(places: Places) -> None:
    """End every other connection to the server's database."""
    with psycopg.connect(places.url("postgresql"), autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 60000) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' "
            "and application_name <> %s",
            [CLEANER],
        )


def test_connections_that_were_lost_are_replaced(places: Places) -> None:
    """A statement has the same effect when it runs twice, so it is sent again."""
    with places.opener("postgresql", drain_seconds=0)() as gate:
        use = gate.begin("k", **under(OLD))
        terminate(places)
        use.end()
        terminate(places)
        with gate.use("k", **under(OLD)):
            terminate(places)
        assert gate.seal("k", **under(NEW)).doubts == ()


def test_an_end_that_could_not_be_recorded_is_recorded_later(shared: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler has done its work, and must not fail for it."""
    gate = shared(drain_seconds=0)
    run = gate._home._database.run  # type: ignore[attr-defined]

    def failing(sql: str, params: Any = ()) -> Any:
        if sql.startswith("DELETE"):
            raise GuardUnavailable("the server is away")
        return run(sql, params)

    with gate.use("k", **under(OLD)):
        monkeypatch.setattr(gate._home._database, "run", failing)  # type: ignore[attr-defined]
    with pytest.raises(GuardUnavailable):
        gate.begin("k", **under(OLD))
    monkeypatch.undo()
    assert gate.seal("k", **under(NEW)).doubts == ()


def test_a_use_whose_recording_is_unknown_is_ended(shared: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been recorded; its block has not run, so no seal may wait for it."""
    gate = shared(drain_seconds=0)
    gate.begin("k", **under(OLD)).end()
    begin = gate._home.begin

    def losing(*args: Any) -> Any:
        begin(*args)
        raise GuardUnavailable("the reply was lost")

    monkeypatch.setattr(gate._home, "begin", losing)
    with pytest.raises(GuardUnavailable), gate.use("k", **under(OLD)):
        raise AssertionError("the block ran")
    monkeypatch.undo()
    assert gate.seal("k", **under(NEW)).doubts == ()


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_use_that_was_recorded_and_is_refused_on_asking_again_is_ended(
    places: Places, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its reply was lost, and a newer owner has sealed before it was sent again: no later seal may wait for it."""
    with places.opener("postgresql", drain_seconds=0)() as gate, places.opener("postgresql", drain_seconds=0)() as new:
        if known:  # else it is the first use of the key
            gate.begin("k", **under(OLD)).end()
        database = gate._home._database  # type: ignore[attr-defined]
        run = database._run

        def losing(sql: str, params: Any) -> Any:
            rows = run(sql, params)
            if "leasehold_gate_uses" in sql:
                monkeypatch.undo()
                new._home.seal("k", lambda mark: mark._replace(epoch=NEW, counter=mark.counter + 1))  # type: ignore[union-attr]
                raise GuardUnavailable("the reply was lost") from database._psycopg.OperationalError()
            return rows

        gate.mark("k")  # so that a connection is idle, and the statement is sent again
        monkeypatch.setattr(database, "_run", losing)
        with pytest.raises(StaleEpoch):
            gate.begin("k", **under(OLD))

        assert new._home.running("k", NEW) == []
        assert new.seal("k", **under(NEWEST)).doubts == ()


def test_a_server_that_commits_later_is_asked_to_commit_at_once(places: Places) -> None:
    """A mark that a crash forgets would let an old owner pass."""
    url = f"{places.url('postgresql')}%20-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable"
    with Gate(url) as gate:
        run = gate._home._database.run  # type: ignore[attr-defined]
        assert run("SHOW synchronous_commit") == [("on",)]
        assert run("SHOW transaction_isolation") == [("read committed",)]


def test_a_server_that_cannot_be_reached_refuses(places: Places) -> None:
    """At start, since a gate that cannot be used should fail there; without the password."""
    with pytest.raises(GuardUnavailable) as error:
        Gate("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(error.value)
    with pytest.raises(GuardUnavailable, match="unable to open"):
        Gate(f"sqlite:///{places.folder}/missing/gate.db")


def test_a_mark_in_the_file_that_cannot_be_read_refuses(places: Places) -> None:
    """A gate in memory reads it at the first use of its key in a process."""
    opened = Open(places, "memory")
    with opened() as gate:
        gate.begin("k", **under(OLD)).end()
    places.execute("sqlite", "update leasehold_gate_marks set epoch = 'eleven'")
    with opened() as gate:
        for call in (gate.begin, gate.seal):
            with pytest.raises(GuardUnavailable, match="cannot be read"):
                call("k", **under(NEW))
        with pytest.raises(GuardUnavailable):
            gate.mark("k")
        gate.begin("other", **under(OLD)).end()


@pytest.mark.parametrize(
    ("url", "uses"),
    [
        *(("gate.db", None), ("sqlite://gate.db", None), ("sqlite:///", None), ("sqlite:///g.db?x=1", None)),
        *(("mysql://host/db", None), (7, None), ("postgresql://host/db", "memory"), ("sqlite:///g.db", "rows")),
    ],
)
def test_a_wrong_url_is_refused(url: Any, uses: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes no file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument):
        Gate(url, uses=uses)
    assert [*tmp_path.iterdir()] == []


def test_prove_finds_a_state_that_forgets_or_does_not_compare(opened: Open) -> None:
    """Each of the three that a gate needs: the mark is kept, a use is seen, an older one is refused."""
    gate = opened()
    gate.prove()
    begin, seal = gate._home.begin, gate._home.seal

    def admitting(use: Any, admit: Any) -> Any:
        try:
            return begin(use, admit)
        except StaleEpoch:
            return gate.mark(use.key)

    for name, broken in (
        ("seal", lambda key, admit: admit(gate._home.mark(key))),
        ("begin", lambda use, admit: admit(gate._home.mark(use.key))),
        ("begin", admitting),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gate._home, name, broken)
            patch.setattr(gate, "_canary", f"leasehold:prove:{broken}"[:200])
            with pytest.raises(Unfenced):
                gate.prove()
    assert (gate._home.begin, gate._home.seal) == (begin, seal)


# With leases, and for async callers


def test_a_handler_uses_its_lease(opened: Open) -> None:
    """Without one it is refused."""
    gate = opened()
    with pytest.raises(NoLease), gate.use("k"):
        pass
    with Router() as router:
        router.add("a")
        lease = router.claim("worker-0")
        assert lease is not None
        with lease.active(), gate.use("k") as use:
            assert (use.epoch, use.owner, use.writer.job_id) == (lease.epoch, "worker-0", "a")


def test_async_callers_have_the_same(opened: Open) -> None:
    """The loop goes on while a seal waits, and a cancelled block has ended."""
    gate = opened()

    async def run() -> None:
        async with gate.aio.use("k", **under(OLD)) as use:
            seal = asyncio.create_task(gate.aio.seal("k", **under(NEW)))
            while (mark := await gate.aio.mark("k")) is None or mark.epoch != NEW:
                await asyncio.sleep(0)
            assert not seal.done()
            with pytest.raises(StaleEpoch):
                await gate.aio.begin("k", **under(OLD))
        assert (await seal).doubts == ()
        assert use.epoch == OLD

        inside = asyncio.Event()

        async def stay() -> None:
            async with gate.aio.use("k", **under(NEW)):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stay())
        await inside.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await gate.aio.seal("k", **under(NEWEST))).doubts == ()
        assert await gate.aio.doubts() == []

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_an_async_use_that_is_cancelled_while_it_waits_leaves_nothing_behind(opened: Open) -> None:
    """It was waiting for an older use; admitted later, in its thread, it is ended there."""
    gate = opened()

    async def run() -> None:
        old = await gate.aio.begin("k", **under(OLD))
        task = asyncio.create_task(gate.aio.begin("k", **under(NEW)))
        while (mark := await gate.aio.mark("k")) is None or mark.epoch != NEW:
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await gate.aio.end(old)
        assert (await gate.aio.seal("k", **under(NEWEST))).doubts == ()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_refusals_of_async_uses_are_counted(opened: Open) -> None:
    """Once each."""
    gate = opened()
    gate.begin("k", **under(NEW)).end()

    async def run() -> None:
        with pytest.raises(StaleEpoch):
            await gate.aio.begin("k", **under(OLD))

    asyncio.run(run())
    assert gate.refused == 1
