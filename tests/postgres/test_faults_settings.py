"""Servers that are set up otherwise: timeouts, isolation, read-only sessions, limits; and sessions ended by hand."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from tests.patience import PATIENCE_SECONDS
from tests.support import until

import leasehold.stores.postgres.database as database
from leasehold import Router, Status, StoreUnavailable
from leasehold.core.job import new_job
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Connection

from .fixtures import NEWEST, Place, path_of, url_of, without_path
from .staging import Call, store_of
from .verbs import READERS, VERBS, Stage, Verb


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a test makes its stores."""
    made = Place(url_of(NEWEST))
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture
def seen(place: Place) -> Iterator[Router]:
    """Who looks: a Router on a new store, under settings as they should be."""
    store = place.store()
    with place.connect(store, autocommit=True) as connection:
        connection.execute("create table results (name text)")
    with Router(store.database.url, schema=store.database.schema) as router:
        yield router


def set_up(seen: Router, **settings: str) -> Router:
    """Another Router on the same store, whose sessions begin with these settings, as their role might have them."""
    store = store_of(seen)
    settings["search_path"] = path_of(store.database.url)
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())
    return Router(f"{without_path(store.database.url)}&options={quote(options)}", schema=store.database.schema)


def stages(stack: ExitStack, seen: Router, **settings: str) -> list[tuple[Verb, Stage]]:
    """A Router for each verb, on one store."""
    return [
        (verb, Stage(stack.enter_context(set_up(seen, **settings)), seen, f"job {number}"))
        for number, verb in enumerate(VERBS)
    ]


def holder(seen: Router, table: str = "leases") -> psycopg.Connection[Any]:
    """Somebody who has locked every row of a table of the store."""
    store = store_of(seen)
    connection = psycopg.connect(store.database.url)
    connection.execute(sql.SQL("select from {} for update").format(sql.Identifier(store.database.schema, table)))
    return connection


# Isolation


def test_what_is_answered_is_committed_whatever_the_role_begins_with(
    seen: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is paused as soon as it has the answer leaves no transaction open, in which others would wait."""
    found = list[Status]()

    def ask(connection: Connection, query: str, params: Any) -> Any:
        answer = really(connection, query, params)
        if ".claim" in query:
            found.append(seen.job("a").status)
        return answer

    really = Connection.ask
    with set_up(seen, default_transaction_isolation="repeatable read") as router:
        router.add("a")
        monkeypatch.setattr(Connection, "ask", ask)
        assert router.claim("worker") is not None

    assert found == [Status.RUNNING]


@pytest.mark.parametrize("isolation", ["serializable", pytest.param("repeatable read", marks=pytest.mark.soak)])
def test_verbs_are_read_committed_whatever_the_role_begins_with(seen: Router, isolation: str) -> None:
    """Each does what it does elsewhere."""
    with ExitStack() as stack:
        made = stages(stack, seen, default_transaction_isolation=isolation)
        [(really,)] = store_of(made[0][1].router).database.read("show transaction_isolation")
        assert really == isolation
        prepared = [(verb, stage, verb.prepare(stage)) for verb, stage in reversed(made)][::-1]

        for verb, stage, one in prepared:
            verb.act(stage, one)
            assert verb.times(stage, one) == 1, verb.name
    assert seen.verify() == []


def test_readers_and_writers_at_once_under_serializable_defaults(seen: Router) -> None:
    """What the server gives up is tried again: nobody is told of it, and every job is done once."""
    with set_up(seen, default_transaction_isolation="serializable") as router:
        router.add_many([{"id": f"job-{number}", "queue": "work"} for number in range(40)])

        def work() -> int:
            done = 0
            while leases := router.claim_many("worker", limit=5, queues=["work"]):
                router.counts()
                for lease in leases:
                    lease.complete()
                    router.add(f"{lease.job_id}-next", queue="next")
                    done += 1
            return done

        calls = [Call(work) for _ in range(4)]
        done = [call.result() for call in calls]
    assert (sum(done), seen.counts().done, seen.counts().pending, seen.verify()) == (40, 40, 40, [])


# Read-only


def test_a_read_only_session_reads_and_refuses_the_rest(seen: Router) -> None:
    """And says what it might be."""
    with ExitStack() as stack:
        made = stages(stack, seen)
        prepared = [(verb, stage, verb.prepare(stage)) for verb, stage in reversed(made)][::-1]
        reading = set_up(seen, default_transaction_read_only="on")
        stack.enter_context(reading)
        only_read = {verb.name for verb in READERS} - {"observe"} | {"check"}
        for verb, stage, one in prepared:
            if hasattr(one, "_store"):  # a lease, which knows the store that it came from
                one._store = reading.store
            stage = Stage(reading, seen, stage.job)
            if verb.name in only_read:
                verb.act(stage, one)
                continue
            with pytest.raises(StoreUnavailable, match=r"default_transaction_read_only.*Nothing was changed"):
                verb.act(stage, one)
            assert verb.times(stage, one) == 0, verb.name
    assert seen.verify() == []


# Timeouts


def test_a_statement_timeout_is_told_and_changes_nothing(seen: Router) -> None:
    """Here it comes while the verb waits for somebody's lock."""
    with set_up(seen, statement_timeout="2000") as router:  # verbs that wait for nobody take milliseconds
        seen.add("a")
        lease = router.claim("worker")
        assert lease is not None
        with (
            holder(seen),
            pytest.raises(StoreUnavailable, match=r"timed out: .* Nothing was changed\..*statement_time"),
        ):
            lease.complete()

        lease.complete()
    assert seen.job("a").status == "done"


def test_verbs_have_their_own_patience_with_locks(seen: Router) -> None:
    """A lock_timeout of the role counts for none of them."""
    with set_up(seen, lock_timeout="1") as router:
        seen.add("a")
        lease = router.claim("worker")
        assert lease is not None
        with holder(seen) as other:
            call = Call(lease.complete)
            until(lambda: waiting(seen) == 1)
            other.rollback()
            call.result()

        with psycopg.connect(store_of(seen).database.url) as own:
            seen.add("b", connection=own)
            adding = Call(lambda: router.add("b"))
            until(lambda: waiting(seen) == 1)
            own.commit()
            assert not adding.result().created


def waiting(seen: Router) -> int:
    """How many sessions wait for a lock."""
    [(count,)] = store_of(seen).database.read(
        "select count(distinct pid) from pg_locks join pg_stat_activity using (pid) where not granted "
        "and datname = current_database()"
    )
    return int(count)


def test_a_transaction_that_idled_too_long_is_not_taken_for_committed(seen: Router) -> None:
    """The server has ended it; the end of the block says so, and the next one works."""
    with set_up(seen, idle_in_transaction_session_timeout="1000") as router:
        seen.add("a")
        lease = router.claim("worker")
        assert lease is not None

        def idle() -> None:
            with lease.transaction(idle_seconds=None) as connection:
                connection.execute("insert into results values ('idle')")
                until(lambda: not connection.is_alive())

        with pytest.raises(StoreUnavailable, match=r"lost before its end: nothing was committed"):
            idle()

        with lease.transaction() as connection:
            lease.complete(connection=connection)
    assert seen.job("a").status == "done"


def test_sessions_that_idled_too_long_are_replaced(seen: Router) -> None:
    """By the next verb, without a word."""
    with set_up(seen, idle_session_timeout="1000") as router:  # which counts while a session is being set up, too
        for number in range(2):
            idle = store_of(router).database.pool.idle
            until(lambda: all(not connection.is_alive() for connection in idle))  # noqa: B023  # called at once
            assert router.add(f"job-{number}").created


# Sessions that are ended by hand


def test_every_verb_whose_session_is_ended(seen: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for a lock: what may be repeated is, and of the rest nobody claims to know how it ended."""
    monkeypatch.setattr(database, "AGAIN_SECONDS", 60)
    store = store_of(seen)
    with ExitStack() as stack:
        apart = {"renew", "commit", "commit with a completion"}  # see test_faults_server.py
        made = [(verb, stage) for verb, stage in stages(stack, seen) if verb.name not in apart]
        prepared = [(verb, stage, verb.prepare(stage)) for verb, stage in reversed(made)][::-1]
        for _, stage, _ in prepared:
            stage.router.counts()
        with psycopg.connect(store.database.url) as connection:
            tables = connection.execute(
                "select tablename from pg_tables where schemaname = %s", [store.database.schema]
            ).fetchall()
            names = sql.SQL(", ").join(sql.Identifier(store.database.schema, table) for (table,) in tables)
            connection.execute(sql.SQL("lock table {}").format(names))
            calls = [Call(functools.partial(verb.act, stage, one)) for verb, stage, one in prepared]
            until(lambda: waiting(seen) >= len(calls))
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'leasehold' and wait_event_type = 'Lock'"
            )
            asking = sum(
                verb.unheard or ".claim" in verb.asks for verb, _, _ in prepared
            )  # a claim asks what it has got
            until(lambda: waiting(seen) == asking)
            connection.rollback()

        for (verb, stage, one), call in zip(prepared, calls, strict=True):
            if verb.unheard:
                call.result()
            else:
                with pytest.raises(StoreUnavailable, match="may or may not have taken effect") as lost:
                    call.result()
                assert lost.value.outcome_unknown
            assert verb.times(stage, one) == int(verb.unheard), verb.name
    assert seen.verify() == []


def test_sessions_that_are_ended_again_and_again(seen: Router) -> None:
    """A worker that repeats what it is told to have done maybe gets every job done once."""
    count = 60
    seen.add_many([{"id": f"job-{number}", "queue": "work"} for number in range(count)])
    ended = threading.Event()

    def work(router: Router) -> None:
        while not ended.is_set():
            try:
                for lease in router.claim_many("worker", limit=3, queues=["work"]):
                    with lease.transaction() as connection:
                        connection.execute("insert into results values (%s)", [lease.job_id])
                        lease.complete(connection=connection)
            except StoreUnavailable:
                continue

    with set_up(seen) as router:
        calls = [Call(lambda: work(router)) for _ in range(2)]
        for _ in range(15):
            done = seen.counts().done
            with psycopg.connect(store_of(seen).database.url) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and application_name = 'leasehold' and state <> 'idle'"
                )
            until(lambda: seen.counts().done > done or seen.counts().pending == 0)  # noqa: B023  # called at once
        until(lambda: seen.counts().pending == 0)
        ended.set()
        for call in calls:
            call.result()
    # What was leased to a worker that was not told waits for its deadline; nothing else is left.
    counts = seen.counts()
    with psycopg.connect(store_of(seen).database.url) as connection:
        rows = connection.execute("select count(*), count(distinct name) from results").fetchall()
    assert (counts.done + counts.running, rows, seen.verify()) == (count, [(counts.done, counts.done)], [])


# Deadlocks


def test_a_verb_that_is_given_up_in_a_deadlock_is_done_all_the_same(seen: Router) -> None:
    """A caller's transaction has the child that a completion adds, and wants the lease that it settles."""
    with set_up(seen, deadlock_timeout="50") as router:
        seen.add("a")
        lease = router.claim("worker")
        assert lease is not None
        with psycopg.connect(store_of(seen).database.url) as own:
            own.execute("set deadlock_timeout = '60s'")
            seen.add("a/next", connection=own)
            call = Call(lambda: lease.complete(then=[{"id": "next"}]))
            until(lambda: waiting(seen) == 1)

            own.execute(
                sql.SQL("select from {} for key share").format(sql.Identifier(store_of(seen).database.schema, "leases"))
            )
        call.result()
    assert [job.status for job in seen.jobs()] == ["done", "pending"]
    assert seen.verify() == []


def test_a_commit_that_is_given_up_in_a_deadlock_says_so(seen: Router) -> None:
    """Nothing of it is committed, and to run it again is right."""
    with set_up(seen, deadlock_timeout="60000") as router:
        seen.add("a")
        lease = router.claim("worker")
        assert lease is not None
        calls = []

        def commit() -> None:
            with lease.transaction() as own:
                own.execute("set deadlock_timeout = '50'")
                own.execute("insert into results values ('a')")
                seen.add("a/next", connection=own)
                calls.append(Call(lambda: lease.complete(then=[{"id": "next"}])))
                until(lambda: waiting(seen) == 1)

        with pytest.raises(
            StoreUnavailable, match=r"which conflicted with another: .* Nothing was changed\. Try again"
        ):
            commit()

        calls[0].result()
    assert [(job.id, job.parent) for job in seen.jobs()] == [("a", None), ("a/next", "a")]


# Transactions that the server gives up


@contextmanager
def giving_up(seen: Router, table: sql.Identifier, code: str, times: int, *, deferred: bool = False) -> Iterator[None]:
    """Let the server give up the first transactions that change *table*; what a sequence counts is not undone."""
    body = f"if nextval('given_up') <= {times} then raise exception 'given up' using errcode = '{code}'; end if; "
    what = "constraint trigger given_up after insert or delete on {} deferrable initially deferred"
    with psycopg.connect(store_of(seen).database.url, autocommit=True) as connection:
        connection.execute("create sequence given_up")
        connection.execute(
            "create function give_up() returns trigger language plpgsql security definer "
            f"set search_path = {path_of(store_of(seen).database.url)} as $$begin {body} return null; end$$".encode()
        )
        when = what if deferred else "trigger given_up after insert or delete on {}"
        connection.execute(sql.SQL(f"create {when} for each row execute function give_up()").format(table))
        try:
            yield
        finally:
            connection.execute("set client_min_messages = warning")
            connection.execute("drop function give_up cascade")


@pytest.mark.parametrize("code", ["40001", "40P01"], ids=["serialization failure", "deadlock"])
@pytest.mark.parametrize("times", [4, 5])
def test_a_verb_that_is_given_up_is_tried_five_times(seen: Router, code: str, times: int) -> None:
    """And then it says that nothing was changed, which is so."""
    seen.add("a")
    lease = seen.claim("worker")
    assert lease is not None
    with giving_up(seen, sql.Identifier(store_of(seen).database.schema, "leases"), code, times):
        if times == 4:
            lease.complete()
        else:
            with pytest.raises(
                StoreUnavailable, match=r"which conflicted with another: .* Nothing was changed\. Try again"
            ):
                lease.complete()
            assert seen.job("a").status == "running"
            lease.complete()
    assert seen.job("a").status == "done"


@pytest.mark.parametrize("code", ["40001", "40P01"], ids=["serialization failure", "deadlock"])
def test_a_block_that_is_given_up_at_its_end_says_so_at_once(seen: Router, code: str) -> None:
    """What is in it is the caller's, who runs it again."""
    seen.add("a")
    lease = seen.claim("worker")
    assert lease is not None

    def write() -> None:
        with lease.transaction() as connection:
            connection.execute("insert into results values ('a')")
            lease.complete(connection=connection)

    with giving_up(seen, sql.Identifier("results"), code, 1, deferred=True):
        with pytest.raises(
            StoreUnavailable, match=r"which conflicted with another: .* Nothing was changed\. Try again"
        ):
            write()
        assert seen.job("a").status == "running"
        write()

    assert seen.job("a").status == "done"


# Connections that are all taken


def test_a_pool_whose_connections_are_all_in_use(place: Place) -> None:
    """Whoever waits too long is told so; whoever waits less gets one."""
    store = place.store()
    full = PostgresStore(store.database.url, schema=store.database.schema, connections=2, wait_seconds=0.05)
    busy, go_on = threading.Semaphore(0), threading.Event()

    def hold(what: str) -> None:
        if what == "add":
            busy.release()
            go_on.wait(PATIENCE_SECONDS)

    full.database.open()
    full.database.point = hold
    numbers = itertools.count()
    calls = [Call(lambda: full.add([new_job(f"job-{next(numbers)}")])) for _ in range(2)]
    busy.acquire(timeout=PATIENCE_SECONDS)
    busy.acquire(timeout=PATIENCE_SECONDS)

    with pytest.raises(StoreUnavailable, match=r"all 2 connections to .* for 0\.05 s .* Nothing was changed"):
        full.counts()

    full.database.pool.wait_seconds = 20
    waiter = Call(full.counts)
    go_on.set()
    assert [call.result()[0].created for call in calls] == [True, True]
    assert waiter.result().pending <= 2
    full.close()


def test_a_role_that_may_have_no_more_connections(place: Place) -> None:
    """A limit of the role, of the database and of the server are all told alike."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("drop role if exists few")
        connection.execute("create role few login connection limit 1")
        url = place.url.replace("postgres@", "few@")
        try:
            said = r"too many connections .* pooler .* Nothing was changed"
            with psycopg.connect(url), Router(url) as router, pytest.raises(StoreUnavailable, match=said):
                router.add("a")
        finally:
            connection.execute("drop role few")


@pytest.mark.soak  # it needs hundreds of sessions
def test_a_server_all_of_whose_connections_are_taken(place: Place) -> None:
    """Once one is free again, the verb gets it."""
    with Router(place.url, schema="last") as router, ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(place.url))
        with pytest.raises(StoreUnavailable, match=r"too many clients already\. .* pooler .* Nothing was changed"):
            router.counts()

        stack.close()
        until(lambda: is_well(router))
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute("drop schema last cascade")


def is_well(router: Router) -> bool:
    """Whether it answers; the server needs a moment to count those who have left."""
    try:
        return router.counts().pending == 0
    except StoreUnavailable:
        return False
