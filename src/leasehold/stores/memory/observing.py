"""What upkeep has observed last, so that each observation is recorded once when it comes and once when it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.observations import Key, Noted, Observation, Observed, changes
from .state import State


class Observations:
    """What was there at the last look. The store's lock is held."""

    def __init__(self) -> None:
        self._found: dict[Key, tuple[Any, ...]] = {}  # the job, and what its event says
        self._noted_us: dict[Key, int] = {}
        self._round = self._looked_us = 0

    def observe(self, state: State, now: int, round: int, found: Sequence[Observation]) -> bool:
        """Record what has come and gone since the last look, unless another look was recorded meanwhile (C72)."""
        if round != self._round:
            return False
        after = {one.key: (*(one.held or (None, None, None)), one.facts()) for one in found}
        for kind, (*held, facts) in changes(self._found, after):
            state.note(now, kind, *held, **facts)
        self._noted_us = {key: self._noted_us.get(key, now) for key in after}
        self._found = {key: self._found.get(key, seen) for key, seen in after.items()}  # as it was recorded
        self._round, self._looked_us = round + 1, now
        return True

    def noted(self, now: int) -> Observed:
        """Return what was there."""
        noted = [Noted(*key, noted_us) for key, noted_us in sorted(self._noted_us.items())]
        return Observed(now, self._round, self._looked_us, noted)
