"""Compares what a store shows, and records what an operator should look at when it begins and when it ends."""

from __future__ import annotations

from collections.abc import Iterable

from .core.clock import Clock
from .core.job import Job
from .core.observations import OBSERVE_EVERY_US, Bounds, Observation, noted_first, observe
from .store import Store

_USUAL = Bounds()


def look(
    store: Store, now: int, bounds: Bounds = _USUAL, *, running: Iterable[Job] = (), hides_errors: bool = False
) -> list[Observation]:
    """Return what is worth a look at *now*; read only, and nothing is counted."""
    return observe(
        now,
        leases=store.leases(),
        oldest=store.oldest(),
        queues=store.queues(),
        workers=store.workers(),
        running=running,
        hides_errors=hides_errors,
        bounds=bounds,
    )


class Reconciler:
    """
    Looks every ten seconds, and records what has begun and what has ended since the last time.

    Many processes may share a store: the one whose turn it is looks for all, and of two that look at the same time the
    store takes the word of the first (`Store.observe`).
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._looked_us: int | None = None

    def look(self) -> bool:
        """Look if it is time; return whether this call has recorded what it saw."""
        now = self._clock.now()
        if self._looked_us is not None and 0 <= now - self._looked_us < OBSERVE_EVERY_US:
            return False
        self._looked_us = now
        seen = self._store.observed()
        if 0 <= seen.now_us - seen.looked_us < OBSERVE_EVERY_US:
            return False  # another process has looked
        found = look(self._store, seen.now_us)
        return self._store.observe(seen.round, noted_first(found, seen.noted))
