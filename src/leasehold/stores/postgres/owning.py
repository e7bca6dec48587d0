"""
The verbs of owners that may take long: batches of which some items wait for a lock, and writes whose reply was lost.

A write whose reply was lost is asked again. The job may have been taken over between the two calls: then the second one
is refused, and the first may have been accepted. Where the record shows which it was, that is the answer; else the
outcome is not known.

A progress report leaves no such record: the value that is there may have been there before, and one that is not there
may have been replaced by the next owner.

A settlement needs none of this: the server recognises a repeated one by its record. Nor do renewals and checks: a
refusal there is a lost lease, and an owner that took it for unknown would go on working.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...core.effects import Effect
from ...core.job import Added, Job, NewJob, Progress, Settlement
from ...core.ownership import Ownership
from ...errors import LeaseholdError, StaleEpoch, StoreUnavailable, UnknownJob
from ...store import Refusal, Renewal
from .database import Database
from .errors import NOTHING, sqlstate_of
from .rows import as_json, completions, refusal_of, settlement_json

T = TypeVar("T")

BATCH_PATIENCE_MS = 200  # of a batch, with another transaction's lock; then it is split, and only what collides waits
PATIENCE_MS = 10_000  # of a call about a single job


class Batches:
    """Checks, renewals, progress reports and settlements, many at once."""

    def __init__(self, database: Database, now: Callable[[], int | None], *, trace: bool) -> None:
        self._database = database
        self._now = now
        self._trace = trace

    def check(self, holders: Sequence[tuple[str, int]]) -> list[Refusal | None]:
        """Return for each holder None if it is current, else its refusal."""
        items = as_json([{"id": job_id, "epoch": epoch} for job_id, epoch in holders])
        rows = self._database.call("check_holders", items, self._now(), again=True)
        refused = {number: facts for number, _, facts in rows}
        return [
            refusal_of(job_id, epoch, "check", refused[number]) if number in refused else None
            for number, (job_id, epoch) in enumerate(holders, 1)
        ]

    def renew(self, renewals: Sequence[Renewal]) -> list[int | Refusal]:
        """
        Return the new deadlines.

        A lease whose row another transaction has locked is passed over, and asked for again once the others are
        renewed. If it is still locked then, `StoreUnavailable` is raised: the others are renewed all the same.
        """
        reply = self.renew_part(renewals, wait=False)
        locked = [number for number, value in enumerate(reply) if value is None]
        if locked:
            waited = in_parts(
                [renewals[number] for number in locked],
                lambda part, ms: self.renew_part(part, wait=True, patience_ms=ms),
            )
            for number, value in zip(locked, waited, strict=True):
                reply[number] = value
        return [value for value in reply if value is not None]

    def renew_part(
        self, renewals: Sequence[Renewal], *, wait: bool, patience_ms: int | None = None
    ) -> list[int | Refusal | None]:
        """Return the new deadlines; None for a lease whose row is locked, unless it is waited for."""
        items = as_json([{"id": job_id, "epoch": epoch, "lease_us": us} for job_id, epoch, us in renewals])
        # Without the wait for rows there is nothing to split: what is left to wait for concerns the table, or a COMMIT
        # that notifies, of which the server lets in one at a time.
        patience_ms = patience_ms or PATIENCE_MS
        rows = self._database.call("renew", items, wait, patience_ms, self._trace, self._now(), again=True)
        return [
            at if refused is None else refusal_of(renewal.job_id, renewal.epoch, "renew", refused)
            for (_, at, refused), renewal in zip(rows, renewals, strict=True)
        ]

    def progress(self, reports: Sequence[Progress], patience_ms: int) -> list[Refusal | None]:
        """Record a part of the reports."""
        items = as_json(
            [
                {"id": job_id, "epoch": epoch, "fraction": fraction, "note": note, "checkpoint": checkpoint}
                for job_id, epoch, fraction, note, checkpoint in reports
            ]
        )
        rows, lost = self._database.call_again("progress", items, patience_ms, self._trace, self._now())
        reply: list[Refusal | None] = [None] * len(reports)
        for number, _, refused in rows:
            report = reports[number - 1]
            refusal = refusal_of(report.job_id, report.epoch, "progress", refused)
            if lost and isinstance(refusal, StaleEpoch):
                raise unknown(refusal)
            reply[number - 1] = refusal
        return reply

    def settle(self, settlements: Sequence[Settlement], patience_ms: int) -> list[Refusal | None]:
        """Settle a part of the leases."""
        call, now = self._database.call, self._now()
        left = list(range(len(settlements)))
        if not self._trace and (plain := completions(settlements)) is not None:
            [(done,)] = call("complete", *plain, patience_ms, now, again=True)
            if done is None:
                return [None] * len(settlements)
            done = set(done)
            left = [number for number in left if number + 1 not in done]
        # What is not plain, or not as it should be: one by one.
        reply: list[Refusal | None] = [None] * len(settlements)
        items = as_json([settlement_json(settlements[number]) for number in left])
        for number, _, refused in call("settle", items, patience_ms, self._trace, now, again=True):
            one = settlements[left[number - 1]]
            reply[left[number - 1]] = refusal_of(one.job_id, one.epoch, one.outcome.value, refused)
        return reply


def in_parts(items: Sequence[Any], verb: Callable[[Sequence[Any], int], list[T]]) -> list[T]:
    """
    Run *verb* over *items*, in ever smaller parts as long as one waits for another transaction's lock.

    The items that collide come last, one by one, with more patience. If that takes too long, `StoreUnavailable` is
    raised, and the others are done: to repeat the call is safe (C27).
    """
    reply: dict[int, T] = {}
    parts, late = [range(len(items))], list[range]()
    failure: StoreUnavailable | None = None
    while parts or late:
        patience_ms = BATCH_PATIENCE_MS if parts and len(items) > 1 else PATIENCE_MS
        part = parts.pop() if parts else late.pop(0)
        try:
            if len(part) == len(items):
                return verb(items, patience_ms) if items else []
            answers = verb([items[number] for number in part], patience_ms)
        except StoreUnavailable as error:
            if sqlstate_of(error.__cause__) != "55P03":
                raise _of_a_part(error, len(reply), len(items)) from error.__cause__
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif patience_ms == PATIENCE_MS:
                failure = error
            else:
                late.append(part)
            continue
        reply.update(zip(part, answers, strict=True))
    if failure is not None:
        raise _of_a_part(failure, len(reply), len(items)) from failure.__cause__
    return [reply[number] for number in range(len(items))]


def _of_a_part(error: StoreUnavailable, done: int, count: int) -> StoreUnavailable:
    """Return *error*, which speaks of a part of a batch, for the whole of it."""
    if not done:
        return error
    why = str(error).replace(f" {NOTHING}", "")  # true of that part alone
    return StoreUnavailable(
        f"{done} of {count} items are done; the outcome of the others is not known: {why} It is safe to repeat the "
        "whole call.",
        outcome_unknown=True,
    )


# Writes whose reply was lost


def unknown(refusal: StaleEpoch) -> StoreUnavailable:
    """Return the error of a write that was refused, after a first call that may have been accepted."""
    # Without the refusal as its cause: `StaleEpoch.find` would take it for what happened.
    error = StoreUnavailable(
        "the reply to this call was lost. The call was repeated and refused, since another owner had taken over the "
        f"job meanwhile. The first call may or may not have taken effect before that. ({refusal})",
        outcome_unknown=True,
    )
    error.is_stale = True
    return error


def added(jobs: Sequence[NewJob], answer: list[Added]) -> list[Added]:
    """Return the answer to an add that was asked again, or raise what it leaves open."""
    # All of them are added in one step. So if one is new now, the first call has not made any.
    if any(one.created for one in answer):
        return answer
    found = [one.job.id for job, one in zip(jobs, answer, strict=True) if one.job.id == job.id]
    if not found:
        return answer  # each unique key is another job's, whichever call is asked
    rest = len(answer) - len(found)
    raise StoreUnavailable(
        f"the reply to this add was lost. The store now has {len(found)} of its {len(answer)} jobs (the first is "
        f"{found[0]!r}), each once; they may have been added by this call or by an earlier one."
        + (f" The other {rest} were not added, since other jobs have their unique keys." if rest else "")
        + " It is safe to repeat the call.",
        outcome_unknown=True,
    )


def children(
    refusal: StaleEpoch,
    jobs: Sequence[NewJob],
    job: Callable[[str], Job],
    ownerships: Callable[[str], list[Ownership]],
) -> list[Added]:
    """Return the children if the first call has added them; else raise the refusal, which then is all that happened."""
    # A child is added with its siblings or not at all, and stays as long as its parent is unfinished.
    try:
        there = [job(child.id) for child in jobs]
        held = next(one for one in ownerships(str(refusal.job_id)) if one.epoch == refusal.presented)
    except UnknownJob:
        raise refusal from None
    except (LeaseholdError, StopIteration):
        raise unknown(refusal) from None
    return [Added(child, child.created_us >= held.granted_us) for child in there]


def concluded(refusal: StaleEpoch, name: str, outcome: str | None, effects: Callable[[str], list[Effect]]) -> None:
    """Return if the record has the outcome of an effect; raise the refusal if it has the bare intent of this epoch."""
    try:
        found = next((effect for effect in effects(str(refusal.job_id)) if effect.name == name), None)
    except LeaseholdError:
        raise unknown(refusal) from None
    if (found is None and outcome is None) or (found is not None and found.known and found.outcome == outcome):
        return
    if found is not None and not found.known and found.epoch == refusal.presented:
        raise refusal
    raise unknown(refusal)
