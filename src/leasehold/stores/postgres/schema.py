"""
The life of a schema: made by the first verb, brought up to date on request, used by code that fits.

The store's row says which version the schema has, and which is the oldest code that works with it. So code of version
N works on schema N, and on a later one whose `oldest_code` is not above N: a migration is installed first, while the
old release runs, and the new release follows. Code never works on a schema that is older than itself.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from ...errors import InvalidArgument, StoreIncompatible, StoreUnavailable
from .._stats import StoreStats, TableStats
from .._versions import Migrated, refuse_newer, refuse_older, refuse_unreleased
from .rights import grant_again, grantees

Connection = psycopg.Connection[Any]

# In one pass, since a schema's own name may contain `leasehold.`.
_NAME = re.compile(r"'leasehold\.(\w+)'|\bleasehold\.(?=[a-z_]+\b)")
_OLDEST = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

# How long a migration may keep others waiting for locks that it does not get: less than deadlock_timeout, which is a
# second unless it was changed. So where a verb and a migration wait for each other, the migration gives way.
_PATIENCE_MS = 500
_PAUSE_SECONDS = 0.5  # and how long the others then have for themselves

# How every function that a role may call runs, SECURITY DEFINER in its file: see functions/01_shared.sql.
_OURS_ALONE = "SET search_path = pg_catalog, pg_temp"
_BY_KEYS = "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off"
_AS_PLANNED = "SET jit = off SET plan_cache_mode = force_generic_plan"
_WHOLE_TABLES = ("counted", "broken")  # the functions that read them, as PostgreSQL finds best


class Found(NamedTuple):
    """What the store's row says."""

    version: int
    oldest: int
    store_id: uuid.UUID


def look(connection: Connection, schema: str) -> Found | None:
    """Return what is in *schema*; None if there is no store."""
    [(exists,)] = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'store')",
        [schema],
    ).fetchall()
    if not exists:
        return None
    try:
        rows = connection.execute(
            sql.SQL("SELECT schema_version, oldest_code, id FROM {}").format(sql.Identifier(schema, "store"))
        ).fetchall()
    except psycopg.errors.UndefinedColumn:
        raise _not_ours(schema, "its table 'store' has other columns") from None
    if len(rows) != 1:
        raise _not_ours(schema, f"its table 'store' has {len(rows)} rows")
    return Found(*rows[0])


def admitted(found: Found, where: str) -> uuid.UUID:
    """Return the store's id, if this leasehold works with its schema."""
    if found.version < first():
        raise refuse_unreleased(where, found.version, first())
    if found.version < latest():
        raise refuse_older(where, found.version, latest())
    if found.version > latest() < found.oldest:
        raise refuse_newer(where, found.version, latest(), found.oldest)
    return found.store_id


def make(connection: Connection, schema: str, where: str, now: int | None) -> None:
    """Make the schema, unless another process does so at the same time; leave one that is there as it is."""
    try:
        with connection.transaction():
            _lock(connection, schema)
            if look(connection, schema) is None:
                _bring_up(connection, schema, None, now)
    except psycopg.errors.InsufficientPrivilege as error:
        raise _may_not_make(where, connection.info.user, error) from error
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateFunction) as error:
        raise _not_ours(schema, str(error.diag.message_primary)) from error


def migrate(
    connection: Connection,
    schema: str,
    where: str,
    now: int | None,
    *,
    dry_run: bool,
    wait_seconds: float,
    say: Callable[[str], None],
) -> Migrated:
    """
    Bring the schema up to date, or make it, in one transaction; with *dry_run*, only say what that would be.

    Locks of other transactions are waited for only half a second at a time, with a pause in between, for about
    *wait_seconds*: a transaction behind us in the queue for one is held up no longer than that.
    """
    for turn in range(1, max(round(wait_seconds / (_PATIENCE_MS / 1_000 + _PAUSE_SECONDS)), 1) + 1):
        try:
            with connection.transaction():
                connection.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [str(_PATIENCE_MS)])
                if not dry_run:
                    _lock(connection, schema)
                found = look(connection, schema)
                version = found.version if found else 0
                if found and not first() <= version < latest():
                    admitted(found, where)
                    return Migrated(version, version, [])
                steps = [f"{step.version:04}_{step.name}" for step in migrations(schema) if step.version > version]
                if not dry_run:
                    if turn == 1:
                        say(f"from version {version} to {latest()}: {', '.join(steps)}")
                    if found:
                        _lock_relations(connection, schema)
                    _bring_up(connection, schema, found, now)
                return Migrated(version, latest(), steps)
        except psycopg.errors.InsufficientPrivilege as error:
            raise _may_not_make(where, connection.info.user, error) from error
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            say(f"another transaction holds a lock that the migration needs; trying again ({turn})")
            threading.Event().wait(_PAUSE_SECONDS)
    raise StoreUnavailable(
        f"other transactions kept tables of {where} locked the whole time, so the migration could not begin. Look for "
        "old transactions in pg_stat_activity, and run this again. Nothing was changed."
    )


def index_meta(connection: Connection, schema: str, *, dry_run: bool) -> list[str]:
    """
    Index the meta of jobs, while others go on writing; return the statements. An index that is there stays.

    For conditions such as `meta::jsonb @> '{"tenant": "a"}'`. Only jobs with meta are in it, and it costs no settlement
    anything: meta never changes, so a completion is a HOT update as before.
    """
    rows = connection.execute(
        "SELECT i.indisvalid FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'jobs_meta'",
        [schema],
    ).fetchall()
    if rows == [(True,)]:
        return []
    statements = [
        "CREATE INDEX CONCURRENTLY jobs_meta ON leasehold.jobs USING gin ((meta::pg_catalog.jsonb) "
        "pg_catalog.jsonb_path_ops) WHERE meta IS NOT NULL"
    ]
    if rows:  # one that was begun and not finished is in the way, and of no use
        statements.insert(0, "DROP INDEX CONCURRENTLY leasehold.jobs_meta")
    statements = [in_schema(statement, schema) for statement in statements]
    for statement in statements if not dry_run else ():
        connection.execute(statement.encode())
    return statements


def _lock(connection: Connection, schema: str) -> None:
    connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 7))", [schema])


def _lock_relations(connection: Connection, schema: str) -> None:
    """
    Wait until no verb and no caller's transaction uses the store, and keep others waiting until the migration is done.

    All at once, and first: if it waited for one table while it held another, a verb that needs both the other way round
    would be given up as the deadlock's victim.
    """
    rows = connection.execute(
        "SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind IN ('r', 'v') ORDER BY c.relkind = 'r', c.oid",
        [schema],
    ).fetchall()
    names = sql.SQL(", ").join(sql.Identifier(schema, name) for (name,) in rows)
    [(before,)] = connection.execute("SELECT pg_catalog.current_setting('statement_timeout')").fetchall()
    connection.execute("SELECT pg_catalog.set_config('statement_timeout', %s, true)", [str(_PATIENCE_MS)])
    try:
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))
    except psycopg.errors.QueryCanceled as error:
        raise psycopg.errors.LockNotAvailable(*error.args) from error
    connection.execute("SELECT pg_catalog.set_config('statement_timeout', %s, true)", [before])


def _bring_up(connection: Connection, schema: str, found: Found | None, now: int | None) -> None:
    """Run what is missing, in the transaction that is open; no other process does so, and *found* is what is there."""
    # Whatever the session's search_path means by `text` or `format`, these scripts mean PostgreSQL's own.
    connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)")
    if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchall():
        # Only if it is missing: IF NOT EXISTS would need the right to make one all the same.
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    before = _signatures(connection, schema)
    granted = grantees(connection, schema) if found else []
    for step in migrations(schema):
        if found is None or step.version > found.version:
            connection.execute(step.script)
    for script in functions(schema):
        connection.execute(script)
    configure(connection, schema)
    after = _signatures(connection, schema)
    for signature in after - before:  # what was there before has the rights that it shall have
        connection.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC".encode())
    if found is None:
        statement = "INSERT INTO leasehold.store (schema_version, oldest_code, id, fingerprint) "
        statement += "SELECT %s, %s, %s, leasehold.fingerprint()"
        _run(connection, schema, statement, [latest(), oldest(), uuid.uuid4()])
        # A store begins at its creation time: so a later one outranks an earlier one.
        _run(connection, schema, "SELECT leasehold.raise_epochs(leasehold.instant(%s))", [now])
        return
    if oldest() <= found.version and (lost := before - after):
        raise StoreIncompatible(
            f"the migrations claim that code of version {oldest()} keeps working, but they remove functions that it "
            f"calls: {', '.join(sorted(lost))}. Nothing was changed."
        )
    _run(connection, schema, "UPDATE leasehold.store SET schema_version = %s, oldest_code = %s", [latest(), oldest()])
    grant_again(connection, schema, granted)


def configure(connection: Connection, schema: str) -> None:
    """Fix the settings under which the functions run that have the rights of the schema's owner."""
    rows = connection.execute(
        "SELECT p.oid::regprocedure::text, p.proname = ANY (%s) FROM pg_proc AS p JOIN pg_namespace AS n "
        "ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.prosecdef",
        [list(_WHOLE_TABLES), schema],
    ).fetchall()
    for signature, whole in rows:
        settings = _OURS_ALONE if whole else f"{_OURS_ALONE} {_BY_KEYS} {_AS_PLANNED}"
        connection.execute(f"ALTER FUNCTION {signature} {settings}".encode())


def _run(connection: Connection, schema: str, statement: str, parameters: list[Any]) -> None:
    connection.execute(in_schema(statement, schema, escaped=True).encode(), parameters)


def _signatures(connection: Connection, schema: str) -> set[str]:
    """Return the functions in *schema* as the server names them, with the types of their parameters."""
    rows = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
        "WHERE n.nspname = %s",
        [schema],
    ).fetchall()
    return {signature for (signature,) in rows}


def _may_not_make(where: str, role: str, error: psycopg.Error) -> StoreIncompatible:
    return StoreIncompatible(
        f"role {role!r} may not make or change {where} ({error.diag.message_primary}). Have the owner run `leasehold "
        f"store migrate URL`, and then `leasehold store grant URL --role {role} --kind …`, which gives this role its "
        "rights. Nothing was changed."
    )


def _not_ours(schema: str, why: str) -> StoreIncompatible:
    return StoreIncompatible(
        f"schema {schema!r} contains something other than a leasehold store: {why}. Give the store a schema of its own "
        "(schema=…). Nothing was changed."
    )


# The .sql files of this folder, with the store's schema in them


class Migration(NamedTuple):
    """
    One step of the schema.

    *oldest* is the version of the oldest code that works with the tables and functions as they are after it: its own,
    unless a line `-- oldest code: N` says that code of version N, which runs while this is installed, goes on working.
    """

    version: int
    oldest: int
    name: str
    script: str


class Statements:
    """The statements of statements.sql as attributes, for one schema."""

    def __init__(self, schema: str) -> None:
        parts = _STATEMENT.split((files(__package__) / "statements.sql").read_text())
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            setattr(self, name, in_schema(text, schema, escaped=True))

    def __getattr__(self, name: str) -> str:  # for the type checker; a missing name is still an error
        raise AttributeError(f"statements.sql has no statement named {name!r}")


@cache
def statements(schema: str) -> Statements:
    """Return the statements for the tables of *schema*."""
    return Statements(schema)


def checked(schema: object) -> str:
    """Return *schema* if PostgreSQL can have a schema of that name, and our functions can name it."""
    if not isinstance(schema, str) or not 0 < len(schema.encode(errors="replace")) <= 63:
        raise InvalidArgument(f"schema= must be the name of a PostgreSQL schema, of 1 to 63 bytes, not {schema!r}.")
    if "\0" in schema or "$lh$" in schema or schema.startswith("pg_"):
        raise InvalidArgument(
            f"schema= cannot be {schema!r}: names that begin with pg_ belong to PostgreSQL, and a name cannot contain "
            "NUL or $lh$."
        )
    return schema


def migrations(schema: str) -> list[Migration]:
    """Return every migration, in order."""
    found = []
    for file in sorted((files(__package__) / "migrations").iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            text = file.read_text()
            declared = _OLDEST.search(text)
            oldest = int(declared[1]) if declared else int(number)
            found.append(Migration(int(number), oldest, name, in_schema(text, schema)))
    return found


def functions(schema: str) -> list[str]:
    """Return the scripts that make or replace every function, in order."""
    found = sorted((files(__package__) / "functions").iterdir(), key=lambda file: file.name)
    return [in_schema(file.read_text(), schema) for file in found if file.name.endswith(".sql")]


@cache
def first() -> int:
    """Return the oldest version of the schema from which migrations lead on."""
    return migrations("leasehold")[0].version


@cache
def latest() -> int:
    """Return the version of the schema that this leasehold works with."""
    return migrations("leasehold")[-1].version


def oldest() -> int:
    """Return the version of the oldest code that works with the latest schema."""
    return max(step.oldest for step in migrations("leasehold"))


def in_schema(text: str, schema: str, *, escaped: bool = False) -> str:
    """Return *text* with its names in *schema*; *escaped*, if it will be run with parameters."""
    quoted = sql.Identifier(schema).as_string(None)

    def named(match: re.Match[str]) -> str:
        name = sql.Literal(f"{quoted}.{match[1]}").as_string(None) if match[1] else f"{quoted}."
        return name.replace("%", "%%") if escaped else name

    return _NAME.sub(named, text)


# How large the tables are, as PostgreSQL has it in its catalogs: no table is read

_SERVER = "SELECT pg_catalog.current_setting('server_version'), schema_version FROM leasehold.store"
_TABLES = """
    SELECT c.relname, CASE WHEN c.reltuples < 0 THEN s.n_live_tup ELSE c.reltuples END::bigint,
        pg_catalog.pg_total_relation_size(c.oid), s.n_dead_tup
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_stat_user_tables AS s ON s.relid = c.oid
    WHERE n.nspname = %(schema)s AND c.relkind = 'r'
    ORDER BY c.relname
"""


def stats(read: Callable[[str, Any], list[Sequence[Any]]], schema: str) -> StoreStats:
    """Return the sizes of a store; rows are the estimates of the planner, and dead rows those of the statistics."""
    [(server, version)] = read(in_schema(_SERVER, schema, escaped=True), ())
    tables = [
        TableStats(name, rows or 0, exact=False, bytes=size, dead_rows=dead)
        for name, rows, size, dead in read(_TABLES, {"schema": schema})
    ]
    return StoreStats(f"PostgreSQL {server.split()[0]}", version, sum(it.bytes or 0 for it in tables), tables)
