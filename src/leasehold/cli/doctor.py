"""`leasehold doctor`: what an operator should look at, and the command to begin with."""

from __future__ import annotations

import json
from typing import Any

import click

from ..core.counts import Counts
from ..core.explanation import span
from ..core.observations import Observation, ObservationKind
from ..core.wording import counted
from .output import Output, check_fields, folded, localized, output_options, show_rows
from .target import Target, target_options

_FIELDS = ("kind", "subject", "since", "noted_at", "waiting", "sentence", "command")
_ABOUT_QUEUES = (ObservationKind.NO_CONSUMER, ObservationKind.PAUSED, ObservationKind.OLD_BACKLOG)


@click.command()
@click.option(
    "--quiet-seconds", default=600.0, show_default=True, help="Report running jobs without progress for this long."
)
@click.option(
    "--waiting-seconds", default=300.0, show_default=True, help="Report due jobs that have waited for this long."
)
@target_options
@output_options
def doctor(target: Target, output: Output, quiet_seconds: float, waiting_seconds: float) -> int:
    """
    Look for work that does not move, silent owners, poison jobs, backlogs, and queues that are paused or not served.

    A worker's heartbeat says that it is alive, not that its work moves: this command checks both. It changes nothing.
    The exit code is 1 if something was found, even if it is only a paused queue with due jobs. Failed jobs are not
    reported: see leasehold jobs --status failed.

    \b
    Examples:
      leasehold doctor
      leasehold doctor --quiet-seconds 60 --json
    """
    with target.open() as router:
        found = router.observations(quiet_seconds=quiet_seconds, waiting_seconds=waiting_seconds)
        broken = router.verify()
        waits = router.counts() if any(one.kind in _ABOUT_QUEUES for one in found) else None
    rows: list[dict[str, Any]] = [
        {
            "kind": one.kind.value,
            "subject": one.subject,
            "since": one.since.isoformat(),
            "noted_at": None if one.noted_at is None else one.noted_at.isoformat(),
            "waiting": _waiting(one, waits),
            "sentence": one.sentence,
            "command": one.command,
        }
        for one in found
    ]
    nothing = (
        f"Nothing was found. No running job has been without progress for {_span(quiet_seconds)}, and no due job has "
        f"waited for {_span(waiting_seconds)} (--quiet-seconds, --waiting-seconds)."
    )
    check_fields(rows, output.fields, _FIELDS)
    if output.as_json:
        chosen = [{name: row.get(name) for name in output.fields or row} for row in rows]
        click.echo(
            json.dumps({"ok": not (rows or broken), "observations": chosen, "broken": broken}, ensure_ascii=False)
        )
    elif output.as_lines or output.fields:
        show_rows(rows, (), output, empty=nothing, known=_FIELDS)
    else:
        for row in rows:
            waiting = (
                "" if row["waiting"] is None else f" {counted(row['waiting'], 'job waits', 'jobs wait')} there now."
            )
            click.echo(folded(f"{row['kind']}: {localized(row['sentence'], output)}{waiting}"))
            click.echo(f"    {row['command']}")
        for sentence in broken:
            click.echo(folded(f"broken: {sentence}"))
        if not (rows or broken):
            click.echo(folded(f"{nothing} The invariants hold."))
    return 1 if rows or broken else 0


def _waiting(found: Observation, counts: Counts | None) -> int | None:
    """Return how many jobs wait in the queue that was observed, or for the task there; None for other observations."""
    if counts is None or found.kind not in _ABOUT_QUEUES:
        return None
    if found.task:
        return counts.parked.get(found.task, {}).get(found.subject, 0)
    return counts.queues.get(found.subject, {}).get("pending", 0)


def _span(seconds: float) -> str:
    return span(round(seconds * 1_000_000)) if seconds >= 1 else f"{seconds:g} s"
