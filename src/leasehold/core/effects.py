"""Named effects of a job, and the idempotency key that all owners of the job share."""

from __future__ import annotations

import uuid
from typing import NamedTuple


class Effect(NamedTuple):
    """A named effect of a job: begun under an epoch, and its outcome once that is known."""

    job_id: str
    name: str
    key: str
    epoch: int
    known: bool
    outcome: str | None


def effect_key(store_id: uuid.UUID, job_id: str, name: str) -> str:
    """Return the idempotency key of an effect: the same for every owner, another for every store, job and name."""
    return str(uuid.uuid5(store_id, f"{job_id}\0{name}"))
