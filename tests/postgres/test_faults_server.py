"""A server that is killed before, during and after every verb."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import until

import leasehold.stores.postgres.database as database
from leasehold import Router, StoreUnavailable

from .fixtures import NEWEST, started
from .server import Server
from .staging import Call
from .verbs import VERBS, Stage, Verb


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server of this module's own."""
    with started(NEWEST, durable=True) as running:
        yield running


def children(parent: int) -> list[int]:
    """The processes that *parent* has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def kill(mortal: Server) -> None:
    """End every process of it with SIGKILL, as the loss of the machine would."""
    mortal.process.send_signal(signal.SIGSTOP)  # so that it says no last word
    ending = children(mortal.process.pid)
    for pid in ending:
        os.kill(pid, signal.SIGKILL)
    mortal.stop(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}/stat").exists() and _runs(pid) for pid in ending))


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def stages(mortal: Server) -> Iterator[list[tuple[Verb, Stage]]]:
    """A Router for each verb, and one that looks; all of them on one store."""
    with ExitStack() as stack:
        url = mortal.url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("drop schema if exists leasehold cascade")
            connection.execute("drop table if exists results")
            connection.execute("create table results (name text)")
        seen = stack.enter_context(Router(url))
        seen.counts()
        yield [
            (verb, Stage(stack.enter_context(Router(url)), seen, f"job {number}")) for number, verb in enumerate(VERBS)
        ]


def prepared(stages: list[tuple[Verb, Stage]]) -> list[tuple[Verb, Stage, Any]]:
    """All of them, ready to be done."""
    made = [(verb, stage, verb.prepare(stage)) for verb, stage in reversed(stages)]
    for _, stage in stages:
        stage.router.counts()  # so that each has a connection
    return made[::-1]


def test_a_server_that_was_killed_before_a_verb_and_then_came_back(
    mortal: Server, stages: list[tuple[Verb, Stage]]
) -> None:
    """Nothing has happened, and it is said; once it is back, each is done on connections made anew."""
    verbs = prepared(stages)

    kill(mortal)
    for verb, stage, made in verbs:
        with pytest.raises(StoreUnavailable) as raised:
            verb.act(stage, made)
        assert str(raised.value).startswith("cannot connect to postgresql://postgres@/postgres"), verb.name
        assert str(raised.value).endswith("Is the server running, and is this its address? Nothing was changed.")
        assert not raised.value.outcome_unknown

    mortal.start()
    for verb, stage, made in verbs:
        verb.act(stage, made)
        assert verb.times(stage, made) == 1, verb.name
    assert stages[0][1].seen.verify() == []


def test_a_server_that_was_killed_after_every_verb_has_kept_what_it_answered(
    mortal: Server, stages: list[tuple[Verb, Stage]]
) -> None:
    """What was answered is there after the restart."""
    verbs = prepared([(verb, stage) for verb, stage in stages if verb.name != "prune"])  # it would remove the others'
    for verb, stage, made in verbs:
        verb.act(stage, made)

    kill(mortal)
    mortal.start()

    for verb, stage, made in verbs:
        assert verb.times(stage, made) == 1, verb.name
    assert stages[0][1].seen.verify() == []


def test_a_server_that_is_killed_in_every_verb(
    mortal: Server, stages: list[tuple[Verb, Stage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may be repeated is done once it is back; of the rest nobody claims to know how it ended."""
    monkeypatch.setattr(database, "AGAIN_SECONDS", 60)
    # A renewal does not wait for a table: it says at once that somebody has locked it. It and transactions: see below.
    apart = {"renew", "begin a transaction", "commit", "commit with a completion"}
    verbs = prepared([(verb, stage) for verb, stage in stages if verb.name not in apart])

    with closing(psycopg.connect(mortal.url())) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'leasehold'").fetchall()
        names = sql.SQL(", ").join(sql.Identifier("leasehold", table) for (table,) in tables)
        connection.execute(sql.SQL("lock table {}").format(names))
        calls = [Call(functools.partial(verb.act, stage, made)) for verb, stage, made in verbs]
        until(lambda: waiting(connection) >= len(calls))
        kill(mortal)
    mortal.start()

    for (verb, stage, made), call in zip(verbs, calls, strict=True):
        if verb.unheard:
            call.result()
        else:
            with pytest.raises(StoreUnavailable) as raised:
                call.result()
            assert raised.value.outcome_unknown, verb.name
            assert "othing was" not in str(raised.value), verb.name
        assert verb.times(stage, made) == int(verb.unheard), verb.name
    assert stages[0][1].seen.verify() == []


def waiting(connection: psycopg.Connection[Any]) -> int:
    """How many sessions wait for a lock."""
    [(count,)] = connection.execute("select count(distinct pid) from pg_locks where not granted").fetchall()
    return int(count)


def test_a_server_that_is_killed_in_a_renewal(
    mortal: Server, stages: list[tuple[Verb, Stage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for a lease that somebody has locked: it is done once the server is back."""
    monkeypatch.setattr(database, "AGAIN_SECONDS", 60)
    stage = stages[0][1]
    lease = stage.lease()
    before = stage.seen.job(stage.job).expires_at
    with closing(psycopg.connect(mortal.url())) as connection:
        connection.execute("select from leasehold.leases for update")
        call = Call(lambda: lease.renew(3600))
        until(lambda: waiting(connection) == 1)
        kill(mortal)
    mortal.start()

    assert call.result() == stage.seen.job(stage.job).expires_at != before


def test_a_server_that_is_killed_in_the_beginning_of_a_transaction(
    mortal: Server, stages: list[tuple[Verb, Stage]]
) -> None:
    """It is tried once more, and there is no server: nothing was committed, and once it is back the block is run."""
    stage = stages[0][1]
    lease = stage.lease()
    with closing(psycopg.connect(mortal.url())) as connection:
        connection.execute("lock table leasehold.fences, leasehold.leases, leasehold.jobs")
        call = Call(lambda: lease.transaction().__enter__())
        until(lambda: waiting(connection) == 1)
        kill(mortal)
    with pytest.raises(StoreUnavailable) as raised:
        call.result()
    mortal.start()

    assert "may or may not" not in str(raised.value)
    assert not raised.value.outcome_unknown
    with lease.transaction() as connection:
        connection.execute("insert into results values ('mine')")
        lease.complete(connection=connection)
    assert stage.seen.job(stage.job).status == "done"
    assert stage.seen.verify() == []


@pytest.mark.parametrize("complete", [False, True], ids=["rows", "rows and the completion"])
def test_a_server_that_is_killed_in_the_commit_of_a_transaction(
    mortal: Server, stages: list[tuple[Verb, Stage]], complete: bool
) -> None:
    """Neither the rows nor the completion are there, and nobody says that they are."""
    stage = stages[0][1]
    lease = stage.lease()
    block = lease.transaction()
    own = block.__enter__()
    own.execute("insert into results values (%s)", [stage.job])
    if complete:
        lease.complete(connection=own)

    with closing(psycopg.connect(mortal.url())) as connection:
        connection.execute("select from leasehold.leases for update")
        call = Call(lambda: block.__exit__(None, None, None))
        until(lambda: waiting(connection) == 1)
        kill(mortal)
    mortal.start()

    with pytest.raises(StoreUnavailable, match="was lost in COMMIT") as lost:
        call.result()
    assert lost.value.outcome_unknown
    with psycopg.connect(mortal.url()) as connection:
        assert connection.execute("select count(*) from results").fetchall() == [(0,)]
    assert stage.seen.job(stage.job).status == "running"
    lease.complete()
    assert stage.seen.verify() == []
