"""Handlers on an event loop: every `async def`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Sequence
from contextlib import suppress

from ...tasks.hooks import Hooks
from ..calling import End, call_async
from ..executor import Began, Ended
from ..run import EXECUTING, WAITING, Run

_CLEAR_SECONDS = 1.0


class Loop:
    """One event loop for all async handlers: the caller's, or one of the worker's own, on a thread of its own."""

    def __init__(
        self,
        hooks: Hooks,
        began: Began,
        ended: Ended,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._hooks = hooks
        self._began = began
        self._ended = ended
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._making = threading.Lock()
        self._tasks: dict[Run, asyncio.Task[End]] = {}  # for the loop's thread alone

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; it is made when it is first needed."""
        with self._making:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, name="leasehold-loop", daemon=True)
                self._thread.start()
            return self._loop

    def start(self, runs: Sequence[Run]) -> None:
        """Begin each of *runs*."""
        loop = self.loop
        if _is_running_here(loop):  # as when a handler there has ended: no wake-up is needed
            self._begin(runs)
        else:
            loop.call_soon_threadsafe(self._begin, runs)

    def stop(self, run: Run) -> bool:
        """Cancel the handler; it ends when it has cleaned up."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and with it everything on it
                self._loop.call_soon_threadsafe(self._cancel, run)
        return True

    def close(self) -> None:
        """End the loop, if it is the worker's own."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2)

    def _serve(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cleared())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    # On the loop's thread

    def _begin(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if not run.transition(WAITING, EXECUTING):
                continue
            self._began(run)
            task = asyncio.get_running_loop().create_task(
                call_async(run.task, run.grant, run.lease, self._hooks),
                name=f"leasehold {run.grant.spec.id}",
                context=contextvars.copy_context(),
            )
            self._tasks[run] = task
            # Not a `finally` inside: a task that is cancelled before its first step runs none.
            task.add_done_callback(functools.partial(self._over, run))

    def _over(self, run: Run, task: asyncio.Task[End]) -> None:
        del self._tasks[run]
        self._ended(run, End(None, asyncio.CancelledError()) if task.cancelled() else task.result())

    def _cancel(self, run: Run) -> None:
        if run in self._tasks:
            self._tasks[run].cancel()


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _cleared() -> None:
    """Cancel what is still on this loop, and let it clean up for a while."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLEAR_SECONDS)
