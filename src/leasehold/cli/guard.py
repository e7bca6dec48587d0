"""`leasehold guard`: seals the keys of jobs that have ended, and proves guards."""

from __future__ import annotations

import click

from .. import LeaseholdError
from .completion import job_ids
from .help import Group
from .loading import load
from .output import Output, output_options, show_rows, show_sentence
from .target import actor_option

_app = click.option(
    "--app",
    "path",
    required=True,
    metavar="MODULE:ROUTER",
    help="The Router whose guards are used, such as app:router.",
)
_folder = click.option(
    "--app-dir", "folder", default=".", show_default="this folder", help="The folder to import MODULE from."
)


@click.group(cls=Group)
def guard() -> None:
    """
    Seal the keys of jobs that have ended, and prove guards.

    A guard refuses writes of stale owners at a file, an object, a table, a git branch or a service. Only the
    application knows its guards, so these commands import it.

    \b
    Examples:
      leasehold guard seal invoice-42 --app app:router  its last owner is refused
      leasehold guard prove --app app:router            is a stale write refused?
    """


@guard.command()
@click.argument("job_id", metavar="JOB", shell_complete=job_ids)
@_app
@_folder
@actor_option
@output_options
def seal(output: Output, job_id: str, path: str, folder: str, by: str) -> int:
    """
    Seal the guarded keys of JOB, which has ended, so that its last owner cannot write to them.

    A cancel, a completion by hand and a final failure do this by themselves, if they can reach the guards. Use this
    command for keys that they could not reach; it can be repeated. The exit code is 1 if a key is still not sealed.

    \b
    Examples:
      leasehold guard seal invoice-42 --app app:router
      leasehold guard seal invoice-42 --app app:router --json
    """
    with load(path, folder) as router:
        done = router.seal(job_id, by=by)
    lines = [f"sealed {name}:{key} at epoch {done.epoch}" for name, key in done.sealed]
    lines += [f"not sealed: {one}" for one in done.unreached]
    unreached = [one._asdict() for one in done.unreached]
    facts = {"job_id": done.job_id, "epoch": done.epoch, "sealed": done.sealed, "unreached": unreached}
    show_sentence(facts, "\n".join(lines) or f"job {job_id!r} has no guarded keys.", output)
    return 1 if done.unreached else 0


@guard.command()
@_app
@_folder
@output_options
def prove(output: Output, path: str, folder: str) -> int:
    """
    Show on the real resources that the guards of an application refuse a stale write.

    The exit code is 1 if one of them protects nothing, or cannot be reached.

    \b
    Example:
      leasehold guard prove --app app:router
    """
    verdicts: dict[str, str | None] = {}
    with load(path, folder) as router:
        for name, one in sorted(router.guards.items()):
            try:
                one.prove()
                verdicts[name] = None
            except LeaseholdError as error:
                verdicts[name] = str(error)
    rows = [{"name": name, "proved": why is None, "why": why} for name, why in verdicts.items()]
    if output.is_for_programs or output.fields:
        show_rows(rows, (), output, empty="No guard is registered.")
        return 1 if any(verdicts.values()) else 0
    for name, why in verdicts.items():
        click.echo(f"{name}: " + ("proved" if why is None else f"NOT PROVED: {why}"))
    if not verdicts:
        click.echo("No guard is registered. To register one, call router.guard(name, guard).")
    return 1 if any(verdicts.values()) else 0
