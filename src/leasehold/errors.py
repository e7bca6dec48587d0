"""
Every exception that leasehold raises on purpose.

    LeaseholdError
    ├── StaleEpoch            a newer ownership exists; this epoch may not write any more
    │   └── Settled           the epoch was current, and its owner has already settled the job
    ├── UnknownJob            no job has that id (also a LookupError)
    ├── InvalidArgument       the call itself is wrong (also a ValueError)
    ├── NoLease               there is no lease where one is needed
    ├── NotInTransaction      a transaction has to be open, and none is, or it has failed
    ├── JobFailed             a result is asked for, and the job failed or was cancelled
    ├── NotFinished           a result is asked for, and there is none yet (also a TimeoutError)
    ├── InDoubt               an effect was begun and nobody knows whether it happened
    ├── StoreUnavailable      the store did not answer; the outcome may be unknown
    │   └── StaleSnapshot     the caller's transaction read before somebody else wrote; run it again
    └── StoreIncompatible     the store's data cannot be used by this version

Facts are attributes, so that a program need not read the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.job import Status
    from .core.ownership import Reason
    from .lease import Lease


# What stores add to `StaleEpoch.find`: how to recognise a refusal that came through a driver as its own exception.
finders: list[Callable[[BaseException], StaleEpoch | None]] = []


class LeaseholdError(Exception):
    """The root of the tree: catching it catches everything that leasehold raises on purpose."""


class StaleEpoch(LeaseholdError):
    """A newer ownership of the job exists; the presented epoch may no longer change anything."""

    def __init__(
        self,
        job_id: str,
        *,
        presented: int,
        current: int,
        owner: str | None = None,
        reason: Reason | None = None,
        verb: str = "write",
    ) -> None:
        self.job_id = job_id
        self.presented = presented
        self.current = current
        self.owner = owner
        self.reason = reason
        self.verb = verb
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        said = f"job {self.job_id!r}: {self.verb} with epoch {self.presented} is refused"
        if self.presented > self.current:
            return (
                f"{said}: the store knows this job at {self.current} only. Either the epoch is mistyped, or the store "
                "was restored from a backup and has forgotten what it issued: then raise its counter with "
                f"`leasehold store advance URL --above {self.presented}`, and look at the job."
            )
        held = f"owner {self.owner!r}" if self.owner is not None else "no owner"
        why = f", moved by {self.reason.value}" if self.reason is not None else ""
        then = "nobody holds it now" if self.owner is None else "whoever holds the current epoch will settle it"
        return f"{said}: the current epoch is {self.current} ({held}{why}). Stop working on it; {then}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_stale, (type(self), self.job_id, self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "presented": self.presented,
            "current": self.current,
            "owner": self.owner,
            "reason": self.reason,
            "verb": self.verb,
        }

    @staticmethod
    def find(error: BaseException | None, lease: Lease | None = None) -> StaleEpoch | None:
        """
        Return the refusal inside *error*, or None: through causes, contexts, groups and an ORM's `orig`.

        A driver's error counts if a store that is in use knows it as a refusal of its own.

        With *lease*, and nothing found, the store is asked whether that lease is still the current one.
        """
        pending, seen = [error], set[int]()
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, StaleEpoch):
                return one
            for finder in finders:
                if refusal := finder(one):
                    return refusal
            pending += [one.__context__, one.__cause__]
            if isinstance(one, BaseExceptionGroup):
                pending += one.exceptions
            inner = getattr(one, "orig", None)
            pending.append(inner if isinstance(inner, BaseException) else None)
        if lease is not None:
            try:
                lease.check()
            except StaleEpoch as refusal:
                return refusal
            except UnknownJob:
                return None
        return None


class Settled(StaleEpoch):
    """This epoch was current until its own owner settled the job; there is nothing left to write."""

    def _sentence(self) -> str:
        return (
            f"job {self.job_id!r}: {self.verb} with epoch {self.presented} is refused: "
            "its owner has already settled the job under this epoch, with another outcome or for good."
        )


def _rebuild_stale(kind: type[StaleEpoch], job_id: str, facts: dict[str, Any]) -> StaleEpoch:
    return kind(job_id, **facts)


class UnknownJob(LeaseholdError, LookupError):
    """No job has that id: it was never added, or has been pruned."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job has the id {job_id!r}: it was never added to this store, or has been pruned.")

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownJob, (self.job_id,)


class InvalidArgument(LeaseholdError, ValueError):
    """The call is wrong as it stands; nothing was changed."""


class NoLease(LeaseholdError):
    """A lease is needed here and there is none."""


class NotInTransaction(LeaseholdError):
    """What is asked is part of a transaction, and the connection has none open, or one that has failed already."""


class JobFailed(LeaseholdError):
    """The job whose result was asked for has failed for good, or was cancelled; *error* is its last error, if any."""

    def __init__(self, job_id: str, *, status: Status, error: str | None = None, errors: int = 0) -> None:
        self.job_id = job_id
        self.status = status
        self.error = error
        self.errors = errors
        counted = f" after {errors} error{'' if errors == 1 else 's'}" if errors else ""
        said = f" Its last error: {error}" if error else ""
        super().__init__(
            f"job {job_id!r} has no result: it is {status.value}{counted}. "
            f"router.replay(router.job({job_id!r}), by=…) puts it back.{said}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_failed, (self.job_id, self.status, self.error, self.errors)


def _rebuild_failed(job_id: str, status: Status, error: str | None, errors: int) -> JobFailed:
    return JobFailed(job_id, status=status, error=error, errors=errors)


class NotFinished(LeaseholdError, TimeoutError):
    """The job whose result was asked for is still pending or running; it was waited for as long as was asked."""

    def __init__(self, job_id: str, *, status: Status) -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(
            f"job {job_id!r} has no result yet: it is {status.value}. "
            "Ask again later, or pass a longer wait_seconds; a pending job needs a worker."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_not_finished, (self.job_id, self.status)


def _rebuild_not_finished(job_id: str, status: Status) -> NotFinished:
    return NotFinished(job_id, status=status)


class InDoubt(LeaseholdError):
    """An effect was begun by an earlier run and nobody recorded how it ended."""

    def __init__(self, job_id: str, name: str, *, key: str, epoch: int) -> None:
        self.job_id = job_id
        self.name = name
        self.key = key
        self.epoch = epoch
        super().__init__(
            f"job {job_id!r}: effect {name!r} was begun under epoch {epoch} and its outcome is not known. "
            f"Look it up by its key {key!r}, then call router.resolve(job, {name!r}, by=…, outcome=…); "
            'or pass in_doubt="retry" if repeating it with the same key is harmless.'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_in_doubt, (self.job_id, self.name, self.key, self.epoch)


def _rebuild_in_doubt(job_id: str, name: str, key: str, epoch: int) -> InDoubt:
    return InDoubt(job_id, name, key=key, epoch=epoch)


class StoreUnavailable(LeaseholdError):
    """The store did not answer. What was asked may or may not have happened, unless the message says."""


class StaleSnapshot(StoreUnavailable):
    """The caller's transaction had read before somebody else wrote. Nothing happened: roll back and run it again."""


class StoreIncompatible(LeaseholdError):
    """The store's data, or the library under it, does not fit this version of leasehold."""
