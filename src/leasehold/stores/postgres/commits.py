"""
What a COMMIT came to: a refusal inside it, which a driver brings as its own exception, or no reply at all.

A refusal comes with its facts. It was rolled back with everything else, so the code that converts it has it recorded,
once. A lost connection proves nothing: the server is asked what became of the transaction.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import TYPE_CHECKING, Any

import psycopg

from ...core.clock import patience
from ...core.redaction import shown_url
from ...errors import LeaseholdError, StaleEpoch, StoreUnavailable, connection_was_lost, finders
from .errors import detail_of, is_lost, sqlstate_of
from .fenced import FencedConnection
from .rows import stale_epoch

if TYPE_CHECKING:
    from .database import Database
    from .store import PostgresStore
    from .transactions import PostgresTransactions

REFUSED_SQLSTATE = "LH001"  # of a fence's refusal inside COMMIT; the facts are in its DETAIL
_END_SECONDS = 2.0  # for a server to notice that its client is gone
# As `leasehold.fence_of` names it, which not every role may call.
_FENCE_LOCK = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
      AND ((classid::bigint << 32) | objid::bigint) & 9007199254740991 = %s
)
"""
_NOTED = "_leasehold_noted"  # set on an error whose refusal is recorded, or will be

# Those whose stores may be the one that refused.
recorders: weakref.WeakSet[PostgresTransactions] = weakref.WeakSet()


# A refusal inside COMMIT


def take(error: BaseException) -> StaleEpoch | None:
    """Return the refusal that *error* brings, for a caller that records it; None if its job is gone."""
    facts = _facts(error)
    return None if facts is None or "unknown" in facts else _refusal(error, facts)


def find(error: BaseException) -> StaleEpoch | None:
    """Return the refusal that *error* brings, and have its store record it: now, or with its next verb."""
    facts = _facts(error)
    if facts is None:
        return None
    is_new = not getattr(error, _NOTED, False)
    refusal = _refusal(error, facts)
    if is_new:
        for recorder in list(recorders):
            if recorder.note(facts):
                recorder.record()
                break
    return refusal


def _refusal(error: BaseException, facts: dict[str, Any]) -> StaleEpoch:
    setattr(error, _NOTED, True)
    if "unknown" in facts:
        return StaleEpoch.of_missing_job(facts["job_id"], presented=facts["presented"], verb=facts["verb"])
    return stale_epoch(facts["job_id"], facts["presented"], facts["verb"], facts)


def _facts(error: BaseException) -> dict[str, Any] | None:
    """Return the facts of the refusal that a fence raised inside COMMIT as *error*, whichever driver brings it."""
    if sqlstate_of(error) != REFUSED_SQLSTATE:
        return None
    try:
        facts: dict[str, Any] = json.loads(detail_of(error) or "")
    except ValueError:
        return None  # an ORM's copy of the error, without its facts; they are in its cause
    return facts  # with "unknown" if the job is gone, so that no epoch is current


# What the server knows of a transaction


def status_of(database: Database, number: str) -> str | None:
    """Return what the server knows of the transaction of that number; None if it has forgotten."""
    [(status,)] = database.read("SELECT pg_catalog.pg_xact_status(%s::pg_catalog.xid8)", (number,))
    return status  # type: ignore[no-any-return]  # a text, or null


def is_fenced(database: Database, epoch: int) -> bool:
    """Return whether a transaction that *epoch* fences is open: it holds the lock that is named by the epoch."""
    [(held,)] = database.read(_FENCE_LOCK, (epoch,))
    return bool(held)


def is_rolled_back(database: Database, number: str) -> bool:
    """
    Return whether the server knows that the transaction of that number was rolled back.

    Not whether it was committed: a server that has crashed may give the number of a forgotten transaction to another.
    """
    left, pause = patience(_END_SECONDS), threading.Event()
    while True:
        try:
            status = status_of(database, number)
        except LeaseholdError:
            return False  # a number that this server has never issued, or no server answers
        if status != "in progress" or left() <= 0:
            return status == "aborted"
        pause.wait(0.01)  # the server is about to notice that its client is gone


def _was_lost(error: BaseException) -> bool:
    """Whether *error* is a driver's, and says that the connection is gone."""
    if isinstance(error, ConnectionError):
        return True
    ours = isinstance(error, psycopg.Error) or type(error).__module__.startswith("asyncpg.")
    return ours and is_lost(error)


# A `lease.transaction()` whose COMMIT was not answered


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
    if number is not None and is_rolled_back(database, number):
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
        "not have been committed: check whether its rows exist before you run it again.",
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
        return None if number is None else status_of(database, number)
    except LeaseholdError:
        return None


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


finders.append(find)
connection_was_lost.append(_was_lost)
