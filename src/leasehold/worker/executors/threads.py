"""Handlers on threads: every `def` without `process=True`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from ...tasks.hooks import Hooks
from ..calling import call
from ..executor import Began, Ended
from ..run import EXECUTING, WAITING, Run


class Threads:
    """Up to *most* threads, started when they are needed. None of them can be stopped from outside."""

    def __init__(self, most: int, hooks: Hooks, began: Began, ended: Ended) -> None:
        self._most = most
        self._hooks = hooks
        self._began = began
        self._ended = ended
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._adding = threading.Lock()
        self._given = 0  # runs, until there are as many threads as there may be

    def start(self, runs: Sequence[Run]) -> None:
        """Have each of *runs* handled, on a thread that is idle or on a new one."""
        for run in runs:
            self._runs.put(run)
        if len(self._threads) < self._most:
            with self._adding:
                self._given += len(runs)
                while len(self._threads) < min(self._given, self._most):
                    self._add()

    def _add(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"leasehold-handler-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        hooks, began, ended = self._hooks, self._began, self._ended
        while (run := self._runs.get()) is not None:
            following = run if run.transition(WAITING, EXECUTING) else None
            while (run := following) is not None:
                began(run)
                following = ended(run, call(run.task, run.grant, run.lease, hooks))

    def stop(self, run: Run) -> bool:
        """Return False: a thread cannot be stopped. Its lease tells it, and the store refuses it."""
        return False

    def close(self) -> None:
        """Let every thread go once it has nothing left to do."""
        for _ in self._threads:
            self._runs.put(None)
