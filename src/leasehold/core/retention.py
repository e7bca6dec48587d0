"""How long finished jobs, their ids and events are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import checks
from .clock import FAR

_DAY = 86_400
KEPT_FOR_EVER: Final = FAR  # `Options.keep_us` of a job that no policy prunes; a store may add it to any instant

# An id is kept longer than producers retry: brokers and webhooks deliver again for days, and failed jobs stay for 30.
KEEP_IDS_SECONDS = 90 * _DAY
KEEP_IDS_US = KEEP_IDS_SECONDS * 1_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """
    How long upkeep keeps what is finished, counted from its end, in seconds; None for ever.

    Done jobs are kept long enough to look at last week's, failed and cancelled ones long enough to replay them. A job
    or a task may have its own `keep_seconds` instead. A child is kept as long as its parent, a job with an effect in
    doubt until that is resolved, and a job with open guarded keys until they are sealed. Events of an unfinished job
    are kept whatever their age.

    *ids_seconds* is how long the id of a pruned job is remembered, if the caller chose it.
    """

    done_seconds: float | None = 7 * _DAY
    failed_seconds: float | None = 30 * _DAY
    cancelled_seconds: float | None = 30 * _DAY
    events_seconds: float | None = 30 * _DAY
    ids_seconds: float | None = KEEP_IDS_SECONDS

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) is not None:
                checks.microseconds(getattr(self, name), name, zero=True)

    def keep_us(self, what: str) -> int | None:
        """Return how long to keep *what*, a status or "events" or "ids"; None for ever."""
        seconds: float | None = getattr(self, f"{what}_seconds")
        return None if seconds is None else checks.microseconds(seconds, what, zero=True)


DEFAULT_RETENTION = Retention()
