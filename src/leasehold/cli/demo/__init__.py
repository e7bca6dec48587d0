"""
`leasehold demo`: a short story about stale owners, told from the store's own records.

    story      the six scenes
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
@click.option("--store", "url", metavar="URL", help="Play in this store, for instance sqlite:///demo.db.")
@click.option("--plain", is_flag=True, help="Plain ASCII lines, as when the output is no terminal.")
def demo(url: str | None, plain: bool) -> int:
    """
    Watch stale owners being refused, in about ten seconds.

    Six jobs, played with real threads: one succeeds, one outlives its lease, one loses its worker, one goes
    back to the very worker that lost it, one has its result written too late, one is handed over by a
    supervisor. In a file (--store) the lost worker is a process, and it is really killed.

    Exits with 0 only if the store's own records say that everything went as it must. Other jobs in the store
    are left alone: the demo has its own queue and ids, and leaves its finished jobs there to look at. But
    workers that claim from every queue would take its jobs; if there are any, give it a file of its own.

    \b
    Examples:
      leasehold demo
      leasehold demo --store sqlite:///demo.db
      leasehold demo --plain | tee demo.txt
    """
    if url is not None and url.startswith("postgres"):
        raise click.BadParameter("the demo plays in this process or in a SQLite file.", param_hint="--store")
    from .run import perform  # on use: other commands start without threads and rich

    return perform(url, plain=plain)
