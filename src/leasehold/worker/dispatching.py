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
from .run import EXECUTING, SETTLING, WAITING, Run

_THREAD = Kind.THREAD


class Dispatcher:
    """
    The slots of a worker, and the runs that wait for one.

    A free slot goes to the oldest claim that has a run waiting. Within one claim it stays with the kind of handler that
    had it, since a switch between threads and the event loop costs more than a short handler: with two kinds in turn,
    in the order of their jobs, most of the time goes into switches.
    """

    def __init__(self, slots: int, executors: Mapping[Kind, Executor], lock: threading.Lock) -> None:
        """*lock* is that of the runs, so that a run ends and the next one begins in one step."""
        self._executors = executors
        self._lock = lock  # for all that follows, and the `has_slot` of every run
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
                elif (waiting := self._waiting.get(kind)) is None:
                    self._waiting[kind] = deque((run,))
                else:
                    waiting.append(run)
        for kind, some in begin.items():
            self._executors[kind].start(some)

    def settle(self, run: Run) -> tuple[bool, Run | None]:
        """
        Move *run*, whose handler has ended, from executing to settling, and replace it, in one step.

        Return whether it was executing, and what `replace` returns. If it was not, its slot is not free yet.

        One lock of at least 0.2 µs for a job, and not one each for its state, its slot and the next run.
        """
        with self._lock:
            if not run.move(EXECUTING, SETTLING):
                return False, None
            following, is_begun = self._pass_on(run)
        return True, following if is_begun else self._started(following)

    def replace(self, run: Run) -> Run | None:
        """
        Give the slot of *run*, if it has one, to the next that waits. *run* has ended, or will never begin.

        Return the next run if both are for threads: it is executing from now on, on the thread that calls this.
        """
        with self._lock:
            following, is_begun = self._pass_on(run)
        return following if is_begun else self._started(following)

    def free(self, run: Run) -> None:
        """Do the same for a caller that cannot begin the next run."""
        with self._lock:
            following, _ = self._pass_on(run, begin=False)
        self._started(following)

    def _pass_on(self, run: Run, *, begin: bool = True) -> tuple[Run | None, bool]:
        """Return the run that has the slot of *run* from now on, and whether it is executing, on this thread."""
        if not run.has_slot:
            return None, False
        run.has_slot = False
        kind = run.task.kind
        following = self._next(kind)
        if following is None:
            self._free += 1
            return None, False
        following.has_slot = True
        if begin and kind is _THREAD and following.task.kind is kind:
            return following, following.move(WAITING, EXECUTING)
        return following, False

    def _started(self, run: Run | None) -> Run | None:
        """Have the executor of *run* start it, if there is one, and return None: this thread does not begin it."""
        if run is None:
            return None
        try:
            self._executors[run.task.kind].start((run,))
        except Exception:  # its event loop is closed; the worker hands it back when it has not begun in time
            log.exception("could not start the handler of job %r; the worker will release the job", run.lease.job_id)
        return None

    def _next(self, kind: Kind) -> Run | None:
        """Take out the run that a slot of *kind* is for: of the oldest claim, and rather of that kind."""
        oldest: deque[Run] | None = None
        for waiting in self._waiting.values():
            while waiting and waiting[0].state is not WAITING:
                waiting.popleft()  # it was handed back meanwhile
            if waiting and (oldest is None or _goes_before(waiting[0], oldest[0], kind)):
                oldest = waiting
        return None if oldest is None else oldest.popleft()


def _goes_before(run: Run, other: Run, kind: Kind) -> bool:
    return run.came_us < other.came_us or (run.came_us == other.came_us and run.task.kind is kind)
