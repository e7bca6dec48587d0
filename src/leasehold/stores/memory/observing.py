"""What operators and upkeep look at: the oldest due jobs, what came and went lately, live leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Any

from ...core.backlog import LATELY_US, LOOKS_AT, Lately, Oldest
from ...core.clock import Clock
from ...core.observations import Key, Noted, Observation, Observed, ended
from ...core.ownership import LiveLease
from ...core.parking import LOCK
from .lines import Ready
from .record import Record
from .transfers import Transfers
from .turn import turn


class Observing(Transfers):
    """The verbs about queues and owners, and not about one job."""

    def __init__(self, *, clock: Clock | None = None, trace: bool = False) -> None:
        super().__init__(clock=clock, trace=trace)
        self._observations: dict[Key, tuple[int, Observation]] = {}  # with when each was recorded
        self._round = self._looked_us = 0

    @turn
    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        found: dict[tuple[str, str | None], int] = {}

        def note(queue: str, task: str | None, run_us: int) -> None:
            found[queue, task] = min(found.get((queue, task), run_us), run_us)

        def note_all(ready: Ready, task: str | None) -> None:
            for (queue, _), lane in ready.all_lanes():
                if head := lane.peek():
                    note(queue, None, head[0])
                    if task is not None:
                        note(queue, task, head[0])

        note_all(self._ready, None)
        for task, ready in self._parking.tasks.items():
            note_all(ready, task)
        for _, record in self._parking.records(LOCK):
            note(record.spec.queue, None, record.run_us)
        for record in self._scheduled.due(self._now()):
            note(record.spec.queue, None, record.run_us)
        rows = [Oldest(queue, task, since) for (queue, task), since in found.items()]
        return sorted(rows, key=lambda row: (row.queue, row.task is not None, row.task))

    @turn
    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        now = self._now()
        since_us = now - LATELY_US
        records = reversed(self._jobs.values())
        added = list(islice(takewhile(lambda record: record.created_us >= since_us, records), LOOKS_AT))
        # An entry that a replay has left behind says nothing about those before it.
        ends = takewhile(lambda record: record.left or (record.finished_us or 0) >= since_us, reversed(self._finished))
        ended = {record.seq: record for record in islice(ends, LOOKS_AT) if (record.finished_us or 0) >= since_us}
        finished = list(ended.values())
        return Lately(
            now,
            _by_queue(added),
            since_us if len(added) < LOOKS_AT else added[-1].created_us,
            _by_queue(finished),
            since_us if len(finished) < LOOKS_AT else finished[-1].finished_us or since_us,
        )

    @turn
    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        noted = [Noted(*key, noted_us) for key, (noted_us, _) in sorted(self._observations.items())]
        return Observed(self._now(), self._round, self._looked_us, noted)

    @turn
    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """Record that *found* is what there is to be observed, by a look that began at *round*."""
        if round != self._round:
            return False
        now, before = self._now(), self._observations
        after = {one.key: one for one in found}
        kept = {key: noted for key, noted in before.items() if key in after}
        for key in sorted(before.keys() - after.keys()):
            self._record("cleared", before[key][1], now, ended(before[key][1].facts()))
        for key in sorted(after.keys() - before.keys()):
            kept[key] = now, after[key]
            self._record("observed", after[key], now, after[key].facts())
        self._observations, self._round, self._looked_us = kept, round + 1, now
        return True

    def _record(self, kind: str, one: Observation, now: int, facts: dict[str, Any]) -> None:
        job_id, epoch, owner = one.held or (None, None, None)
        self._insert_event(now, kind, job_id, epoch, owner, facts)

    @turn
    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        held = sorted(self._running(), key=lambda record: record.seq)
        return [
            LiveLease(
                record.spec.id,
                record.epoch,
                record.grant.owner,
                record.grant.granted_us,
                record.expires_us,
                max(record.renewed_us, record.grant.granted_us),
                record.updated_us,
            )
            for record in held
            if record.grant is not None
        ]


def _by_queue(records: Iterable[Record]) -> dict[str, float]:
    return dict(Counter(record.spec.queue for record in records if not record.narrow))
