"""`leasehold prune`: removes jobs that ended long ago."""

from __future__ import annotations

import shlex

import click

from .. import Conflict
from ..core import instants
from ..core.clock import SystemClock
from ..core.job import Status
from ..core.search import Search
from ..core.wording import counted
from ..router.bulk import matching
from .acting import arguments
from .asking import agrees, can_ask, declined, yes_option
from .finding import age_us, instant_us
from .output import Output, output_options, show_one
from .target import Target, target_options


@click.command()
@click.option("--older-than", metavar="AGE", help="Jobs that ended longer ago than this: 30d, 12h.")
@click.option("--before", metavar="TIME", help="Jobs that ended before then, as in 2026-10-18T00:00:00+00:00.")
@click.option("--apply", is_flag=True, help="Remove them; without it they are only counted.")
@click.option("--expect", type=int, metavar="N", help="With --apply: how many jobs must be that old.")
@yes_option
@target_options
@output_options
def prune(
    target: Target,
    output: Output,
    older_than: str | None,
    before: str | None,
    apply: bool,
    expect: int | None,
    yes: bool,
) -> int:
    """
    Remove jobs that ended long ago, with all that is kept of them, and events that old.

    Workers do this by themselves, by the retention of their router. Children of a job that is kept stay. A first call
    only counts, and prints the command that removes them. On a terminal, that one asks first.

    \b
    Examples:
      leasehold prune --older-than 30d
      leasehold prune --before 2026-10-18T00:00:00+00:00 --apply --expect 1200
    """
    if (older_than is None) == (before is None):
        raise click.UsageError("say which: --older-than AGE, or --before TIME.")
    now = SystemClock().now()
    end = now - age_us(older_than, "--older-than") if older_than is not None else instant_us(before or "", "--before")
    if end > now:
        raise click.UsageError(f"--before {before} is in the future.")
    with target.open() as router:
        counts = {
            status.value: sum(1 for _ in matching(router, Search(status, until_us=end)))
            for status in (Status.DONE, Status.FAILED, Status.CANCELLED)
        }
        count = sum(counts.values())
        asks = apply and can_ask(yes)
        if not apply or asks:
            show_one({**counts, "count": count, "applied": False}, output)
        if not apply:
            if count and not output.is_for_programs:
                click.echo(f"Nothing was removed yet. To remove them:\n  {_again(end, count)}", err=True)
            return 0
        if expect is None and not asks:
            raise click.UsageError("--apply needs --expect N: how many jobs you saw. Run it without --apply first.")
        if expect is not None and count != expect:
            raise Conflict(
                f"{counted(count, 'job is', 'jobs are')} that old, not the expected {expect}. Nothing was removed."
            )
        if asks and not agrees(f"Remove {counted(count, 'job', 'jobs')} for good?"):
            return declined()
        removed = router.prune(keep_seconds=(now - end) / 1_000_000)
    show_one({"jobs": removed.jobs, "events": removed.events, "ids": removed.ids, "applied": True}, output)
    return 0


def _again(end: int, count: int) -> str:
    """Return the command that removes what was counted: with the same instant, since an age moves on."""
    words, skip = [], False
    for word in arguments():
        if (
            not skip
            and word not in ("--older-than", "--before")
            and not word.startswith(("--older-than=", "--before="))
        ):
            words.append(word)
        skip = not skip and word in ("--older-than", "--before")
    at = instants.aware(end).isoformat()
    return shlex.join([*words, "--before", at, "--apply", "--expect", str(count)])
