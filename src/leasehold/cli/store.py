"""`leasehold store`: the commands for operators of a store."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import click

from .. import InvalidArgument, Router, StoreUnavailable, Unsupported
from ..core.clock import SystemClock
from ..core.redaction import shown_url
from .help import Group

KINDS = ("producer", "worker", "operator", "reader")  # as in stores/postgres/rights.py, whose driver is an extra
FAR_AHEAD_US = 10 * 365 * 86_400 * 1_000_000  # ten years: no clock in use is that far ahead

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
schema_option = click.option(
    "--schema", default="leasehold", show_default=True, help="The store's schema; on SQLite, the prefix of its tables."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; print what would be done.")
_new_role = click.option("--role", required=True, metavar="NAME", help="The role; make it first, with CREATE ROLE.")
_old_role = click.option("--role", required=True, metavar="NAME", help="The role.")

SILENT_SECONDS = 2.0


@click.group(cls=Group)
def store() -> None:
    """
    Look after a store: check it, migrate it, advance its epochs, grant rights.

    A store is named by its URL: postgresql://user@host/database; sqlite:///jobs.db is a file in the current folder,
    sqlite:////var/lib/jobs.db (four slashes) an absolute path.
    """


@store.command()
@click.argument("url", envvar="LEASEHOLD_STORE")
@as_json_option
@schema_option
def check(url: str, as_json: bool, schema: str) -> int:
    """
    Check the invariants of the store at URL, or else of $LEASEHOLD_STORE.

    Prints a line for every broken invariant, and the number of jobs by status and queue. Exits with 1 if any is broken.

    \b
    Examples:
      leasehold store check sqlite:///jobs.db
      leasehold store check postgresql://host/database
    """
    with open_existing(url, schema) as router:
        broken, counts = router.verify(), router.counts()._asdict()
    queues = counts.pop("queues")
    del counts["parked"]  # `leasehold queues` has them
    if as_json:
        found = {"url": shown_url(url), "ok": not broken, "broken": broken, "counts": counts, "queues": queues}
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
@click.argument("url", envvar="LEASEHOLD_STORE")
@click.option("--above", default=0, metavar="EPOCH", help="Go above this epoch too, for instance a guard's mark.")
@as_json_option
@schema_option
def advance(url: str, above: int, as_json: bool, schema: str) -> int:
    """
    Raise the epochs of the store at URL, or else of $LEASEHOLD_STORE, above all that it may have forgotten.

    For a store that was put back to an earlier state without a chance to notice, such as a backup restored
    into a SQLite file that a process holds open, or a PostgreSQL server whose machine went back to a snapshot
    with its memory: it could then issue epochs that it has issued before.
    Advancing takes no job from its owner. It cannot be undone: epochs never go back.

    \b
    Examples:
      leasehold store advance sqlite:///jobs.db
      leasehold store advance postgresql://host/database --above 1794776400000007
    """
    if not 0 <= above <= SystemClock().now() + FAR_AHEAD_US:
        # A digit too many would use up, for ever, the numbers that are left below 2**53.
        raise InvalidArgument(
            f"--above {above} is not an epoch that a store has issued: epochs are microseconds since 1970, counting "
            "up, and this one is below zero or years ahead. Check its digits. If you are sure, call "
            "router.advance(above=…), which takes it."
        )
    with open_existing(url, schema) as router:
        epoch = router.advance(above=above)
    if as_json:
        click.echo(json.dumps({"url": shown_url(url), "epoch": epoch}, ensure_ascii=False))
        return 0
    click.echo(f"advanced to epoch {epoch}")
    click.echo("Every epoch issued from now on is greater, even than those that the store may have forgotten.")
    return 0


@store.command()
@click.argument("url")
@_dry_run
@click.option("--wait-seconds", default=300.0, show_default=True, help="How long to wait for locks in all.")
@as_json_option
@schema_option
def migrate(url: str, dry_run: bool, wait_seconds: float, as_json: bool, schema: str) -> int:
    """
    Bring the schema of the store at URL up to date, or make it.

    Run it before the processes of a new release start. It does nothing if there is nothing to do, and it may run
    many times at once. On PostgreSQL, processes of the previous release go on working meanwhile and afterwards,
    unless the notes of the release say otherwise. On SQLite, stop those that use the file first.

    \b
    Examples:
      leasehold store migrate postgresql://host/database --dry-run
      leasehold store migrate sqlite:///jobs.db
    """
    with Router(url, schema=schema) as router:
        target = _migratable(router)
        with _Progress() as progress:
            before, after, steps = target.migrate(dry_run=dry_run, wait_seconds=wait_seconds, say=progress.say)
    if as_json:
        found = {"url": shown_url(url), "from": before, "to": after, "steps": steps, "dry_run": dry_run}
        click.echo(json.dumps(found, ensure_ascii=False))
        return 0
    for step in steps:
        click.echo(f"{'would run' if dry_run else 'ran'} {step}")
    if before == after:
        click.echo(f"The schema has version {after} already; there is nothing to do.")
    elif before == 0:
        click.echo(f"There was no schema: it {'would be' if dry_run else 'was'} made, with version {after}.")
    else:
        click.echo(f"The schema {'would go' if dry_run else 'went'} from version {before} to version {after}.")
    return 0


@store.command()
@click.argument("url")
@_new_role
@click.option("--as", "kinds", required=True, multiple=True, type=click.Choice(KINDS), help="What it does; repeatable.")
@_dry_run
@as_json_option
@schema_option
def grant(url: str, role: str, kinds: tuple[str, ...], dry_run: bool, as_json: bool, schema: str) -> int:
    """
    Give a role of PostgreSQL the rights that it needs, and no more.

    A producer adds jobs. A worker claims them, and does all that an owner may, inside transactions of its own too.
    An operator moves jobs, prunes and advances, and reads. A reader reads. Run this as the role that owns the
    schema, or as a member of that role.

    \b
    Examples:
      leasehold store grant postgresql://host/database --role web --as producer --as reader
      leasehold store grant postgresql://host/database --role web --as producer --dry-run
    """
    with open_existing(url, schema) as router:
        statements = _administrable(router).grant(role, kinds, dry_run=dry_run)
    return _report_rights(url, role, statements, f"{role} has the rights of: {', '.join(kinds)}.", dry_run, as_json)


@store.command()
@click.argument("url")
@_old_role
@_dry_run
@as_json_option
@schema_option
def revoke(url: str, role: str, dry_run: bool, as_json: bool, schema: str) -> int:
    """
    Take from a role of PostgreSQL every right in the store.

    \b
    Example:
      leasehold store revoke postgresql://host/database --role web
    """
    with open_existing(url, schema) as router:
        statements = _administrable(router).revoke(role, dry_run=dry_run)
    return _report_rights(url, role, statements, f"{role} has no rights in the store any more.", dry_run, as_json)


@store.command("index-meta")
@click.argument("url")
@_dry_run
@as_json_option
@schema_option
def index_meta(url: str, dry_run: bool, as_json: bool, schema: str) -> int:
    """
    Index the meta of jobs, for queries of your own (PostgreSQL).

    The index serves conditions such as meta::jsonb @> '{"tenant": "a"}' on the table jobs. leasehold itself does not
    need it, so it is created by this command only. Other sessions go on working meanwhile (CREATE INDEX CONCURRENTLY).
    To remove it: DROP INDEX leasehold.jobs_meta.

    \b
    Examples:
      leasehold store index-meta postgresql://host/database
      leasehold store index-meta postgresql://host/database --dry-run
    """
    with open_existing(url, schema) as router:
        target = _indexable(router)
        with _Progress() as progress:
            progress.say("indexing the meta of jobs")
            statements = target.index_meta(dry_run=dry_run)
    if as_json:
        found = {"url": shown_url(url), "statements": statements, "dry_run": dry_run}
        click.echo(json.dumps(found, ensure_ascii=False))
    elif not statements:
        click.echo("The meta of jobs is indexed already; there is nothing to do.")
    elif dry_run:
        for statement in statements:
            click.echo(f"{statement};")
    else:
        click.echo("The meta of jobs is indexed.")
    return 0


def _report_rights(url: str, role: str, statements: list[str], sentence: str, dry_run: bool, as_json: bool) -> int:
    if as_json:
        found = {"url": shown_url(url), "role": role, "statements": statements, "dry_run": dry_run}
        click.echo(json.dumps(found, ensure_ascii=False))
        return 0
    if dry_run:
        for statement in statements:
            click.echo(f"{statement};")
        return 0
    click.echo(sentence)
    return 0


class _Progress:
    """Prints on stderr what is being done, if it takes longer than a few seconds."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._doing = "connecting"
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._print, daemon=True)

    def say(self, doing: str) -> None:
        """Note what is being done now."""
        self._doing = doing

    def _print(self) -> None:
        while not self._ended.wait(SILENT_SECONDS):
            self._seconds += SILENT_SECONDS
            click.echo(f"{self._seconds:.0f} s: {self._doing}", err=True)

    def __enter__(self) -> _Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _migratable(router: Router) -> Any:
    if not hasattr(router.store, "migrate"):
        raise Unsupported("a memory store has no schema, so there is nothing to migrate.")
    return router.store


def _indexable(router: Router) -> Any:
    if not hasattr(router.store, "index_meta"):
        raise Unsupported(
            "SQLite cannot index a whole JSON object. Index the key that you look for: CREATE INDEX jobs_tenant ON "
            "leasehold_jobs (json_extract(meta, '$.tenant')) WHERE meta IS NOT NULL."
        )
    return router.store


def _administrable(router: Router) -> Any:
    if not hasattr(router.store, "grant"):
        raise Unsupported("only PostgreSQL has roles. Access to a SQLite store is set by the permissions of its file.")
    return router.store


def open_existing(url: str, schema: str = "leasehold") -> Router:
    """Return a Router on a store that exists already: a mistyped URL must not create one."""
    router = Router(url, schema=schema)
    scheme = url.partition(":")[0]  # not urlsplit, whose errors may repeat the password
    if scheme == "memory":
        raise Unsupported(
            "a memory store exists only in the process that made it, so this command cannot reach it: "
            "name a file, such as sqlite:///jobs.db, or a PostgreSQL server."
        )
    if scheme in ("postgresql", "postgres"):
        if not _has_schema(router):
            router.close()
            raise StoreUnavailable(
                f"{shown_url(url)!r} has no store in the schema {schema!r}: `leasehold store migrate URL` makes it, or "
                "it is in another one (--schema). Nothing was created."
            )
        return router
    path = unquote(urlsplit(url).path[1:])
    if not os.path.exists(path):
        raise StoreUnavailable(
            f"{url!r} names the file {path!r}, which does not exist. Check the path. Nothing was created."
        )
    if not _holds_store(path, schema):
        raise StoreUnavailable(
            f"the file {path!r} holds no store with the schema {schema!r}: check path and --schema. It was not changed."
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


def _verdict(broken: int) -> str:
    if not broken:
        return "Every invariant holds."
    return f"{broken} invariant{'s are' if broken > 1 else ' is'} broken."
