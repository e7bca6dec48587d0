"""`leasehold guard`: seals the keys of jobs that have ended, and proves guards."""

from __future__ import annotations

import json

import click

from .. import LeaseholdError
from .help import Group
from .loading import load
from .store import as_json_option
from .target import system_user

_app = click.option(
    "--app", "path", required=True, metavar="MODULE:ROUTER", help="The Router whose guards are used, as in app:router."
)
_folder = click.option("--app-dir", "folder", default=".", show_default="this folder", help="Where MODULE is found.")


@click.group(cls=Group)
def guard() -> None:
    """
    Seal the keys of jobs that have ended, and prove guards.

    A guard refuses writes of stale owners at a file, an object, a table, a git branch or a service. Which guards there
    are is known to the application alone, so these commands import it.
    """


@guard.command()
@click.argument("job_id", metavar="JOB")
@_app
@_folder
@click.option("--as", "by", metavar="NAME", help="Who acts; it is recorded. Default: the system user.")
@as_json_option
def seal(job_id: str, path: str, folder: str, by: str | None, as_json: bool) -> int:
    """
    Seal the guarded keys of JOB, which has ended, so that its last owner cannot write to them.

    A cancel, a completion by hand and a final failure do this by themselves, where they can reach the guards. Use it
    for the keys that they could not reach: it can be repeated. The exit code is 1 if a key is still not sealed.

    \b
    Examples:
      leasehold guard seal invoice-42 --app app:router
      leasehold guard seal invoice-42 --app app:router --json
    """
    with load(path, folder) as router:
        done = router.seal(job_id, by=by or system_user())
    if as_json:
        unreached = [one._asdict() for one in done.unreached]
        facts = {"job_id": done.job_id, "epoch": done.epoch, "sealed": done.sealed, "unreached": unreached}
        click.echo(json.dumps(facts, ensure_ascii=False))
        return 1 if done.unreached else 0
    for name, key in done.sealed:
        click.echo(f"sealed {name}:{key} at epoch {done.epoch}")
    for one in done.unreached:
        click.echo(f"not reached: {one}")
    if not (done.sealed or done.unreached):
        click.echo(f"job {job_id!r} has no guarded keys.")
    return 1 if done.unreached else 0


@guard.command()
@_app
@_folder
@as_json_option
def prove(path: str, folder: str, as_json: bool) -> int:
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
    if as_json:
        rows = [{"guard": name, "proved": why is None, "why": why} for name, why in verdicts.items()]
        click.echo(json.dumps({"guards": rows}, ensure_ascii=False))
    else:
        for name, why in verdicts.items():
            click.echo(f"{name}: " + ("proved" if why is None else f"NOT PROVED: {why}"))
        if not verdicts:
            click.echo("No guard is registered: router.guard(name, guard) does that.")
    return 1 if any(verdicts.values()) else 0
