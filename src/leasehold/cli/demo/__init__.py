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
"""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--store",
    "url",
    metavar="URL",
    help="Play in this store, for instance sqlite:///demo.db or postgresql://host/database.",
)
@click.option("--plain", is_flag=True, help="Plain ASCII lines, as when the output is no terminal.")
def demo(url: str | None, plain: bool) -> int:
    """
    Watch stale owners being refused, in about ten seconds.

    Six jobs, played with real threads: one succeeds, one outlives its lease, one loses its worker, one goes
    back to the very worker that lost it, one has its result written too late, one is handed over by a
    supervisor. In a file or on a server (--store) the lost worker is a process, and it is really killed.

    Exits with 0 only if the store's own records say that everything went as it must.

    Other jobs in the store are left alone. In a file, the demo has its own queue and ids, and leaves its
    finished jobs there to look at; but workers that claim from every queue would take its jobs, so if there
    are any, give it a file of its own. On PostgreSQL it plays in a schema of its own, which it makes and drops.

    \b
    Examples:
      leasehold demo
      leasehold demo --store sqlite:///demo.db
      leasehold demo --store postgresql://host/database
      leasehold demo --plain | tee demo.txt
    """
    from .run import perform  # on use: other commands start without threads and rich

    return perform(url, plain=plain)
