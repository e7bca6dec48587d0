"""`leasehold queue`: pauses queues, resumes them and lists them."""

from __future__ import annotations

import json
from typing import Any

import click

from ..core.queues import Queue
from ..core.redaction import shown_url
from .help import Group
from .store import as_json_option, open_existing, schema_option

_by = click.option("--by", required=True, metavar="NAME", help="Who acts; it is recorded.")


@click.group(cls=Group)
def queue() -> None:
    """
    Pause queues, resume them, and list them.

    While a queue is paused, claims take no job from it. Jobs that run go on; what is added, retried or requeued waits.
    Other queues are not slowed down, however many jobs wait in the paused one.
    """


@queue.command("list")
@click.argument("url")
@as_json_option
@schema_option
def list_queues(url: str, as_json: bool, schema: str) -> int:
    """
    List the queues of the store at URL that are paused or have unfinished jobs.

    It also prints how many of the pending jobs are parked behind a task that a worker did not know.

    \b
    Examples:
      leasehold queue list sqlite:///jobs.db
      leasehold queue list postgresql://host/database --json
    """
    with open_existing(url, schema) as router:
        queues, counts = router.queues(), router.counts()
    rows = [
        {
            **_facts(one),
            "pending": 0,
            "running": 0,
            **counts.queues.get(one.name, {}),
            "parked": {task: found[one.name] for task, found in counts.parked.items() if one.name in found},
        }
        for one in queues
    ]
    if as_json:
        click.echo(json.dumps({"url": shown_url(url), "queues": rows}, ensure_ascii=False))
        return 0
    for one, row in zip(queues, rows, strict=True):
        click.echo(f"queue {one.name}: {row['pending']} pending, {row['running']} running{_parked(row)}{_paused(one)}")
    if not rows:
        click.echo("No queue is paused or has unfinished jobs.")
    return 0


@queue.command()
@click.argument("url")
@click.argument("name")
@_by
@click.option("--note", metavar="TEXT", help="Why; it is shown beside the queue.")
@as_json_option
@schema_option
def pause(url: str, name: str, by: str, note: str | None, as_json: bool, schema: str) -> int:
    """
    Have claims take no job from the queue NAME until it is resumed.

    A claim that begins after this command has ended takes nothing from it, in whatever process. Jobs that run go on,
    and may be transferred, cancelled or requeued like any other. A queue that is paused already gets the new note.

    \b
    Examples:
      leasehold queue pause postgresql://host/database mail --by ann --note "the relay is down"
      leasehold queue pause sqlite:///jobs.db imports --by ann
    """
    with open_existing(url, schema) as router:
        paused = router.pause(name, by=by, note=note)
    return _shown(url, paused, as_json)


@queue.command()
@click.argument("url")
@click.argument("name")
@_by
@as_json_option
@schema_option
def resume(url: str, name: str, by: str, as_json: bool, schema: str) -> int:
    """
    Have claims take jobs from the queue NAME again.

    Workers that wait for jobs begin at once. A queue that is not paused stays as it is.

    \b
    Example:
      leasehold queue resume postgresql://host/database mail --by ann
    """
    with open_existing(url, schema) as router:
        resumed = router.resume(name, by=by)
    return _shown(url, resumed, as_json)


def _shown(url: str, found: Queue, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"url": shown_url(url), **_facts(found)}, ensure_ascii=False))
    else:
        click.echo(f"queue {found.name}{_paused(found) or ': not paused'}")
    return 0


def _facts(found: Queue) -> dict[str, Any]:
    at = found.paused_at
    return {
        "name": found.name,
        "paused": found.paused,
        "paused_at": None if at is None else at.isoformat(),
        "paused_by": found.paused_by,
        "paused_note": found.paused_note,
    }


def _paused(found: Queue) -> str:
    if found.paused_at is None:
        return ""
    note = "" if found.paused_note is None else f": {found.paused_note}"
    return f", paused by {found.paused_by} at {found.paused_at:%Y-%m-%d %H:%M:%S} UTC{note}"


def _parked(row: dict[str, Any]) -> str:
    return "".join(
        f", {count} parked behind task {task!r}" if task else f", {count} without a task, which workers do not take"
        for task, count in row["parked"].items()
    )
