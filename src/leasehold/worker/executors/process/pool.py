"""Handlers in processes of their own: every `def` with `process=True`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from ....core.clock import patience
from ....tasks.main_guard import refuse_in_an_import
from ...calling import End
from ...executor import Began, Ended
from ...run import EXECUTING, WAITING, Run
from .supervisor import END_SECONDS, Supervisor, Unguarded


class Processes:
    """
    Up to *most* processes, started when they are needed and used again. Each has a supervisor: a thread of the worker.

    Whatever happens to a process, *ended* is called once for the run that it had.
    """

    def __init__(self, most: int, began: Began, ended: Ended) -> None:
        self.began = began
        self._most = most
        self._ended = ended
        self._lock = threading.Lock()  # for all that follows, and who has which run
        self._waiting: deque[Run] = deque()
        self._supervisors: list[Supervisor] = []
        self._idle: list[Supervisor] = []  # the last one is asked first
        self._closing = False
        self._unguarded: Unguarded | None = None  # why no process can ever start
        refuse_in_an_import("a worker was started")

    def start(self, runs: Sequence[Run]) -> None:
        """Begin each of *runs* as soon as there is room."""
        with self._lock:
            self._waiting.extend(runs)
            for _ in runs:
                if self._idle:
                    self._idle.pop().wake()
                elif len(self._supervisors) < self._most:
                    self._supervisors.append(Supervisor(self))

    def stop(self, run: Run) -> bool:
        """Kill the process that handles *run*."""
        with self._lock:
            supervisor: Supervisor | None = run.handle
            if supervisor is not None and supervisor.run is run:
                supervisor.kill()
        return True

    def close(self) -> None:
        """End every process; one that does not end is killed."""
        with self._lock:
            self._closing = True
            supervisors = list(self._supervisors)
            for supervisor in supervisors:
                supervisor.wake()
        left = patience(END_SECONDS)
        for supervisor in supervisors:
            supervisor.thread.join(max(left(), 0))
        for supervisor in supervisors:
            if supervisor.thread.is_alive():
                with self._lock:
                    supervisor.kill()
                supervisor.thread.join(END_SECONDS)

    # For the threads

    def next(self, supervisor: Supervisor, *, patient: bool) -> Run | None:
        """Return the next run for *supervisor*, or None, when it is idle from now on, or no longer here."""
        with self._lock:
            if supervisor in self._idle:
                self._idle.remove(supervisor)
            while self._waiting:
                run = self._waiting.popleft()
                if run.transition(WAITING, EXECUTING):
                    run.handle = supervisor
                    supervisor.run = run
                    return run
            if self._closing or not patient:
                self._supervisors.remove(supervisor)
                supervisor.is_over = True
            else:
                # Rather one that has a process.
                self._idle.insert(len(self._idle) if supervisor.has_process else 0, supervisor)
        return None

    def leave(self, supervisor: Supervisor) -> None:
        """Do not wake *supervisor* any more."""
        with self._lock:
            supervisor.is_over = True
            for supervisors in (self._supervisors, self._idle):
                if supervisor in supervisors:
                    supervisors.remove(supervisor)

    def over(self, supervisor: Supervisor, run: Run, end: End) -> None:
        """Report the end of *run*; the supervisor is free before that, since the next run may come at once."""
        with self._lock:
            supervisor.run = None
            supervisor.is_killed = False
            self._idle.insert(len(self._idle) if supervisor.has_process else 0, supervisor)
        self._ended(run, end)

    def unguarded(self, why: Unguarded | None = None) -> Unguarded | None:
        """Return why no process can ever start, if that is so; from now on it is *why*, if given."""
        with self._lock:
            self._unguarded = self._unguarded or why
            return self._unguarded

    def killing(self, supervisor: Supervisor) -> bool:
        """Return whether the run of *supervisor* was stopped."""
        with self._lock:
            return supervisor.is_killed
