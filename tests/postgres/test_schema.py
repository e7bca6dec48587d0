"""The schema: made once, by whoever comes first, and left alone by who does not know it."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.patience import PATIENCE_SECONDS

import leasehold.stores.postgres.schema as files
from leasehold import InvalidArgument, Router, StoreIncompatible, StoreUnavailable, Unsupported
from leasehold.core.job import new_job
from leasehold.core.redaction import shown_url
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.rows import LeaseRow, SpecRow, StateRow

from .fixtures import Place

FOLDER = Path(files.__file__).parent


@pytest.fixture
def nowhere(server_url: str) -> Any:
    """The name of a schema that does not exist yet, and is gone after the test."""
    name = f"new_{uuid.uuid4().hex[:8]}"
    yield name
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


def described(url: str, schema: str) -> list[Any]:
    """Every column, index and constraint of *schema*, as the server has them."""
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(schema)))
        found: list[Any] = []
        for query in (
            "select table_name, column_name, data_type, collation_name, is_nullable, column_default, is_identity "
            "from information_schema.columns where table_schema = %s order by table_name, ordinal_position",
            "select indexdef from pg_indexes where schemaname = %s order by 1",
            "select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint "
            "where connamespace = %s::regnamespace order by 1, 2",
            "select relname, relpersistence, reloptions, pg_get_viewdef(oid) from pg_class "
            "where relnamespace = %s::regnamespace and relkind in ('r', 'v', 'c', 'S') order by 1",
        ):
            found += [
                tuple(str(part).replace(schema, "schema") for part in row)
                for row in connection.execute(query, [schema])
            ]
        return found


def test_schema_sql_is_the_sum_of_the_migrations(server_url: str) -> None:
    """The file that is for reading says what is there."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        for name in ("written", "migrated"):
            connection.execute(f"drop schema if exists {name} cascade")
            connection.execute(f"create schema {name}")
        connection.execute(files.in_schema((FOLDER / "schema.sql").read_text(), "written"))
        for step in files.migrations("migrated"):
            connection.execute(step.script)

    assert described(server_url, "written") == described(server_url, "migrated")

    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute("drop schema written cascade; drop schema migrated cascade")


def test_every_function_with_the_owners_rights_has_the_same_settings(place: Place) -> None:
    """A caller's search_path or planner settings change nothing; only what reads whole tables is planned freely."""
    store = place.store()
    store.counts()
    with psycopg.connect(store.database.url) as connection:
        rows = connection.execute(
            "select proname, proconfig from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace "
            "where nspname = %s and prosecdef",
            [store.database.schema],
        ).fetchall()
    fixed = "search_path=pg_catalog, pg_temp"
    planned = [f"enable_{name}=off" for name in ("seqscan", "hashjoin", "mergejoin", "bitmapscan")]
    planned = [fixed, *planned, "jit=off", "plan_cache_mode=force_generic_plan"]
    assert len(rows) > 40
    assert {name: settings for name, settings in rows if settings != planned} == {"counted": [fixed], "broken": [fixed]}


def test_no_file_names_a_table_without_its_schema() -> None:
    """Whatever search_path a session has, our functions mean our tables."""
    tables = "jobs|leases|ready|scheduled|parked|freed|fences|store|uniques|finished|ownerships|effects|events|epochs"
    tables += "|guarded"
    for file in [*FOLDER.glob("functions/*.sql"), FOLDER / "statements.sql"]:
        code = "\n".join(line.partition("--")[0] for line in file.read_text().splitlines())
        bare = re.findall(rf"\b(?:FROM|JOIN|INTO|UPDATE|USING) +(?:{tables})\b(?! AS \(|\s+AS e)", code)
        assert bare == [], file.name


def test_twenty_first_starts_at_once_make_one_store(server_url: str, nowhere: str) -> None:
    """Processes that meet an empty database at the same moment agree on one schema, and on one store in it."""
    script = (
        "import sys; from leasehold import Router\n"
        "with Router(sys.argv[1], schema=sys.argv[2]) as router:\n"
        "    print(router.add(sys.argv[3]).created, router.store.database.store_id)"
    )
    command = [sys.executable, "-c", script, server_url, nowhere]

    starters = [
        subprocess.Popen([*command, f"job-{number}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(20)
    ]
    answers = [starter.communicate(timeout=PATIENCE_SECONDS) for starter in starters]

    assert [error for _, error in answers if error] == []
    assert len({said.split()[1] for said, _ in answers}) == 1
    with Router(server_url, schema=nowhere) as router:
        assert router.counts().pending == 20


@pytest.mark.parametrize(
    ("version", "advice"),
    [(10**6, "newer leasehold"), (2, "from before the first release .* a new schema")],
)
def test_another_version_is_refused(place: Place, version: int, advice: str) -> None:
    """A newer one says to install it, one that was never released to begin anew; nothing is changed."""
    store = place.store()
    store.add([new_job("a")])
    schema = sql.Identifier(store.database.schema)
    with psycopg.connect(store.database.url) as connection:
        connection.execute(
            sql.SQL("update {}.store set schema_version = {}, oldest_code = {}").format(schema, version, version)
        )

    for verb in (lambda: place.again(store).add([new_job("b")]), lambda: place.again(store).migrate()):
        with pytest.raises(StoreIncompatible, match=advice):
            verb()

    with psycopg.connect(store.database.url) as connection:
        connection.execute(
            sql.SQL("update {}.store set schema_version = {}, oldest_code = {}").format(
                schema, files.latest(), files.oldest()
            )
        )


def test_nothing_is_connected_before_the_first_verb() -> None:
    """A Router of a server that does not exist can be made; its first verb says what is wrong."""
    router = Router("postgresql://postgres@/nothing?host=/nowhere")

    with pytest.raises(StoreUnavailable, match="Nothing was changed"):
        router.add("a")


@pytest.mark.parametrize("schema", ["", "pg_mine", "a\0b", "x" * 64, "$lh$"])
def test_a_schema_that_cannot_be_is_refused(schema: str) -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidArgument, match="schema"):
        Router("postgresql://localhost/nothing", schema=schema)


def test_a_url_that_makes_no_sense_is_refused() -> None:
    """And its password is not shown."""
    with pytest.raises(InvalidArgument) as refused:
        Router("postgresql://me:secret@host/db?nonsense=1")

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("connections=0", "connections must be from 1 to 1000, not 0"),
        ("connections=many", "connections in a PostgreSQL URL must be a whole number, not 'many'"),
        ("connections=", "must be a whole number, not ''"),
        ("wait_seconds=-1", "wait_seconds must be zero or more"),
        ("wait_seconds=nan", "wait_seconds must be a finite number"),
        ("wait_seconds=soon", "wait_seconds in a PostgreSQL URL must be a number of seconds, not 'soon'"),
        ("connect_timeout=soon", "connect_timeout in a PostgreSQL URL must be a whole number, not 'soon'"),
        ("connect_timeout=-1", "connect_timeout must be from 0 to 86400"),
        ("conections=3", "Did you mean 'connections'"),
        ("aplication_name=x", "Did you mean 'application_name'"),
        ("colour=red", "not a URL that PostgreSQL understands"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(setting: str, said: str) -> None:
    """When the Router is made, in words, and without the password."""
    with pytest.raises(InvalidArgument, match=re.escape(said)) as refused:
        Router(f"postgresql://me:secret@host/db?{setting}")

    assert "secret" not in str(refused.value)


def test_the_settings_of_a_url_count(place: Place) -> None:
    """The store's own and libpq's, in one URL."""
    first = place.store().database
    url = f"{first.url}&connections=1&application_name=app%20one&wait_seconds=0.5&connect_timeout=7"
    with Router(url, schema=first.schema) as router:
        assert isinstance(router.store, PostgresStore)
        database = router.store.database
        assert database.read("select current_setting('application_name')") == [("app one",)]
        with database.connection(), pytest.raises(StoreUnavailable, match=r"all 1 connections .* in use for 0\.5 s"):
            router.add("a")
        router.add("a")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:se:cr@t@host:5432/db?x=1", "postgresql://me:…@host:5432/db?x=1"),
        (
            "postgresql://host:5432/db?password=secret&sslpassword=s",
            "postgresql://host:5432/db?password=…&sslpassword=…",
        ),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_a_password_is_not_shown(url: str, expected: str) -> None:
    """Wherever in the URL it stands."""
    assert shown_url(url) == expected


def test_a_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for name in [name for name in sys.modules if name.startswith("leasehold.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(Unsupported, match=r"psycopg\[binary\]"):
        Router("postgresql://localhost/nothing")


def test_a_role_with_another_isolation_still_works(place: Place) -> None:
    """The store's own transactions are READ COMMITTED, whatever the role's default is."""
    store = place.store()
    strict = PostgresStore(
        store.database.url + "%20-cdefault_transaction_isolation%3Dserializable", schema=store.database.schema
    )
    strict.add([new_job("a")])

    assert [grant.spec.id for grant in strict.claim("worker")] == ["a"]

    strict.close()


def test_the_command_looks_at_a_store_and_makes_none(server_url: str, nowhere: str) -> None:
    """`leasehold store check` answers for a schema that is there, and does not make one that is not."""
    command = [sys.executable, "-m", "leasehold", "store", "check", server_url, "--schema", nowhere]

    absent = subprocess.run(command, capture_output=True, text=True, check=False)
    with Router(server_url, schema=nowhere) as router:
        router.add("a")
    there = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (absent.returncode, "Nothing was created" in absent.stderr) == (7, True)
    assert (there.returncode, "Every invariant holds" in there.stdout) == (0, True)


@pytest.mark.parametrize(
    ("view", "fields"),
    [("seen", SpecRow._fields + StateRow._fields), ("granted", SpecRow._fields + LeaseRow._fields)],
)
def test_a_view_has_the_columns_that_rows_are_read_by(place: Place, view: str, fields: tuple[str, ...]) -> None:
    """Rows arrive without names, so a column that is inserted in the middle would be read as another one."""
    store = place.store()
    store.counts()
    with psycopg.connect(store.database.url) as connection:
        cursor = connection.execute(sql.SQL("select * from {}").format(sql.Identifier(store.database.schema, view)))
        columns = [column.name for column in cursor.description or ()]

    assert columns == list(fields)
