"""
Which role may do what. The verbs are functions that run with the rights of the schema's owner, so a role needs EXECUTE
on those that it calls, and none on a table that it writes; readers need SELECT.

The server's own catalogue remembers who was granted what: a kind of role is known by one right that no other has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from ...errors import InvalidArgument, StoreIncompatible

Connection = psycopg.Connection[Any]

_STORE_COLUMNS = ("schema_version", "oldest_code", "id")  # everybody asks these first
_READ = (
    "seen",
    "jobs",
    "leases",
    "finished",
    "ownerships",
    "effects",
    "events",
)


class Kind(NamedTuple):
    """What a kind of role may call and read."""

    functions: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()


KINDS = {
    "producer": Kind(("add", "add_alike")),
    "worker": Kind(
        (
            "claim",
            "claim_next",
            "claim_leases",
            "lease_of",
            "check_holders",
            "renew",
            "progress",
            "add_children",
            "settle",
            "complete",
            "has_settled",
            "begin_effect",
            "end_effect",
            "record_note",
            "open_keys",
            "fence",
            "fence_children",
            "has_job",
            "settled_in",
            "reclaim",
            "known_processes",
            "recover",
            "prune_due",
            "prune_events",
            "prune_ids",
            "await_jobs",
            "end_fenced",
            "record_refusal",
            "counted",
            "known_queues",
            "transfers_to",
            "pick_up",
            "accept",
            "report_worker",
            "retire_worker",
            "forget_workers",
            "known_workers",
            "oldest_due",
            "live_leases",
            "observed",
            "observe",
        )
    ),
    "operator": Kind(
        (
            "transfer",
            "override",
            "resolve",
            "pause",
            "resume",
            "known_queues",
            "reclaim",
            "known_processes",
            "recover",
            "end_fenced",
            "prune",
            "prune_job",
            "prune_due",
            "prune_events",
            "prune_ids",
            "forget_workers",
            "known_workers",
            "oldest_due",
            "lately",
            "live_leases",
            "observed",
            "observe",
            "record_refusal",
            "record_note",
            "open_keys",
            "advance",
            "counted",
            "broken",
        ),
        _READ,
    ),
    "reader": Kind(
        ("counted", "known_queues", "known_workers", "oldest_due", "lately", "live_leases", "observed", "broken"), _READ
    ),
}

# One right of each kind by which a role that has it is known as that. (An operator is a reader too.)
_MARKS = {"add": "producer", "claim": "worker", "transfer": "operator", "seen": "reader"}


def grants(connection: Connection, schema: str, role: str, kinds: Sequence[str]) -> list[sql.Composed]:
    """Return the statements that give *role*, "" for PUBLIC, the rights of each of *kinds*."""
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidArgument(
                f"the kind of a role must be one of {', '.join(KINDS)}, not {kind!r}. Nothing was changed."
            )
    to = sql.Identifier(role) if role else sql.SQL("PUBLIC")
    columns = sql.SQL(", ").join(map(sql.Identifier, _STORE_COLUMNS))
    found = [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), to),
        sql.SQL("GRANT SELECT ({}) ON {} TO {}").format(columns, sql.Identifier(schema, "store"), to),
    ]
    for function in dict.fromkeys(name for kind in kinds for name in KINDS[kind].functions):
        found += [
            sql.SQL("GRANT EXECUTE ON FUNCTION {}({}) TO {}").format(
                sql.Identifier(schema, function), sql.SQL(", ").join(sql.Identifier(*type) for type in types), to
            )
            for types in _parameters(connection, schema, function)
        ]
    for relation in dict.fromkeys(name for kind in kinds for name in KINDS[kind].relations):
        found.append(sql.SQL("GRANT SELECT ON {} TO {}").format(sql.Identifier(schema, relation), to))
    return found


def revocations(schema: str, role: str) -> list[sql.Composed]:
    """Return the statements that take from *role* every right in *schema*."""
    name, whom = sql.Identifier(schema), sql.Identifier(role)
    columns = sql.SQL(", ").join(map(sql.Identifier, _STORE_COLUMNS))
    return [
        *(
            sql.SQL("REVOKE ALL ON ALL {} IN SCHEMA {} FROM {}").format(sql.SQL(what), name, whom)
            for what in ("FUNCTIONS", "TABLES", "SEQUENCES")
        ),
        sql.SQL("REVOKE ALL ({}) ON {} FROM {}").format(columns, sql.Identifier(schema, "store"), whom),
        sql.SQL("REVOKE ALL ON SCHEMA {} FROM {}").format(name, whom),
    ]


def check_role(connection: Connection, schema: str, role: str, where: str) -> None:
    """Refuse a role that is not there, and a grantor whose grants PostgreSQL would pass over with a warning."""
    if not connection.execute("SELECT FROM pg_catalog.pg_roles WHERE rolname = %s", [role]).fetchall():
        raise InvalidArgument(
            f"the role {role!r} does not exist on the server of {where}. Check its name. A new role is created with "
            "CREATE ROLE, and then gets its rights with `leasehold store grant`. Nothing was changed."
        )
    [(owner, may)] = connection.execute(
        "SELECT pg_catalog.pg_get_userbyid(c.relowner), pg_catalog.pg_has_role(c.relowner, 'USAGE') "
        "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = 'store'",
        [schema],
    ).fetchall()
    if not may:
        raise StoreIncompatible(
            f"role {connection.info.user!r} does not own {where}, so it cannot grant rights there. Run this as "
            f"{owner!r}. Nothing was changed."
        )


def grantees(connection: Connection, schema: str) -> list[tuple[str, str]]:
    """Return each role, "" for PUBLIC, and kind that has been granted rights in *schema*."""
    rows = connection.execute(
        "SELECT p.proname::pg_catalog.text, a.grantee, r.rolname::pg_catalog.text FROM pg_catalog.pg_proc AS p "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace CROSS JOIN pg_catalog.aclexplode(p.proacl) AS a "
        "LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee "
        "WHERE n.nspname = %(schema)s AND p.proname = ANY (%(marks)s) AND a.grantee <> p.proowner "
        "UNION SELECT c.relname::pg_catalog.text, a.grantee, r.rolname::pg_catalog.text FROM pg_catalog.pg_class AS c "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace CROSS JOIN pg_catalog.aclexplode(c.relacl) AS a "
        "LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee "
        "WHERE n.nspname = %(schema)s AND c.relname = ANY (%(marks)s) AND a.grantee <> c.relowner ORDER BY 1, 3",
        {"schema": schema, "marks": list(_MARKS)},
    ).fetchall()
    return [(role or "", _MARKS[mark]) for mark, grantee, role in rows if role or grantee == 0]


def grant_again(connection: Connection, schema: str, granted: list[tuple[str, str]]) -> None:
    """Give what a migration has made to those who had the rights of their kind before it."""
    for role, kind in granted:
        for statement in grants(connection, schema, role, [kind]):
            connection.execute(statement)


def _parameters(connection: Connection, schema: str, function: str) -> list[list[tuple[str, str]]]:
    """Return, for each function of that name, the schema and name of its parameters' types."""
    rows = connection.execute(
        "SELECT ARRAY(SELECT pg_catalog.unnest(ARRAY[m.nspname::pg_catalog.text, t.typname::pg_catalog.text]) "
        "FROM pg_catalog.unnest(p.proargtypes) WITH ORDINALITY AS a(type, ord) "
        "JOIN pg_catalog.pg_type AS t ON t.oid = a.type JOIN pg_catalog.pg_namespace AS m ON m.oid = t.typnamespace "
        "ORDER BY a.ord) "
        "FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace "
        "WHERE n.nspname = %s AND p.proname = %s ORDER BY p.oid",
        [schema, function],
    ).fetchall()
    if not rows:
        raise StoreIncompatible(f"schema {schema!r} has no function {function!r}. Nothing was changed.")
    return [list(zip(flat[::2], flat[1::2], strict=True)) for (flat,) in rows]


def missing_right(message: str, where: str, schema: str, role: str | None) -> StoreIncompatible:
    """Return the error of a role that lacks a right, and how it gets it; *message* is the server's own message."""
    words = set(re.findall(r"\w+", message))
    wanted = [kind for kind, granted in KINDS.items() if words & {*granted.functions, *granted.relations}]
    whose = f"role {role!r}" if role else "the role of the connection that you passed"
    lacks = f"{whose} lacks a right in schema {schema!r} of {where}: {message}."
    if not wanted and schema not in message:
        return StoreIncompatible(f"{lacks} Nothing was changed.")
    kind, *others = wanted or KINDS
    instead = f" (or {' or '.join(f'`--kind {other}`' for other in others)})" if others else ""
    return StoreIncompatible(
        f"{lacks} To get it, have the schema's owner run `leasehold store grant URL --role {role or 'NAME'} --kind "
        f"{kind}`{instead}. Nothing was changed."
    )


def may_not_end(error: Exception) -> str:
    """Return what is wrong and what to do, of an *error* of `end_fenced`."""
    cause = error.__cause__
    # Raised inside of it, where the schema's owner acts. A role that may not call it at all is refused outside.
    if isinstance(cause, psycopg.errors.InsufficientPrivilege) and cause.diag.context:
        return (
            f"the role that owns the schema may not end that session ({cause.diag.message_primary}). GRANT "
            "pg_signal_backend TO that role; only a superuser may end the session of a superuser."
        )
    return str(error)
