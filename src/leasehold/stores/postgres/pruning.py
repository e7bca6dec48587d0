"""The part of `tend` that prunes: which function of the server removes a portion of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.retention import Retention
from ..policy import EVENTS, IDS, PORTION, WORKERS, Place

PATIENCE_MS = 1_000  # with a lock that another transaction holds; the next tend tries again


def prune_due(
    call: Callable[..., list[Any]], retention: Retention, kind: str, keep_us: int, place: Place
) -> Place | None:
    """Prune one portion by policy (see `policy.Pass`)."""
    if kind == IDS:
        [(count,)] = call("prune_ids", keep_us, PORTION, PATIENCE_MS)
        return place if count else None
    if kind == WORKERS:
        call("forget_workers", keep_us, PATIENCE_MS)
        return None
    if kind == EVENTS:
        [(_, following)] = call("prune_events", keep_us, place[0], PORTION, PATIENCE_MS)
    else:
        ids_us = retention.keep_us(IDS)
        [(_, following)] = call("prune_due", kind, keep_us, place[0], PORTION, ids_us, PATIENCE_MS)
    return None if following is None else (following, 0)
