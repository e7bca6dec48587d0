"""What operators and upkeep look at: the oldest due jobs, what came and went lately, live leases."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.backlog import LATELY_US, LOOKS_AT, SAMPLE, Lately, Oldest
from ...core.observations import Noted, Observation, Observed
from ...core.ownership import LiveLease
from ...core.search import LOOKS_AT as OVERDUE
from .database import Database
from .rows import as_json
from .upkeep import PATIENCE_MS


class Observing:
    """The verbs of `PostgresStore` that ask about queues and owners, and not about one job."""

    database: Database

    def _now(self) -> int | None:
        raise NotImplementedError  # the store has it

    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        return [Oldest(*row) for row in self.database.call("oldest_due", OVERDUE, self._now(), again=True)]

    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        [(*_, now), *rows] = self.database.call("lately", LATELY_US, LOOKS_AT, SAMPLE, self._now(), again=True)
        counts: dict[str, dict[str, float]] = {"in": {}, "out": {}}
        since = dict.fromkeys(counts, now - LATELY_US)
        for way, queue, count, since_us in rows:
            counts[way][queue], since[way] = count, since_us
        return Lately(now, counts["in"], since["in"], counts["out"], since["out"])

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        rows = self.database.call("observed", self._now(), again=True)
        now, round, looked_us = rows[0][:3]
        return Observed(now, round, looked_us, [Noted(*row[3:]) for row in rows if row[3] is not None])

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """
        Record that *found* is what there is to be observed, by a look that began at *round*.

        After a lost reply it is asked again, and False may mean that the first call has counted.
        """
        items = [
            {
                **dict(zip(("kind", "subject", "task"), one.key, strict=True)),
                **dict(zip(("job_id", "epoch", "owner"), one.held or (None, None, None), strict=True)),
                "facts": json.dumps(one.facts()),
            }
            for one in found
        ]
        [(counts,)] = self.database.call("observe", round, as_json(items), PATIENCE_MS, self._now(), again=True)
        return bool(counts)

    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        return [LiveLease(*row) for row in self.database.read(self.database.statements.live_leases, {})]
