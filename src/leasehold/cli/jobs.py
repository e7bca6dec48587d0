"""The commands that look at jobs: jobs, show, history, explain, events."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import click

from .. import Router
from ..core import failure, instants
from ..core.job import Status
from ..core.ownership import Event
from ..core.search import Search
from ..views import EVENT_FIELDS, JOB_FIELDS, OWNERSHIP_FIELDS, Views
from .completion import job_ids
from .finding import filter_options
from .output import Output, localized, output_options, show_one, show_rows, show_sentence
from .target import Target, target_options
from .watching import Watch, watch_options

_COLUMNS = ("id", "status", "task", "queue", "epoch", "owner", "errors", "reclaims", "updated_at", "error")
_HISTORY = ("at", "kind", "epoch", "owner", "what")
_EVENTS = ("number", "at", "kind", "job_id", "epoch", "owner", "what")


class _Jobs(click.Command):
    """`leasehold jobs`, which takes options only and names the one that was meant by a bare word."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; refuse a word that belongs to no option."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            word = rest[0]
            meant = f"--status {word}" if word in list(Status) else f"`leasehold show {shlex.quote(word)}`"
            raise click.UsageError(f"jobs takes options only, not {word!r}. Did you mean {meant}?", ctx)
        return rest


@click.command(cls=_Jobs)
@filter_options
@click.option("--oldest", is_flag=True, help="Oldest first.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Go on where an earlier page ended.")
@watch_options("Print the list again and again")
@target_options
@output_options
def jobs(
    target: Target, output: Output, wanted: Search, oldest: bool, limit: int, cursor: str | None, watch: Watch
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
    wanted = replace(wanted, newest=False) if oldest else wanted
    with target.open() as router:
        views = Views(router)

        def once() -> None:
            page = views.page(wanted, limit=limit, cursor=cursor)
            show_rows(
                page["jobs"],
                [name for name in _COLUMNS if name != "reclaims" or any(row[name] for row in page["jobs"])],
                output,
                empty="No job fits.",
                known=JOB_FIELDS,
                cursor=page["cursor"],
                complete=page["complete"],
            )
            if page["cursor"] and not output.is_for_programs:
                more = "there are more" if page["complete"] else "20,000 jobs were looked at; there may be more"
                click.echo(f"({more}: --cursor {page['cursor']})", err=True)

        watch.repeat(once)
    return 0


@click.command()
@click.argument("id", shell_complete=job_ids)
@target_options
@output_options
def show(target: Target, output: Output, id: str) -> int:
    """
    Show everything that is known of the job ID, and why it is not running.

    Its epoch is what the commands that move a job ask for: `transfer` gives it to another worker, `requeue` takes it
    from its owner, `cancel` ends it, `replay` runs a finished one again, `complete` ends it by hand.

    \b
    Examples:
      leasehold show invoice-42
      leasehold show invoice-42 --json
    """
    with target.open() as router:
        show_one(Views(router).job(id), output)
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
        rows = Views(router).history(id)
    empty = "Nothing was recorded of this job: it was never claimed."
    known = (*OWNERSHIP_FIELDS, *EVENT_FIELDS)
    show_rows(_rows_worded(rows, output), _HISTORY, output, empty=empty, wrap=True, known=known, id=id)
    return 0


def _rows_worded(rows: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return *rows* with what happened as a person reads it, unless a program does."""
    return rows if output.is_for_programs else [{**row, "what": worded(row, output)} for row in rows]


def worded(row: dict[str, Any], output: Output) -> str:
    """Return what a row of a history says, as a person reads it."""
    if row["kind"] == "ownership":
        ended = "still holds it" if row["ended"] is None else f"ended by {row['ended']}"
        by = f" ({row['ended_by']})" if row["ended_by"] and row["ended_by"] != row["owner"] else ""
        note = f": {row['note']}" if row["note"] else ""
        return f"began by {row['began']}, {ended}{by}{note}"
    facts = row["facts"]
    if isinstance(facts, dict):
        return ", ".join(_fact(name, value, output) for name, value in facts.items() if value is not None)
    return str(facts)  # redacted


def _fact(name: str, value: Any, output: Output) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')}_at {localized(instants.aware(value).isoformat(), output)}"
    if name == "error" and isinstance(value, str):  # without the frames, which --json has
        kind, value = failure.read(value)
        return f"error {kind}: {value}" if kind else f"error {value}"
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
    show_sentence({"id": id, "explanation": sentence}, localized(sentence, output), output)
    return 0


@click.command()
@click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Of this job.")
@click.option("--kind", metavar="NAME", help="Of this kind, such as refused, failed or reclaimed.")
@click.option("--after", default=0, metavar="NUMBER", help="Behind the event of this number.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--last", type=click.IntRange(1, 10_000), metavar="N", help="Only the newest N, oldest of them first.")
@watch_options("Go on printing new events")
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
    watch: Watch,
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
        views, seen = Views(router), after
        newest = [] if last is None else [_newest(router, job_id, kind, after, last)]

        def once() -> None:
            nonlocal seen
            found = newest.pop() if newest else router.events(job_id, kind=kind, after=seen, limit=limit)
            seen = found[-1].number if found else seen
            if found or not watch.on:
                rows = _rows_worded([views.event(event) for event in found], output)
                show_rows(rows, _EVENTS, output, empty="No event fits.", wrap=True, known=EVENT_FIELDS, after=seen)

        watch.repeat(once, in_place=False)
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
