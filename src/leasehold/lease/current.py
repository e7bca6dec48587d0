"""The lease of the handler that is running here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..errors import NoLease

if TYPE_CHECKING:
    from .lease import Lease

_current: ContextVar[Lease] = ContextVar("leasehold_current_lease")


def current_lease() -> Lease:
    """
    Return the lease of the handler that is running here, or raise `NoLease`.

    It follows awaits and `asyncio` tasks; a thread that you start yourself does not inherit it.
    """
    try:
        return _current.get()
    except LookupError:
        raise NoLease(
            "no lease is active here: call this from a handler, or inside `with lease.active():`. A thread of your "
            "own does not inherit the lease of the thread that started it: pass the lease to it."
        ) from None


def lease_here() -> Lease | None:
    """Return what `current_lease` returns, or None."""
    return _current.get(None)
