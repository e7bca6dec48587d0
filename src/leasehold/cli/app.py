"""The group of commands, its help, and how an error becomes one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .. import LeaseholdError, __version__
from . import acting, jobs, queues
from .adding import add
from .completion import completion
from .demo import demo
from .doctor import doctor
from .exit_codes import INTERRUPTED, code_of, exit_codes
from .guard import guard
from .health import worker_health
from .help import SETTINGS, Group, examples_first
from .prune import prune
from .store import store
from .worker import worker


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


for _command in (
    *(add, jobs.jobs, jobs.show, jobs.history, jobs.explain, jobs.events),
    *(acting.transfer, acting.requeue, acting.cancel, acting.replay, acting.complete, acting.resolve, prune),
    *(queues.queues, queues.workers, doctor),
    *(demo, guard, store, worker, worker_health, exit_codes, completion),
):
    app.add_command(_command)
examples_first(app)


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
