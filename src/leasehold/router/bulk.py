"""One verb on every job that fits, each fenced by the epoch that was read before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..aio import alone
from ..core import checks, inputs
from ..core.job import Job
from ..core.ownership import Event, Note, NoteKind
from ..core.redaction import fact
from ..core.wording import counted
from ..errors import Conflict, InvalidArgument, LeaseholdError, StaleEpoch, StoreUnavailable, UnknownJob
from .operator_log import acted

if TYPE_CHECKING:
    from ..core.search import Search
    from .front import Router  # which has these functions as its methods

Action = Literal["cancel", "replay", "requeue", "prune"]
VERBS: tuple[Action, ...] = ("cancel", "replay", "requeue", "prune")
_PAGE = 1_000


class Moved(NamedTuple):
    """
    A job that was left alone: it has moved since it was read, or its state forbids the verb.

    *why* is the message of *error*, and names who has replayed the job meanwhile if that is on record.
    """

    id: str
    error: LeaseholdError
    why: str


class BulkOutcome(NamedTuple):
    """
    How a bulk action ended: how many jobs it was done to, and those that it was not.

    *unsealed* has, by the id of a job that it was done to, the guarded keys that could not be reached.
    """

    verb: Action
    done: int
    moved: tuple[Moved, ...]
    unsealed: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @property
    def refused(self) -> bool:
        """Whether a job had moved since it was read."""
        return any(isinstance(one.error, StaleEpoch) for one in self.moved)


def matching(router: Router, wanted: Search) -> Iterator[Job]:
    """Yield every job that fits, page after page."""
    cursor = None
    while True:
        page = router.store.search(wanted, limit=_PAGE, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def bulk(
    router: Router,
    verb: Action,
    wanted: Search,
    *,
    expect: int,
    by: str,
    note: str | None = None,
    on_each: Callable[[int], None] | None = None,
) -> BulkOutcome:
    """
    Do *verb* (cancel, replay, requeue or prune) to every job that fits *wanted*, and return what became of each.

    The jobs are read first. Unless there are *expect* of them, nothing is done. Each is then fenced by the epoch that
    was read: a job that has moved meanwhile is left alone, and named in the outcome. The action is recorded as one
    event, and each job's own event has *by* and *note* too. An interrupted action can be repeated: what was done no
    longer fits.

    To prune takes finished jobs, however young, and parents before their children. A child whose parent is kept, a job
    with an effect in doubt and a job with guarded keys that are not sealed are left alone. A chosen id is kept for 90
    days, as `router.prune` does.

    *on_each* is called with the number of jobs so far. Raises `InvalidArgument` for another verb or a search without a
    filter, `Conflict` if the count is not *expect* or a transaction is open here, and `StoreUnavailable`; what was done
    before stays done.
    """
    if verb not in VERBS:
        raise InvalidArgument(f"the verb of bulk must be one of {', '.join(VERBS)}, not {verb!r}.")
    if wanted == type(wanted)(newest=wanted.newest):
        raise InvalidArgument("a bulk action needs a filter: without one it would change every job.")
    checks.whole(expect, "expect", least=0, most=2**53)
    by, note = checks.name(by, "by="), inputs.note(note)
    alone(router.store)  # each verb would be refused inside an open transaction, and no job has moved
    jobs = matching(router, wanted)
    seen = [(job.id, job.epoch) for job in (_parents_first(list(jobs)) if verb == "prune" else jobs)]
    if len(seen) != expect:
        found = counted(len(seen), "job matches", "jobs match")
        raise Conflict(
            f"{found}, not the expected {expect}. Nothing was changed: list them again before you repeat this."
        )
    act: Callable[..., Job | None] = functools.partial(_prune, router) if verb == "prune" else getattr(router, verb)
    done, moved, unsealed = 0, list[Moved](), dict[str, tuple[str, ...]]()
    try:
        for number, (job_id, epoch) in enumerate(seen, 1):
            try:
                after = act(job_id, epoch=epoch, by=by, note=note)
                done += 1
                if after is not None and after.unsealed:
                    unsealed[job_id] = after.unsealed
            except (StaleEpoch, Conflict, UnknownJob) as error:
                moved.append(Moved(job_id, error, _why(router, job_id, epoch, error)))
            if on_each is not None:
                on_each(number)
    finally:
        if seen:
            _record(router, verb, wanted, len(seen), done, len(moved), by, note)
    return BulkOutcome(verb, done, tuple(moved), unsealed)


def _why(router: Router, job_id: str, seen: int, error: LeaseholdError) -> str:
    if not isinstance(error, StaleEpoch):
        return str(error)
    replays: list[Event] = []
    with suppress(LeaseholdError):  # the refusal stands without it
        replays = [one for one in router.store.events(job_id=job_id, kind="replayed") if (one.epoch or 0) > seen]
    if not replays:
        return str(error)
    shown = router.redaction.facts(replays[-1].facts)
    by, note = fact(shown, "by"), fact(shown, "note")
    return f"{error} It was replayed by {by!r} since it was read{f': {note!r}' if note else ''}."


def _prune(router: Router, job_id: str, *, epoch: int, by: str, note: str | None) -> None:
    """Prune one job."""
    alone(router.store).prune_job(job_id, epoch, by=by, note=note)


def _parents_first(jobs: list[Job]) -> list[Job]:
    """Return *jobs* in their order, but each behind its parent: a child is not pruned before it."""
    parents, depths = {job.id: job.parent for job in jobs}, dict[str, int]()
    for job in jobs:
        line, at = list[str](), job.id
        while at in parents and at not in depths:
            line.append(at)
            at = parents[at] or ""
        for depth, id in enumerate(reversed(line), depths.get(at, -1) + 1):
            depths[id] = depth
    return sorted(jobs, key=lambda job: depths[job.id])


def _record(
    router: Router, verb: str, wanted: Search, count: int, done: int, moved: int, by: str, note: str | None
) -> None:
    filters = {name: value for name, value in _filters(wanted).items() if value not in (None, {})}
    facts: dict[str, Any] = {
        "verb": verb,
        "filters": filters,
        "count": count,
        "done": done,
        "moved": moved,
        "by": by,
        "note": note,
    }
    acted(router, "bulk", f"bulk {verb}: {done} of {counted(count, 'job', 'jobs')} done", **facts)
    with suppress(StoreUnavailable):  # each job's own event is recorded; a second error would hide the first
        router.store.record(Note(NoteKind.BULK, None, 0, None, facts))


def _filters(wanted: Search) -> dict[str, Any]:
    named = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__ if name != "newest"}
    named["status"] = None if wanted.status is None else wanted.status.value
    named["meta"], named["payload"] = dict(wanted.meta), dict(wanted.payload)
    return named
