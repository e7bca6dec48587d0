"""How large a store is: what `leasehold store stats` prints."""

from __future__ import annotations

from typing import NamedTuple


class TableStats(NamedTuple):
    """One table. What a database does not know is None."""

    name: str
    rows: int
    exact: bool  # else `rows` is the estimate of the database
    bytes: int | None = None  # with its indexes
    dead_rows: int | None = None  # that a vacuum has still to remove


class StoreStats(NamedTuple):
    """A store as its database sees it."""

    database: str  # its name and version
    schema_version: int
    bytes: int
    tables: list[TableStats]
