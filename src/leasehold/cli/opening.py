"""Opens a store that exists already: a mistyped URL must not create one."""

from __future__ import annotations

import os
from contextlib import closing
from urllib.parse import quote, unquote, urlsplit

from .. import Router, StoreUnavailable, Unsupported
from ..core.redaction import shown_url


def open_existing(url: str, schema: str = "leasehold") -> Router:
    """Return a Router on a store that exists already: a mistyped URL must not create one."""
    router = Router(url, schema=schema)
    scheme = url.partition(":")[0]  # not urlsplit, whose errors may repeat the password
    if scheme == "memory":
        raise Unsupported(
            "a memory store exists only in the process that made it, so this command cannot reach it: pass the URL "
            "of a file, such as sqlite:///jobs.db, or of a PostgreSQL database."
        )
    if scheme in ("postgresql", "postgres"):
        if not _has_schema(router):
            router.close()
            raise StoreUnavailable(
                f"{shown_url(url)!r} has no store in the schema {schema!r}. If the store is in another schema, pass "
                "--schema; to create one here, run `leasehold store migrate URL`. Nothing was created."
            )
        return router
    path = unquote(urlsplit(url).path[1:])
    if not os.path.exists(path):
        raise StoreUnavailable(
            f"{url!r} names the file {os.path.abspath(path)!r}, which does not exist. Check the path, or create a "
            "store there: `leasehold store migrate URL`. Nothing was created."
        )
    if not _holds_store(path, schema):
        raise StoreUnavailable(
            f"the file {path!r} holds no store with the schema {schema!r}: check the path and --schema. The "
            "file was not changed."
        )
    return router


def _holds_store(path: str, schema: str) -> bool:
    # The store itself would make its tables in any database, as it must for a producer's first add.
    import sqlite3  # on use: it is missing from some builds of Python

    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            query = "select count(*) from sqlite_master where type = 'table' and name = ?"
            return bool(connection.execute(query, (f"{schema}_store",)).fetchone()[0])
    except sqlite3.Error:
        return True  # not a database, or a busy one: the store reports which


def _has_schema(router: Router) -> bool:
    from ..stores.postgres import PostgresStore  # on use: its driver is an extra

    assert isinstance(router.store, PostgresStore)
    return router.store.database.exists()
