"""
What a write has come to whose reply was lost, and which was answered otherwise when it was asked again.

The job may have been taken over between the two calls: then the second one is refused, and the first may have been
accepted. Where the record shows which it was, that is the answer; else the outcome is not known.

A progress report leaves no such record: the value that is there may have been there before, and one that is not there
may have been replaced by the next owner.

A settlement needs none of this: the server recognises a repeated one by its record. Nor do renewals and checks: a
refusal there is a lost lease, and an owner that took it for unknown would go on working.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.job import Added, Effect, Job, NewJob
from ...core.ownership import Ownership
from ...errors import LeaseholdError, StaleEpoch, StoreUnavailable, UnknownJob


def unknown(refusal: StaleEpoch) -> StoreUnavailable:
    """Return the error of a write that was refused, after a first call that may have been accepted."""
    # Without the refusal as its cause: `StaleEpoch.find` would take it for what happened.
    error = StoreUnavailable(
        "the reply to this call was lost, and asked again the store refused it: the job was taken over meanwhile. "
        f"Whether the first call came before that is not known, so it may or may not have happened. ({refusal})",
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
        f"the reply to this add was lost, and asked again the store has {len(found)} of its {len(answer)} jobs "
        f"({found[0]!r} first), once. Whether this call added them or an earlier one is not known."
        + (f" The unique keys of the other {rest} belong to other jobs: these were not added." if rest else "")
        + " To add them again is harmless.",
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
