"""The verbs of operators on a queue: pause, resume, list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..aio import alone
from ..core import checks, inputs
from ..core.queues import Queue
from .operator_log import acted

if TYPE_CHECKING:  # which has these functions as its methods
    from .front import Router


def pause(router: Router, queue: str, *, by: str, note: str | None = None) -> Queue:
    """
    Have claims take nothing from *queue* until it is resumed; return the queue as it is now.

    Jobs that run go on. What is added, retried, reclaimed or requeued meanwhile waits in the queue, and operators'
    verbs work on its jobs. To pause a paused queue replaces who, when and why.
    """
    name = checks.name(queue, "queue")
    paused = alone(router.store).pause(name, by=checks.name(by, "by="), note=inputs.note(note))
    acted(router, "paused", f"queue {name!r} paused", queue=name, by=by, note=note)
    return paused


def resume(router: Router, queue: str, *, by: str) -> Queue:
    """Have claims take jobs from *queue* again, those that wait already too. A queue that is not paused stays so."""
    resumed = alone(router.store).resume(checks.name(queue, "queue"), by=checks.name(by, "by="))
    acted(router, "resumed", f"queue {queue!r} resumed", queue=queue, by=by)
    return resumed


def queues(router: Router) -> list[Queue]:
    """Return every queue that is paused or has unfinished jobs, by name; `counts().queues` says how many jobs."""
    known = {queue.name: queue for queue in router.store.queues()}
    return [known.get(name) or Queue(name) for name in sorted({*known, *router.store.counts().queues})]
