"""Whether a `lease.transaction()` whose COMMIT was not answered has committed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...core.redaction import shown_url
from ...errors import LeaseholdError, StoreUnavailable
from . import refusals
from .fenced import FencedConnection

if TYPE_CHECKING:
    from .database import Database
    from .store import PostgresStore


def moved(store: PostgresStore, job_id: str, epoch: int) -> LeaseholdError | None:
    """Return why the epoch is not current, or None if it is, or if the store does not answer."""
    try:
        return store.check([(job_id, epoch)])[0]
    except StoreUnavailable:
        return None


def resolve(
    store: PostgresStore, session: FencedConnection, job_id: str, epoch: int, error: BaseException
) -> LeaseholdError | None:
    """
    Return None if the transaction of *session*, which is lost, has committed; else the error for the block.

    The server's own status of the transaction comes first. The record alone proves nothing: another holder of the same
    epoch may have settled the job in the same words. Nor does the status "committed" alone: a server that has crashed
    may give the number of a forgotten transaction to another. Nor does a takeover: the rows may have come before it.
    """
    database, number = store.database, session.number
    if number is not None and refusals.is_rolled_back(database, number):
        return moved(store, job_id, epoch) or unfinished()
    if _has_committed(database, session, job_id, epoch):
        return None
    refusal = moved(store, job_id, epoch)
    if refusal is not None:
        # Again: until the epoch was no longer current, a COMMIT that the server had received could succeed.
        if _has_committed(database, session, job_id, epoch):
            return None
        if _status(database, number) == "aborted":
            return refusal
        # A settlement that was a part of it, whatever became of savepoints, and that is not on record.
        if session.surely_settles and _is_recorded(database, session, job_id, epoch) is False:
            return refusal
    return StoreUnavailable(
        f"the connection to {shown_url(database.url)} was lost in COMMIT: {_first(error)}. The transaction may or may "
        "not have been committed: look for what it wrote before you run it again.",
        outcome_unknown=True,
    )


def unfinished() -> StoreUnavailable:
    """Return the error of a transaction that was lost before its COMMIT was sent."""
    return StoreUnavailable(
        "the connection of this transaction was lost before its end: nothing was committed. Run it again."
    )


def _has_committed(database: Database, session: FencedConnection, job_id: str, epoch: int) -> bool:
    return bool(_is_recorded(database, session, job_id, epoch)) and _status(database, session.number) == "committed"


def _is_recorded(database: Database, session: FencedConnection, job_id: str, epoch: int) -> bool | None:
    """Return whether the job was settled as this transaction would settle it; None: unknown."""
    if session.settles is None:
        return None
    try:
        [(recorded,)] = database.call(
            "has_settled", job_id, epoch, json.loads(session.settles)["fingerprint"], again=True
        )
    except LeaseholdError:
        return None
    return bool(recorded)


def _status(database: Database, number: str | None) -> str | None:
    try:
        return None if number is None else refusals.status_of(database, number)
    except LeaseholdError:
        return None


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
