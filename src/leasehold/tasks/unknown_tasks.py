"""Warns of a job for a task that its router does not know: a typing error, or a task of another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.job import NewJob
from ..core.suggestions import near
from ..logs import log

_NEAR = 0.8  # how alike the names must be: 'gret' is a slip for 'greet', and 'send_sms' is none for 'send_mail'


class UnknownTasks:
    """Logs jobs whose task is spelled almost like one of *tasks*, once for each name."""

    def __init__(self, tasks: Mapping[str, object]) -> None:
        self._tasks = tasks
        self._seen: set[str] = set()

    def warn(self, jobs: Iterable[NewJob]) -> None:
        """Log it. Nothing is refused: another process may know the task, and its worker runs the job."""
        if not self._tasks:
            return
        for job in jobs:
            task = job.task
            if task is None or task in self._tasks or task in self._seen:
                continue
            self._seen.add(task)
            if found := near(task, self._tasks, cutoff=_NEAR):
                log.warning(
                    "job %r was added for the task %r, which this router does not have: did you mean %r?",
                    job.id,
                    task,
                    found,
                )
