"""What the functions in the server answer when they have not done what was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.job import Added, NewJob, Status
from ...core.lifecycle import Verb, after, lock_held, no_effect, only_its_id, unique_taken
from ...core.workers import several_workers
from ...errors import Conflict
from .rows import Row, add_refusal, added, refusal_of


def admitted_children(job_id: str, epoch: int, jobs: Sequence[NewJob], rows: list[Row]) -> list[Added]:
    """Return the answer to an add of children, or raise its refusal."""
    if (refused := add_refusal(rows)) is not None:
        raise refusal_of(job_id, epoch, "add", refused)
    return added(jobs, rows)


def why_not(job_id: str, epoch: int, verb: str, answer: str, *, name: str = "") -> Exception:
    """Return why a verb was not done, from the function's answer."""
    facts = json.loads(answer)
    if "status" in facts:
        try:
            after(Verb(verb), Status(facts["status"]), job_id)
        except Conflict as refused:
            return refused
    if "narrow" in facts:
        return only_its_id(job_id, verb)
    if "lock" in facts:
        return lock_held(job_id, facts["lock"], facts["holder"], facts["epoch"])
    if "unique" in facts:
        return unique_taken(job_id, facts["unique"], facts["holder"])
    if "workers" in facts:
        return several_workers(job_id, facts["to"], facts["workers"])
    if "begun" in facts:
        return no_effect(job_id, name)
    if "known" in facts:
        return Conflict(f"effect {name!r} of job {job_id!r} is not in doubt: its outcome is recorded.")
    return refusal_of(job_id, epoch, str(verb), answer)
