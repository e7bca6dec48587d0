"""What a due job may be parked behind, and how a reader sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

LOCK = "lock"  # a lock key that another job holds
TASK = "task"  # a task that the claimer did not know


class Parked(NamedTuple):
    """
    What a due job waits behind, beside the order of claims.

    `kind` is "lock" or "task"; `behind` is the lock key, or the name of the task ("" for a job without one). The two
    have namespaces of their own. `by` is the owner whose claim passed the job over.
    """

    kind: str
    behind: str
    by: str


def known_tasks(tasks: Collection[str] | None) -> frozenset[str | None] | None:
    """Return the tasks that a claim knows as jobs name them: None for a job without one. None: it knows every task."""
    if tasks is None:
        return None
    return frozenset(tasks) | {None} if "" in tasks else frozenset(tasks)
