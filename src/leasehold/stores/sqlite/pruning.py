"""The programs that remove what is old: finished jobs, the ids that they leave, and events."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.lifecycle import FINISHED
from ...store import EVENTS_AT_ONCE, Pruned
from .base import Base
from .rows import Program, one


class Pruning(Base):
    """What becomes of a job after its end."""

    def prune(self, before_us: int, ids_before_us: int, limit: int) -> Program[Pruned]:
        """Remove what finished before the one instant, its id if before the other, and events as old as the jobs."""
        old: list[tuple[int, int]] = []
        for status in FINISHED:
            old += yield one(self.sql.prunable, status.value, before_us, limit)
        seqs = [seq for _, seq in sorted(old)[:limit]]
        yield from self._remove(seqs, ids_before_us)
        events = yield one(self.sql.prune_events, before_us, EVENTS_AT_ONCE)
        yield one(self.sql.delete_idle_processes)
        ids = yield from self._prune_ids(ids_before_us, limit)
        return Pruned(len(seqs), len(events), ids)

    def _remove(self, seqs: Sequence[int], ids_before_us: int) -> Program[None]:
        """Remove these jobs and all that is kept of them, but for the narrow rows."""
        if seqs:
            listed = json.dumps(seqs)
            yield one(self.sql.narrow_jobs, listed, ids_before_us)
            yield one(self.sql.prune_jobs, listed)
            yield one(self.sql.prune_ownerships, listed)
            yield one(self.sql.prune_effects, listed)
            yield one(self.sql.prune_checkpoints, listed)

    def _prune_ids(self, before_us: int, limit: int) -> Program[int]:
        count = 0
        for status in FINISHED:
            count += len((yield one(self.sql.prune_ids, status.value, before_us, limit)))
        return count
