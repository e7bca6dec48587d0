"""How large the tables of the schema are, as PostgreSQL has it in its catalogs: no table is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._stats import StoreStats, TableStats
from .schema import in_schema

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


Read = Callable[[str, Any], list[Sequence[Any]]]


def stats(read: Read, schema: str) -> StoreStats:
    """Return the sizes of a store; rows are the estimates of the planner, and dead rows those of the statistics."""
    [(server, version)] = read(in_schema(_SERVER, schema, escaped=True), ())
    tables = [
        TableStats(name, rows or 0, exact=False, bytes=size, dead_rows=dead)
        for name, rows, size, dead in read(_TABLES, {"schema": schema})
    ]
    return StoreStats(f"PostgreSQL {server.split()[0]}", version, sum(it.bytes or 0 for it in tables), tables)
