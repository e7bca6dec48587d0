"""`leasehold queues` and `leasehold workers`: what waits where, what is paused, and who works."""

from __future__ import annotations

from typing import Any

import click

from .. import Router
from ..views import QUEUE_FIELDS, WORKER_FIELDS, Views
from .completion import queue_names
from .help import Group
from .output import Output, age, output_options, show_rows, show_sentence
from .target import Target, actor_option, target_options
from .watching import Watch, watch_options

_QUEUES = (
    "name",
    "pending",
    "running",
    "oldest_pending_at",
    "added_per_minute",
    "finished_per_minute",
    "workers",
    "parked",
    "paused",
)
_QUEUES_SPARE = ("added_per_minute", "workers")
_WORKERS = (
    "name",
    "alive",
    "holding",
    "running",
    "concurrency",
    "queues",
    "seen_at",
    "renewed_at",
    "progressed_at",
    "started_at",
)
_WORKERS_SPARE = ("started_at", "concurrency", "renewed_at")


@click.group(cls=Group, invoke_without_command=True)
@watch_options("Refresh the list")
@target_options
@output_options
@click.pass_context
def queues(context: click.Context, target: Target, output: Output, watch: Watch) -> int | None:
    """
    List the queues that are paused, have unfinished jobs or had some lately; pause them, and resume them.

    ADDED/MIN and FINISHED/MIN are averages of the last five minutes. FINISHED/MIN counts jobs that are done, failed or
    cancelled. If more than 10,000 jobs finished in those five minutes, FINISHED/MIN is measured over the last 10,000
    only, a span that may be as short as a few seconds. OLDEST is when the oldest pending job became due.

    While a queue is paused, claims take no job from it. Running jobs continue. Jobs that are added, retried or requeued
    wait. Other queues are not slowed down, however many jobs wait in the paused one.

    \b
    Examples:
      leasehold queues
      leasehold queues --watch
      leasehold queues pause mail --note "the relay is down"
      leasehold queues resume mail
    """
    if context.invoked_subcommand is not None:
        return None
    with target.open() as router:
        views = Views(router)

        def once() -> None:
            rows = views.queues()
            if not (output.is_for_programs or output.fields):
                rows = [{**row, "paused": _paused(row)} for row in rows]
            columns = [name for name in _QUEUES if name != "paused" or any(row[name] for row in rows)]
            empty, wrap = "No queue is paused or has unfinished jobs.", columns[-1] == "paused"
            show_rows(rows, columns, output, empty=empty, wrap=wrap, known=QUEUE_FIELDS, spare=_QUEUES_SPARE)

        watch.repeat(once)
    return 0


def _paused(row: dict[str, Any]) -> str | None:
    """Return who paused the queue, when and why; None if it is not paused."""
    if not row["paused"]:
        return None
    note = f": {row['paused_note']}" if row["paused_note"] else ""
    return f"by {row['paused_by']}, {age(row['paused_at'])}{note}"


@queues.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--note", metavar="TEXT", help="Why it is paused; shown beside the queue.")
@actor_option
@target_options
@output_options
def pause(target: Target, output: Output, by: str, name: str, note: str | None) -> int:
    """
    Stop claims from taking jobs of the queue NAME until it is resumed.

    A claim that begins after this command has ended takes nothing from it, in any process. Running jobs continue,
    and may be transferred, cancelled or requeued like any other. If the queue is already paused, it gets the new note.

    \b
    Example:
      leasehold queues pause mail --note "the relay is down"
    """
    with target.open() as router:
        router.pause(name, by=by, note=note)
        is_used = _is_used(router, name)  # after the pause, which must not wait for a count
    if not is_used:
        click.echo(
            f"the queue {name!r} has no waiting or recent jobs, and no worker names it: check the spelling", err=True
        )
    show_sentence({"name": name, "paused": True}, f"queue {name!r} is paused", output)
    return 0


def _is_used(router: Router, name: str) -> bool:
    """Return whether jobs are in the queue or came lately, or a worker names it."""
    if any(name in (worker.queues or ()) for worker in router.workers()):
        return True
    figures = ("pending", "running", "added_per_minute", "finished_per_minute")
    return any(row[figure] for row in Views(router).queues() if row["name"] == name for figure in figures)


@queues.command()
@click.argument("name", shell_complete=queue_names)
@actor_option
@target_options
@output_options
def resume(target: Target, output: Output, by: str, name: str) -> int:
    """
    Let claims take jobs of the queue NAME again.

    Workers that wait for jobs begin at once. A queue that is not paused stays as it is.

    \b
    Example:
      leasehold queues resume mail
    """
    with target.open() as router:
        router.resume(name, by=by)
    show_sentence({"name": name, "paused": False}, f"queue {name!r} is resumed", output)
    return 0


@click.command()
@watch_options("Refresh the list")
@target_options
@output_options
def workers(target: Target, output: Output, watch: Watch) -> int:
    """
    List the workers that have reported, alive or not, with when they last reported and when their work last moved.

    A worker that reports and whose jobs make no progress is alive and stuck: look at both columns. RUNNING is the
    number of its handlers at its last report. If it is larger than HOLDING, some of them have ended since, or have lost
    their jobs and keep their slots. CONCURRENCY is 0 once handlers that have lost their jobs have held every slot for
    ten seconds: restart the process. The jobs that a worker holds are in --json, and in `leasehold jobs --owner NAME`;
    the tasks that it knows are in --fields name,tasks.

    \b
    Examples:
      leasehold workers
      leasehold workers --watch
      leasehold workers --json
    """
    with target.open() as router:
        views = Views(router)
        empty = "No worker has reported."

        def once() -> None:
            show_rows(views.workers(), _WORKERS, output, empty=empty, known=WORKER_FIELDS, spare=_WORKERS_SPARE)

        watch.repeat(once)
    return 0
