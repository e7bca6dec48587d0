"""Jobs: `NewJob` as a producer adds it, `Grant` as an owner gets it, `Job` as a reader sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ..errors import InvalidArgument
from . import checks, documents, failure, instants
from . import meta as metas
from .options import DEFAULT_OPTIONS, Options
from .ownership import Process, Reason
from .parking import Parked
from .retention import KEPT_FOR_EVER
from .retry import Retry
from .settings import JobOptions

PRIORITY_LIMIT = 2**31 - 1
BY_POLICY: Final[Any] = ...  # keep_seconds was not passed: the retention policy decides
DETACHED = ""
PRUNED = ""  # the document of a job of which only a narrow row is left; no JSON text is empty


class Status(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NewJob(NamedTuple):
    """
    What a producer asks for, checked and in the form that stores keep. Made by `new_job`, and by `task.job`.

    An empty id stands for "none yet", an empty parent or meta for "none, even if an owner adds it" (`DETACHED`). No
    store gets to see any of them.
    """

    id: str
    document: str = "null"
    task: str | None = None
    queue: str = "default"
    priority: int = 0
    run_us: int | None = None
    delay_us: int = 0
    lock: str | None = None
    unique: str | None = None
    lease_us: int | None = None
    stall_us: int | None = None
    start_within_us: int | None = None
    parent: str | None = None
    options: Options = DEFAULT_OPTIONS
    meta: str | None = None
    chosen: bool = True  # by the caller, who may ask for the id again; False: leasehold made the id. The last field

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each look."""
        return documents.decode(self.document)

    @property
    def retry(self) -> Retry:
        """Its budgets and back-off."""
        return self.options.retry

    def like(self, id: str, document: str) -> NewJob:
        """Return the same wish with another id and payload."""
        return _new_tuple(NewJob, (id, document, *self[2:]))

    def made(self, id: str | None = None) -> NewJob:
        """Return the same wish with an *id* that leasehold made: nothing of it stays once the job is pruned."""
        return _new_tuple(NewJob, (self.id if id is None else id, *self[1:-1], False))

    def stored(self) -> NewJob:
        """Return the wish without what a store keeps elsewhere: when the job is due, and who chose its id."""
        if self.run_us is not None or self.delay_us:
            return self._replace(run_us=None, delay_us=0, chosen=True)
        return self if self.chosen else _new_tuple(NewJob, (*self[:-1], True))

    def due(self, now: int) -> int:
        """Return the instant from which the job may be claimed, if it is added at *now*."""
        return self.run_us if self.run_us is not None else now + self.delay_us


def new_job(
    id: str,
    payload: object = None,
    *,
    task: str | None = None,
    queue: str = "default",
    priority: int = 0,
    delay_seconds: float | None = None,
    run_at: datetime | None = None,
    lock: str | None = None,
    unique: str | None = None,
    retry: Retry | None = None,
    lease_seconds: float | None = None,
    stall_seconds: float | None = None,
    start_within_seconds: float | None = None,
    run_seconds: float | None = None,
    meta: Mapping[str, Any] | None = metas.ABSENT,
    keep_seconds: float | None = BY_POLICY,
) -> NewJob:
    """Return the job that these arguments ask for, all of them checked; every way of adding goes through here."""
    if delay_seconds is not None and run_at is not None:
        raise InvalidArgument("a job takes delay_seconds or run_at, not both.")
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidArgument(f"retry= must be a Retry(…), not {retry!r}.")
    if retry is not None and retry.only:
        raise InvalidArgument(
            "Retry(only=…) is for @router.task(retry=…): exception classes cannot be stored with a job. The `only` "
            "of the task applies to all of its jobs."
        )
    options = DEFAULT_OPTIONS if retry is None else Options(retry)
    if run_seconds is not None:
        options = options._replace(run_us=checks.microseconds(run_seconds, "run_seconds"))
    if keep_seconds is not BY_POLICY:
        options = options._replace(keep_us=_kept(keep_seconds))
    return NewJob(
        checks.name(id, "a job's id"),
        documents.encode(payload, "payload"),
        None if task is None else checks.name(task, "task"),
        "default" if queue == "default" else checks.name(queue, "queue"),
        checks.whole(priority, "priority", least=-PRIORITY_LIMIT, most=PRIORITY_LIMIT),
        None if run_at is None else instants.instant(run_at, "run_at"),
        0 if delay_seconds is None else checks.microseconds(delay_seconds, "delay_seconds", zero=True),
        None if lock is None else checks.name(lock, "lock="),
        None if unique is None else checks.name(unique, "unique="),
        None if lease_seconds is None else checks.microseconds(lease_seconds, "lease_seconds"),
        None if stall_seconds is None else checks.microseconds(stall_seconds, "stall_seconds"),
        None if start_within_seconds is None else checks.microseconds(start_within_seconds, "start_within_seconds"),
        options=options,
        meta=None if meta is metas.ABSENT else metas.encode(meta),
    )


def _kept(keep_seconds: float | None) -> int:
    return KEPT_FOR_EVER if keep_seconds is None else checks.microseconds(keep_seconds, "keep_seconds", zero=True)


def as_new_job(wish: Mapping[str, Any]) -> NewJob:
    """Return the job that a mapping with the names of `Router.add`'s arguments asks for."""
    try:
        return new_job(**wish)
    except TypeError:
        if not (unknown := unknown_options(wish)):
            raise
        raise InvalidArgument(f"a job has no {unknown}") from None


def unknown_options(wish: Mapping[str, Any]) -> str:
    """Return the end of a sentence about the names in *wish* that `Router.add` does not know; "" if all are."""
    known = sorted(JobOptions.__annotations__.keys() | {"id", "payload"})
    unknown = [name for name in wish if name not in known]
    if not unknown:
        return ""
    import difflib  # on use: for an error

    near = [found for name in unknown for found in difflib.get_close_matches(name, known, 1)]
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"{', '.join(map(repr, unknown))}: it takes {', '.join(known)}.{meant}"


class Grant(NamedTuple):
    """What a claim grants: the facts of one lease as they were when it was issued."""

    spec: NewJob
    epoch: int
    owner: str
    reason: Reason
    attempt: int
    errors: int
    checkpoint: str | None
    claim_id: str | None
    process: Process | None
    granted_us: int
    expires_us: int
    lease_us: int


class Outcome(StrEnum):
    """How an owner ends its lease."""

    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    CRASH = "crash"  # the process of the handler has died, and its worker has not; counts a reclaim, not an error


# In Python 3.11 an enum's member is found through its metaclass, ten times slower.
_PENDING, _RUNNING, _COMPLETE = Status.PENDING, Status.RUNNING, Outcome.COMPLETE
_new_tuple = tuple.__new__  # a NamedTuple's own constructor is a Python function around it (gain not measured)


class Settlement(NamedTuple):
    """An owner's last write: which lease it ends, and how."""

    job_id: str
    epoch: int
    outcome: Outcome
    result: str | None = None
    then: tuple[NewJob, ...] = ()
    error: str | None = None
    retry: bool = True
    delay_us: int = 0

    def fingerprint(self) -> str:
        """
        Return a text that equal settlements share, so that a store recognises a repeated one.

        The delay is left out: it is drawn anew when an owner repeats its settlement.
        """
        if self.outcome is Outcome.COMPLETE and self.result == "null" and not self.then:
            return "complete"
        parts = [self.result, self.error, str(self.retry)]
        parts += [part for child in self.then for part in (child.id, child.document)]
        digest = hashlib.blake2b(digest_size=12)
        for part in parts:
            digest.update(b"-" if part is None else b"+%d:" % len(part) + part.encode())
        return f"{self.outcome}:{digest.hexdigest()}"


def completion(grant: Grant, result: str | None = "null", then: tuple[NewJob, ...] = ()) -> Settlement:
    """Return what completes the lease of *grant*; nearly every settlement is made here."""
    return _new_tuple(Settlement, (grant.spec.id, grant.epoch, _COMPLETE, result, then, None, True, 0))


def handed_back(grant: Grant, delay_us: int = 0, why: str | None = None) -> Settlement:
    """Return what releases the lease of *grant*, maybe with the reason: it counts against no budget."""
    return Settlement(grant.spec.id, grant.epoch, Outcome.RELEASE, error=why, delay_us=delay_us)


class Renewal(NamedTuple):
    """An owner's word that it is alive; without *lease_us*, for as long as the lease was granted for."""

    job_id: str
    epoch: int
    lease_us: int | None = None


class Progress(NamedTuple):
    """An owner's report that the work moves; None leaves a field as it was."""

    job_id: str
    epoch: int
    fraction: float | None = None
    note: str | None = None
    checkpoint: str | None = None

    def after(self, earlier: Progress | None) -> Progress:
        """Return this report with what it leaves open as in an *earlier* one that was not written."""
        if earlier is None:
            return self
        fraction = earlier.fraction if self.fraction is None else self.fraction
        return self._replace(fraction=fraction, note=earlier.note if self.note is None else self.note)


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """A job as a reader sees it, at one moment. The `_us` of an instant are what is kept; its `_at` is a datetime."""

    spec: NewJob
    status: Status
    epoch: int
    owner: str | None
    reason: Reason | None
    attempt: int
    errors: int
    reclaims: int
    run_us: int
    granted_us: int | None
    expires_us: int | None
    progress: float | None
    note: str | None
    checkpoint_document: str | None
    result_document: str | None
    last_error: str | None
    created_us: int
    updated_us: int
    finished_us: int | None
    parked: Parked | None = None  # of a due job that claims passed over
    renewed_us: int | None = None
    unsealed: tuple[str, ...] = ()  # of what a verb returned: guarded keys that it could not seal

    def __post_init__(self) -> None:
        held = self.owner is not None and self.expires_us is not None
        assert (self.status is _RUNNING) is held, f"job {self.id!r} is {self.status} with owner {self.owner!r}"

    def __repr__(self) -> str:
        held = f" owner={self.owner!r}" if self.owner else ""
        return f"<Job {self.id!r} {self.status} epoch={self.epoch} attempt={self.attempt}{held}>"

    @property
    def id(self) -> str:
        """The id, for ever."""
        return self.spec.id

    @property
    def pruned(self) -> bool:
        """Whether the job was pruned, and only its id, status, epoch and `finished_at` are kept."""
        return self.spec.document == PRUNED

    @property
    def payload(self) -> Any:
        """What the producer passed, decoded anew at each look; None once the job is pruned."""
        return None if self.pruned else self.spec.payload

    @property
    def result(self) -> Any:
        """What the completion recorded, or None."""
        return documents.decode(self.result_document)

    @property
    def error_type(self) -> str | None:
        """The class of the exception in `last_error`, as a traceback names it; None for any other error, or none."""
        return None if self.last_error is None else failure.read(self.last_error).type

    @property
    def error_message(self) -> str | None:
        """The message in `last_error`, without traceback and frames: what a browser may be shown. None for none."""
        return None if self.last_error is None else failure.read(self.last_error).message

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint that a current owner wrote, or None."""
        return documents.decode(self.checkpoint_document)

    @property
    def task(self) -> str | None:
        """The task that handles it, or None for a job that is claimed by hand."""
        return self.spec.task

    @property
    def queue(self) -> str:
        """The queue it waits in."""
        return self.spec.queue

    @property
    def priority(self) -> int:
        """Larger is claimed first."""
        return self.spec.priority

    @property
    def lock(self) -> str | None:
        """The key that admits one running job at a time."""
        return self.spec.lock

    @property
    def unique(self) -> str | None:
        """The key that admits one unfinished job."""
        return self.spec.unique

    @property
    def retry(self) -> Retry:
        """Its budgets and back-off."""
        return self.spec.retry

    @property
    def meta(self) -> dict[str, Any]:
        """The producer's own JSON object, decoded anew at each look; empty for none."""
        return metas.decode(self.spec.meta)

    @property
    def parent(self) -> str | None:
        """The id of the job whose owner added it."""
        return self.spec.parent

    @property
    def lease_seconds(self) -> float | None:
        """The lease that the producer asked for, or None for the claimer's."""
        return None if self.spec.lease_us is None else self.spec.lease_us / 1_000_000

    @property
    def stall_seconds(self) -> float | None:
        """How long it may go without progress, or None for ever."""
        return None if self.spec.stall_us is None else self.spec.stall_us / 1_000_000

    @property
    def start_within_seconds(self) -> float | None:
        """How long after it is due its first owner must have it, or None for ever."""
        return None if self.spec.start_within_us is None else self.spec.start_within_us / 1_000_000

    @property
    def run_seconds(self) -> float | None:
        """How long its handler may run in all, or None for as long as its task says."""
        return None if self.spec.options.run_us is None else self.spec.options.run_us / 1_000_000

    @property
    def run_at(self) -> datetime:
        """From when it may be claimed."""
        return instants.aware(self.run_us)

    @property
    def granted_at(self) -> datetime | None:
        """When its owner got it, or None without an owner."""
        return instants.as_datetime(self.granted_us)

    @property
    def expires_at(self) -> datetime | None:
        """Until when its owner is left alone, or None without an owner."""
        return instants.as_datetime(self.expires_us)

    @property
    def renewed_at(self) -> datetime | None:
        """When its owner last renewed the lease, or got it if it has not; None without an owner."""
        return instants.as_datetime(self.renewed_us)

    @property
    def created_at(self) -> datetime:
        """When it was added."""
        return instants.aware(self.created_us)

    @property
    def updated_at(self) -> datetime:
        """When its status, owner or progress changed last; a renewal is no change."""
        return instants.aware(self.updated_us)

    @property
    def finished_at(self) -> datetime | None:
        """When it was done, failed or cancelled."""
        return instants.as_datetime(self.finished_us)


def new_state(spec: NewJob, now: int) -> Job:
    """Return the job that *spec* becomes when it is added at *now*."""
    run_us, spec = spec.due(now), spec.stored()
    return Job(spec, _PENDING, 0, None, None, 0, 0, 0, run_us, None, None, None, None, None, None, None, now, now, None)


class Added(NamedTuple):
    """The job that an add found or made, and whether this add made it."""

    job: Job
    created: bool

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id
