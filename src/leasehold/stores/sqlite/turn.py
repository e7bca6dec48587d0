"""Whose turn it is, in this process: a call that would wait for its own thread is refused at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec, TypeVar

from ...core.clock import patience
from ...errors import Conflict, StoreUnavailable

_LOOK_SECONDS = 0.05


P = ParamSpec("P")
T = TypeVar("T")


class _Ticket(NamedTuple):
    thread: threading.Thread


class Turn:
    """
    A lock of this process that knows whose it is.

    Not a threading.Lock: Ctrl-C between its acquire and the line behind it would lock it for ever, and a signal handler
    would wait for the very thread that it interrupts. Not an RLock either: an async transaction ends on another thread
    than the one that began it.
    """

    def __init__(self, what: str, path: str) -> None:
        self._what = what
        self._path = path
        self._held: dict[str, _Ticket] = {}  # "by": whose turn it is. To take it and to say so is one step of a dict
        self._freed = threading.Lock()  # released to wake one who waits; to miss that costs only a look
        self._freed.acquire()

    @contextmanager
    def taken(self, seconds: float) -> Iterator[None]:
        """Hold the turn; wait up to *seconds* for it."""
        mine, held = _Ticket(threading.current_thread()), self._held
        try:
            self._take(mine, seconds)
            yield
        finally:
            # Python handles signals after calls, and there is none before the turn is given back.
            if "by" in held and held["by"] is mine:
                del held["by"]
                self._wake_one()

    def run(self, seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Hold the turn for a call, which is several times faster than `with`; wait up to *seconds* for it."""
        mine, held = _Ticket(threading.current_thread()), self._held
        try:
            self._take(mine, seconds)
            return call(*args, **kwargs)
        finally:
            # As above.
            if "by" in held and held["by"] is mine:
                del held["by"]
                self._wake_one()

    def _wake_one(self) -> None:
        if self._freed.locked():  # else nobody has waited since the last time
            with suppress(RuntimeError):  # nor now: another has had its turn meanwhile
                self._freed.release()

    def _take(self, mine: _Ticket, seconds: float) -> None:
        if self._held.setdefault("by", mine) is mine:
            return
        left = patience(seconds)
        while (holder := self._held.setdefault("by", mine)) is not mine:
            if holder.thread is mine.thread:
                raise Conflict(
                    f"this very thread is in the middle of a {self._what} of {self._path}, which this call would wait "
                    "for. In a signal handler, set a flag and call the verb later; in a transaction, pass connection=…."
                )
            if left() <= 0:
                raise StoreUnavailable(
                    f"another thread of this process has held the only {self._what} lock of {self._path} for "
                    f"{seconds:g} s (busy_seconds): it may be stopped inside lease.transaction()."
                )
            self._freed.acquire(timeout=max(min(left(), _LOOK_SECONDS), 0))
