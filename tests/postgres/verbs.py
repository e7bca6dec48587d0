"""
Every verb of a store, for tests that break something in the middle of it.

Each is prepared, done, and looked at afterwards by somebody whose connections are whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from leasehold import Lease, Router
from leasehold.core.clock import SystemClock
from leasehold.stores.postgres import PostgresStore

from .staging import until

ANSWERS, RAISES = True, False
LONG_SECONDS = 60.0


@dataclass
class Stage:
    """The two sides of a test: *router* is the one that things happen to, *seen* looks at what has happened."""

    router: Router
    seen: Router

    def lease(self, name: str = "a", **options: Any) -> Lease:
        """A job, claimed through the connections that will be broken."""
        self.seen.add(name, queue=name, **options)
        lease = self.router.claim("worker", queues=[name], lease_seconds=LONG_SECONDS)
        assert lease is not None
        return lease

    def empty(self) -> None:
        """Remove everything but the store itself."""
        assert isinstance(self.seen.store, PostgresStore)
        database = self.seen.store.database
        with psycopg.connect(database.url, autocommit=True) as connection:
            tables = connection.execute(
                "select tablename from pg_tables where schemaname = %s and tablename <> 'store'", [database.schema]
            ).fetchall()
            names = sql.SQL("; delete from ").join(sql.Identifier(database.schema, table) for (table,) in tables)
            connection.execute(sql.SQL("delete from results; delete from {}").format(names))

    def count(self, kind: str, name: str | None = None) -> int:
        """How many events of that kind there are."""
        return len(self.seen.events(name, kind=kind))


@dataclass(frozen=True)
class Verb:
    """
    One verb: what it needs, itself, and how often it has happened.

    *asks* is what its request contains. *unheard* and *unanswered*: whether it answers, all the same, if its request or
    its reply was lost; it raises `StoreUnavailable` otherwise.
    """

    name: str
    asks: str
    unheard: bool
    unanswered: bool
    prepare: Callable[[Stage], Any]
    act: Callable[[Stage, Any], Any]
    times: Callable[[Stage, Any], int]


def _status(stage: Stage, name: str, status: str) -> int:
    return int(stage.seen.job(name).status == status)


def _renewed(stage: Stage, lease: Lease) -> int:
    expires_at = stage.seen.job("a").expires_at
    assert expires_at is not None
    return int((expires_at - lease.granted_at).total_seconds() > 2 * LONG_SECONDS)


def _in_doubt(stage: Stage) -> Lease:
    lease = stage.lease()

    def broken(key: str) -> None:
        raise ArithmeticError(key)

    try:
        lease.once("charge", broken)
    except ArithmeticError:
        return lease
    raise AssertionError("the effect was not tried")


def _begun(stage: Stage, lease: Lease) -> int:
    effects = stage.seen.effects("a")
    assert not any(effect.known for effect in effects), "the effect must not have been brought about"
    return len(effects)


def _declined(stage: Stage, lease: Lease) -> None:
    def decline(key: str) -> None:
        raise ArithmeticError(key)

    with suppress(ArithmeticError):
        lease.once("charge", decline, undone=(ArithmeticError,))


def _expired(stage: Stage) -> None:
    stage.seen.add("a")
    lease = stage.seen.claim("worker", lease_seconds=0.001)
    assert lease is not None
    clock = SystemClock()
    until(lambda: clock.now() > lease.expires_at.timestamp() * 1_000_000 + 1_000)


def _finished(stage: Stage) -> Any:
    stage.seen.add("a")
    lease = stage.seen.claim("worker")
    assert lease is not None
    lease.complete()
    return stage.seen.job("a")


def _rows(stage: Stage) -> int:
    with stage.seen.claim("counter").transaction() as connection:  # type: ignore[union-attr]  # added just before
        [(count,)] = connection.execute("select count(*) from results").fetchall()
    return int(count)


def _write(stage: Stage, lease: Lease, *, complete: bool) -> None:
    with lease.transaction() as connection:
        connection.execute("insert into results values ('row')")
        if complete:
            lease.complete("done", connection=connection)


def _written(stage: Stage, lease: Lease) -> int:
    stage.seen.add("count", priority=9)
    return _rows(stage)


def _read(name: str, asks: str, act: Callable[[Router], Any]) -> Verb:
    def read(stage: Stage, made: Any) -> Any:
        assert act(stage.router) == act(stage.seen)

    return Verb(name, asks, ANSWERS, ANSWERS, lambda stage: stage.lease(), read, lambda stage, made: 1)


def _moving(name: str, kind: str, act: Callable[[Router, Any], Any], *, finished: bool = False) -> Verb:
    """A verb of operators: it names the epoch that it saw, and an unknown outcome is for a person to look at."""

    def prepare(stage: Stage) -> Any:
        if finished:
            return _finished(stage)
        stage.lease()
        return stage.seen.job("a")

    asks = ".transfer(" if name == "transfer" else ".override("
    return Verb(
        name, asks, RAISES, RAISES, prepare, lambda stage, job: act(stage.router, job), lambda s, _: s.count(kind, "a")
    )


VERBS = [
    Verb(
        "add",
        ".add(",
        ANSWERS,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.add("new").created or 1 / 0,
        lambda stage, _: len(stage.seen.jobs()),
    ),
    Verb(
        "add_many",
        ".add(",
        ANSWERS,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.add_many([{"id": "x"}, {"id": "y"}]),
        lambda stage, _: len(stage.seen.jobs()) / 2,  # type: ignore[arg-type, return-value]  # half of them would fail
    ),
    Verb(
        "claim",
        ".claim(",
        RAISES,
        ANSWERS,
        lambda stage: stage.seen.add("a"),
        lambda stage, _: stage.router.claim("worker").epoch,  # type: ignore[union-attr]  # None would fail
        lambda stage, _: len(stage.seen.jobs(status="running")),
    ),
    Verb(
        "renew",
        ".renew(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.renew(3600),
        lambda stage, lease: _renewed(stage, lease),
    ),
    Verb(
        "progress",
        ".progress(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.progress(0.5, checkpoint={"page": 1}),
        lambda stage, lease: int(stage.seen.job("a").checkpoint == {"page": 1}),
    ),
    Verb(
        "complete",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.complete(1, then=[{"id": "next"}]),
        lambda stage, lease: _status(stage, "a", "done") * (len(stage.seen.jobs()) - 1),
    ),
    Verb(
        "retry",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.fail("why", delay_seconds=60),
        lambda stage, lease: stage.count("retried", "a"),
    ),
    Verb(
        "fail",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.fail("why", retry=False),
        lambda stage, lease: stage.count("failed", "a"),
    ),
    Verb(
        "release",
        ".settle(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.release(),
        lambda stage, lease: stage.count("released", "a"),
    ),
    Verb(
        "check",
        ".check_holders(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.check(),
        lambda stage, lease: 1,
    ),
    Verb(
        "once, its beginning",
        ".begin_effect(",
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.once("charge", lambda key: "charged"),
        _begun,
    ),
    Verb(
        "once, its end",
        ".end_effect(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.once("charge", lambda key: "charged"),
        lambda stage, lease: sum(effect.outcome == '"charged"' for effect in stage.seen.effects("a")),
    ),
    Verb(
        "once, undone",
        ".end_effect(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        _declined,
        lambda stage, lease: 1 - len(stage.seen.effects("a")),
    ),
    Verb(
        "add a child",
        ".add_children(",
        ANSWERS,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: lease.add("child").created or 1 / 0,
        lambda stage, lease: len(stage.seen.jobs(parent="a")),
    ),
    _moving("transfer", "transferred", lambda router, job: router.transfer(job, to="b", by="ann")),
    _moving("cancel", "cancelled", lambda router, job: router.cancel(job, by="ann")),
    _moving("finish", "finished", lambda router, job: router.complete(job, by="ann")),
    _moving("replay", "replayed", lambda router, job: router.replay(job, by="ann"), finished=True),
    Verb(
        "resolve",
        ".resolve(",
        RAISES,
        RAISES,
        _in_doubt,
        lambda stage, lease: stage.router.resolve("a", "charge", by="ann", outcome=1, epoch=lease.epoch),
        lambda stage, lease: stage.count("resolved", "a"),
    ),
    Verb(
        "prune",
        ".prune(",
        RAISES,
        RAISES,
        _finished,
        lambda stage, _: stage.router.store.prune(0),
        lambda stage, _: 1 - len(stage.seen.jobs()),
    ),
    Verb(
        "reclaim",
        ".reclaim(",
        RAISES,
        RAISES,
        _expired,
        lambda stage, _: stage.router.reclaim()[0].job_id,
        lambda stage, _: stage.count("reclaimed", "a"),
    ),
    Verb(
        "advance",
        ".advance(",
        RAISES,
        RAISES,
        lambda stage: None,
        lambda stage, _: stage.router.advance(above=7),
        lambda stage, _: sum(event.facts.get("above") == 7 for event in stage.seen.events(kind="advanced")),
    ),
    Verb(
        "begin a transaction",
        ".fence(",
        ANSWERS,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=False),
        _written,
    ),
    Verb(
        "commit",
        "COMMIT\0",  # and not BEGIN ISOLATION LEVEL READ COMMITTED
        RAISES,
        RAISES,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=False),
        _written,
    ),
    Verb(
        "commit with a completion",
        "COMMIT\0",  # and not BEGIN ISOLATION LEVEL READ COMMITTED
        RAISES,
        ANSWERS,
        lambda stage: stage.lease(),
        lambda stage, lease: _write(stage, lease, complete=True),
        _written,
    ),
    _read("job", ".seen WHERE id", lambda router: router.job("a")),
    _read("jobs", ".seen", lambda router: router.jobs()),
    _read("jobs by owner", ".leases AS l", lambda router: router.jobs(owner="worker")),
    _read("jobs behind one", "SELECT seq", lambda router: router.jobs(after="a")),
    _read("ownerships", ".ownerships", lambda router: router.ownerships("a")),
    _read("effects", ".effects", lambda router: router.effects("a")),
    _read("events", ".events", lambda router: router.events()),
    _read("counts", ".finished", lambda router: router.counts()),
    _read("lease", ".granted", lambda router: router.lease("a", owner="worker").epoch),
    _read("verify", "runs without its lock", lambda router: router.verify()),
]
