"""The group of commands, its help, and how an error becomes one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .. import InvalidArgument, LeaseholdError, Unsupported, __version__
from .demo import demo
from .guard import guard
from .health import worker_health
from .help import SETTINGS, Group
from .queue import queue
from .store import store
from .worker import worker

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@click.group(cls=Group, invoke_without_command=True, context_settings=SETTINGS)
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
      leasehold demo                             watch it happen, in ten seconds
      leasehold demo --store sqlite:///demo.db   in a file, with a killed process
      leasehold store check sqlite:///demo.db    check the invariants of a store
      leasehold worker app:router                run the handlers of your own tasks
      leasehold queue list sqlite:///demo.db     list the queues, and which are paused
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


app.add_command(demo)
app.add_command(guard)
app.add_command(queue)
app.add_command(store)
app.add_command(worker)
app.add_command(worker_health)


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
        # Every argument of a call comes from the command line: a wrong one is a mistake in how it was called.
        return 2 if isinstance(error, InvalidArgument | Unsupported) else 1
    return code if isinstance(code, int) else 0
