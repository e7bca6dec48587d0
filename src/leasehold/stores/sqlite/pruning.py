"""The programs that remove what is old: finished jobs, the ids that they leave, and events."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.lifecycle import FINISHED
from ...store import EVENTS_AT_ONCE, Pruned
from ..policy import KEPT, Place
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

    # By policy: what is due is read without the write lock, and looked at again under it

    def due(self, kind: str, before_us: int, place: Place, limit: int) -> Program[tuple[list[int], Place | None]]:
        """Return the jobs of one portion that may go, by seq, and where the next one begins; None at the end."""
        params = {"kind": kind, "before": before_us, "at": place[0], "seq": place[1], "limit": limit}
        rows = yield (self.sql.due_kept if kind == KEPT else self.sql.due), params, False
        return [seq for _, seq, stays in rows if not stays], (rows[-1][:2] if len(rows) == limit else None)

    def prune_due(self, kind: str, before_us: int, place: Place, limit: int, ids_before_us: int) -> Program[None]:
        """Remove the jobs of one portion."""
        seqs, _ = yield from self.due(kind, before_us, place, limit)
        yield from self._remove(seqs, ids_before_us)

    def due_events(self, before_us: int, after: int, limit: int) -> Program[tuple[list[int], Place | None]]:
        """Return the events of one portion that may go, by number, and where the next one begins; None at the end."""
        rows = yield one(self.sql.due_events, after, limit)
        old = [(number, stays) for number, at, stays in rows if at < before_us]
        return [number for number, stays in old if not stays], ((rows[-1][0], 0) if len(old) == limit else None)

    def prune_due_events(self, before_us: int, after: int, limit: int) -> Program[None]:
        """Remove the events of one portion."""
        numbers, _ = yield from self.due_events(before_us, after, limit)
        yield one(self.sql.prune_numbers, json.dumps(numbers))

    def prune_ids(self, before_us: int, limit: int) -> Program[int]:
        """Forget the ids of jobs that were pruned and finished before that instant, and processes that hold nothing."""
        yield one(self.sql.delete_idle_processes)
        return (yield from self._prune_ids(before_us, limit))

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
