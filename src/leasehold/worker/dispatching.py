"""
Hands claimed jobs to the executors of their kinds, as many at a time as the worker has slots.

All kinds share the slots. What was claimed ahead waits here, and not with its executor: a thread that takes the next
job by itself would not know that the event loop has taken its slot.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from ..tasks.task import Kind
from .executor import Executor
from .log import log
from .run import Run


class Dispatcher:
    """
    The slots of a worker, and the runs that wait for one.

    A free slot goes to the oldest claim that has a run waiting. Within one claim it stays with the kind of handler that
    had it, since a switch between threads and the event loop costs more than a short handler: with two kinds in turn,
    in the order of their jobs, most of the time goes into switches.
    """

    def __init__(self, slots: int, executors: Mapping[Kind, Executor]) -> None:
        self._executors = executors
        self._lock = threading.Lock()  # for all that follows, and the `has_slot` of every run
        self._free = slots
        self._waiting: dict[Kind, deque[Run]] = {kind: deque() for kind in executors}

    def start(self, runs: Sequence[Run]) -> None:
        """Begin as many of *runs*, which one claim has got, as there are free slots, and the others later."""
        begin: dict[Kind, list[Run]] = {}
        with self._lock:
            for run in runs:
                kind = run.task.kind
                if not run.waits:  # a keeper has handed it back meanwhile, and its slot would never be free again
                    continue
                if self._free:  # then none waits
                    self._free -= 1
                    run.has_slot = True
                    begin.setdefault(kind, []).append(run)
                else:
                    self._waiting[kind].append(run)
        for kind, some in begin.items():
            self._executors[kind].start(some)

    def free(self, run: Run) -> None:
        """Give the slot of *run*, if it has one, to the next that waits. *run* has ended, or will never begin."""
        with self._lock:
            if not run.has_slot:
                return
            run.has_slot = False
            following = self._next(run.task.kind)
            if following is None:
                self._free += 1
                return
            following.has_slot = True
        try:
            self._executors[following.task.kind].start((following,))
        except Exception:  # its event loop is closed; the worker hands it back when it has not begun in time
            log.exception("could not begin %r", following)

    def _next(self, kind: Kind) -> Run | None:
        """Take out the run that a slot of *kind* is for."""
        chosen, first = None, self._first(kind)
        for other, waiting in self._waiting.items():
            if not waiting or other is kind:
                continue
            head = self._first(other)
            if head is not None and (first is None or head.came_us < first.came_us):
                chosen, first = other, head
        if first is not None:
            self._waiting[chosen or kind].popleft()
        return first

    def _first(self, kind: Kind) -> Run | None:
        waiting = self._waiting[kind]
        while waiting:
            if waiting[0].waits:
                return waiting[0]
            waiting.popleft()  # it was handed back meanwhile
        return None
