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
from .run import WAITING, Run


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
        self._waiting: dict[Kind, deque[Run]] = {}  # of the kinds that had to wait so far; mostly there is one

    def start(self, runs: Sequence[Run]) -> None:
        """Begin as many of *runs*, which one claim has got, as there are free slots, and the others later."""
        begin: dict[Kind, list[Run]] = {}
        with self._lock:
            for run in runs:
                if run.state is not WAITING:  # handed back meanwhile: its slot would never be free again
                    continue
                kind = run.task.kind
                if self._free:  # then none waits
                    self._free -= 1
                    run.has_slot = True
                    begin.setdefault(kind, []).append(run)
                else:
                    self._waiting.setdefault(kind, deque()).append(run)
        for kind, some in begin.items():
            self._executors[kind].start(some)

    def free(self, run: Run) -> None:
        """Give the slot of *run*, if it has one, to the next that waits. *run* has ended, or will never begin."""
        following = self.replace(run)
        if following is not None:
            self._start(following)

    def replace(self, run: Run) -> Run | None:
        """Do the same, and return the next run if it is of the same kind: its executor, which calls this, begins it."""
        with self._lock:
            if not run.has_slot:
                return None
            run.has_slot = False
            kind = run.task.kind
            following = self._next(kind)
            if following is None:
                self._free += 1
                return None
            following.has_slot = True
        if following.task.kind is kind:
            return following
        self._start(following)
        return None

    def _start(self, run: Run) -> None:
        try:
            self._executors[run.task.kind].start((run,))
        except Exception:  # its event loop is closed; the worker hands it back when it has not begun in time
            log.exception("could not start the handler of job %r; the worker releases the job soon", run.lease.job_id)

    def _next(self, kind: Kind) -> Run | None:
        """Take out the run that a slot of *kind* is for: of the oldest claim, and rather of that kind."""
        first: Run | None = None
        for waiting in self._waiting.values():
            while waiting and waiting[0].state is not WAITING:
                waiting.popleft()  # it was handed back meanwhile
            if waiting and (first is None or _goes_before(waiting[0], first, kind)):
                first = waiting[0]
        return None if first is None else self._waiting[first.task.kind].popleft()


def _goes_before(run: Run, other: Run, kind: Kind) -> bool:
    return run.came_us < other.came_us or (run.came_us == other.came_us and run.task.kind is kind)
