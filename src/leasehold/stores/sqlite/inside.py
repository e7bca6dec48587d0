"""Which transactions this context has open: a write outside of them would wait for its own caller."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from ...errors import InvalidArgument


class _Joined(NamedTuple):
    path: str
    connection: Any
    is_open: Callable[[], bool]


_joined: ContextVar[tuple[_Joined, ...]] = ContextVar("leasehold_joined", default=())


def enter(path: str, connection: Any, is_open: Callable[[], bool]) -> None:
    """Remember that this context has a transaction on the file at *path*, for as long as *is_open* says so."""
    still = [one for one in _joined.get() if one.connection is not connection and one.is_open()]
    _joined.set((*still, _Joined(os.path.realpath(path), connection, is_open)))


def is_inside(connection: Any) -> bool:
    """Return whether the transaction that *connection* has open has been joined in this context."""
    return any(one.connection is connection and one.is_open() for one in _joined.get())


def holds(path: str) -> bool:
    """Return whether this very context holds the write lock of the file at *path*."""
    joined = _joined.get()
    return bool(joined) and any(one.is_open() for one in joined if one.path == os.path.realpath(path))


def refuse_inside(path: str) -> None:
    """Refuse to wait for the write lock of the file at *path* if this very context holds it."""
    if holds(path):
        raise InvalidArgument(
            "a transaction is open here, which holds the file's only write lock: pass connection=… to join it, "
            "or end it first. Without, this call would wait for itself."
        )
