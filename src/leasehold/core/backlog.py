"""What waits in a queue, and how fast jobs come and go there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LATELY_US = 300_000_000  # how far back a rate looks
LOOKS_AT = 10_000  # jobs that a store looks at for a rate
SAMPLE = 2_000  # those of them whose queue it reads
_MINUTE_US = 60_000_000


class Oldest(NamedTuple):
    """Since when the oldest due job of a queue waits; with a *task*, of its jobs that are parked behind that task."""

    queue: str
    task: str | None  # "" for jobs without a task
    since_us: int


class Lately(NamedTuple):
    """How many jobs of each queue were added and finished lately; see `per_minute`."""

    now_us: int
    added: Mapping[str, float]
    added_since_us: int
    finished: Mapping[str, float]
    finished_since_us: int

    def added_per_minute(self, queue: str) -> float:
        """Return how many jobs of *queue* were added per minute."""
        return per_minute(self.added.get(queue, 0), self.now_us - self.added_since_us)

    def finished_per_minute(self, queue: str) -> float:
        """Return how many jobs of *queue* were done, failed or cancelled per minute."""
        return per_minute(self.finished.get(queue, 0), self.now_us - self.finished_since_us)


def per_minute(count: float, over_us: int) -> float:
    """Return the rate of *count* jobs over a time, which counts as a second at least."""
    return count * _MINUTE_US / max(over_us, 1_000_000)
