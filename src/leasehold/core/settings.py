"""The keyword arguments that every way of adding a job takes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from .retry import Retry


class JobSettings(TypedDict, total=False):
    """What a job may be given beside its id, its payload and its task."""

    queue: str
    priority: int
    delay_seconds: float | None
    run_at: datetime | None
    lock: str | None
    unique: str | None
    retry: Retry | None
    lease_seconds: float | None
    stall_seconds: float | None
    start_within_seconds: float | None
    run_seconds: float | None
    meta: Mapping[str, Any] | None
    keep_seconds: float | None  # after its end; None for ever. Not given: as the retention policy says


class JobOptions(JobSettings, total=False):
    """What every way of adding a job takes, beside its id and payload."""

    task: str | None
