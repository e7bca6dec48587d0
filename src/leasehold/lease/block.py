"""How the transactions of a lease end: committed, rolled back, or lost with their connection."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import LeaseholdError, StoreUnavailable
from ..store import Transactions
from ..transaction import Block, End

if TYPE_CHECKING:
    from .lease import Lease


def commit(lease: Lease, verbs: Transactions, block: Block) -> None:
    """Commit the block, after the verbs that other threads run in it."""
    block.wait()
    try:
        lease._noting(lambda: verbs.commit(block.connection))
    except BaseException as error:
        known = isinstance(error, LeaseholdError) and not getattr(error, "outcome_unknown", False)
        block.ended = End.ROLLED_BACK if known else End.UNKNOWN
        raise
    block.ended = End.COMMITTED
    if block.renewed is not None:
        # The renewal may have been undone with a savepoint, and the block may have settled the lease.
        with suppress(LeaseholdError):
            grant = lease.store.lease(lease.job_id, lease.owner)
            if grant.epoch == lease.epoch:
                lease._renewed(grant.expires_us, block.renewed)


def roll_back(lease: Lease, verbs: Transactions, connection: Any, block: Block | None, error: BaseException) -> None:
    """Roll back the block that *error*, which is being handled, has ended; raise the refusal if it was the reason."""
    if block is not None:
        block.wait()
        if block.ended is End.NOT_YET:
            block.ended = End.ROLLED_BACK
    was_ended = verbs.was_ended(connection)
    lease._noting(lambda: verbs.rollback(connection))
    if isinstance(error, Exception) and not isinstance(error, LeaseholdError) and was_ended:
        with suppress(StoreUnavailable):
            [refusal] = lease.store.check([(lease.job_id, lease.epoch)])
            if refusal is not None:
                raise lease._note_refusal(refusal) from error


def roll_back_elsewhere(lease: Lease, verbs: Transactions, block: Block, error: BaseException) -> None:
    """Roll back on another thread than the one that handles *error*: `verbs.rollback` looks at the handled one."""
    try:
        raise error
    except BaseException:
        roll_back(lease, verbs, block.connection, block, error)
