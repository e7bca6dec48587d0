"""What a router gives its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..core.redaction import Redaction
from ..core.retention import DEFAULT_RETENTION, Retention
from ..store import Store
from ..tasks.hooks import Hooks
from ..tasks.task import AnyTask
from .events import Listener


class Shop(NamedTuple):
    """What a router gives its workers."""

    store: Store
    tasks: Mapping[str, AnyTask]
    hooks: Hooks
    listeners: Mapping[str, Sequence[Listener]]
    lease_us: int
    retention: Retention = DEFAULT_RETENTION
    on_taken_back: Listener | None = None  # called with `Failed` for a job that upkeep has failed for good
    seal_open: Callable[[], bool] | None = None  # seals keys of jobs that have ended; returns whether more are due
    redaction: Redaction = Redaction()  # what is not logged: the messages of handlers' errors, facts of observations
