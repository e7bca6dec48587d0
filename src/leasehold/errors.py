"""
Every exception that leasehold raises on purpose.

    LeaseholdError
    ├── StaleEpoch            a newer ownership exists; this epoch may not write any more
    │   └── Settled           the epoch was current, and its owner has already settled the job
    ├── UnknownJob            no job has that id (also a LookupError)
    ├── InvalidArgument       an argument is wrong, whatever the state of the store (also a ValueError)
    ├── Conflict              the call is right, and the state of the job or transaction forbids it
    ├── Unsupported           this store, connection or installation cannot do that
    ├── NoLease               no lease is active, or the owner does not hold one
    ├── NotInTransaction      a transaction has to be open, and none is, or it has failed
    ├── JobFailed             a result was requested, and the job failed or was cancelled
    ├── NotFinished           a result was requested before the job finished (also a TimeoutError)
    ├── InDoubt               an effect or a guarded write was begun and its outcome is not known
    ├── StoreUnavailable      the store did not do it now; `outcome_unknown` if it may have happened all the same
    │   └── StaleSnapshot     the caller's transaction read before another one wrote; run it again
    ├── GuardUnavailable      a guarded resource, its mark or its lock cannot be had now; nothing was written
    ├── Unfenced              `prove` found that a resource does not compare: a guard on it protects nothing
    ├── CredentialRefused     a credential is forged, malformed, or for another audience or key
    │   └── CredentialExpired it was authentic, and is too old; mint another while the lease is current
    └── StoreIncompatible     the store's data cannot be used by this version

Facts are attributes, so that a program does not have to parse the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from datetime import datetime

    from .core.job import Status
    from .core.ownership import Ending, Reason
    from .lease import Lease


# What stores add to `StaleEpoch.find`: how to recognise a refusal that came through a driver as its own exception.
finders: list[Callable[[BaseException], StaleEpoch | None]] = []
# And how to recognise that a driver has lost its connection, so that the outcome of a COMMIT is not known.
connection_was_lost: list[Callable[[BaseException], bool]] = []
# What `lease/` adds to it: whether a refusal is one of that lease, and the refusal of a lease that is not current. The
# second takes whether the connection was lost.
is_of_lease: list[Callable[[Lease, StaleEpoch], bool]] = []
refusal_of_lease: list[Callable[[Lease, bool], StaleEpoch | None]] = []

_JOB = "job:"  # how the resource of a store's refusal begins
_OPERATORS = frozenset({"transfer", "cancel", "replay", "requeue", "finish", "resolve", "prune"})  # verbs of no owner


class LeaseholdError(Exception):
    """The root of the tree: catching it catches everything that leasehold raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor, which takes facts and not the message: so that every subclass travels, a user's too.
        return _rebuild, (type(self), self.args), vars(self)


def _rebuild(kind: type[LeaseholdError], args: tuple[Any, ...]) -> LeaseholdError:
    error = kind.__new__(kind)
    error.args = args
    return error


class StaleEpoch(LeaseholdError):
    """
    A newer ownership exists; the presented epoch may no longer change anything.

    *resource* is what refused: `"job:ID"` for a job of a store, and `"kind:name"` for any other guarded resource.
    Each raiser writes its own *message*; `of_job` writes that of a store.

    A store adds what its record has. `moved_by` and `note`: who took the job from this owner, and why. If the job is
    finished, `status`, `finished_by` and `finished_at`. Each is None if the record does not have it.
    """

    moved_by: str | None = None
    note: str | None = None
    status: Status | None = None
    finished_by: str | None = None
    finished_at: datetime | None = None

    def __init__(
        self,
        message: str,
        *,
        resource: str,
        presented: int,
        current: int,
        owner: str | None = None,
        reason: Reason | None = None,
        verb: str = "write",
    ) -> None:
        self.resource = resource
        self.presented = presented
        self.current = current
        self.owner = owner
        self.reason = reason
        self.verb = verb
        super().__init__(message)

    @classmethod
    def of_job(
        cls,
        job_id: str,
        *,
        presented: int,
        current: int,
        owner: str | None = None,
        reason: Reason | None = None,
        verb: str = "write",
        ending: Ending | None = None,
    ) -> Self:
        """Return a store's refusal of a write to a job; *ending* is how the job ended, as far as it is recorded."""
        refusal = cls(
            "", resource=_JOB + job_id, presented=presented, current=current, owner=owner, reason=reason, verb=verb
        )
        if ending is not None:
            vars(refusal).update(ending._asdict())
        refusal.args = (f"job {job_id!r}: {verb} with epoch {presented} is refused: {refusal._why()}",)
        return refusal

    @classmethod
    def of_missing_job(cls, job_id: str, *, presented: int, verb: str = "write") -> Self:
        """Return the refusal of a write to a job that the store no longer has; *current* is 0, since no epoch is."""
        return cls(
            f"job {job_id!r}: {verb} with epoch {presented} is refused: the store no longer has this job, so no epoch "
            "of it is current. It has ended and was pruned, or the store was restored to an earlier state. Stop "
            "working on it.",
            resource=_JOB + job_id,
            presented=presented,
            current=0,
            verb=verb,
        )

    def _why(self) -> str:
        operating = self.verb in _OPERATORS
        if self.presented > self.current:  # only a store knows every issued epoch; to a guard this is a newer owner
            return self._why_never_issued(operating)
        by = "" if self.reason is None else self.reason.value
        if self.reason in ("manual", "cancellation") and self.moved_by is not None:
            by = repr(self.moved_by) + (f": {self.note!r}" if self.note else "")
        if outcome := self._outcome():
            # An operator's epoch may be any number that was typed: nothing is known about how it ended.
            ended = f" Epoch {self.presented} was ended by {by}." if by and not operating else ""
            advice = "Read the job again and decide." if operating else "Stop working on it."
            return f"the current epoch is {self.current}, and the job is finished: {outcome}.{ended} {advice}"
        held = f"owner {self.owner!r}" if self.owner is not None else "no owner"
        then = "no owner holds it now" if self.owner is None else "its current owner will settle it"
        advice = "Read the job again and decide" if operating else f"Stop working on it; {then}"
        return f"the current epoch is {self.current} ({held}{f', moved by {by}' if by else ''}). {advice}."

    def _why_never_issued(self, operating: bool) -> str:
        current = f"the job's current epoch is {self.current}" if self.current else "the job was never claimed"
        advance = f"`leasehold store advance URL --above {self.presented}`"
        if operating:
            return (
                f"the store has not issued that epoch for this job; {current}. Check its digits, the job and the "
                "store. If all are right, the store was restored to an earlier state and has forgotten the epoch: run "
                f"{advance}, then read the job again."
            )
        return (
            f"the store has no record of this claim; {current}. It was restored to an earlier state, or failed over to "
            "a server that had not received the claim. Stop working on the job. If the store has recorded no "
            f"`advanced` event since, run {advance}."
        )

    def _outcome(self) -> str:
        """Return how the job ended, as a clause; "" if it has not ended, or the record does not have it."""
        if self.status is None or self.finished_at is None:
            return ""
        at = f"at {self.finished_at.isoformat(timespec='seconds')}"
        who = "" if self.finished_by is None else repr(self.finished_by)
        if self.status == "failed":  # an owner reports that, and so does upkeep when the owners have died
            return f"it failed {at}, reported by {who}" if who else f"it failed {at}"
        ended = "completed" if self.status == "done" else self.status.value
        return f"it was {ended} by {who} {at}" if who else f"it was {ended} {at}"

    @property
    def job_id(self) -> str | None:
        """The job that refused, or None if another guarded resource did."""
        return self.resource.removeprefix(_JOB) if self.resource.startswith(_JOB) else None

    @staticmethod
    def find(error: BaseException | None, lease: Lease | None = None) -> StaleEpoch | None:
        """
        Return the refusal inside *error*, or None: through causes, contexts, groups and an ORM's `orig`.

        A driver's error counts if a store that is in use knows it as a refusal of its own, which is then recorded.

        With *lease*, only a refusal of that lease counts: of its job, or of a guard that was given its epoch. If there
        is none, the store is asked whether the lease is still the current one. If the driver has lost its connection,
        the transaction may have been committed all the same: then None, unless the store knows that it was not.
        If several connections of the lease were lost, it must know that of each.
        `lease.is_settled()` tells whether it has settled the job.
        """
        pending, seen, lost = [error], set[int](), False
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            found = (finder(one) for finder in finders)
            refusal = one if isinstance(one, StaleEpoch) else next(filter(None, found), None)
            if refusal is not None and (lease is None or any(is_of(lease, refusal) for is_of in is_of_lease)):
                return refusal
            lost = lost or any(look(one) for look in connection_was_lost)
            pending += [one.__context__, one.__cause__]
            if isinstance(one, BaseExceptionGroup):
                pending += one.exceptions
            inner = getattr(one, "orig", None)
            pending.append(inner if isinstance(inner, BaseException) else None)
        asked = (ask(lease, lost) for ask in refusal_of_lease) if lease is not None else ()
        return next(filter(None, asked), None)


class Settled(StaleEpoch):
    """This epoch was current until its own owner settled the job; there is nothing left to write."""

    def _why(self) -> str:
        if self.verb in _OPERATORS and self.presented < self.current:
            return f"its owner settled the job under this epoch, and the job has moved since: {super()._why()}"
        then = self._outcome()
        return (
            "its owner has already settled the job under this epoch, so no other write under it is accepted"
            f"{'; ' if then else ''}{then}."
        )


class UnknownJob(LeaseholdError, LookupError):
    """No job has that id: it was never added, or has been pruned."""

    def __init__(self, job_id: str, *, pruned: str | None = None) -> None:
        self.job_id = job_id
        super().__init__(
            f"no job has the id {job_id!r}: it was never added to this store, or has been pruned."
            if pruned is None
            else f"job {job_id!r} was pruned, and its result with it: it was {pruned}. Keep such jobs for longer with "
            "keep_seconds, or with the Retention of every router on this store."
        )


class InvalidArgument(LeaseholdError, ValueError):
    """An argument is wrong, and would be at any time; nothing was changed."""


class Conflict(LeaseholdError):
    """
    The call is right, and the state of the job, transaction or worker forbids it; nothing was changed.

    The job is finished, its lock is held, its unique key is taken, its effect is not in doubt; or a transaction is open
    here that the verb has to join.
    """


class Unsupported(LeaseholdError):
    """This store, connection or installation cannot do that, whatever the arguments; nothing was changed."""


class NoLease(LeaseholdError):
    """No lease is active here, or the owner does not hold one on that job."""


class NotInTransaction(LeaseholdError):
    """The verb joins the transaction of a connection, which has none open, or one that has failed already."""


class JobFailed(LeaseholdError):
    """The job whose result was requested failed for good or was cancelled; *error* is its last error, if any."""

    def __init__(
        self, job_id: str, *, status: Status, error: str | None = None, errors: int = 0, advice: str = ""
    ) -> None:
        self.job_id = job_id
        self.status = status
        self.error = error
        self.errors = errors
        counted = f" after {errors} error{'' if errors == 1 else 's'}" if errors else ""
        last_error = f" Its last error: {error}" if error else ""
        super().__init__(
            f"job {job_id!r} has no result: it is {status.value}{counted}. "
            f"router.replay(router.job({job_id!r}), by=…) or `leasehold replay {job_id!r}` puts it back."
            f"{advice and ' '}{advice}{last_error}"
        )


class NotFinished(LeaseholdError, TimeoutError):
    """The job whose result was requested was still pending or running after `wait_seconds`."""

    def __init__(self, job_id: str, *, status: Status, why: str = "") -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(
            f"job {job_id!r} has no result yet: it is {status.value}. "
            f"Ask again later, or pass a longer wait_seconds; a pending job needs a worker.{why and ' '}{why}"
        )


class InDoubt(LeaseholdError):
    """
    Something was begun, and its outcome is not known: an effect of a job, or a write to a guarded resource.

    *resource* is `"job:ID"` for an effect, and `"kind:name"` for a guarded resource, where *job_id*, *name* and *key*
    are None: `of_resource` makes one.
    """

    job_id: str | None
    name: str | None
    key: str | None

    def __init__(self, job_id: str, name: str, *, key: str, epoch: int) -> None:
        self.resource = _JOB + job_id
        self.job_id = job_id
        self.name = name
        self.key = key
        self.epoch = epoch
        super().__init__(
            f"job {job_id!r}: effect {name!r} was begun under epoch {epoch} and its outcome is not known. "
            f"Look it up by its key {key!r}, then call router.resolve(job, {name!r}, by=…, outcome=…); "
            'or pass in_doubt="retry" if repeating it with the same key is harmless.'
        )

    @classmethod
    def of_resource(cls, resource: str, *, epoch: int, verb: str = "write", why: str) -> Self:
        """Return the doubt about a *verb* on a guarded resource: *why* its outcome is unknown."""
        doubt = cls.__new__(cls)
        doubt.resource, doubt.epoch = resource, epoch
        doubt.job_id = doubt.name = doubt.key = None
        doubt.args = (
            f"{resource}: {verb} with epoch {epoch} was sent and its outcome is not known: {why}. "
            "It may have happened. Read the resource, then write again under the same epoch if that is harmless.",
        )
        return doubt


class StoreUnavailable(LeaseholdError):
    """
    The store could not do the call now.

    If *outcome_unknown*, it may have happened all the same: the reply was lost, or only a part was done. Otherwise
    nothing was changed, and the call can be repeated.

    If *is_stale*, the job has been taken over, before or after the call took effect: the lease is lost.
    """

    is_stale: bool = False

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        self.outcome_unknown = outcome_unknown
        super().__init__(message)


class StaleSnapshot(StoreUnavailable):
    """The caller's transaction read before another one wrote. Nothing was changed: roll back and run it again."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class GuardUnavailable(LeaseholdError):
    """A guarded resource, its mark or its lock cannot be had now. Nothing was written; try again."""


class Unfenced(LeaseholdError):
    """`prove` found that the resource accepts what it must refuse: a guard on it protects nothing."""


class CredentialRefused(LeaseholdError):
    """
    The credential is forged or malformed, or it is for another audience, or does not cover the key.

    *fault* tells which, for programs: `"malformed"`, `"forged"`, `"audience"`, `"scope"` or `"expired"`.
    """

    def __init__(self, message: str, *, fault: str = "malformed") -> None:
        self.fault = fault
        super().__init__(message)


class CredentialExpired(CredentialRefused):
    """The credential is authentic, and older than it may be. Time refuses the credential, never the epoch."""


class StoreIncompatible(LeaseholdError):
    """The store's data, or the library under it, does not fit this version of leasehold."""
