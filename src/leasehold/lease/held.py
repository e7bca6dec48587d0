"""What a lease holds: the facts of its job, as they were when it was granted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..core import documents, instants, meta
from ..core.job import Grant
from ..core.ownership import Reason
from ..core.retry import Retry


class Held:
    """The facts of a lease that its grant has."""

    __slots__ = ()

    _grant: Grant

    @property
    def job_id(self) -> str:
        """The job."""
        return self._grant.spec.id

    @property
    def epoch(self) -> int:
        """The fencing token: greater than that of every earlier ownership of this job."""
        return self._grant.epoch

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._grant.owner

    @property
    def reason(self) -> Reason:
        """Why the job was free."""
        return self._grant.reason

    @property
    def attempt(self) -> int:
        """How often the job was started before. Not a fence."""
        return self._grant.attempt

    @property
    def payload(self) -> Any:
        """What the producer passed, decoded anew at each look."""
        return documents.decode(self._grant.spec.document)

    @property
    def meta(self) -> dict[str, Any]:
        """The producer's own JSON object, decoded anew at each look; empty for none. The job's children inherit it."""
        return meta.decode(self._grant.spec.meta)

    @property
    def checkpoint(self) -> Any:
        """The checkpoint as it was when the lease was granted, or None."""
        return documents.decode(self._grant.checkpoint)

    @property
    def task(self) -> str | None:
        """The task that handles the job, or None."""
        return self._grant.spec.task

    @property
    def queue(self) -> str:
        """The queue that the job waited in."""
        return self._grant.spec.queue

    @property
    def retry(self) -> Retry:
        """The job's budgets and back-off."""
        return self._grant.spec.retry

    @property
    def granted_at(self) -> datetime:
        """When the lease was granted, on the store's clock."""
        return instants.aware(self._grant.granted_us)
