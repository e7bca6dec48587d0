"""Shows on a real database that the fence bites."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...connections import recognise
from ...core.marks import Writer
from ...errors import GuardUnavailable, Unfenced
from . import postgres
from .connecting import commit

if TYPE_CHECKING:
    from .guard import SqlGuard

KEYS = "leasehold prove "  # how the keys of proofs begin


def prove(guard: SqlGuard) -> None:
    """Let a stale transaction commit, which must be refused, with a key that no owner has."""
    key = f"{KEYS}{uuid.uuid4().hex}"
    try:
        _prove_with(guard, key)
    except GuardUnavailable:
        raise  # what could not be reached would keep the removal waiting too; what may be left is harmless
    except BaseException:
        with suppress(Exception):
            _remove(guard, key)
        raise
    _remove(guard, key)


def _remove(guard: SqlGuard, key: str) -> None:
    with guard._explaining(key, None), guard._source.lend() as own:
        own.run(guard._dialect(own).end_proof(key, own.style))


def _prove_with(guard: SqlGuard, key: str) -> None:
    guard._ensure()
    old, new = (guard._request_of((key,), Writer(epoch, "prove", "prove")) for epoch in (1, 2))
    handle = guard._source.open()
    whole = False
    try:
        connection = recognise(handle)
        fence = guard._dialect(connection).fence(old, connection.style)
        if connection.vendor == "postgresql":
            # Both at once, as in life: the old owner is in its transaction while the new one seals.
            if not connection.begins():
                connection.execute("BEGIN")
            connection.run(fence)
            guard._seal_once(key, new)
            refused = not _commits(handle)
        else:
            guard._seal_once(key, new)
            with guard._explaining(key, connection):
                refused = key in connection.run(fence).refused
            handle.rollback()
        whole = True
    finally:
        if not whole:
            with suppress(Exception):
                handle.rollback()
        guard._source.give(handle, whole=whole)
    known = guard._known(key)
    if not refused or known is None or known.mark.epoch != new.writer.epoch:
        raise Unfenced(
            f"a transaction under an older epoch was committed in {guard._source.where}: its fence has no effect. "
            f"Check the trigger at_commit of {guard._schema}.fences (PostgreSQL) or the triggers on the table "
            f"{guard._schema}_marks (SQLite), and call guard.install()."
        )


def _commits(handle: Any) -> bool:
    try:
        if recognise(handle).library == "Django":
            recognise(handle).execute("COMMIT")
        else:
            commit(handle)
    except Exception as error:
        if postgres.sqlstate_of(error) != postgres.REFUSED:
            raise
        with suppress(Exception):
            handle.rollback()
        return False
    return True
