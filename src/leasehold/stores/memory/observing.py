"""What upkeep has observed last, so that each observation is recorded once when it comes and once when it goes."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.observations import Key, Noted, Observation, Observed, ended
from .state import State


class Observations:
    """What was there at the last look. The store's lock is held."""

    def __init__(self) -> None:
        self._found: dict[Key, tuple[int, Observation]] = {}  # with when each was recorded
        self._round = self._looked_us = 0

    def observe(self, state: State, now: int, round: int, found: Sequence[Observation]) -> bool:
        """Record what has come and gone since the last look, unless another look was recorded meanwhile (C72)."""
        if round != self._round:
            return False
        before, after = self._found, {one.key: one for one in found}
        gone = [before[key][1] for key in sorted(before.keys() - after.keys())]
        come = [after[key] for key in sorted(after.keys() - before.keys())]
        changes = [("cleared", one, ended(one.facts())) for one in gone]
        changes += [("observed", one, one.facts()) for one in come]
        for kind, one, facts in changes:
            state.note(now, kind, *(one.held or (None, None, None)), **facts)
        self._found = {key: before.get(key, (now, one)) for key, one in after.items()}
        self._round, self._looked_us = round + 1, now
        return True

    def noted(self, now: int) -> Observed:
        """Return what was there."""
        noted = [Noted(*key, noted_us) for key, (noted_us, _) in sorted(self._found.items())]
        return Observed(now, self._round, self._looked_us, noted)
