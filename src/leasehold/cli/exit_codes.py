"""Exit codes: one for each kind of answer, so that a script need not read messages."""

from __future__ import annotations

from typing import NamedTuple

import click

from .. import Conflict, InvalidArgument, NoLease, StaleEpoch, StoreUnavailable, UnknownJob, Unsupported
from .output import Output, output_options, show_rows

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Code(NamedTuple):
    """An exit code, and what it means."""

    code: int
    meaning: str
    errors: tuple[type[Exception], ...] = ()


CODES = (
    Code(0, "success, even if a list is empty"),
    Code(1, "failed, or something was found"),
    Code(2, "wrong usage, or the epoch is missing", (InvalidArgument, Unsupported)),
    Code(3, "refused: the epoch of the job, or of one of several, has moved", (StaleEpoch,)),
    Code(4, "conflict: the job's state forbids it", (Conflict,)),
    Code(5, "not found", (UnknownJob,)),
    Code(6, "nothing to claim", (NoLease,)),
    Code(7, "the store could not be reached, or the outcome is unknown", (StoreUnavailable,)),
    Code(8, "declined at a prompt"),
    Code(INTERRUPTED, "interrupted with Ctrl-C"),
)


def code_of(error: Exception) -> int:
    """Return the exit code of an error."""
    return next((one.code for one in CODES if isinstance(error, one.errors)), 1)


@click.command("exit-codes")
@output_options
def exit_codes(output: Output) -> int:
    """
    List the exit codes of all commands.

    \b
    Examples:
      leasehold exit-codes
      leasehold cancel invoice-42 --epoch 7; echo $?
    """
    rows = [{"code": one.code, "meaning": one.meaning} for one in CODES]
    if output.is_for_programs or output.fields:
        show_rows(rows, ("code", "meaning"), output, empty="")
        return 0
    for one in CODES:
        click.echo(f"{one.code:>3}  {one.meaning}")
    return 0
