"""Names and texts: of schemas, of whatever is in front of ours on the search_path, and in every field of every verb."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import sql

from leasehold import InvalidArgument, Router, StaleEpoch, StoreIncompatible
from leasehold.core.job import Outcome, Progress, Settlement, new_job
from leasehold.core.ownership import Process
from leasehold.stores.postgres import PostgresStore

from .fixtures import SERVERS, Place, url_of, with_path
from .libraries import LIBRARIES, transaction
from .test_schema import nowhere

__all__ = ["nowhere"]  # a fixture


@pytest.fixture(scope="module", params=SERVERS[-1:])
def server_url(request: pytest.FixtureRequest) -> str:
    """One server is enough: all of them read SQL alike."""
    return url_of(request.param)


def test_an_override_is_in_the_schema_that_it_names(place: Place) -> None:
    """So each test can have its own, and the router's is not touched."""
    ours, theirs = place.store(), place.store()
    url = theirs.database.url
    with Router(url, schema=ours.database.schema) as router, router.override(url, schema=theirs.database.schema):
        router.add("a")

    assert ([job.id for job in ours.jobs()], [job.id for job in theirs.jobs()]) == ([], ["a"])


@pytest.mark.parametrize(
    "schema",
    ["Upper Case", "a'b\"c\\d%s%(x)s%{}{0}$1;--\n", "größer € " + "🚀" * 12, "leasehold.jobs"],
)
def test_a_schema_may_have_any_name(server_url: str, schema: str) -> None:
    """Whatever PostgreSQL itself takes."""
    try:
        with Router(server_url, schema=schema) as router:
            router.add("a", lock="k")
            lease = router.claim("worker")
            assert lease is not None
            with lease.transaction() as connection:
                lease.complete(connection=connection)
            assert (router.counts().done, router.verify()) == (1, [])
    finally:
        drop(server_url, schema)


def test_two_long_names_that_differ_at_the_end_are_two(server_url: str) -> None:
    """Up to 63 bytes, of which PostgreSQL cuts nothing off."""
    names = ["x" * 62 + end for end in "ab"]
    try:
        with Router(server_url, schema=names[0]) as router, Router(server_url, schema=names[1]) as beside:
            router.add("a")
            assert (router.counts().pending, beside.counts().pending) == (1, 0)
    finally:
        drop(server_url, *names)


def drop(url: str, *schemas: str) -> None:
    """Remove schemas."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        for name in schemas:
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


def test_tables_of_somebody_else_are_left_alone(server_url: str, nowhere: str) -> None:
    """Also where one has the name of ours: the error says what to do."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"create schema {nowhere}; create table {nowhere}.jobs (id text)")
        with Router(server_url, schema=nowhere) as router, pytest.raises(StoreIncompatible, match="schema of its own"):
            router.add("a")
        connection.execute(f"drop table {nowhere}.jobs; create table {nowhere}.store (id text)")
        with Router(server_url, schema=nowhere) as router, pytest.raises(StoreIncompatible, match="schema of its own"):
            router.add("a")
        tables = connection.execute("select tablename from pg_tables where schemaname = %s", [nowhere]).fetchall()

    assert tables == [("store",)]


HOSTILE = """
create schema hostile;
create domain hostile.text as pg_catalog.int4;
create domain hostile.uuid as pg_catalog.int4;
create domain hostile.json as pg_catalog.int4;
create table hostile.pg_class (relname int, relnamespace int, oid int);
create table hostile.pg_namespace (nspname int, oid int);
create table hostile.store (schema_version int);
create function hostile.coalesce(pg_catalog.int8, pg_catalog.int8) returns int8 language sql as 'select 1/0';
create function hostile.greatest(pg_catalog.int8, pg_catalog.int8) returns int8 language sql as 'select 1/0';
"""
_LIES = (
    "format(pg_catalog.text, pg_catalog.text) returns pg_catalog.text",
    "format(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.int8) returns pg_catalog.text",
    "quote_literal(pg_catalog.text) returns pg_catalog.text",
    "clock_timestamp() returns pg_catalog.timestamptz",
    "set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool) returns pg_catalog.text",
    "current_setting(pg_catalog.text) returns pg_catalog.text",
    "pg_advisory_xact_lock(pg_catalog.int8) returns pg_catalog.void",
    "hashtextextended(pg_catalog.text, pg_catalog.int8) returns pg_catalog.int8",
    "pg_control_system() returns pg_catalog.int8",
    "nextval(pg_catalog.regclass) returns pg_catalog.int8",
    "json_array_length(pg_catalog.json) returns pg_catalog.int4",
)


def test_a_hostile_search_path_changes_nothing(server_url: str, nowhere: str) -> None:
    """Types, functions and tables in front of PostgreSQL's own, and temporary tables named like ours."""
    shadows = "".join(f"create temporary table {name} (id int);" for name in ("jobs", "leases", "ready", "seen"))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning; drop schema if exists hostile cascade")
        connection.execute(HOSTILE.encode())
        for lie in _LIES:
            body = "begin raise exception 'a hostile function was called'; end"
            connection.execute(f"create function hostile.{lie} language plpgsql as $${body}$$".encode())
        url = with_path(server_url, "hostile,pg_temp,pg_catalog")
        try:
            with Router(url, schema=nowhere) as router:
                router.add("a", {"x": 1}, lock="k", unique="u", task="t")
                assert isinstance(router.store, PostgresStore)
                with router.store.database.connection() as ours:
                    ours.execute(shadows.encode())
                lease = router.claim("worker")
                assert lease is not None
                lease.progress(0.5, note="n", checkpoint={"a": 1})
                lease.add("child")
                lease.once("charge", lambda key: key)
                seen = router.transfer(router.job("a"), to="b", by="ann")
                with seen.transaction() as own:
                    own.execute(shadows.encode())
                    seen.complete(connection=own)
                assert [job.id for job in router.jobs(queue="default", task="t", status="done")] == ["a"]
                assert router.jobs(owner="nobody", status="running", parent="a") == []
                assert router.counts().done == 1
                assert len(router.ownerships("a")) == 2
                assert router.events("a")
                assert len(router.effects("a")) == 1
                router.reclaim()
                router.advance()
                router.prune(keep_seconds=1000)
                assert router.verify() == []
        finally:
            connection.execute("drop schema hostile cascade")


# Values

NASTY = [
    "a'b",
    'a"b',
    "a%sb%(x)s%%",
    "a\\b\\\\",
    "ü € 🚀 \u202e",
    "{x}{}{0}",
    "$1 $lh$ $$",
    "a'); drop table jobs;--",
    "\n\t\r",
    "null",
    "\\u0000",
    "E'\\x41'",
]


@pytest.mark.parametrize("text", NASTY)
def test_every_text_comes_back_as_it_was(place: Place, text: str) -> None:
    """In every field of every verb: values are bound, never put into SQL."""
    store = place.store(trace=True)
    spec = new_job(text, {text: text}, task=text, queue=text, lock=text, unique=text)

    [(job, created)] = store.add([spec])
    [grant] = store.claim(text, queues=[text], claim_id=text, process=Process(text, text, text, 1, 2))
    document = json.dumps(text)
    assert store.progress([Progress(text, grant.epoch, 0.5, text, document)]) == [None]
    [child] = store.add_children(
        text, grant.epoch, [new_job(f"{text}/", task=text, queue="other")._replace(parent=text)]
    )
    begun = store.begin_effect(text, grant.epoch, text)
    store.end_effect(text, grant.epoch, text, document)
    assert begun.fresh
    assert created
    assert child.created
    assert job.spec == store.job(text).spec
    assert (grant.spec.id, grant.owner, grant.spec.lock, grant.spec.payload) == (text, text, text, {text: text})
    assert (grant.process, grant.claim_id) == (Process(text, text, text, 1, 2), text)
    assert [lease.epoch for lease in store.claimed(text)] == [grant.epoch]
    assert store.lease(text, text).epoch == grant.epoch
    [found] = store.jobs(owner=text, queue=text, task=text)
    assert (found.id, found.note, found.checkpoint) == (text, text, text)
    assert [it.id for it in store.jobs(parent=text)] == [f"{text}/"]
    assert [(it.name, it.outcome) for it in store.effects(text)] == [(text, document)]

    moved = store.transfer(text, grant.epoch, to=text, by=text, note=text)
    assert moved.owner == text
    [failed] = store.settle([Settlement(text, moved.epoch, Outcome.FAIL, error=text, then=())])
    assert failed is None
    assert store.job(text).last_error == text
    [again] = store.claim(text, queues=[text])
    store.begin_effect(text, again.epoch, f"{text}!")
    resolved = store.resolve(text, again.epoch, f"{text}!", by=text, outcome=document, note=text)
    cancelled = store.cancel(text, resolved.epoch, by=text, note=text)
    replayed = store.replay(text, cancelled.epoch, by=text, note=text)
    finished = store.finish(text, replayed.epoch, by=text, note=text, result=document)
    assert finished.result == text
    assert [(it.by, it.note) for it in store.ownerships(text)][:1] == [(text, text)]
    assert {event.job_id for event in store.events(job_id=text)} == {text}
    assert text in {event.owner for event in store.events()}
    [refusal] = store.check([(text, grant.epoch)])
    assert isinstance(refusal, StaleEpoch)
    with place.connect(store) as connection:
        store.add([new_job(f"{text}-2", queue=text)])
        [last] = store.claim(text, queues=[text])
        said = Settlement(f"{text}-2", last.epoch, Outcome.COMPLETE, result=document, then=(new_job(f"{text}-3"),))
        store.transactions.run(connection, store.transactions.settle(said))
    assert store.job(f"{text}-2").result == text
    assert store.verify() == []


@pytest.mark.parametrize("text", NASTY)
def test_every_text_comes_back_as_it_was_by_the_fast_paths(place: Place, text: str) -> None:
    """Batches of jobs that are alike, claims of one job and plain completions: their arrays are texts of our own."""
    store = place.store()
    ids = [text, f"{text} ", f"{text}\\", f'{text}"']
    called: list[str] = []
    statement = store.database.calls.statement

    def noted(function: str, args: Any, style: str = "$1") -> tuple[str, list[Any]]:
        called.append(function)
        return statement(function, args, style)

    store.database.calls.statement = noted  # type: ignore[method-assign]

    added = store.add([new_job(id_, {text: id_}, task=text, queue=text) for id_ in ids])
    grants = store.claim(text, limit=2, queues=[text], claim_id=text, process=Process(text, text, text, 1, 2))
    for _ in range(2):
        grants += store.claim(text, queues=[text], claim_id=text, process=Process(text, text, text, 1, 2))
    said = [Settlement(grant.spec.id, grant.epoch, Outcome.COMPLETE, json.dumps(grant.spec.id)) for grant in grants]
    assert store.settle(said) == [None] * len(ids)

    assert called == ["add_alike", "claim", "claim_next", "claim_next", "complete"]
    assert all(created for _, created in added)
    assert [grant.spec.id for grant in grants] == ids
    assert {(grant.owner, grant.spec.task, grant.spec.queue) for grant in grants} == {(text, text, text)}
    assert [store.job(id_).payload for id_ in ids] == [{text: id_} for id_ in ids]
    assert [store.job(id_).result for id_ in ids] == ids
    assert store.claim(text, queues=[text, f'{text}"']) == []
    assert store.verify() == []


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("schema", ["a:b %s %(x)s $1 ?'\"{}"])
def test_every_text_comes_back_through_every_library(server_url: str, library: str, schema: str) -> None:
    """Each has marks of its own for what is bound, and none is taken for one in a name or a text."""
    try:
        with Router(server_url, schema=schema) as router:
            texts = [*NASTY, ":x :y", "?", "{{ x }}"]
            router.add_many([{"id": text, "payload": {text: text}} for text in texts])
            leases = router.claim_many("worker", limit=100)
            with transaction(library, with_path(server_url, "public")) as opened:
                for lease in leases:
                    opened.fence(lease)
                    opened.add(router, f"{lease.job_id}+", {lease.job_id: lease.job_id})
                    opened.complete(lease, lease.job_id)
                opened.commit()

            assert [lease.job_id for lease in leases] == texts
            assert [router.job(text).result for text in texts] == texts
            assert [router.job(f"{text}+").payload for text in texts] == [{text: text} for text in texts]
            assert router.verify() == []
    finally:
        drop(server_url, schema)


def test_nul_is_refused_before_anything_is_sent() -> None:
    """PostgreSQL keeps none in text: names with one are refused, in notes it is written out."""
    router = Router("postgresql://localhost/nothing")

    for call in (
        lambda: router.add("a\0b"),
        lambda: router.add("a", queue="\0"),
        lambda: router.add("a", task="\0"),
        lambda: router.add("a", lock="\0"),
        lambda: router.add("a", unique="\0"),
        lambda: router.claim("\0"),
        lambda: router.claim("a", queues=["\0"]),
        lambda: router.transfer("a", to="\0", epoch=1, by="b"),
        lambda: router.cancel("a", epoch=1, by="\0"),
        lambda: router.job("\0"),
    ):
        with pytest.raises(InvalidArgument, match="NUL"):
            call()


def test_nul_in_documents_and_notes_is_kept(place: Place) -> None:
    """A payload may contain one, escaped; of a note, the rest is what counts."""
    with Router(place.store().database.url, schema=place.stores[0].database.schema) as router:
        router.add("a", {"x": "\0"})
        lease = router.claim("worker")
        assert lease is not None
        lease.progress(note="a\0b", checkpoint="\0")
        lease.fail("bad \0 byte", retry=False)

        job = router.job("a")

    assert (job.payload, job.checkpoint, job.note, job.last_error) == ({"x": "\0"}, "\0", "a\\x00b", "bad \\x00 byte")
