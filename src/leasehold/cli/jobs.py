"""The commands that add jobs and look at them: add, jobs, show, history, explain, events."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from .. import Router
from ..core import instants
from ..core.ownership import Event
from ..core.search import Search
from ..views import Views
from .completion import job_ids, queue_names, task_names
from .finding import filter_options
from .output import Output, output_options, show_one, show_rows
from .target import Target, pairs, parsed_json, target_options

_COLUMNS = ("id", "status", "task", "queue", "epoch", "owner", "errors", "reclaims", "updated_at", "error")
_HISTORY = ("at", "kind", "epoch", "owner", "what")
_EVENTS = ("number", "at", "kind", "job_id", "epoch", "owner", "what")
_WATCH_SECONDS = 2.0


@click.command()
@click.argument("id", required=False)
@click.option("--payload", metavar="JSON", help="What the handler gets: its arguments, as a JSON object.")
@click.option("--task", metavar="NAME", shell_complete=task_names, help="The task that handles it.")
@click.option(
    "--queue",
    metavar="NAME",
    default="default",
    show_default=True,
    shell_complete=queue_names,
    help="Where it waits.",
)
@click.option("--priority", default=0, show_default=True, help="Larger is claimed first.")
@click.option("--delay-seconds", type=float, help="Due so much later.")
@click.option("--lock", metavar="KEY", help="One running job per key.")
@click.option("--unique", metavar="KEY", help="One unfinished job per key.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="The producer's own; VALUE is JSON or text.")
@target_options
@output_options
def add(
    target: Target, output: Output, id: str | None, payload: str | None, meta: tuple[str, ...], **options: Any
) -> int:
    """
    Add a job, unless one with this ID exists.

    Without ID, the job gets a UUID, which is printed. What the task's decorator sets, such as its retries, is known to
    the application alone: the job gets the defaults.

    \b
    Examples:
      leasehold add --task send --payload '{"to": "ann@example.org"}' --queue mail
      leasehold add invoice-42 --payload '{"total": 10}'
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if meta:
        chosen["meta"] = pairs(meta, "--meta")
    with target.open() as router:
        added = router.add(id, None if payload is None else parsed_json(payload, "--payload"), **chosen)
    facts = {"id": added.job.id, "created": added.created, "status": added.job.status.value}
    if output.is_for_programs:
        click.echo(json.dumps(facts, ensure_ascii=False))
    elif added.created:
        click.echo(added.job.id)
    else:
        click.echo(f"job {added.job.id!r} exists already, and is {added.job.status.value}; nothing was added", err=True)
    return 0


@click.command()
@filter_options
@click.option("--oldest", is_flag=True, help="Oldest first.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Go on where an earlier page ended.")
@click.option("--watch", is_flag=True, help="Print again every two seconds, until Ctrl-C.")
@target_options
@output_options
def jobs(
    target: Target, output: Output, wanted: Search, oldest: bool, limit: int, cursor: str | None, watch: bool
) -> int:
    """
    List jobs by any combination of filters, newest first.

    Jobs of a finished status come by their end. If no index has what is asked for, 20,000 jobs are looked at, and the
    command says how to go on.

    \b
    Examples:
      leasehold jobs --status failed
      leasehold jobs --status failed --error-type ConnectionError --since 2h
      leasehold jobs --queue mail --meta tenant=acme --payload order.total=10
      leasehold jobs --status running --watch
    """
    wanted = _turned(wanted) if oldest else wanted
    with target.open() as router:
        views = Views(router, target.redaction)

        def once() -> None:
            page = views.page(wanted, limit=limit, cursor=cursor)
            show_rows(
                page["jobs"],
                [name for name in _COLUMNS if name != "reclaims" or any(row[name] for row in page["jobs"])],
                output,
                empty="No job fits.",
                cursor=page["cursor"],
                complete=page["complete"],
            )
            if page["cursor"] and not output.is_for_programs:
                more = "there are more" if page["complete"] else "20,000 jobs were looked at; there may be more"
                click.echo(f"({more}: --cursor {page['cursor']})", err=True)

        _repeat(once, watch)
    return 0


def _turned(wanted: Search) -> Search:
    from dataclasses import replace

    return replace(wanted, newest=False)


def _repeat(once: Callable[[], None], watch: bool) -> None:
    """Print once, or again and again, in place on a terminal."""
    once()
    pause = threading.Event()
    while watch:
        pause.wait(_WATCH_SECONDS)
        if sys.stdout.isatty():
            click.clear()
        once()


@click.command()
@click.argument("id", shell_complete=job_ids)
@target_options
@output_options
def show(target: Target, output: Output, id: str) -> int:
    """
    Show everything that is known of the job ID, and why it is not running.

    Its epoch is what `transfer`, `cancel` and the other commands that move a job ask for.

    \b
    Examples:
      leasehold show invoice-42
      leasehold show invoice-42 --json
    """
    with target.open() as router:
        show_one(Views(router, target.redaction).job(id), output)
    return 0


@click.command()
@click.argument("id", shell_complete=job_ids)
@target_options
@output_options
def history(target: Target, output: Output, id: str) -> int:
    """
    List who held the job ID, from when to when, and what was refused in between, oldest first.

    \b
    Example:
      leasehold history invoice-42
    """
    with target.open() as router:
        rows = Views(router, target.redaction).history(id)
    empty = "Nothing was recorded of this job: it was never claimed."
    show_rows(_rows_worded(rows, output), _HISTORY, output, empty=empty, wrap=True, id=id)
    return 0


def _rows_worded(rows: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return *rows* with what happened as a person reads it, unless a program does."""
    return rows if output.is_for_programs else [{**row, "what": worded(row)} for row in rows]


def worded(row: dict[str, Any]) -> str:
    """Return what a row of a history says, as a person reads it."""
    if row["kind"] == "ownership":
        ended = "still holds it" if row["ended"] is None else f"ended by {row['ended']}"
        by = f" ({row['ended_by']})" if row["ended_by"] and row["ended_by"] != row["owner"] else ""
        note = f": {row['note']}" if row["note"] else ""
        return f"began by {row['began']}, {ended}{by}{note}"
    facts = row["facts"]
    if isinstance(facts, dict):
        return ", ".join(_fact(name, value) for name, value in facts.items() if value is not None)
    return str(facts)  # redacted


def _fact(name: str, value: Any) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')}_at {instants.aware(value).isoformat(timespec='seconds')}"
    return f"{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


@click.command()
@click.argument("id", shell_complete=job_ids)
@target_options
@output_options
def explain(target: Target, output: Output, id: str) -> int:
    """
    Say in one sentence why the job ID is not running, or not moving.

    \b
    Example:
      leasehold explain invoice-42
    """
    with target.open() as router:
        sentence = router.explain(id)
    if output.is_for_programs:
        click.echo(json.dumps({"id": id, "explanation": sentence}, ensure_ascii=False))
    else:
        click.echo(sentence)
    return 0


@click.command()
@click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Of this job.")
@click.option("--kind", metavar="NAME", help="Of this kind, such as refused, failed or reclaimed.")
@click.option("--after", default=0, metavar="NUMBER", help="Behind the event of this number.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--last", type=click.IntRange(1, 10_000), metavar="N", help="Only the newest N, oldest of them first.")
@click.option("--watch", is_flag=True, help="Go on printing new events, until Ctrl-C.")
@target_options
@output_options
def events(
    target: Target,
    output: Output,
    job_id: str | None,
    kind: str | None,
    after: int,
    limit: int,
    last: int | None,
    watch: bool,
) -> int:
    """
    List what was recorded, oldest first: refusals, reclaims, failures, and what operators did.

    \b
    Examples:
      leasehold events --last 20
      leasehold events --kind refused
      leasehold events --job invoice-42 --jsonl
      leasehold events --watch
    """
    with target.open() as router:
        views, seen = Views(router, target.redaction), after
        newest = [] if last is None else [_newest(router, job_id, kind, after, last)]

        def once() -> None:
            nonlocal seen
            found = newest.pop() if newest else router.events(job_id, kind=kind, after=seen, limit=limit)
            seen = found[-1].number if found else seen
            if found or not watch:
                rows = _rows_worded([views.event(event) for event in found], output)
                show_rows(rows, _EVENTS, output, empty="No event fits.", wrap=True, after=seen)

        once()
        pause = threading.Event()
        while watch:
            pause.wait(_WATCH_SECONDS)
            once()
    return 0


def _newest(router: Router, job_id: str | None, kind: str | None, after: int, count: int) -> list[Event]:
    """
    Return the newest *count* events that fit, oldest first.

    Stores list events from a number on. So this looks for the highest number by halving, and then reads from ever
    further before it until there are enough.
    """
    low, high = after, after + 1
    while router.events(after=high, limit=1):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if router.events(after=middle, limit=1) else (low, middle)
    back = count
    while True:
        found = router.events(job_id, kind=kind, after=max(high - back, after), limit=None)
        if len(found) >= count or high - back <= after:
            return found[-count:]
        back *= 4
