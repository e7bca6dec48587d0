"""`leasehold store`: the commands for operators of a store."""

from __future__ import annotations

import threading
from typing import Any

import click

from .. import InvalidArgument, Router, Unsupported
from ..core.clock import SystemClock
from ..core.redaction import shown_url
from ..views import Views
from .asking import agrees, can_ask, declined, yes_option
from .help import Group
from .output import Output, output_options, show_one, show_sentence, table
from .target import Target, store_options

KINDS = ("producer", "worker", "operator", "reader")  # as in stores/postgres/rights.py, whose driver is an extra
FAR_AHEAD_US = 10 * 365 * 86_400 * 1_000_000  # ten years: no clock in use is that far ahead

_dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; print what would be done.")
_new_role = click.option(
    "--role", required=True, metavar="NAME", help="The PostgreSQL role, which must exist: CREATE ROLE makes one."
)
_old_role = click.option("--role", required=True, metavar="NAME", help="The role.")

SILENT_SECONDS = 2.0


@click.group(cls=Group)
def store() -> None:
    """
    Look after a store: check it, measure it, migrate it, advance its epochs, grant rights.

    A store is named by its URL: postgresql://user@host/database; sqlite:///jobs.db is a file in the current folder,
    sqlite:////var/lib/jobs.db (four slashes) an absolute path. Without URL, the store of --store, LEASEHOLD_STORE
    or leasehold.toml is used.

    \b
    Examples:
      leasehold store check sqlite:///jobs.db       is it sound?
      leasehold store stats                         how large is it?
      leasehold store migrate                       after an upgrade of leasehold
      leasehold store advance                       after a backup was restored
    """


@store.command()
@store_options
@output_options
def check(target: Target, output: Output) -> int:
    """
    Check the invariants of the store at URL, or else of $LEASEHOLD_STORE or leasehold.toml.

    Prints a line for every broken invariant, and the number of jobs by status and queue. Exits with 1 if any is broken.

    \b
    Examples:
      leasehold store check sqlite:///jobs.db
      leasehold store check postgresql://host/database
    """
    with target.open() as router:
        broken, counts = router.verify(), router.counts()._asdict()
    queues = counts.pop("queues")
    del counts["parked"]  # `leasehold queues` has them
    lines = [f"broken: {sentence}" for sentence in broken]
    lines.append("jobs: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    for queue, unfinished in queues.items():
        lines.append(f"queue {queue}: " + ", ".join(f"{count} {status}" for status, count in unfinished.items()))
    lines.append(_verdict(len(broken)))
    facts = {"url": shown_url(target.url), "ok": not broken, "broken": broken, "counts": counts, "queues": queues}
    show_sentence(facts, "\n".join(lines), output)
    return 1 if broken else 0


@store.command()
@store_options
@output_options
def stats(target: Target, output: Output) -> int:
    """
    Show how many jobs the store at URL has, how large its tables are, and how many dead rows they have.

    Jobs are counted. On PostgreSQL, rows are the server's estimates (ROWS begins with ~); on SQLite they are counted
    too, which takes a while in a large file. `leasehold queues` shows how many jobs wait in each queue.

    \b
    Examples:
      leasehold store stats sqlite:///jobs.db
      leasehold store stats postgresql://host/database --json
    """
    with target.open() as router:
        found, jobs = _measurable(router).stats(), Views(router).counts()
    tables = [one._asdict() for one in found.tables]
    facts = {
        "url": shown_url(target.url),
        "database": found.database,
        "schema": target.schema,
        "schema_version": found.schema_version,
        "bytes": found.bytes,
        "jobs": jobs,
        "tables": tables,
    }
    if output.is_for_programs or output.fields:
        show_one(facts, output)
        return 0
    facts["jobs"] = ", ".join(f"{count} {status}" for status, count in jobs.items())
    show_one({name: value for name, value in facts.items() if name != "tables"}, output)
    rows = [{**one, "rows": f"{'' if one['exact'] else '~'}{one['rows']}"} for one in tables]
    columns = [name for name in ("name", "rows", "bytes", "dead_rows") if any(row[name] is not None for row in rows)]
    click.echo("\n" + table(rows, columns, utc=output.utc, color=output.color), color=output.color)
    return 0


@store.command()
@click.option(
    "--above", default=0, metavar="EPOCH", help="Go above this epoch too, such as the epoch of a guard's mark."
)
@yes_option
@store_options
@output_options
def advance(target: Target, output: Output, above: int, yes: bool) -> int:
    """
    Raise the epochs of the store at URL, or else of $LEASEHOLD_STORE, above all that it may have forgotten.

    Use it after a store was put back to an earlier state and could not notice. Examples are a backup restored into a
    SQLite file that a process holds open, and a PostgreSQL server whose machine went back to a snapshot with its
    memory. Such a store could issue epochs that it has issued before.

    Advancing takes no job from its owner. It cannot be undone: epochs never go back. On a terminal it asks first.

    \b
    Examples:
      leasehold store advance sqlite:///jobs.db
      leasehold store advance postgresql://host/database --above 1794776400000007
    """
    if not 0 <= above <= SystemClock().now() + FAR_AHEAD_US:
        # A digit too many would use up, for ever, the numbers that are left below 2**53.
        raise InvalidArgument(
            f"--above {above} cannot be an epoch of a store: epochs are close to the microseconds since 1970, and "
            "this one is negative or years in the future. Check its digits. If it is right, call "
            "router.advance(above=…), which does not check this."
        )
    with target.open() as router:
        if can_ask(yes) and not agrees(f"Raise the epochs of {shown_url(target.url)}? This cannot be undone."):
            return declined()
        epoch = router.advance(above=above)
    sentence = (
        f"advanced to epoch {epoch}\n"
        "Every epoch issued from now on is greater than all earlier ones, even those that the store may have forgotten."
    )
    show_sentence({"url": shown_url(target.url), "epoch": epoch}, sentence, output)
    return 0


@store.command()
@_dry_run
@click.option("--wait-seconds", default=300.0, show_default=True, help="How long to wait for locks, in total.")
@store_options
@output_options
def migrate(target: Target, output: Output, dry_run: bool, wait_seconds: float) -> int:
    """
    Bring the schema of the store at URL up to date, or create it.

    Run it before the processes of a new release start. It does nothing if the schema is up to date, and several
    may run at once. On PostgreSQL, processes of the previous release keep working meanwhile and afterwards,
    unless the notes of the release say otherwise. On SQLite, stop those that use the file first.

    \b
    Examples:
      leasehold store migrate postgresql://host/database --dry-run
      leasehold store migrate sqlite:///jobs.db
    """
    with Router(target.url, schema=target.schema) as router:
        schema = _migratable(router)
        with _Progress() as progress:
            before, after, steps = schema.migrate(dry_run=dry_run, wait_seconds=wait_seconds, say=progress.say)
    lines = [f"{'would run' if dry_run else 'ran'} {step}" for step in steps]
    if before == after:
        lines.append(f"The schema is already at version {after}; there is nothing to do.")
    elif before == 0:
        lines.append(f"The schema did not exist: it {'would be' if dry_run else 'was'} created, at version {after}.")
    else:
        lines.append(
            f"The schema {'would be' if dry_run else 'was'} migrated from version {before} to version {after}."
        )
    facts = {"url": shown_url(target.url), "from": before, "to": after, "steps": steps, "dry_run": dry_run}
    show_sentence(facts, "\n".join(lines), output)
    return 0


@store.command()
@_new_role
@click.option(
    "--kind",
    "kinds",
    required=True,
    multiple=True,
    type=click.Choice(KINDS),
    help="What the role may do; can be given several times.",
)
@_dry_run
@store_options
@output_options
def grant(target: Target, output: Output, role: str, kinds: tuple[str, ...], dry_run: bool) -> int:
    """
    Give a role of PostgreSQL the rights that it needs, and no more.

    A producer adds jobs. A worker claims them, and does all that an owner may, even inside its own transactions.
    An operator moves jobs, prunes and advances, and reads. A reader reads. Run this as the role that owns the
    schema, or as a member of that role.

    \b
    Examples:
      leasehold store grant postgresql://host/database --role web \\
          --kind producer --kind reader
      leasehold store grant postgresql://host/database --role web \\
          --kind producer --dry-run
    """
    with target.open() as router:
        statements = _administrable(router).grant(role, kinds, dry_run=dry_run)
    return _show_rights(target, output, role, statements, f"{role} has the rights of: {', '.join(kinds)}.", dry_run)


@store.command()
@_old_role
@_dry_run
@store_options
@output_options
def revoke(target: Target, output: Output, role: str, dry_run: bool) -> int:
    """
    Take from a role of PostgreSQL every right in the store.

    \b
    Example:
      leasehold store revoke postgresql://host/database --role web
    """
    with target.open() as router:
        statements = _administrable(router).revoke(role, dry_run=dry_run)
    return _show_rights(target, output, role, statements, f"{role} has no rights in the store any more.", dry_run)


@store.command("index-meta")
@_dry_run
@store_options
@output_options
def index_meta(target: Target, output: Output, dry_run: bool) -> int:
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
    with target.open() as router:
        indexable = _indexable(router)
        with _Progress() as progress:
            progress.say("indexing the meta of jobs")
            statements = indexable.index_meta(dry_run=dry_run)
    sentence = "The meta of jobs is indexed."
    if not statements:
        sentence = "The meta of jobs is indexed already; there is nothing to do."
    elif dry_run:
        sentence = "\n".join(f"{statement};" for statement in statements)
    facts = {"url": shown_url(target.url), "statements": statements, "dry_run": dry_run}
    show_sentence(facts, sentence, output)
    return 0


def _show_rights(target: Target, output: Output, role: str, statements: list[str], sentence: str, dry_run: bool) -> int:
    if dry_run:
        sentence = "\n".join(f"{statement};" for statement in statements)
    facts = {"url": shown_url(target.url), "role": role, "statements": statements, "dry_run": dry_run}
    show_sentence(facts, sentence, output)
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


def _measurable(router: Router) -> Any:
    database = getattr(router.store, "database", None)
    if not hasattr(database, "stats"):
        raise Unsupported("a memory store has no size to report: pass the URL of a SQLite or PostgreSQL store.")
    return database


def _indexable(router: Router) -> Any:
    if not hasattr(router.store, "index_meta"):
        raise Unsupported(
            "SQLite cannot index a whole JSON object. Index the key that you search for: CREATE INDEX jobs_tenant ON "
            "leasehold_jobs (json_extract(meta, '$.tenant')) WHERE meta IS NOT NULL."
        )
    return router.store


def _administrable(router: Router) -> Any:
    if not hasattr(router.store, "grant"):
        raise Unsupported("only PostgreSQL has roles. Access to a SQLite store is set by the permissions of its file.")
    return router.store


def _verdict(broken: int) -> str:
    if not broken:
        return "Every invariant holds."
    return f"{broken} invariant{'s are' if broken > 1 else ' is'} broken."
