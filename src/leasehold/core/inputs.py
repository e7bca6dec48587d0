"""Validates the arguments of the verbs of Router and Lease."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidArgument
from . import checks
from .job import Job, Status
from .ownership import EPOCH_LIMIT
from .retention import Retention


def modules(names: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that a worker is to import."""
    if isinstance(names, str):
        raise InvalidArgument(f"imports= must be a list of modules: write [{names!r}].")
    return tuple(checks.name(name, "a module's name") for name in names)


def queues(names: Sequence[str]) -> list[str]:
    """Return the queues to claim from: one at least."""
    if isinstance(names, str):
        raise InvalidArgument(f"queues= must be a list of names: write [{names!r}].")
    named = [checks.name(queue, "queue") for queue in names]
    if not named:
        raise InvalidArgument(
            "queues= is empty, so no job could ever be claimed: name at least one queue, or pass None for all of them."
        )
    return named


def seen(job: Job | str, epoch: int | None) -> tuple[str, int]:
    """Return the job's id and the epoch that the operator saw: that of the `Job`, or *epoch*."""
    if isinstance(job, Job):
        return job.id, job.epoch if epoch is None else checks.whole(epoch, "epoch", least=0, most=EPOCH_LIMIT)
    if epoch is None:
        raise InvalidArgument(
            f"job {job!r} needs an epoch: pass epoch=…, or the Job that router.job({job!r}) returned. If the epoch has "
            "changed since then, the call is refused."
        )
    return checks.name(job, "a job's id"), checks.whole(epoch, "epoch", least=0, most=EPOCH_LIMIT)


def retention(policy: object) -> Retention:
    """Return how long things are kept."""
    if not isinstance(policy, Retention):
        raise InvalidArgument(f"retention= must be a Retention(…), not {policy!r}.")
    return policy


def note(text: str | None) -> str | None:
    """Return an operator's note, or None."""
    return None if text is None else checks.text(text, "note")


def limit(most: int | None) -> int | None:
    """Return how many a reader wants at most; None for all."""
    return None if most is None else checks.whole(most, "limit", least=0, most=2**53)


def status(named: Status | str) -> Status:
    """Return the status of that name."""
    try:
        return Status(named)
    except ValueError:
        raise InvalidArgument(f"{named!r} is not a status: use one of {', '.join(Status)}.") from None


def effect(name: object, call: object, in_doubt: object, undone: object) -> bool:
    """Check the arguments of `Lease.once`; return whether an effect in doubt is brought about again."""
    checks.name(name, "the name of an effect")
    if not callable(call):
        raise InvalidArgument(f"once() calls a function with the effect's key, and {call!r} cannot be called.")
    if not isinstance(undone, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in undone):
        raise InvalidArgument(f"undone= must be a tuple of exception classes, such as (CardDeclined,), not {undone!r}.")
    if in_doubt not in ("raise", "retry"):
        raise InvalidArgument(f'in_doubt must be "raise" or "retry", not {in_doubt!r}.')
    return in_doubt == "retry"


def fraction(value: object) -> float | None:
    """Check how much of the work is done, and return it."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgument(f"progress must be a number from 0 to 1, not {value!r}.")
    return float(value)


def idle_us(seconds: float | None) -> int | None:
    """Return how long a transaction may be idle, as stores take it."""
    return None if seconds is None else checks.microseconds(seconds, "idle_seconds")
