"""What the upkeep of one store object has taken back, until a worker asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_MOST = 10_000  # kept: where no worker asks, the oldest go


class Reclaimed:
    """The ownerships that ended, as pairs of job id and epoch; each is returned once. Safe to share between threads."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: deque[tuple[str, int]] = deque(maxlen=_MOST)

    def note(self, holders: Iterable[tuple[str, int]]) -> None:
        """Keep *holders* for `take`."""
        self._holders.extend(holders)

    def take(self) -> list[tuple[str, int]]:
        """Return what was noted and not returned before."""
        taken: list[tuple[str, int]] = []
        while self._holders:
            try:
                taken.append(self._holders.popleft())
            except IndexError:  # another thread has taken the last one
                break
        return taken
