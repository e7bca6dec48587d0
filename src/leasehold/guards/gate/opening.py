"""The URLs that name where a gate keeps its state."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from ...core.clock import Clock
from ...core.redaction import shown_url
from ...errors import InvalidArgument
from . import rows
from .database import PostgresDatabase, SqliteDatabase
from .home import Home
from .memory import MemoryHome

_URLS = "sqlite:///gate.db (four slashes for an absolute path) or postgresql://host/database"


def open_home(url: str, uses: str | None, clock: Clock) -> Home:
    """Return the home at *url*, opened: a gate that cannot be used fails where it is made."""
    if not isinstance(url, str):
        raise InvalidArgument(f"the URL of a gate must be a string, {_URLS}, not a {type(url).__name__}.")
    if uses not in ("memory", "sql", None):
        raise InvalidArgument(
            f"uses= must be 'memory' (this process alone) or 'sql' (several processes), not {uses!r}."
        )
    parts = urlsplit(url)
    if parts.scheme in ("postgresql", "postgres"):
        if uses == "memory":
            raise InvalidArgument(
                "uses='memory' is not possible with PostgreSQL. Leave out uses=, or use a SQLite file that no other "
                "process opens, such as sqlite:///gate.db."
            )
        return rows.RowsHome(PostgresDatabase(url, rows.TABLES), clock)
    path = unquote(parts.path[1:])
    if parts.scheme != "sqlite" or parts.netloc or not path or parts.query or parts.fragment:
        raise InvalidArgument(f"the URL of a gate must be {_URLS}, not {shown_url(url)!r}.")
    if uses == "sql":
        return rows.RowsHome(SqliteDatabase(path, rows.TABLES), clock)
    return MemoryHome.of(path, clock)
