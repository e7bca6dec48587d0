"""What a worker that ends when nothing is left still waits for, and when it says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC

from ..core.clock import Clock
from ..core.job import Grant, Job, Status
from ..errors import StoreIncompatible
from ..store import Store
from .log import log

_SILENT_US = 2_000_000
_AGAIN_US = 30_000_000
_MOST = 1_000  # jobs that are looked at


class Waiting:
    """Says what is waited for when nothing could be done for a while, and then now and again."""

    def __init__(
        self, store: Store, queues: Sequence[str] | None, steady: Clock, knows: Callable[[str | None], bool]
    ) -> None:
        self._store = store
        self._queues = queues
        self._steady = steady
        self._knows = knows
        self._next_us: int | None = None  # when to say it

    def got(self, grants: Sequence[Grant]) -> None:
        """Be silent for longer, if one of *grants* can be handled here."""
        if self._next_us is not None and any(self._knows(grant.spec.task) for grant in grants):
            self._next_us = None

    def nothing_left(self) -> bool:
        """Return whether nothing is unfinished."""
        unfinished = [counts for name, counts in self._store.counts().queues.items() if self._is_ours(name)]
        pending = sum(counts.get(Status.PENDING, 0) for counts in unfinished)
        count = sum(sum(counts.values()) for counts in unfinished)
        now = self._steady.now()
        if self._next_us is None:
            self._next_us = now + _SILENT_US
        elif count and now >= self._next_us:
            self._next_us = now + _AGAIN_US
            log.info("waiting for %s", self._told(pending, count - pending))
        return not count

    def _is_ours(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def _told(self, pending: int, running: int) -> str:
        count = pending + running
        parts = [f"{pending} pending{self._due()}"] if pending else []
        parts += [f"{running} running elsewhere"] if running else []
        text = f"{count} {'job' if count == 1 else 'jobs'}: {', '.join(parts)}"
        strange = {job.task for job in self._jobs(None) if not self._knows(job.task)}
        if strange:
            names = ", ".join(sorted("no task" if name is None else repr(name) for name in strange))
            text += f"; nobody here knows {names}"
        return text

    def _due(self) -> str:
        due = min((job.run_at for job in self._jobs(Status.PENDING)), default=None)
        return "" if due is None else f" (the first is due at {due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"

    def _jobs(self, status: Status | None) -> list[Job]:
        """Return the unfinished ones, or the first of very many; none, if our role may only count them."""
        wanted = [Status.PENDING, Status.RUNNING] if status is None else [status]
        queues: Sequence[str | None] = [None] if self._queues is None else self._queues
        with suppress(StoreIncompatible):
            return [
                job
                for one in wanted
                for queue in queues
                for job in self._store.jobs(status=one, queue=queue, limit=_MOST)
            ]
        return []
