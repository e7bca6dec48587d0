"""A queue as it is configured: paused or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from . import instants


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: whether claims take from it, and if not, since when, who paused it and why."""

    name: str
    paused_us: int | None = None
    paused_by: str | None = None
    paused_note: str | None = None

    @property
    def paused(self) -> bool:
        """Whether claims pass its jobs over."""
        return self.paused_us is not None

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused, on the store's clock."""
        return instants.as_datetime(self.paused_us)
