"""Rows to values, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...connections import Program as Program
from ...connections import Statement
from ...core.job import Status
from ...core.options import decode
from ...core.ownership import Ownership, Process, Reason
from ...core.retry import Retry


def one(sql: str, *params: Any) -> Statement:
    """A statement to run once."""
    return sql, params, False


def many(sql: str, params: Sequence[tuple[Any, ...]]) -> Statement:
    """A statement to run for each of *params*; it answers nothing."""
    return sql, params, True


class Standing(NamedTuple):
    """A job with its lease, if any, as the statement `standing` selects them."""

    seq: int
    id: str
    stored_status: str
    queue: str
    priority: int
    run_us: int
    lock: str | None
    unique: str | None
    max_errors: int
    max_reclaims: int
    attempt: int
    errors: int
    reclaims: int
    job_epoch: int
    job_reason: str
    last_error: str | None
    done_by: str | None
    done_granted_us: int | None
    done_expires_us: int | None
    settlement: str | None
    finished_us: int | None
    lease_epoch: int | None
    owner: str | None
    lease_reason: str | None
    granted_us: int | None
    expires_us: int | None
    progress: float | None
    note: str | None
    narrow: int
    claim_id: str | None
    picked_up: int | None
    task: str | None

    @property
    def status(self) -> Status:
        """Where the job stands."""
        return status_of(self.stored_status, self.lease_epoch is not None)

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.job_epoch if self.lease_epoch is None else self.lease_epoch

    @property
    def reason(self) -> Reason | None:
        """Why the current epoch was issued; None if none was."""
        return Reason(self.lease_reason or self.job_reason) if self.epoch else None

    def ownership(self, ended: str, at: int, by: str, note: str | None) -> Ownership:
        """Return the record of the current lease, ended as the arguments say."""
        assert self.lease_epoch is not None
        assert self.owner is not None
        assert self.granted_us is not None
        assert self.expires_us is not None
        began = Reason(self.lease_reason or "")
        return Ownership(
            self.id, self.lease_epoch, self.owner, began, self.granted_us, self.expires_us, ended, at, by, note
        )

    @property
    def retry(self) -> Retry:
        """The job's budgets; its back-off is its owner's affair."""
        return decode(None, self.max_errors, self.max_reclaims).retry


def status_of(stored: str, leased: bool) -> Status:
    """Return the status that a reader sees; the store itself only knows "unfinished"."""
    return (Status.RUNNING if leased else Status.PENDING) if stored == "unfinished" else Status(stored)


@lru_cache(maxsize=64)
def number_of(process: Process) -> int:
    """Return the number of a process's row: a digest of its name, so that it is never given to another one."""
    digest = hashlib.blake2b("\0".join(map(str, process)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
