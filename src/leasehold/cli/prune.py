"""`leasehold prune`: removes jobs that ended long ago."""

from __future__ import annotations

import shlex

import click

from ..core.clock import SystemClock
from ..core.job import Status
from ..core.search import Search
from ..router.bulk import matching
from .acting import arguments
from .finding import age_us
from .output import Output, output_options, show_one
from .target import Target, target_options


@click.command()
@click.option("--older-than", required=True, metavar="AGE", help="Jobs that ended longer ago: 30d, 12h.")
@click.option("--apply", is_flag=True, help="Remove them; without it they are only counted.")
@click.option("--expect", type=int, metavar="N", help="How many jobs must be that old.")
@target_options
@output_options
def prune(target: Target, output: Output, older_than: str, apply: bool, expect: int | None) -> int:
    """
    Remove jobs that ended long ago, with all that is kept of them, and events that old.

    Workers do this by themselves, by the retention of their router. Children of a job that is kept stay.

    \b
    Examples:
      leasehold prune --older-than 30d
      leasehold prune --older-than 30d --apply --expect 1200
    """
    keep_us = age_us(older_than, "--older-than")
    before = SystemClock().now() - keep_us
    with target.open() as router:
        counts = {
            status.value: sum(1 for _ in matching(router, Search(status, until_us=before)))
            for status in (Status.DONE, Status.FAILED, Status.CANCELLED)
        }
        count = sum(counts.values())
        if not apply:
            show_one({**counts, "count": count, "applied": False}, output)
            if count and not output.is_for_programs:
                again = shlex.join([*arguments(), "--apply", "--expect", str(count)])
                click.echo(f"Nothing was removed yet. To remove them:\n  {again}", err=True)
            return 0
        if expect is None or count < expect:
            raise click.UsageError(
                f"{count} jobs are that old: pass --expect {count} to remove them. Nothing was removed."
            )
        removed = router.prune(keep_seconds=keep_us / 1_000_000)
    show_one({"jobs": removed.jobs, "events": removed.events, "ids": removed.ids, "applied": True}, output)
    return 0
