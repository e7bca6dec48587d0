"""
What a worker reads and notes in the lease of a handler: that it was refused, that the worker has renewed it.

Functions and not methods, since the handler that holds the lease has no use for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Conflict
from .current import _current
from .joining import has_open_transaction

if TYPE_CHECKING:
    from ..core.job import Grant, Progress
    from .lease import Lease


activate = _current.set  # makes a lease the `current_lease()` of the calling context, for as long as that lasts


def grant_of(lease: Lease) -> Grant:
    """Return what a claim has granted."""
    return lease._grant


def note_lost(lease: Lease) -> None:
    """Note that the lease is no longer current."""
    lease._lost = True


def settled(lease: Lease) -> bool | None:
    """Return whether its owner has settled the job; None: in a transaction of its own, which may have rolled back."""
    return lease._settled


def note_settled(lease: Lease, settled: bool | None) -> None:
    """Note what `settled` is to return."""
    lease._settled = settled


def note_renewal(lease: Lease, expires_us: int, asked_us: int | None = None) -> None:
    """Note a new deadline, and for how long its owner has asked, if the owner did."""
    lease._renewed(expires_us, lease._asked_us if asked_us is None else asked_us)


def asked_us(lease: Lease) -> int:
    """Return for how long the owner's own last renewal was; the worker's must not make it shorter."""
    return lease._asked_us


def moves(lease: Lease) -> int:
    """Return how many reports of progress its owner has made."""
    return lease._moves


def note_move(lease: Lease) -> None:
    """Note a report of progress that its owner has made elsewhere."""
    lease._moves += 1


def report(lease: Lease, report: Progress) -> Exception | None:
    """Write a report of progress, now or with the worker's next batch; return the refusal."""
    return lease._report(report)


def flush(lease: Lease) -> None:
    """Write the reports that wait for the worker's next batch, now."""
    lease._flush()


def has_joined(lease: Lease) -> bool:
    """Return whether its owner has made it part of a transaction of its own, which may be over."""
    return bool(lease._joined)


def leave_transactions(lease: Lease) -> None:
    """Let go of the connections of such transactions; raise `Conflict` if one was left open."""
    if not lease._joined:
        return
    is_open = has_open_transaction(lease)
    lease._joined = ()
    if is_open:
        raise Conflict(
            f"the handler of job {lease.job_id!r} returned while a transaction that it had joined with connection=… "
            "was still open: commit it, or roll it back, before the handler returns. The COMMIT of that transaction "
            "will be refused."
        )


def forget_transactions(lease: Lease) -> None:
    """Let go of the connections of such transactions."""
    lease._joined = ()
