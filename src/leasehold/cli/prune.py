"""`leasehold prune`: removes jobs that ended long ago, or finished jobs that fit filters."""

from __future__ import annotations

import shlex
from dataclasses import replace

import click

from .. import Conflict, Router
from ..core import instants
from ..core.clock import SystemClock
from ..core.job import Status
from ..core.search import Search
from ..core.wording import counted
from ..router.bulk import matching
from .acting import arguments, do_to_many
from .asking import agrees, can_ask, declined, yes_option
from .finding import age_us, filter_options, has_filter, instant_us
from .output import Output, output_options, show_one
from .target import Target, actor_option, target_options

_AGES = ("--older-than", "--before")


@click.command()
@filter_options
@click.option("--older-than", metavar="AGE", help="Jobs that ended longer ago than this, such as 30d or 12h.")
@click.option("--before", metavar="TIME", help="Jobs that ended before this time, such as 2026-10-18T00:00:00+00:00.")
@click.option("--apply", is_flag=True, help="Remove the jobs. Without --apply they are only counted.")
@click.option("--expect", type=int, metavar="N", help="With --apply: act only if exactly N jobs match.")
@click.option("--note", metavar="TEXT", help="With filters: the reason, which is recorded.")
@yes_option
@actor_option
@target_options
@output_options
def prune(
    target: Target,
    output: Output,
    by: str,
    wanted: Search,
    older_than: str | None,
    before: str | None,
    apply: bool,
    expect: int | None,
    note: str | None,
    yes: bool,
) -> int:
    """
    Remove jobs that ended long ago, with all that is kept of them, and events of the same age.

    Workers do this by themselves, by the retention of their router. A job stays if its parent stays, or if its guarded
    keys are not sealed. The first call only counts the jobs, and prints the command that removes them. On a terminal,
    that command asks first.

    With filters, only matching finished jobs are removed, whatever their age, and no events; --status is required. Each
    is removed only if it still has the epoch that was just read. Jobs with an effect in doubt stay. The removal of
    each job is recorded at once, and the whole action at its end.

    \b
    Examples:
      leasehold prune --older-than 30d
      leasehold prune --before 2026-10-18T00:00:00+00:00 --apply --expect 1200
      leasehold prune --status failed --task thumb --older-than 1d
      leasehold prune --status cancelled --queue imports --apply --expect 812
    """
    if older_than is not None and before is not None:
        raise click.UsageError("--older-than and --before both say when the jobs ended: pass only one of them.")
    end = _end(older_than, before)
    if has_filter(wanted):
        if wanted.status is None:
            raise click.UsageError(
                "filters need a finished status, since only finished jobs can be pruned: add --status done, "
                "failed or cancelled."
            )
        if end is not None and wanted.until_us is not None:
            raise click.UsageError("--until already says when the jobs ended: leave out --older-than and --before.")
        wanted = wanted if end is None else replace(wanted, until_us=end)
        typed = _typed(end) if older_than is not None else arguments()
        return do_to_many(target, output, "prune", wanted, apply, expect, yes, by, note, typed)
    if end is None:
        raise click.UsageError(
            "say which jobs to prune: pass --older-than AGE, --before TIME, or filters such as --status failed."
        )
    if note is not None:
        raise click.UsageError(
            "--note is recorded only when jobs are pruned by filters. Pruning by age records nothing: leave out --note."
        )
    with target.open() as router:
        return _prune_old(router, output, end, apply, expect, yes)


def _end(older_than: str | None, before: str | None) -> int | None:
    """Return the instant before which a job must have ended, or None if none was given."""
    now = SystemClock().now()
    if older_than is not None:
        return now - age_us(older_than, "--older-than")
    if before is None:
        return None
    if (end := instant_us(before, "--before")) > now:
        raise click.UsageError(f"--before {before} is in the future: pass a time in the past.")
    return end


def _prune_old(router: Router, output: Output, end: int, apply: bool, expect: int | None, yes: bool) -> int:
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
            again = shlex.join([*_typed(end), "--apply", "--expect", str(count)])
            click.echo(f"Nothing was removed yet. To remove them:\n  {again}", err=True)
        return 0
    if expect is None and not asks:
        raise click.UsageError(
            "--apply needs --expect N, the number of matching jobs: run the command without --apply to see it."
        )
    if expect is not None and count != expect:
        raise Conflict(
            f"{counted(count, 'job is', 'jobs are')} that old, not the expected {expect}. Nothing was "
            "removed. Run the command without --apply to count them again."
        )
    if asks and not agrees(f"Remove {counted(count, 'job', 'jobs')} for good?"):
        return declined()
    removed = router.prune(keep_seconds=(SystemClock().now() - end) / 1_000_000)
    show_one({"jobs": removed.jobs, "events": removed.events, "ids": removed.ids, "applied": True}, output)
    return 0


def _typed(end: int | None) -> list[str]:
    """Return the command as it was typed, but with the instant *end*, since an age moves on."""
    words, skip = [], False
    for word in arguments():
        if not skip and word not in _AGES and not word.startswith(tuple(f"{name}=" for name in _AGES)):
            words.append(word)
        skip = not skip and word in _AGES
    return [*words, "--before", instants.aware(end or 0).isoformat()]
