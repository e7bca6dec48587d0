"""The commands that move jobs: each needs the epoch that the operator saw, or breaks the glass and says why."""

from __future__ import annotations

import functools
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from .. import Job, Router, StaleEpoch
from ..core.job import Status
from ..core.ownership import Note, NoteKind
from ..core.search import Search
from ..core.wording import counted
from ..router.bulk import Action, BulkOutcome, matching
from ..views import JOB_FIELDS, Views
from .asking import agrees, asked, can_ask, declined, yes_option
from .completion import job_ids, owner_names
from .finding import filter_options, has_filter, nothing_fits
from .jobs import SPARE, classed, worded
from .output import Output, cell, output_options, show_one, show_rows, show_sentence
from .target import Target, actor_option, parsed_json, target_options

F = TypeVar("F", bound=Callable[..., Any])

REFUSED = 3  # the epoch has moved
CONFLICT = 4  # a job's state forbids it
UNSEALED = 1  # it was done, and guarded keys could not be reached: the owner may still write to them
_SHOWN = 10
_TASKS = 6  # of a preview, by their number of jobs
_TRIES = 100  # of a verb behind broken glass: a job that moves more often than this is not one to act upon
_NOT_MOVES = frozenset({"refused", "alarm", "guarded", "doubted", "sealed", "unsealed", "break-glass"})
_TAKES: dict[Action, tuple[tuple[Status, ...], str]] = {
    "cancel": ((Status.PENDING, Status.RUNNING), "pending or running jobs"),
    "replay": ((Status.DONE, Status.FAILED, Status.CANCELLED), "finished jobs (done, failed or cancelled)"),
    "requeue": ((Status.RUNNING,), "running jobs"),
    "prune": ((Status.DONE, Status.FAILED, Status.CANCELLED), "finished jobs (done, failed or cancelled)"),
}
_PAST: dict[Action, str] = {"cancel": "cancelled", "replay": "replayed", "requeue": "requeued", "prune": "pruned"}
_PREVIEW = ("id", "status", "task", "queue", "epoch", "owner", "error")


def _fenced(command: F) -> F:
    """Give *command* the options of a verb that moves one job."""

    @click.option(
        "--epoch",
        type=int,
        metavar="N",
        help="Act only if the job is still at this epoch, which `leasehold show ID` prints.",
    )
    @click.option("--note", metavar="TEXT", help="The reason, recorded in the job's history.")
    @click.option(
        "--break-glass",
        is_flag=True,
        help="Act regardless of the job's current epoch. Needs --reason; both are recorded.",
    )
    @click.option(
        "--reason", metavar="TEXT", help="Why --break-glass is needed. On a terminal, the command prompts for it."
    )
    @yes_option
    @functools.wraps(command)
    def wrapped(**options: Any) -> Any:
        return command(**options)

    return wrapped  # type: ignore[return-value]  # the same command with more options


@contextmanager
def _logged_once() -> Iterator[set[str]]:
    """Hold back what the library logs, and print it at the end, without what the block has taken from the set."""
    log, messages = logging.getLogger("leasehold"), _Messages(logging.WARNING)
    passes, log.propagate = log.propagate, False
    log.addHandler(messages)
    try:
        yield messages.found
    finally:
        log.removeHandler(messages)
        log.propagate = passes
        for message in sorted(messages.found):
            click.echo(f"leasehold: {message}", err=True)


class _Messages(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.found: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.found.add(record.getMessage())


class _Attempt:
    """One verb on one job, under the epoch that the operator saw."""

    def __init__(
        self,
        target: Target,
        output: Output,
        by: str,
        epoch: int | None,
        note: str | None,
        break_glass: bool,
        reason: str | None,
        yes: bool,
    ) -> None:
        if break_glass and not reason and can_ask(yes):
            reason = asked("Why is --break-glass needed? The reason is shown in the job's history")
        if break_glass and not reason:
            raise click.UsageError("--break-glass needs --reason TEXT: it is shown in the job's history.")
        if break_glass and epoch is not None:
            raise click.UsageError("--break-glass reads the epoch itself: leave out --epoch.")
        self.target, self.output, self.by = target, output, by
        self.epoch, self.break_glass, self.reason = epoch, break_glass, reason
        self.asks = can_ask(yes)
        self.note = f"break-glass: {reason}" if break_glass else note

    def run(self, id: str, act: Callable[[Router, int], Job | None]) -> int:
        """Do it, and print the job afterwards; without an epoch, print the job and the command to repeat."""
        with self.target.open() as router, _logged_once() as messages:
            views = Views(router)
            try:
                if self.break_glass:
                    self._break_glass(router, id, act)
                elif self.epoch is not None:
                    act(router, self.epoch)
                else:
                    seen = self._show(router, views, id)
                    if not self.asks:
                        return _say_how_to_repeat(seen)
                    if not agrees(f"{_verb().capitalize()} it?"):
                        return declined()
                    act(router, seen)
            except StaleEpoch as refusal:
                messages.discard(str(refusal))  # an alarm is logged as well as raised
                for line in _moves(views, id, refusal.presented, self.output):
                    refusal.add_note(line)
                raise
            facts = views.short(router.job(id))
            unsealed = self._ended.unsealed if isinstance(self._ended, Job) else ()
            if unsealed:
                messages.clear()  # the library logs it too
        if unsealed:
            facts["unsealed"] = list(unsealed)
            _warn_of_unsealed(id, unsealed)
        show_one(facts, self.output)
        return UNSEALED if unsealed else 0

    _ended: Job | None = None

    def ended(self, job: Job) -> Job:
        """Remember what a verb returned: it names the keys that could not be sealed."""
        self._ended = job
        return job

    def _break_glass(self, router: Router, id: str, act: Callable[[Router, int], Job | None]) -> None:
        for left in reversed(range(_TRIES)):
            seen = router.job(id).epoch
            try:
                act(router, seen)
                break
            except StaleEpoch:
                if not left:
                    raise
        facts = {"verb": _verb(), "by": self.by, "reason": self.reason, "seen": seen}
        router.store.record(Note(NoteKind.BREAK_GLASS, id, router.job(id).epoch, None, facts))

    def _show(self, router: Router, views: Views, id: str) -> int:
        """Print the job as it is now, and return the epoch that the operator sees with it."""
        job = router.job(id)
        show_one({**views.short(job), "explanation": router.explain(job)}, self.output)
        return job.epoch


def _say_how_to_repeat(epoch: int) -> int:
    again = shlex.join([*arguments(), "--epoch", str(epoch)])
    click.echo(f"Nothing was done. If this is the state that you mean to change, run:\n  {again}", err=True)
    return 2


def _verb() -> str:
    return click.get_current_context().info_name or ""


def _warn_of_unsealed(job_id: str, keys: Sequence[str]) -> None:
    click.echo(
        f"leasehold: these guarded keys of job {job_id!r} could not be reached: {', '.join(keys)}. Try again: "
        f"leasehold guard seal {shlex.quote(job_id)} --app MODULE:ROUTER",
        err=True,
    )


def _moves(views: Views, id: str, seen: int, output: Output) -> list[str]:
    """Return what has moved the job since the epoch *seen*, as the record has it, and how to see what it is now."""
    since = [row for row in views.history(id) if (row["epoch"] or 0) > seen and row["kind"] not in _NOT_MOVES]
    if not since:
        return []
    # An operator's event says who and why; of a plain claim there is only the ownership.
    first = min(since, key=lambda row: (row["epoch"], row["kind"] == "ownership"))
    at = cell("at", first["at"], utc=output.utc)
    if first["kind"] == "ownership":
        what = f"{first['owner']!r} got the job at {at}, by {first['began']}"
    else:
        what = f"{first['kind']} at {at}: {worded(first, output)}"
    return [f"The first change since that epoch: {what}.", f"All changes: leasehold history {shlex.quote(id)}"]


def arguments() -> list[str]:
    """Return the command as it was typed."""
    return ["leasehold", *sys.argv[1:]]


# One job


@click.command()
@click.argument("id", shell_complete=job_ids)
@click.option(
    "--to",
    required=True,
    metavar="NAME",
    shell_complete=owner_names,
    help="The new owner: the name of a worker, or any other name.",
)
@_fenced
@actor_option
@target_options
@output_options
def transfer(target: Target, output: Output, by: str, id: str, to: str, **fence: Any) -> int:
    """
    Give the job ID to another owner, under a new epoch. Its previous owner is refused from then on.

    \b
    Examples:
      leasehold transfer invoice-42 --to worker-2 --epoch 1794776400000007
      leasehold transfer invoice-42 --to worker-2 --break-glass \\
          --reason "worker-1 is unreachable"
    """
    attempt = _Attempt(target, output, by, **fence)

    def act(router: Router, epoch: int) -> None:
        router.transfer(id, to=to, epoch=epoch, by=by, note=attempt.note)

    return attempt.run(id, act)


@click.command()
@click.argument("id", shell_complete=job_ids)
@click.option("--result", metavar="JSON", help="The result of the job.")
@_fenced
@actor_option
@target_options
@output_options
def complete(target: Target, output: Output, by: str, id: str, result: str | None, **fence: Any) -> int:
    """
    Complete the job ID by hand. Its owner, if any, is refused from then on.

    \b
    Example:
      leasehold complete invoice-42 --epoch 1794776400000007 \\
          --result '{"paid": true}'
    """
    attempt = _Attempt(target, output, by, **fence)
    value = None if result is None else parsed_json(result, "--result")

    def act(router: Router, epoch: int) -> Job:
        return attempt.ended(router.complete(id, epoch=epoch, by=by, note=attempt.note, result=value))

    return attempt.run(id, act)


@click.command()
@click.argument("id", shell_complete=job_ids)
@click.argument("effect")
@click.option("--outcome", metavar="JSON", help="What the effect returned.")
@click.option("--did-not-happen", is_flag=True, help="The effect did not happen; the next owner performs it.")
@_fenced
@actor_option
@target_options
@output_options
def resolve(
    target: Target,
    output: Output,
    by: str,
    id: str,
    effect: str,
    outcome: str | None,
    did_not_happen: bool,
    **fence: Any,
) -> int:
    """
    Record the outcome of an effect in doubt: the EFFECT of the job ID.

    \b
    Examples:
      leasehold resolve invoice-42 charge --epoch 1794776400000007 \\
          --outcome '"ch_1"'
      leasehold resolve invoice-42 charge --epoch 1794776400000007 \\
          --did-not-happen
    """
    if (outcome is None) != did_not_happen:
        raise click.UsageError("say how the effect ended: pass either --outcome JSON or --did-not-happen.")
    attempt = _Attempt(target, output, by, **fence)
    value = None if outcome is None else parsed_json(outcome, "--outcome")

    def act(router: Router, epoch: int) -> Job:
        happened = not did_not_happen
        return router.resolve(id, effect, epoch=epoch, by=by, note=attempt.note, outcome=value, happened=happened)

    return attempt.run(id, act)


# One job, or all that fit


def _one_or_many(verb: Action, text: str) -> click.Command:
    @click.command(verb, help=text)
    @click.argument("id", required=False, shell_complete=job_ids)
    @filter_options
    @click.option("--apply", is_flag=True, help="Act on all matching jobs. Without --apply they are only counted.")
    @click.option("--expect", type=int, metavar="N", help="With --apply: act only if exactly N jobs match.")
    @_fenced
    @actor_option
    @target_options
    @output_options
    def command(
        target: Target,
        output: Output,
        by: str,
        id: str | None,
        wanted: Search,
        apply: bool,
        expect: int | None,
        **fence: Any,
    ) -> int:
        if id is not None:
            if has_filter(wanted) or apply or expect is not None:
                raise click.UsageError("pass either the ID of one job, or filters with --apply and --expect, not both.")
            attempt = _Attempt(target, output, by, **fence)

            def act(router: Router, epoch: int) -> Job:
                done: Job = getattr(router, verb)(id, epoch=epoch, by=by, note=attempt.note)
                return attempt.ended(done)

            return attempt.run(id, act)
        if not has_filter(wanted):
            raise click.UsageError("pass the ID of a job, or filters such as --status failed --queue mail.")
        if fence["break_glass"] or fence["epoch"] is not None:
            raise click.UsageError(
                "--epoch and --break-glass need the ID of one job. With filters, each job is changed only if it still "
                "has the epoch that was just read."
            )
        return do_to_many(target, output, verb, wanted, apply, expect, fence["yes"], by, fence["note"], arguments())

    return command


def do_to_many(
    target: Target,
    output: Output,
    verb: Action,
    wanted: Search,
    apply: bool,
    expect: int | None,
    yes: bool,
    by: str,
    note: str | None,
    typed: Sequence[str],
) -> int:
    """Do *verb* to the jobs that fit; without *apply*, print the first of them and how to repeat what was *typed*."""
    _check_status(verb, wanted.status)
    with target.open() as router:
        if not apply:
            _preview(router, output, wanted, verb, typed)
            return 0
        if expect is None and can_ask(yes):
            expect = _preview(router, output, wanted)
            if not expect:
                return 0
            if not agrees(f"{verb.capitalize()} {counted(expect, 'job', 'jobs')}?"):
                return declined()
        return _apply(router, output, verb, wanted, expect, by, note)


def _check_status(verb: Action, status: Status | None) -> None:
    """Refuse a status whose jobs *verb* is never done to, with the verb for them."""
    takes, named = _TAKES[verb]
    if status is None or status in takes:
        return
    if verb == "prune":
        instead = f"{status.value} jobs have not ended. To end them first: leasehold cancel --status {status.value}"
    elif status is Status.PENDING:
        instead = "pending jobs are already waiting to be claimed. To see why one does not run: leasehold explain ID"
    elif verb == "cancel":
        instead = f"{status.value} jobs have already ended. To list them: leasehold jobs --status {status.value}"
    else:
        other = "requeue" if status is Status.RUNNING else "replay"
        instead = f"for {status.value} jobs, use: leasehold {other} --status {status.value}"
    raise click.UsageError(f"{verb} takes only {named}; {instead}")


def _preview(
    router: Router, output: Output, wanted: Search, verb: Action | None = None, typed: Sequence[str] = ()
) -> int:
    """Print the first jobs that fit, and with *verb* the command that does it; return how many fit."""
    views, count, tasks = Views(router), 0, Counter[str]()
    first: list[dict[str, Any]] = []
    for job in matching(router, wanted):
        count += 1
        tasks[job.task or "(no task)"] += 1
        if len(first) < _SHOWN:
            first.append(views.short(job))
    show_rows(
        classed(first, output),
        _PREVIEW,
        output,
        empty=nothing_fits(router, wanted),
        known=JOB_FIELDS,
        spare=SPARE,
        count=count,
        applied=False,
        tasks=dict(tasks.most_common()),
    )
    if not count or output.is_for_programs:
        return count
    by_task = ", ".join(f"{task} {number}" for task, number in tasks.most_common(_TASKS))
    others = f", {counted(len(tasks) - _TASKS, 'other task', 'other tasks')}" if len(tasks) > _TASKS else ""
    more = f" The first {_SHOWN} are above." if count > _SHOWN else ""
    click.echo(f"{counted(count, 'job matches', 'jobs match')}: {by_task}{others}.{more}", err=True)
    if verb is not None:
        again = shlex.join([*typed, "--apply", "--expect", str(count)])
        click.echo(f"Nothing was done. To {verb} {'it' if count == 1 else 'them'}:\n  {again}", err=True)
    return count


def _apply(
    router: Router, output: Output, verb: Action, wanted: Search, expect: int | None, by: str, note: str | None
) -> int:
    if expect is None:
        raise click.UsageError(
            "--apply needs --expect N, the number of matching jobs: run the command without --apply to see it."
        )
    with click.progressbar(length=expect, label=verb, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        outcome = router.bulk(verb, wanted, expect=expect, by=by, note=note, on_each=lambda _: bar.update(1))
    _show_outcome(outcome, output)
    if outcome.refused:
        return REFUSED
    if outcome.moved:
        return CONFLICT
    return UNSEALED if outcome.unsealed else 0


def _show_outcome(outcome: BulkOutcome, output: Output) -> None:
    moved = [{"id": one.id, "why": one.why} for one in outcome.moved]
    left = f", {counted(len(moved), 'was left alone', 'were left alone')}:" if moved else ""
    lines = [f"{outcome.done} {_PAST[outcome.verb]}{left}"]
    lines += [f"  {one['id']}: {one['why']}" for one in moved]
    facts = {"verb": outcome.verb, "done": outcome.done, "moved": moved, "unsealed": dict(outcome.unsealed)}
    show_sentence(facts, "\n".join(lines), output)
    for job_id, keys in outcome.unsealed.items():
        _warn_of_unsealed(job_id, keys)


cancel = _one_or_many(
    "cancel",
    """
    Cancel the job ID, or all matching jobs. Their owners are refused from then on.

    Guarded keys of the job are sealed too, if --app names the application that has the guards. Otherwise the exit code
    is 1, and the last owner may write to them until you run `leasehold guard seal`.

    Without ID, filters select the jobs. The first call only counts them, and prints the command that cancels them.

    \b
    Examples:
      leasehold cancel invoice-42 --epoch 1794776400000007 --note "entered twice"
      leasehold cancel invoice-42 --epoch 1794776400000007 --app app:router
      leasehold cancel --queue imports --status pending
      leasehold cancel --queue imports --status pending --apply --expect 812
    """,
)
replay = _one_or_many(
    "replay",
    """
    Make the finished job ID, or all matching ones, pending again: due now, with new budgets.

    Without ID, filters select the jobs. The first call only counts them, and prints the command that replays them.

    \b
    Examples:
      leasehold replay invoice-42 --epoch 1794776400000007
      leasehold replay --status failed --error-type ConnectionError --since 2h
      leasehold replay --status failed --error-type ConnectionError --since 2h \\
          --apply --expect 31
    """,
)
requeue = _one_or_many(
    "requeue",
    """
    Take the running job ID, or all matching ones, from their owners and put them back to be claimed, due now.

    No budget is spent. Without ID, filters select the jobs. The first call only counts them.

    \b
    Examples:
      leasehold requeue invoice-42 --epoch 1794776400000007
      leasehold requeue --owner worker-7 --status running --apply --expect 4
    """,
)
