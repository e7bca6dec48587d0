"""How large the file is, and how many rows each table has."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from .._stats import StoreStats, TableStats
from .programs import Program, one


def stats(schema: str, path: str) -> Program[StoreStats]:
    """Return the sizes of a store. SQLite keeps no estimates, so each table is counted: that takes a while."""
    names = yield one("SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ? ORDER BY name",
                      len(schema) + 1, f"{schema}_")  # fmt: skip
    [(version,)] = yield one(f"SELECT schema_version FROM {schema}_store")
    tables = []
    for (name,) in names:
        [(rows,)] = yield one(f"SELECT count(*) FROM {name}")
        tables.append(TableStats(name.removeprefix(f"{schema}_"), rows, exact=True))
    size = 0
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            size += os.stat(path + suffix).st_size
    return StoreStats(f"SQLite {sqlite3.sqlite_version}", version, size, tables)
