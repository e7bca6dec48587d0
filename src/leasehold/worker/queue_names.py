"""Warns of a worker's queue that the store does not know: its name may be mistyped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..core.suggestions import near
from ..errors import StoreUnavailable
from ..store import Store
from ..tasks.task import AnyTask
from .log import log


def warn_of_unknown(store: Store, queues: Sequence[str] | None, tasks: Mapping[str, AnyTask]) -> None:
    """Log each of the *queues* that no task names, that has no unfinished job, and that is not paused."""
    own = {task.queue for task in tuple(tasks.values())} | {"default"}
    strange = [queue for queue in queues or () if queue not in own]
    if not strange:  # then nothing is asked: to count jobs takes longer the more there are
        return
    with suppress(StoreUnavailable):  # the claims will tell
        known = {*store.counts().queues, *(queue.name for queue in store.queues())}
        for queue in strange:
            if queue not in known:
                found = near(queue, sorted((known | own) - set(queues or ())))
                meant = f": did you mean {found!r}?" if found else "."
                log.warning("queue %r has no jobs, and no task of this router uses it%s", queue, meant)
