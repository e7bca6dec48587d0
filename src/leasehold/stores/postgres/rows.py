"""Calls of the functions in the server: values to the JSON that they take, and their rows back to values."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from ...core.counts import Counts
from ...core.job import Added, Grant, NewJob, Outcome, Settlement, Status, new_state
from ...core.lifecycle import (
    Verb,
    after,
    cause_text,
    ending,
    lock_held,
    no_effect,
    not_in_doubt,
    not_prunable,
    only_its_id,
    unique_taken,
)
from ...core.options import encode
from ...core.ownership import Ending, Event, Ownership, Process, Reason
from ...core.workers import several_workers
from ...errors import Conflict, Settled, StaleEpoch, UnknownJob
from ...store import Refusal
from ..rows import REASONS, caused, job_of, spec_of
from .schema import in_schema

Row = Sequence[Any]

_SHORT = 200  # of what is remembered: many jobs have the same, and a checkpoint may be a megabyte
_NO_FLOORS = (None,) * 7
NO_PROCESS = (None,) * len(Process._fields)
_COMPLETE = Outcome.COMPLETE  # in Python 3.11 an enum's member is found through its metaclass, ten times slower
_PLACES = [f"${number}" for number in range(100)]
_LITERALS = {None: "NULL", True: "true", False: "false"}
_DIFFERENT = ("another timeline", "other files", "another table", "another start of the server")
_SCALAR = {"fence", "has_job", "settled_in"}  # functions that answer with one value
_NUMBER = ", pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text"
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


def settlement_json(settlement: Settlement) -> dict[str, Any]:
    """Return *settlement* as the functions `settle` and `at_commit` read it."""
    item: dict[str, Any] = {
        "id": settlement.job_id,
        "epoch": settlement.epoch,
        "outcome": settlement.outcome.value,
        "result": settlement.result,
        "fingerprint": settlement.fingerprint(),
    }
    if settlement.outcome is not Outcome.COMPLETE:
        item |= {"error": settlement.error, "retry": settlement.retry, "delay": settlement.delay_us}
    if settlement.then:
        item["then"] = wishes(settlement.then)
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
    return *plain, array(results), array([settlement.fingerprint() for settlement in settlements])


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


class Claim(NamedTuple):
    """What a claim asks for, in the order of the function's parameters."""

    owner: str
    limit: int
    queues: tuple[str, ...] | None  # sorted
    tasks: tuple[str, ...] | None
    lease_us: int | None
    default_lease_us: int
    claim_id: str | None
    process: Process | None
    trace: bool

    def is_plain(self, floors: Sequence[Any] | None) -> bool:
        """Whether the function `claim_next` can get a job: of the one queue that has a floor."""
        if self.trace or floors is None:
            return False
        return len(floors[3]) == 1 and (self.queues is None or [*self.queues] == floors[3])

    def args(self, floors: Sequence[Any] | None) -> tuple[Any, ...]:
        """Return what the function `claim` takes before the instant."""
        owner, limit, queues, tasks, *rest, process, trace = self
        known = None if tasks is None else array_of(tasks)
        named = None if queues is None else array_of(queues)
        return owner, limit, named, known, *rest, *(process or NO_PROCESS), *_floors(floors), trace


def _floors(floors: Sequence[Any] | None) -> Sequence[Any]:
    if floors is None:
        return _NO_FLOORS
    lowered, swept, freed, queues, *rest = floors
    return lowered, swept, freed, array_of(tuple(queues)), *map(numbers, rest)


# What they answer


def answer(function: str) -> str:
    """Return what to select from a call of *function*, which is called f there."""
    return _ANSWERS.get(function, "f.*")


def granted(rows: Sequence[Row], claim: Claim) -> tuple[list[Any], list[Grant]]:
    """
    Return the facts of a claim (see the function `claim`), the instant first, and its grants.

    The server leaves out what the claim itself says, and what is mostly so.
    """
    facts: list[Any] = json.loads(rows[0][0])
    now, owner, lease_us = facts[0], claim.owner, claim.lease_us
    usual = lease_us or claim.default_lease_us
    mostly = Reason.CLAIM, 0, 0, None, claim.claim_id, claim.process, now, now + usual, usual  # behind a Grant's owner
    grants = []
    for _, epochs, ids, documents, tasks, queues, others in rows:
        if epochs is None:
            continue  # a row of facts alone
        for epoch, id_, document, task, queue, other in zip(
            epochs,
            ids,
            documents,
            tasks or repeat(None),
            queues or repeat("default"),
            others or repeat(None),
            strict=False,
        ):
            if other is None:
                grants.append(Grant(NewJob(id_, document, task, queue), epoch, owner, *mostly))
                continue
            reason, attempt, errors, checkpoint, rest = _short(other) if len(other) <= _SHORT else _others(other)
            spec = NewJob(id_, document, task, queue, *rest)
            lasts = lease_us or spec.lease_us or claim.default_lease_us
            held = reason, attempt, errors, checkpoint, claim.claim_id, claim.process, now, now + lasts, lasts
            grants.append(Grant(spec, epoch, owner, *held))
    return facts, grants


def _others(document: str) -> tuple[Reason, int, int, str | None, tuple[Any, ...]]:
    """Return what the column `others` has: of a grant, and the fields of a NewJob behind its queue."""
    reason, attempt, errors, checkpoint, *rest = json.loads(document)
    return REASONS[reason], attempt, errors, checkpoint, spec_of(("", "", None, "", *rest))[4:]


_short = lru_cache(maxsize=1024)(_others)


def taken_back(row: Row) -> Ownership:
    """Return the ownership that a sweep has ended."""
    job_id, epoch, owner, began, granted, expires, ended, at, by, cause, _ = row
    return Ownership(job_id, epoch, owner, REASONS[began], granted, expires, ended, at, by, caused(cause, None))


def ownership_of(job_id: str, row: Row) -> Ownership:
    """Return an ownership of a row of the statement `ownerships`."""
    epoch, owner, began, ended, granted, expires, by, at, note, cause = row
    return Ownership(job_id, epoch, owner, REASONS[began], granted, expires, ended, at, by, caused(cause, note))


def event_of(row: Row) -> Event:
    """Return an event."""
    number, at, kind, job_id, epoch, owner, document = row
    facts: dict[str, Any] = json.loads(document)
    if (cause := facts.pop("cause", None)) is not None:
        facts["note" if kind == "cancelled" else "error"] = cause_text(cause, facts.get("error"))
    if kind == "advanced" and "is" in facts:
        facts["found"] = _differing(facts["was"], facts["is"])
    return Event(number, at, kind, job_id, epoch, owner, facts)


def _differing(was: str, here: str) -> str:
    """Return what differs between the server that issued the last epoch and the one that went on: see 02_epochs.sql."""
    parts = r"([^/]+)/(.+)/(\d+)/([\d.]+)"  # a file's path has slashes of its own
    before, now = re.fullmatch(parts + r"/\d+", was), re.fullmatch(parts, here)
    pairs = zip(before.groups() if before else (None,) * 4, now.groups() if now else (None,) * 4, strict=True)
    found = [what for what, (one, other) in zip(_DIFFERENT, pairs, strict=True) if one != other]
    return ", ".join(found) or "a row that was put back"


def counts_of(rows: Sequence[Row]) -> Counts:
    """Return the counts from the rows of the function `counted`."""
    total = dict.fromkeys(Status, 0)
    queues: dict[str, dict[str, int]] = {}
    parked: dict[str, dict[str, int]] = {}
    for status, queue, count, task in rows:
        if task is not None:
            parked.setdefault(task, {})[queue] = count
            continue
        total[Status(status)] += count
        if queue is not None:
            queues.setdefault(queue, {"pending": 0, "running": 0})[status] = count
    return Counts.of(total, queues, parked)


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


def refusal_of(job_id: str, epoch: int, verb: str, refused: str) -> Refusal:
    """Return the refusal that the function `refusal` describes."""
    facts = json.loads(refused)
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
        moved=_moved(*how["moved"] or ()),
        last=how["last"],
    )


def _moved(by: str | None = None, note: str | None = None, cause: str | None = None) -> tuple[str | None, str | None]:
    return by, caused(cause, note)


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
    if "kept" in facts:
        return not_prunable(job_id, Status(facts["kept"]), facts["parent"], facts["effect"])
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
        return not_in_doubt(job_id, name)
    return refusal_of(job_id, epoch, str(verb), answer)


# The statements that call them

SAVEPOINT: Any = object()  # stands for whether savepoints are allowed, which is known when a call is made
PIPED: Any = object()  # stands for whether the answer will not be waited for


class Call(NamedTuple):
    """One function and its arguments, as the programs of a transaction make it."""

    function: str
    args: tuple[Any, ...]
    fences: tuple[str, int] | None = None  # the job and the epoch that fence the transaction
    settles: str | None = None  # how its COMMIT will settle that job

    def filled(self, *, savepoint: bool, piped: bool) -> tuple[Any, ...]:
        """Return the arguments, with what is known now."""
        return tuple([savepoint if arg is SAVEPOINT else piped if arg is PIPED else arg for arg in self.args])


class Calls:
    """Makes statements of calls, for the functions of one schema."""

    def __init__(self, schema: str) -> None:
        self._schemas = {
            style: in_schema("leasehold.x", schema, escaped=style == "%s").removesuffix("x") for style in ("%s", "$1")
        }

    def statement(self, function: str, args: Sequence[Any], style: str = "$1") -> tuple[str, list[Any]]:
        """
        Return the statement that calls *function*, and its parameters, which are written in *style*.

        What is null, true or false, or the same in each call, is part of the text: a driver takes longer over a
        parameter than the server over it.
        """
        call, params = self._call(function, args, style)
        return f"SELECT {answer(function)} FROM {call} AS f", params

    def numbered(self, function: str, args: Sequence[Any], style: str) -> tuple[str, list[Any]]:
        """Return the statement likewise; the last column of each row is the number of the transaction that it is in."""
        call, params = self._call(function, args, style)
        if function in _SCALAR:
            return f"SELECT {call}{_NUMBER}", params
        return f"SELECT {answer(function)}{_NUMBER} FROM {call} AS f", params

    def _call(self, function: str, args: Sequence[Any], style: str) -> tuple[str, list[Any]]:
        places, params = [], []
        for arg in args:
            if arg is None or arg is True or arg is False:
                places.append(_LITERALS[arg])
            elif type(arg) is uuid.UUID:
                places.append(f"'{arg}'")
            else:
                params.append(arg)
                places.append(style if style == "%s" else _PLACES[len(params)])
        return f"{self._schemas[style]}{function}({', '.join(places)})", params
