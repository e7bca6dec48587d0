"""How many jobs a store has, by status, queue and task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .job import Status


class Counts(NamedTuple):
    """
    How many jobs stand where; `queues` splits the unfinished ones.

    `parked` has those of the pending ones that are parked behind a task, by the task's name ("" for jobs without one)
    and queue: a worker claimed from the queue and did not know the task.
    """

    pending: int
    running: int
    done: int
    failed: int
    cancelled: int
    queues: Mapping[str, Mapping[str, int]]
    parked: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        by_status: Mapping[Status, int],
        queues: Mapping[str, Mapping[str, int]],
        parked: Mapping[str, Mapping[str, int]],
    ) -> Counts:
        """Return the counts, queues and tasks in alphabetical order."""
        pending, running, done, failed, cancelled = (by_status.get(status, 0) for status in Status)
        tasks = {task: dict(sorted(queues.items())) for task, queues in sorted(parked.items())}
        return cls(pending, running, done, failed, cancelled, dict(sorted(queues.items())), tasks)
