"""
`leasehold demo`: a short story about stale owners, printed from the store's own records.

    story      the six scenes
    venue      where it plays: in this process, in a file, in a schema of its own
    stage      what a scene needs: threads, cues, claims and writes
    victim     the process that is killed while it holds a lease
    trace      an event of the store as one line
    screen     prints the trace while the story plays; on a terminal, with the leases below it
    timeline   who held which epoch when, and the final table
    verdict    what must be true afterwards, and what was seen
    zombie/    `leasehold demo zombie`: the same story with files, tables, git and a service, guarded and not
"""

from __future__ import annotations

import click

from ..help import Group


@click.group(cls=Group, invoke_without_command=True)
@click.option(
    "--store",
    "url",
    metavar="URL",
    help="Run the demo in this store, for instance sqlite:///demo.db or postgresql://host/database.",
)
@click.option("--plain", is_flag=True, help="Plain ASCII lines, as when the output is not a terminal.")
@click.pass_context
def demo(context: click.Context, url: str | None, plain: bool) -> int | None:
    """
    Watch stale owners being refused, in about ten seconds.

    Six jobs, played with real threads: one succeeds, one outlives its lease, one loses its worker, one goes
    back to the very worker that lost it, one has its result written too late, one is handed over by a
    supervisor. In a file or on a server (--store) the lost worker is a process, and it is really killed.

    Exits with 0 only if the store's own records say that everything went as it must.

    Other jobs in the store are left alone. In a file, the demo has its own queue and ids, and leaves its
    finished jobs there to look at; but workers that claim from every queue would take its jobs: if such
    workers run, give it a file of its own. On PostgreSQL it plays in a schema of its own, which it makes and drops.

    \b
    Examples:
      leasehold demo
      leasehold demo --store sqlite:///demo.db
      leasehold demo --store postgresql://host/database
      leasehold demo --plain | tee demo.txt
      leasehold demo zombie
    """
    if context.invoked_subcommand is not None:
        return None
    from .run import perform  # on use: other commands start without threads and rich

    return perform(url, plain=plain)


@demo.command()
@click.option("--plain", is_flag=True, help="Plain lines, as when the output is not a terminal.")
def zombie(plain: bool) -> int:
    """
    Watch a frozen process wake up and write to everything that it held.

    Two real processes. The first is frozen with SIGSTOP past its lease; the second takes over and finishes; the first
    is thawed, and tries to write to a table, a file, a git branch and an object (where git and SeaweedFS are
    installed), an HTTP service and the job. With guards, each write is refused; then the same is played without guards,
    and the damage is shown.

    Exits with 0 only if every refusal and all the damage was seen. Plays in a temporary folder.

    \b
    Examples:
      leasehold demo zombie
      leasehold demo zombie --plain | tee zombie.txt
    """
    from .zombie import play

    return play(plain=plain)
