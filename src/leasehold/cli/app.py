"""The group of commands, its help, and how an error becomes one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from .. import LeaseholdError, __version__
from .exit_codes import INTERRUPTED, code_of
from .help import SETTINGS, Group, examples_first

# In which module each command is.
_MODULES = {
    **dict.fromkeys(("cancel", "complete", "replay", "requeue", "resolve", "transfer"), "acting"),
    **dict.fromkeys(("events", "explain", "history", "jobs", "show"), "jobs"),
    **dict.fromkeys(("queues", "workers"), "queues"),
    **{name: name for name in ("completion", "demo", "doctor", "guard", "prune", "store", "worker")},
    "add": "adding",
    "exit-codes": "exit_codes",
    "worker-health": "health",
}


class _Commands(Group):
    """The commands, each imported when it is used or described: to show a job, no worker has to be loaded."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None if there is none."""
        if cmd_name not in self.commands and (module := _MODULES.get(cmd_name)) is not None:
            command = getattr(import_module(f".{module}", __package__), cmd_name.replace("-", "_"))
            examples_first(command)
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, invoke_without_command=True, context_settings=SETTINGS)
@click.version_option(__version__, "-V", "--version", message="leasehold %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """
    Background jobs whose stale owners cannot write.

    A worker claims a job and gets a lease, which expires, and an epoch, which only goes up. When a worker
    seems dead, its job moves on under a newer epoch. If the worker wakes up after all, whatever it writes
    is refused.

    \b
    Start here:
      leasehold demo                            watch it happen, in ten seconds
      leasehold demo --store sqlite:///demo.db  in a file, with a killed process
      leasehold store check sqlite:///demo.db   check the invariants of a store
      leasehold worker app:router               run your own tasks

    \b
    When something is wrong (with --store URL, or LEASEHOLD_STORE):
      leasehold doctor                          begin here
      leasehold explain ID                      why is this job not running?
      leasehold show ID                         its epoch
      leasehold history ID                      who held it; what was refused

    \b
      a worker hangs                  leasehold transfer, or requeue
      workers die one after another   leasehold events --kind reclaimed
      jobs failed                     leasehold jobs --status failed
      jobs wait, or pile up           leasehold queues, then workers
      a lock is stuck                 leasehold jobs --lock KEY, then requeue
      too many jobs are added         leasehold queues pause, then cancel
      failover, or a restored backup  leasehold events --last 20
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments*, or those of the process, and return its exit code."""
    try:
        code = app.main(args=arguments, prog_name="leasehold", standalone_mode=False)
    except click.UsageError as problem:
        problem.show()
        return problem.exit_code
    except click.ClickException as problem:
        click.echo(f"leasehold: {problem.message}", err=True)
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("leasehold: interrupted", err=True)
        return INTERRUPTED
    except LeaseholdError as error:
        click.echo(f"leasehold: {' '.join(str(error).split())}", err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(f"  {' '.join(note.split())}", err=True)
        return code_of(error)
    return code if isinstance(code, int) else 0
