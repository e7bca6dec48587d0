"""When a worker with `until_empty` ends, and what it logs about what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC

from ..core.clock import Clock
from ..core.job import Grant, Job, Status
from ..core.wording import counted
from ..errors import StoreIncompatible
from ..store import Store
from .log import log

_SILENT_US = 2_000_000
_AGAIN_US = 30_000_000
_MOST = 1_000  # jobs that are read, for a log line


class UntilEmpty:
    """Finds out whether nothing is left, and logs what is waited for: after a while, and then now and again."""

    def __init__(
        self, store: Store, queues: Sequence[str] | None, steady: Clock, knows: Callable[[str | None], bool]
    ) -> None:
        self._store = store
        self._queues = queues
        self._steady = steady
        self._knows = knows
        self._next_us: int | None = None  # when to log it
        self.left = 0  # pending jobs that the end leaves behind

    def got(self, grants: Sequence[Grant]) -> None:
        """Log later, if one of *grants* can be handled here."""
        if self._next_us is not None and any(self._knows(grant.spec.task) for grant in grants):
            self._next_us = None

    def nothing_left(self) -> bool:
        """Return whether nothing is unfinished, but jobs in paused queues and behind tasks that are unknown here."""
        counts = self._store.counts()
        unfinished = {name: counted for name, counted in counts.queues.items() if self._is_ours(name)}
        pending = {name: count for name, counted in unfinished.items() if (count := counted.get(Status.PENDING, 0))}
        running = sum(counted.get(Status.RUNNING, 0) for counted in unfinished.values())
        paused = {name: pending.pop(name) for name in self._paused() if name in pending} if pending else {}
        behind = {task: self._parked(task, queues, pending) for task, queues in counts.parked.items()}
        unknown = {task: count for task, count in behind.items() if count}
        now, waiting = self._steady.now(), sum(pending.values())
        if not running and waiting == sum(unknown.values()):
            self._end(paused, unknown)
            return True
        if self._next_us is None:
            self._next_us = now + _SILENT_US
        elif now >= self._next_us:
            self._next_us = now + _AGAIN_US
            log.info("waiting for %s", self._described(waiting, running))
        return False

    def _parked(self, task: str, queues: Mapping[str, int], pending: Collection[str]) -> int:
        """Return how many jobs that could be claimed from here are parked behind *task*, if it is unknown here."""
        return 0 if self._knows(task or None) else sum(count for name, count in queues.items() if name in pending)

    def _end(self, paused: dict[str, int], unknown: dict[str, int]) -> None:
        """Log what stays behind, if anything does."""
        behind = sum(unknown.values())
        self.left = behind + sum(paused.values())
        parts = [f"{count} in {name!r}, which is paused" for name, count in sorted(paused.items())]
        parts += [f"{behind} of tasks that this worker does not know ({_named(unknown)})"] if unknown else []
        if parts:
            count = counted(self.left, "job is", "jobs are")
            log.info("nothing left for this worker; %s still pending: %s", count, ", ".join(parts))

    def _paused(self) -> set[str]:
        return {queue.name for queue in self._store.queues() if queue.paused}

    def _unknown(self) -> str:
        return _named({job.task or "" for job in self._jobs(None) if not self._knows(job.task)})

    def _is_ours(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def _described(self, pending: int, running: int) -> str:
        count = pending + running
        parts = [f"{pending} pending{self._due()}"] if pending else []
        parts += [f"{running} running elsewhere"] if running else []
        text = f"{count} {'job' if count == 1 else 'jobs'}: {', '.join(parts)}"
        if names := self._unknown():
            text += f"; tasks that this worker does not know: {names}"
        return text

    def _due(self) -> str:
        due = min((job.run_at for job in self._jobs(Status.PENDING)), default=None)
        return "" if due is None else f" (the first is due at {due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"

    def _jobs(self, status: Status | None) -> list[Job]:
        """Return the unfinished ones, or the first of very many; none, if our role may only count them."""
        wanted = [Status.PENDING, Status.RUNNING] if status is None else [status]
        queues: Sequence[str | None] = self._queues or [None]
        with suppress(StoreIncompatible):
            return [
                job
                for one in wanted
                for queue in queues
                for job in self._store.jobs(status=one, queue=queue, limit=_MOST)
            ]
        return []


def _named(tasks: Collection[str]) -> str:
    return ", ".join(sorted(repr(name) if name else "no task" for name in tasks))
