"""`leasehold store`: for whoever looks after a store."""

from __future__ import annotations

import json
import os
from contextlib import closing
from urllib.parse import quote, unquote, urlsplit

import click

from .. import InvalidArgument, Router, StoreUnavailable
from ..core.clock import SystemClock
from ..core.values import shown_url

FAR_AHEAD_US = 10 * 365 * 86_400 * 1_000_000  # ten years: no clock that anybody lives with is so wrong

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
_schema = click.option("--schema", default="leasehold", show_default=True, help="The prefix of the store's tables.")


@click.group()
def store() -> None:
    """
    Look after a store: check its invariants, advance its epochs.

    A store is named by its URL: sqlite:///jobs.db is a file in the current folder, sqlite:////var/lib/jobs.db
    (four slashes) an absolute path.
    """


@store.command()
@click.argument("url")
@_as_json
@_schema
def check(url: str, as_json: bool, schema: str) -> int:
    """
    Say whether everything in the store at URL is as promised.

    Prints a line for every broken invariant, and how many jobs stand where. Exits with 1 if any is broken.

    \b
    Example:
      leasehold store check sqlite:///jobs.db
    """
    with open_existing(url, schema) as router:
        broken, counts = router.verify(), router.counts()._asdict()
    queues = counts.pop("queues")
    if as_json:
        found = {"url": url, "ok": not broken, "broken": broken, "counts": counts, "queues": queues}
        click.echo(json.dumps(found, ensure_ascii=False))
        return 1 if broken else 0
    for sentence in broken:
        click.echo(f"broken: {sentence}")
    click.echo("jobs: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    for queue, unfinished in queues.items():
        click.echo(f"queue {queue}: " + ", ".join(f"{count} {status}" for status, count in unfinished.items()))
    click.echo(_verdict(len(broken)))
    return 1 if broken else 0


@store.command()
@click.argument("url")
@click.option("--above", default=0, metavar="EPOCH", help="Go above this epoch too, for instance a guard's mark.")
@_as_json
@_schema
def advance(url: str, above: int, as_json: bool, schema: str) -> int:
    """
    Lift the epochs of a store above all it may have forgotten.

    For a store that was put back to an earlier state without a chance to notice, such as a backup restored
    into a SQLite file that a process holds open: it could then issue epochs that somebody has already seen.
    Advancing takes no job from its owner. It cannot be undone: epochs never go back.

    \b
    Examples:
      leasehold store advance sqlite:///jobs.db
      leasehold store advance sqlite:///jobs.db --above 1794776400000007
    """
    if not 0 <= above <= SystemClock().now() + FAR_AHEAD_US:
        # A digit too many would use up, for ever, the numbers that are left below 2**53.
        raise InvalidArgument(
            f"--above {above} is no epoch that a store has issued: epochs are microseconds since 1970, counting up, "
            "and this one lies below zero or years ahead. If you are sure: router.advance(above=…) takes it."
        )
    with open_existing(url, schema) as router:
        epoch = router.advance(above=above)
    if as_json:
        click.echo(json.dumps({"url": url, "epoch": epoch}))
        return 0
    click.echo(f"advanced to epoch {epoch}")
    click.echo("Every epoch issued from now on is greater, also than those that the store may have forgotten.")
    return 0


def open_existing(url: str, schema: str = "leasehold") -> Router:
    """Return a Router on a store that is there already: a typing error must not make one."""
    router = Router(url, schema=schema)
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise InvalidArgument(
            "a memory store lives and ends with its own process, so there is nothing to look at from here: "
            "name a file, such as sqlite:///jobs.db."
        )
    if parts.scheme in ("postgresql", "postgres"):
        if not _has_schema(router):
            raise StoreUnavailable(
                f"{shown_url(url.partition('?')[0])!r} has no store in the schema {schema!r}. Nothing was created."
            )
        return router
    path = unquote(parts.path[1:])
    if not os.path.exists(path):
        raise StoreUnavailable(f"there is no file {path!r}, so {url!r} names no store. Nothing was created.")
    if not _holds_store(path, schema):
        raise StoreUnavailable(f"the file {path!r} holds no store with the schema {schema!r}. It was left as it is.")
    return router


def _holds_store(path: str, schema: str) -> bool:
    # The store itself would make its tables in any database, as it must for a producer's first add.
    import sqlite3  # on use: it is missing from some builds of Python

    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            query = "select count(*) from sqlite_master where type = 'table' and name = ?"
            return bool(connection.execute(query, (f"{schema}_store",)).fetchone()[0])
    except sqlite3.Error:
        return True  # no database, or a busy one: the store has the words for it


def _has_schema(router: Router) -> bool:
    from ..stores.postgres import PostgresStore  # on use: its driver is an extra

    assert isinstance(router.store, PostgresStore)
    return router.store.database.exists()


def _verdict(broken: int) -> str:
    if not broken:
        return "Every invariant holds."
    return f"{broken} invariant{'s are' if broken > 1 else ' is'} broken."
