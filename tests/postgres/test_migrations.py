"""
Migrations: said, never silent; by many at once; and under the feet of a release that goes on working.

The next release is made here (`next_release`), and runs in processes of its own, beside those of this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Router, StoreIncompatible
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.schema import first, functions, in_schema, latest, migrations, oldest

from .fixtures import SERVERS, url_of
from .next_release import COLUMN, NEXT, Release, next_release, this_release
from .staging import Call
from .test_schema import described, nowhere

__all__ = ["nowhere"]  # a fixture

WORKER = Path(__file__).with_name("old_worker.py")


class Old:
    """A process of this release that does as it is told."""

    def __init__(self, release: Release, url: str, schema: str) -> None:
        self.process = release.start(WORKER, url, schema)

    def does(self, order: str) -> str:
        """Give an order, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module", params=SERVERS[-1:])
def server_url(request: pytest.FixtureRequest) -> str:
    """One server is enough: what is tested here is not the server's."""
    return url_of(request.param)


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The next release, which says that this one goes on working."""
    return next_release(tmp_path_factory.mktemp("next"), oldest=latest())


@pytest.fixture(scope="module")
def incompatible(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A next release that this one does not work with: it takes a function away, and promises nothing."""
    return next_release(tmp_path_factory.mktemp("other"), drops=True)


def row(url: str, schema: str) -> tuple[Any, ...]:
    """The version of the schema, and of the oldest code that works with it."""
    with psycopg.connect(url) as connection:
        query = sql.SQL("select schema_version, oldest_code from {}").format(sql.Identifier(schema, "store"))
        return connection.execute(query).fetchall()[0]


def test_a_migration_is_declared_and_numbered() -> None:
    """Numbers without a gap, and no migration works with code that is newer than itself."""
    steps = migrations("leasehold")

    assert [step.version for step in steps] == list(range(first(), first() + len(steps)))
    assert all(first() <= step.oldest <= step.version for step in steps)
    assert oldest() <= latest()


def test_this_release_works_before_during_and_after_the_next_ones_migration(
    server_url: str, nowhere: str, compatible: Release
) -> None:
    """A rolling deploy: the schema first, while the old processes run, then the new ones, beside them."""
    old = Old(this_release(), server_url, nowhere)
    try:
        assert old.does("round 1") == "done"
        assert old.does("fence during") == "done"
        # The old owner's transaction has read our tables, so the migration has to wait for it, and lets others through.
        with compatible.command("store", "migrate", server_url, "--schema", nowhere) as migrating:
            assert migrating.stderr is not None
            assert any("another transaction holds a lock" in line for line in migrating.stderr)
            assert row(server_url, nowhere) == (latest(), oldest())
            assert old.does("commit during") == "done"
            # No verb may be given up in favour of the migration, whenever it begins.
            assert [old.does(f"round during-{n}") for n in range(5)] == ["done"] * 5
            said, _ = migrating.communicate(timeout=PATIENCE_SECONDS)

        assert migrating.returncode == 0
        assert f"was migrated from version {latest()} to version {NEXT}" in said
        assert row(server_url, nowhere) == (NEXT, latest())
        assert old.does("round 2") == "done"
        late, new = Old(this_release(), server_url, nowhere), Old(compatible, server_url, nowhere)
        try:
            assert [each.does(f"round {n}") for n, each in enumerate((late, new, old), 3)] == ["done"] * 3
        finally:
            late.end()
            new.end()
    finally:
        old.end()
    with Router(server_url, schema=nowhere) as router:
        facts = [event.facts.get("release") for event in router.events()]
        assert facts[0] is None  # recorded by the old functions
        assert facts[-1] == NEXT  # and by the new ones, whoever called them
        assert router.verify() == []


def test_a_verb_that_waited_for_a_migration_is_done_after_it(server_url: str, nowhere: str) -> None:
    """It had begun with the old types, and the function that it calls next has the new ones: it is asked again."""
    waiting = "select count(*) from pg_locks where not granted and relation = %s::regclass"
    with Router(server_url, schema=nowhere) as router, psycopg.connect(server_url) as migration:
        router.add("a")
        migration.execute(f"lock table {nowhere}.store in access exclusive mode".encode())

        adding = Call(lambda: router.add("a"))
        until(lambda: migration.execute(waiting, [f"{nowhere}.store"]).fetchall() == [(1,)])
        for script in (in_schema(COLUMN, nowhere), *functions(nowhere)):
            migration.execute(script.encode())
        migration.commit()

        assert not adding.result().created


def test_a_migrated_schema_is_the_one_that_is_made_anew(server_url: str, nowhere: str, compatible: Release) -> None:
    """Tables and functions alike, whichever way they came."""

    def made(schema: str) -> list[Any]:
        with psycopg.connect(server_url) as connection:
            query = "select proname, oidvectortypes(proargtypes), proacl::text from pg_proc "
            query += "where pronamespace = %s::regnamespace order by 1, 2"
            rows = connection.execute(query, [schema]).fetchall()
            return [tuple(str(part).replace(schema, "schema") for part in row) for row in rows]

    fresh = f"{nowhere}_fresh"
    try:
        with Router(server_url, schema=nowhere) as router:
            router.add("a")
        command = ("store", "migrate", server_url, "--json", "--schema")
        migrated, first = compatible.runs((*command, nowhere), (*command, fresh))
        assert (migrated.found["from"], first.found["from"]) == (latest(), 0)

        assert described(server_url, nowhere) == described(server_url, fresh)
        assert made(nowhere) == made(fresh)
        assert row(server_url, nowhere) == row(server_url, fresh)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute("set client_min_messages = warning")
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(fresh)))


def test_what_a_migration_would_do_is_said_and_not_done(server_url: str, nowhere: str, compatible: Release) -> None:
    """And the new release does not work until it is done; then there is nothing left to do."""
    command = ("store", "migrate", server_url, "--schema", nowhere)
    with Router(server_url, schema=nowhere) as router:
        router.add("a")

    check = ("store", "check", server_url, "--schema", nowhere)
    would, early = compatible.runs([*command, "--dry-run", "--json"], check)
    still = row(server_url, nowhere)
    did, again, late = compatible.runs([*command, "--json"], command, check)

    steps = [f"{NEXT:04}_tag_jobs"]
    assert would.found == {"url": server_url, "from": latest(), "to": NEXT, "steps": steps, "dry_run": True}
    assert still == (latest(), oldest())
    assert early.code == 1
    assert f"has version {latest()}, and this leasehold needs version {NEXT}" in early.err
    assert "leasehold store migrate URL" in early.err
    assert did.found == {"url": server_url, "from": latest(), "to": NEXT, "steps": steps, "dry_run": False}
    assert again == (0, f"The schema is already at version {NEXT}; there is nothing to do.\n", "")
    assert late.code == 0
    with Router(server_url, schema=nowhere) as router:
        assert isinstance(router.store, PostgresStore)
        assert router.store.migrate() == (NEXT, NEXT, [])  # an older release has nothing to do either


def test_many_migrations_at_once_are_one(server_url: str, nowhere: str, compatible: Release) -> None:
    """One of them does it, and the others find it done."""
    with Router(server_url, schema=nowhere) as router:
        router.add("a")
    command = ("store", "migrate", server_url, "--schema", nowhere, "--json")

    running = [compatible.command(*command) for _ in range(4)]
    answers = [(process.communicate(timeout=PATIENCE_SECONDS)[0], process.returncode) for process in running]

    assert [code for _, code in answers] == [0] * 4
    assert sorted(len(json.loads(said)["steps"]) for said, _ in answers) == [0] * 3 + [1]
    assert row(server_url, nowhere) == (NEXT, latest())


def test_a_release_that_does_not_fit_any_more_is_told_so(server_url: str, nowhere: str, incompatible: Release) -> None:
    """Also a process that has looked at the schema before: it meets what is gone, and says both versions."""
    with Router(server_url, schema=nowhere) as running:
        running.add("a")
        lease = running.claim("worker")
        assert lease is not None
        assert incompatible.run("store", "migrate", server_url, "--schema", nowhere, "--json").found["to"] == NEXT
        message = (
            f"has version {NEXT}, which works with leasehold versions for schema {NEXT} or later, and this leasehold "
            f"supports {latest()} at most.*Upgrade leasehold. Nothing was changed"
        )

        with pytest.raises(StoreIncompatible, match=message):
            lease.check()
        with Router(server_url, schema=nowhere) as late, pytest.raises(StoreIncompatible, match=message):
            late.add("b")


def test_a_migration_that_promises_too_much_is_refused(server_url: str, nowhere: str, tmp_path: Path) -> None:
    """It says that this release goes on working, and takes away what this release calls."""
    broken = next_release(tmp_path, oldest=latest(), drops=True)
    with Router(server_url, schema=nowhere) as router:
        router.add("a")

        refused = broken.run("store", "migrate", server_url, "--schema", nowhere)

        assert refused.code == 1
        assert "keeps working, but they remove functions that it calls" in refused.err
        assert "check_holders" in refused.err
        lease = router.claim("worker")
        assert lease is not None
        lease.check()
    assert row(server_url, nowhere) == (latest(), oldest())


def test_a_migration_gives_what_it_makes_to_those_who_had_rights(
    server_url: str, nowhere: str, compatible: Release
) -> None:
    """An operator may call the new function of operators, and nobody else may."""
    roles = [f"{kind}_{nowhere}" for kind in ("operator", "worker")]
    with psycopg.connect(server_url, autocommit=True) as connection:
        for role in roles:
            connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
        try:
            with Router(server_url, schema=nowhere) as router:
                assert isinstance(router.store, PostgresStore)
                for role in roles:
                    router.store.grant(role, [role.partition("_")[0]])
            assert compatible.run("store", "migrate", server_url, "--schema", nowhere).code == 0
            query = "select has_function_privilege(%s, oid, 'EXECUTE') from pg_proc where proname = 'tag' "
            query += "and pronamespace = %s::regnamespace"
            may = [connection.execute(query, [role, nowhere]).fetchall() for role in roles]
        finally:
            connection.execute("set client_min_messages = warning")
            for role in roles:
                connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))

    assert may == [[(True,)], [(False,)]]


def test_a_migration_that_gets_no_turn_gives_up_and_changes_nothing(
    server_url: str, nowhere: str, compatible: Release
) -> None:
    """Somebody has left a transaction open for too long."""
    with Router(server_url, schema=nowhere) as router:
        router.add("a")
    with psycopg.connect(server_url) as connection:
        connection.execute(sql.SQL("select from {}").format(sql.Identifier(nowhere, "jobs")))

        given_up = compatible.run("store", "migrate", server_url, "--schema", nowhere, "--wait-seconds", "1")

    assert given_up.code == 7
    assert "so the migration could not begin. Look for old transactions in pg_stat_activity" in given_up.err
    assert row(server_url, nowhere) == (latest(), oldest())
