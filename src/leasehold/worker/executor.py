"""
CONTRACT: what runs the handlers of one kind of task. `executors/` has one module for each kind.

An executor is made with two functions. For each run that it is given:

1. It makes the transition from waiting to executing, and drops the run if that fails: it was handed back.
2. It calls `began(run)` just before the handler, on any thread.
3. It calls `ended(run, end)` once, whatever becomes of the handler, even if it was stopped or its process has died.

`ended` may call `start` of this and of other executors, so no lock may be held. To a thread of `Threads` it returns the
next run, if one waits that the thread can begin at once: that is executing already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .calling import End
from .run import Run

Began = Callable[[Run], None]
Ended = Callable[[Run, End], Run | None]


class Executor(Protocol):
    """Where handlers of one kind run."""

    def start(self, runs: Sequence[Run]) -> None:
        """Begin each of *runs* now. The dispatcher passes no more than there are slots."""
        ...

    def stop(self, run: Run) -> bool:
        """Stop the handler where that can be done; return whether it can."""
        ...

    def close(self) -> None:
        """Let go of everything; handlers have ended or are not waited for."""
        ...
