"""Values to the JSON that the functions take, and their rows back to values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from ...core.job import Added, Grant, NewJob, Outcome, Settlement, Status, new_state
from ...core.lifecycle import ending
from ...core.options import encode
from ...core.ownership import Ending, Event, Ownership, Process, Reason
from ...errors import Settled, StaleEpoch, UnknownJob
from ...store import Refusal
from ..rows import REASONS, job_of, spec_of

Row = Sequence[Any]

_SHORT = 200  # of what is remembered: many jobs have the same, and a checkpoint may be a megabyte
_COMPLETE = Outcome.COMPLETE  # in Python 3.11 an enum's member is found through its metaclass, ten times slower
# How the answer of a function that nests a job or a lease is selected; of any other, as it is.
_FOUND = "f.ord, f.now, f.refusal, (f.job).*"
_MOVED = "f.answer, f.fenced, (f.job).*"
_ANSWERS = {
    "add": _FOUND,
    "add_children": _FOUND,
    "fence_children": _FOUND,
    "override": _MOVED,
    "resolve": _MOVED,
    "transfer": "f.answer, f.fenced, (f.lease).*",
}


def as_json(value: object) -> str:
    """Return *value* as JSON; names and documents in it are strings like any other."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# What the functions take


def wishes(jobs: Sequence[NewJob]) -> list[dict[str, Any]]:
    """Return *jobs* as the type `wish` has them."""
    return [_wish(job) for job in jobs]


def _wish(job: NewJob) -> dict[str, Any]:
    wish = {
        "id": job.id,
        "payload": job.document,
        "queue": job.queue,
        "priority": job.priority,
        "delay": job.delay_us,
        "max_errors": job.retry.max_errors,
        "max_reclaims": job.retry.max_reclaims,
    }
    for name, value in (
        ("task", job.task),
        ("run_at", job.run_us),
        ("lock", job.lock),
        ("unique_key", job.unique),
        ("lease_us", job.lease_us),
        ("stall_us", job.stall_us),
        ("start_within_us", job.start_within_us),
        ("parent", job.parent),
        ("options", encode(job.options)),
        ("meta", job.meta),
    ):
        if value is not None:
            wish[name] = value
    if not job.chosen:
        wish["chosen"] = False
    return wish


def alike(jobs: Sequence[NewJob]) -> tuple[Any, ...] | None:
    """Return what the function `add_alike` takes, or None if more than ids and payloads differ."""
    if not jobs:
        return None
    first = jobs[0]
    rest = first[2:]  # everything behind the id and the payload
    if first.unique is not None or first.start_within_us is not None or any(job[2:] != rest for job in jobs):
        return None
    return array([job.id for job in jobs]), array([job.document for job in jobs]), as_json(_wish(first.like("", "")))


def settlement(said: Settlement) -> dict[str, Any]:
    """Return *said* as the functions `settle` and `at_commit` read it."""
    item: dict[str, Any] = {
        "id": said.job_id,
        "epoch": said.epoch,
        "outcome": said.outcome.value,
        "result": said.result,
        "said": said.fingerprint(),
    }
    if said.outcome is not Outcome.COMPLETE:
        item |= {"error": said.error, "retry": said.retry, "delay": said.delay_us}
    if said.then:
        item["then"] = wishes(said.then)
    return item


def completions(settlements: Sequence[Settlement]) -> tuple[str, str, str | None, str | None] | None:
    """Return what the function `complete` takes, or None if there is more to say than that different jobs are done."""
    count = len(settlements)
    # By columns: a look at each settlement would take as long as the driver does over the whole call.
    ids, epochs, outcomes, results, followed_by, *_ = zip(*settlements, strict=True)
    if outcomes.count(_COMPLETE) < count or followed_by.count(()) < count or len(set(ids)) < count:
        return None
    plain = array(ids), numbers(epochs)
    if results.count("null") == count:
        return *plain, None, None
    if None in results:
        return None
    return *plain, array(results), array([said.fingerprint() for said in settlements])


def array(texts: Sequence[str]) -> str:
    """Return *texts* as PostgreSQL writes an array of them."""
    # Escaped as a whole: a tenth of what it costs to hand the driver a list.
    return '{"' + "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


@lru_cache(maxsize=64)
def array_of(names: tuple[str, ...]) -> str:
    """Return *names*, of queues or tasks, likewise: each claim of a worker has the same."""
    return array(names) if names else "{}"


def numbers(values: Iterable[int]) -> str:
    """Return *values* likewise."""
    return "{" + str(list(values))[1:-1] + "}"


def places(floors: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return floors as the function `claim` takes them."""
    if floors is None:
        return (None,) * 7
    lowered, swept, freed, queues, *rest = floors
    return lowered, swept, freed, array(queues), *map(numbers, rest)


# What they answer


def answer(function: str) -> str:
    """Return what to select from a call of *function*, which is called f there."""
    return _ANSWERS.get(function, "f.*")


def told(row: Row, lent: Sequence[Any] | None) -> list[Any]:
    """Return what a claim with the floors that it was *lent* tells of all grants (see the function `claim`)."""
    said: list[Any] = json.loads(row[0])
    if len(said) == 5:  # by `claim_next`
        assert lent is not None
        now, swept, rank, run_at, seq = said
        return [now, None, False, False, None, [lent[0], swept, *lent[2:4], [rank], [run_at], [seq]]]
    return said


def granted(
    row: Row,
    owner: str,
    *,
    claim_id: str | None,
    process: Process | None,
    now: int,
    lease_us: int | None,
    default_us: int,
) -> list[Grant]:
    """Return the grants of a row of the function `claim`, which leaves out what the caller has said itself."""
    _, epochs, ids, documents, tasks, queues, others = row
    if epochs is None:
        return []
    usual = lease_us or default_us
    mostly = Reason.CLAIM, 0, 0, None, claim_id, process, now, now + usual, usual  # of a Grant's, behind the owner
    grants = []
    for epoch, id_, document, task, queue, other in zip(
        epochs, ids, documents, tasks or repeat(None), queues or repeat("default"), others or repeat(None), strict=False
    ):
        if other is None:
            spec = NewJob(id_, document, task, queue)
            grants.append(Grant(spec, epoch, owner, *mostly))
            continue
        reason, attempt, errors, checkpoint, rest = _short(other) if len(other) <= _SHORT else _others(other)
        spec = NewJob(id_, document, task, queue, *rest)
        lasts = lease_us or spec.lease_us or default_us
        held = reason, attempt, errors, checkpoint, claim_id, process, now, now + lasts, lasts
        grants.append(Grant(spec, epoch, owner, *held))
    return grants


def _others(document: str) -> tuple[Reason, int, int, str | None, tuple[Any, ...]]:
    """Return what the column `others` has: of a grant, and the fields of a NewJob behind its queue."""
    reason, attempt, errors, checkpoint, *rest = json.loads(document)
    return REASONS[reason], attempt, errors, checkpoint, spec_of(("", "", None, "", *rest))[4:]


_short = lru_cache(maxsize=1024)(_others)


def taken_back(row: Row) -> Ownership:
    """Return the ownership that a sweep has ended."""
    job_id, epoch, owner, began, *rest, _ = row
    return Ownership(job_id, epoch, owner, REASONS[began], *rest)


def ownership_of(job_id: str, row: Row) -> Ownership:
    """Return an ownership of a row of the statement `ownerships`."""
    epoch, owner, began, ended, granted, expires, by, at, note, _ = row
    return Ownership(job_id, epoch, owner, REASONS[began], granted, expires, ended, at, by, note)


def event_of(row: Row) -> Event:
    """Return an event."""
    number, at, kind, job_id, epoch, owner, facts = row
    return Event(number, at, kind, job_id, epoch, owner, json.loads(facts))


def added(jobs: Sequence[NewJob], rows: Sequence[Row]) -> list[Added]:
    """Return the answer to an add, from the rows of the function `keep`: what is not among them is new."""
    first, *rest = rows  # of number 0
    now = first[1]
    found = {number: job_of(job) for number, _, _, *job in rest}
    return [
        Added(found[number], False) if number in found else Added(new_state(job, now), True)
        for number, job in enumerate(jobs, 1)
    ]


def add_refusal(rows: Sequence[Row]) -> str | None:
    """Return why an add of children was refused, from the same rows; None if it was not."""
    _, _, refusal, *_ = rows[0]
    return refusal  # type: ignore[no-any-return]  # a text


def refusal_of(job_id: str, epoch: int, verb: str, said: str) -> Refusal:
    """Return the refusal that the function `refusal` describes."""
    facts = json.loads(said)
    return UnknownJob(job_id) if "unknown" in facts else stale_epoch(job_id, epoch, verb, facts)


def stale_epoch(job_id: str, epoch: int, verb: str, facts: Mapping[str, Any]) -> StaleEpoch:
    """Return the refusal with these *facts*, from the function `refusal`."""
    reason, how = facts.get("reason"), facts.get("ending")
    return (Settled if facts["settled"] else StaleEpoch).of_job(
        job_id,
        presented=epoch,
        current=facts["current"],
        owner=facts.get("owner"),
        reason=None if reason is None else REASONS[reason],
        verb=verb,
        ending=how and _ending(how),
    )


def _ending(how: Mapping[str, Any]) -> Ending:
    status = how["status"]
    return ending(
        Status.RUNNING if status in (None, "unfinished") else Status(status),
        how["reason"],
        how["finished_at"],
        how["done_by"],
        moved=tuple(how["moved"] or (None, None)),
        last=how["last"],
    )
