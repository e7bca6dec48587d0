"""
What a claim may skip: places that earlier claims have emptied. See functions/04_claiming.sql.

Without floors, and with an old transaction left open, a sixth as many jobs per second are claimed and completed
(`python benchmarks/postgres.py --only "old transaction"`).
"""

from __future__ import annotations

from typing import Any

from ...core.clock import Clock

# Between two looks from the bottom: twenty times as long as one takes, within these bounds.
_OFTEN_US, _RARELY_US, _SHARE = 100_000, 5_000_000, 20

_SETTLED_US = 1_000_000  # after which nobody is taken to commit with a number that was drawn before

Found = list[Any] | None  # three numbers, and for each queue its name and its place, in four lists; as a claim tells it
_FREED = 2  # the place of the number up to which keys that became free were seen to


class Floors:
    """The floors that the last claim of this process has found. They save work, and decide nothing."""

    def __init__(self, timer: Clock) -> None:
        self._timer = timer
        self._floors: Found = None
        self._began_us = 0
        self._until_us = 0
        self._freed = 0, 0  # the number that is lent, and the one that will be
        self._told_us = 0  # when the second was told

    def lent(self) -> Found:
        """Return the floors for the next claim; None, if it should look from the bottom."""
        now = self._timer.now()
        if self._began_us <= now < self._until_us:
            return self._floors
        self._began_us = now
        return None

    def keep(self, floors: Found, *, lent: Found, bottom: bool) -> None:
        """Remember what a claim has found with the floors that it was *lent*; *bottom*: it looked from the bottom."""
        if not bottom and lent is not self._floors:
            return  # another one has looked from the bottom meanwhile, or has been quicker
        if bottom:
            now = self._timer.now()
            self._until_us = now + min(max((now - self._began_us) * _SHARE, _OFTEN_US), _RARELY_US)
        # A claim that has found nothing tells none; those from which it has looked hold as they did.
        self._floors = self._with_an_older_number(floors) or self._floors

    def _with_an_older_number(self, floors: Found) -> Found:
        if floors is None or floors[_FREED] == self._freed[0]:
            return floors
        now = self._timer.now()
        if not self._told_us <= now < self._told_us + _SETTLED_US:
            self._freed = self._freed[1], floors[_FREED]
            self._told_us = now
        return [*floors[:_FREED], self._freed[0], *floors[_FREED + 1 :]]
