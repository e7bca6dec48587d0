"""The commands that look at jobs: jobs, show, history, explain, events."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import Any

import click

from .. import Router
from ..core import failure, instants
from ..core.job import Status
from ..core.ownership import Event
from ..core.search import Search
from ..views import COUNTED_BY, EVENT_FIELDS, JOB_FIELDS, OWNERSHIP_FIELDS, Views
from .completion import job_ids
from .finding import filter_options, nothing_fits
from .output import (
    Output,
    age,
    clock_times,
    folded,
    lasted,
    localized,
    output_options,
    show_one,
    show_rows,
    show_sentence,
    terminal_width,
)
from .target import Target, target_options
from .watching import Watch, watch_options

_COLUMNS = ("id", "status", "task", "queue", "epoch", "owner", "errors", "reclaims", "updated_at", "error")
SPARE = ("epoch", "errors", "owner", "error", "updated_at", "queue")  # what finds no room on a narrow terminal
_EVENTS_SPARE = ("epoch", "owner", "number")
_NARROW = 120  # columns, below which a history has short epochs and no kinds beside what happened
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
@click.option(
    "--count-by",
    type=click.Choice(COUNTED_BY),
    help="Print the number of jobs for each value of this field, instead of the jobs.",
)
@click.option("--oldest", is_flag=True, help="Oldest first.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Print at most this many.")
@click.option("--cursor", metavar="TEXT", help="Continue after the page that printed this cursor.")
@watch_options("Refresh the list")
@target_options
@output_options
def jobs(
    target: Target,
    output: Output,
    wanted: Search,
    count_by: str | None,
    oldest: bool,
    limit: int,
    cursor: str | None,
    watch: Watch,
) -> int:
    """
    List jobs by any combination of filters, newest first.

    A narrow terminal has no room for some columns, EPOCH and ERRORS first: name those that you need with --fields.

    Jobs with a finished status are sorted by when they ended. If no index covers the filters, 10,000 jobs are searched,
    and the command prints how to continue.

    \b
    Examples:
      leasehold jobs --status failed
      leasehold jobs --status failed --error-type ConnectionError --since 2h
      leasehold jobs --status failed --count-by error_type
      leasehold jobs --queue mail --meta tenant=acme --payload order.total=10
      leasehold jobs --status running --watch
    """
    wanted = replace(wanted, newest=False) if oldest else wanted
    with target.open() as router:
        views = Views(router)

        def count() -> None:
            tally = views.tally(wanted, str(count_by), cursor=cursor)
            known, more = (str(count_by), "jobs"), {"complete": tally["complete"], "cursor": tally["cursor"]}
            show_rows(tally["rows"], known, output, empty=nothing_fits(router, wanted), known=known, **more)
            if tally["cursor"] and not output.is_for_programs:
                click.echo(
                    f"(only the first 10,000 jobs were counted; to continue: --cursor {tally['cursor']})", err=True
                )

        def once() -> None:
            page = views.page(wanted, limit=limit, cursor=cursor)
            show_rows(
                classed(page["jobs"], output),
                [name for name in _COLUMNS if name != "reclaims" or any(row[name] for row in page["jobs"])],
                output,
                spare=SPARE,
                empty=nothing_fits(router, wanted),
                known=JOB_FIELDS,
                cursor=page["cursor"],
                complete=page["complete"],
            )
            if page["cursor"] and not output.is_for_programs:
                more = "there are more" if page["complete"] else "10,000 jobs were searched; there may be more"
                click.echo(f"({more}: --cursor {page['cursor']})", err=True)

        watch.repeat(once if count_by is None else count)
    return 0


@click.command()
@click.argument("id", shell_complete=job_ids)
@click.option("--traceback", is_flag=True, help="Show the last error with its traceback.")
@target_options
@output_options
def show(target: Target, output: Output, id: str, traceback: bool) -> int:
    """
    Show everything that is known of the job ID, and why it is not running.

    The commands that move a job need its epoch: `transfer` gives the job to another worker, `requeue` takes it from its
    owner, `cancel` ends it, `replay` runs a finished one again, `complete` ends it by hand.

    \b
    Examples:
      leasehold show invoice-42
      leasehold show invoice-42 --json
      leasehold show invoice-42 --traceback
    """
    with target.open() as router:
        facts = Views(router).job(id)
        if traceback:  # not one of the views: frames name files, and views are for browsers too
            facts["traceback"] = router.redaction.apply({"error": router.job(id).last_error})["error"]
        show_one(facts, output)
    return 0


@click.command()
@click.argument("id", shell_complete=job_ids)
@target_options
@output_options
def history(target: Target, output: Output, id: str) -> int:
    """
    List who held the job ID, from when to when, and what was refused in between, oldest first.

    Times are clock times, without the date if all of them are from today. An epoch that begins with … is shown by its
    last digits.

    \b
    Example:
      leasehold history invoice-42
    """
    with target.open() as router:
        rows = Views(router).history(id)
    empty = "Nothing is recorded for this job: it was never claimed."
    known = (*OWNERSHIP_FIELDS, *EVENT_FIELDS)
    if output.is_for_programs or output.fields:
        show_rows(_rows_worded(rows, output), (), output, empty=empty, known=known, id=id)
        return 0
    offset, times = clock_times([row.get(name) for row in rows for name in ("at", "ended_at")], output)
    tail = _tails([row["epoch"] for row in rows])
    column, narrow = f"when {offset}", terminal_width() < _NARROW
    worded_rows = [
        {
            **row,
            column: when(row, times),
            "what": f"{row['kind']}: {what}" if narrow and row["kind"] not in ("ownership", "refused") else what,
            "epoch": tail(row["epoch"]) if narrow and row["epoch"] else row["epoch"],
        }
        for row, what in ((row, worded(row, output, tail)) for row in rows)
    ]
    columns = [column, *([] if narrow else ["kind"]), "epoch", "owner", "what"]
    show_rows(worded_rows, columns, output, empty=empty, wrap=True, spare=("epoch",))
    return 0


def when(row: dict[str, Any], times: dict[str, str]) -> str:
    """Return when an event was, or from when to when an ownership lasted, and how long that was."""
    began, ended = times[row["at"]], row.get("ended_at")
    if row["kind"] != "ownership":
        return began
    if ended is None:
        return f"{began}– ({age(row['at']).removesuffix(' ago')} so far)"
    day, _, _ = began.rpartition(" ")
    return f"{began}–{times[ended].removeprefix(f'{day} ')} ({lasted(row['at'], ended)})"


def _tails(epochs: Iterable[int | None]) -> Callable[[Any], str]:
    """Return what shortens an epoch to the digits in which these differ, three at least."""
    texts = {str(epoch) for epoch in epochs if epoch}
    same = takewhile(lambda digits: len(set(digits)) == 1, zip(*texts, strict=False))
    start = max(min(sum(1 for _ in same), min(map(len, texts), default=0) - 3), 0)
    prefix = min(texts, default="")[:start]
    return lambda epoch: f"…{str(epoch)[start:]}" if prefix and str(epoch).startswith(prefix) else str(epoch)


def classed(rows: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return *rows* with the class of an error before its message, unless a program reads them or fields are chosen."""
    if output.is_for_programs or output.fields:
        return rows
    return [{**row, "error": f"{row['error_type']}: {row['error']}"} if row["error_type"] else row for row in rows]


def _rows_worded(rows: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return *rows* with what happened as a person reads it, unless a program does."""
    return rows if output.is_for_programs else [{**row, "what": worded(row, output)} for row in rows]


def worded(row: dict[str, Any], output: Output, epoch: Callable[[Any], str] = str) -> str:
    """Return what a row of a history says, as a person reads it; *epoch* shows an epoch."""
    if row["kind"] == "ownership":
        ended = "still holds it" if row["ended"] is None else f"ended by {row['ended']}"
        by = f" ({row['ended_by']})" if row["ended_by"] and row["ended_by"] != row["owner"] else ""
        note = f": {_without_frames(row['note'])}" if row["note"] else ""
        return f"began by {row['began']}, {ended}{by}{note}"
    facts = row["facts"]
    if row["kind"] == "refused" and isinstance(facts, dict) and {"verb", "presented", "current"} <= facts.keys():
        verb = f"{facts['verb']} of {facts['resource']}" if facts.get("resource") else facts["verb"]
        presented, current = epoch(facts["presented"]), epoch(facts["current"])
        now = f"the current epoch was {current}" if presented != current else "that ownership had ended"
        by = f" by {facts['by']}" if facts.get("by") else ""
        return f"refused: {verb}{by} with epoch {presented}; {now}"
    if isinstance(facts, dict):
        return ", ".join(_fact(name, value, output) for name, value in facts.items() if value is not None)
    return str(facts)  # redacted


def _without_frames(text: str) -> str:
    """Return an error as its class and message; any other text as it is."""
    kind, message = failure.read(text)
    return f"{kind}: {message}" if kind else message


def _fact(name: str, value: Any, output: Output) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return f"{name.removesuffix('_us')}_at {localized(instants.aware(value).isoformat(), output)}"
    if name == "error" and isinstance(value, str):  # without the frames, which --json has
        return f"error {_without_frames(value)}"
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
    show_sentence({"id": id, "explanation": sentence}, folded(localized(sentence, output)), output)
    return 0


@click.command()
@click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Only events of this job.")
@click.option("--kind", metavar="NAME", help="Only events of this kind, such as refused, failed or reclaimed.")
@click.option("--after", default=0, metavar="NUMBER", help="Only events after the one with this number.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Print at most this many."
)
@click.option(
    "--last", type=click.IntRange(1, 10_000), metavar="N", help="Only the newest N events, printed oldest first."
)
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
                more: dict[str, Any] = {"known": EVENT_FIELDS, "spare": _EVENTS_SPARE, "after": seen}
                show_rows(rows, _EVENTS, output, empty="No event matches.", wrap=True, **more)

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
