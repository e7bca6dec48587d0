"""`leasehold add`: adds a job, with the settings of an application's task where that is known."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import InvalidArgument, Router
from ..core.job import Added
from ..core.suggestions import near
from ..views import Views
from .completion import queue_names, task_names
from .output import Output, output_options, show_sentence
from .target import Target, pairs, parsed_json, target_options


@click.command()
@click.argument("id", required=False)
@click.option("--payload", metavar="JSON", help="The arguments of the handler, as a JSON object.")
@click.option("--task", metavar="NAME", shell_complete=task_names, help="The task that handles the job.")
@click.option("--queue", metavar="NAME", shell_complete=queue_names, help="The queue of the job. Default: the task's.")
@click.option("--priority", type=int, help="A job with a larger priority is claimed first. Default: the task's, or 0.")
@click.option("--delay-seconds", type=float, help="Make the job due this many seconds from now.")
@click.option("--lock", metavar="KEY", help="Run at most one job with this key at a time.")
@click.option("--unique", metavar="KEY", help="Add nothing if an unfinished job has this key.")
@click.option(
    "--meta",
    multiple=True,
    metavar="KEY=VALUE",
    help="Your own data, by which jobs can be searched; VALUE is JSON or text.",
)
@click.option("--app-dir", default=".", metavar="FOLDER", help="The folder to search first for the module of --app.")
@target_options
@output_options
def add(
    target: Target,
    output: Output,
    id: str | None,
    payload: str | None,
    meta: tuple[str, ...],
    app_dir: str,
    **options: Any,
) -> int:
    """
    Add a job, unless one with this ID exists.

    Prints the id of the new job; without ID, it is a UUID. With --app, the job gets what the task's decorator sets,
    such as its queue and its retries, and the payload is checked against the handler. Without --app these settings are
    not known: the job gets the defaults, in the queue "default".

    \b
    Examples:
      leasehold add --app app:router --task send \\
          --payload '{"to": "ann@example.org"}'
      leasehold add --task send --payload '{"to": "ann@example.org"}' --queue mail
      leasehold add invoice-42 --payload '{"total": 10}'
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if meta:
        chosen["meta"] = pairs(meta, "--meta")
    value = None if payload is None else parsed_json(payload, "--payload")
    target.app_dir = app_dir
    with target.open() as router:
        if target.app is not None and "task" in chosen:
            added = _of_the_application(router, target.app, id, value, **chosen)
        else:
            added = router.add(id, value, **chosen)
        facts = {"created": added.created, **Views(router).short(added.job)}
    if not added.created:
        click.echo(f"job {added.job.id!r} exists already and is {added.job.status.value}; nothing was added", err=True)
        if not output.is_for_programs:
            return 0
    elif "task" in chosen and target.app is None:
        click.echo(
            f"Only the application knows the settings of the task {chosen['task']!r}, so the job waits in the queue "
            f"{added.job.queue!r} with default retries. To use the task's own settings, pass --app MODULE:ROUTER.",
            err=True,
        )
    show_sentence(facts, added.job.id, output)
    return 0


def _of_the_application(router: Router, app: str, id: str | None, payload: object, task: str, **options: Any) -> Added:
    """Add a job for a task of *router*, with its settings; the payload must fit its handler."""
    found = router.tasks.get(task)
    if found is None:
        meant = near(task, router.tasks)
        raise InvalidArgument(
            f"{app} has no task {task!r}"
            + (f": did you mean {meant!r}?" if meant else f"; it has: {', '.join(sorted(router.tasks)) or 'none'}.")
            + " For a task of another application, pass its Router as --app, or pass --store."
        )
    arguments = found.arguments(json.dumps({} if payload is None else payload))
    return found.options(id=id, **options).add(**arguments)
