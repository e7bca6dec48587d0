"""Whose turn it is at a memory store: one verb at a time, in one process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

from ...core.clock import Clock
from ...errors import Conflict, StoreUnavailable


class Turn:
    """The lock of a store, and the calls that wait for a change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._gone: str | None = None  # why no verb works any more
        _turns.add(self)

    @property
    def lock(self) -> Any:
        """What makes the caller, a verb, one turn, unless this thread is in the middle of another verb."""
        if self._gone is not None:
            raise StoreUnavailable(self._gone)
        if self._lock._is_owned():
            raise _inside(sys._getframe(1).f_code.co_name)
        return self._lock

    def sleep(self, until: int) -> None:
        """Let others have their turn until something changes or *until* has come."""
        self._waiters += 1
        try:
            self._clock.wait(self._changed, until)
        finally:
            self._waiters -= 1
        if self._gone is not None:
            raise StoreUnavailable("this store was closed while the call waited. Nothing was changed.")

    def tell(self) -> None:
        """Wake the calls that wait for a change."""
        if self._waiters:
            self._changed.notify_all()

    def close(self) -> None:
        """Let no verb have a turn any more."""
        with self._changed:
            self._gone = "this store is closed."
            self._changed.notify_all()

    def abandon(self) -> None:
        """Do the same in a forked child, which has a copy: claims on both would issue the same epochs twice."""
        self._changed = threading.Condition()  # a thread may have held the old one, for ever
        self._gone = (
            "this memory store belongs to the process that made it, and a forked child has only a copy: "
            "make a Router in the child, or share a SQLite file."
        )


def _inside(verb: str) -> Conflict:
    """Return the refusal of a verb that was called while another one was under way."""
    return Conflict(
        f"{verb}() was called while another verb of this store was under way, for instance from a signal handler, so "
        f"it would see a change that is only half made. Set a flag in the signal handler, and call {verb}() after it "
        "has returned."
    )


_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


def _after_fork() -> None:
    for turn in _turns:
        turn.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
