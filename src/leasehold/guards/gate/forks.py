"""
Whether this process was forked since something was made, and ids that no fork repeats.

Without asking the system each time: `os.getpid` and random bytes are a sixth of what a guarded request costs.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator


class _State:
    """What a fork changes."""

    def __init__(self) -> None:
        self.generation = 0
        self.prefix = uuid.uuid4().hex
        self.numbers: Iterator[int] = itertools.count()

    def forked(self) -> None:
        """Begin anew, in the child."""
        self.generation += 1
        self.prefix, self.numbers = uuid.uuid4().hex, itertools.count()


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.forked)


def generation() -> int:
    """Return a number that is another one in each process that is forked from this one."""
    return _state.generation


def unique_id() -> str:
    """Return an id that no process has had."""
    return f"{_state.prefix}-{next(_state.numbers)}"
