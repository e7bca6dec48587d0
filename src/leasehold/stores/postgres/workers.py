"""The part of a PostgreSQL store that knows the workers, and hands owners what was transferred to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.clock import Clock, Countdown
from ...core.job import Grant
from ...core.lifecycle import no_lease
from ...core.ownership import Process
from ...core.workers import WorkerReport, WorkerStatus
from ...errors import UnknownJob
from ..rows import grant_of, worker_of
from .database import Database
from .rows import Row, as_json

PATIENCE_MS = 10_000  # of a call about a single job, with a lock that another transaction holds
NO_PROCESS = (None,) * len(Process._fields)


class Workers:
    """What a store knows of workers, and what they get without a claim."""

    database: Database
    _timer: Clock

    def _call(self, function: str, *args: Any, again: bool = False) -> list[Row]:
        raise NotImplementedError

    def _read(self, statement: Any, **parameters: Any) -> list[Row]:
        raise NotImplementedError

    def _pause(self, us: int) -> None:
        raise NotImplementedError

    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        name, given_name, process, queues, tasks, *rest = report
        documents = [None if value is None else json.dumps(value) for value in (process, queues, tasks)]
        self._call("report_worker", name, given_name, *documents, *rest, PATIENCE_MS, again=True)

    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        self._call("retire_worker", name, PATIENCE_MS, again=True)

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        return [worker_of(row, alive) for *row, alive in self._call("known_workers", again=True)]

    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        countdown = Countdown(self._timer, wait_us)
        while True:
            rows = self._read(self.database.statements.lease, id=job_id, owner=owner)
            if not rows:
                raise UnknownJob(job_id)
            status, holder, epoch, picked_up, *grant = rows[0]
            if holder == owner:
                if not picked_up:
                    self._call("pick_up", job_id, epoch, PATIENCE_MS, again=True)
                return grant_of(grant)
            if (left := countdown.left()) <= 0:
                raise no_lease(job_id, status, holder, epoch, owner)
            self._pause(left)

    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        rows = self._read(self.database.statements.transfers, owner=owner)
        return [(job_id, epoch) for job_id, epoch in rows]

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        items = as_json([{"id": job_id, "epoch": epoch} for job_id, epoch in transfers])
        rows = self._call("accept", owner, items, claim_id, *(process or NO_PROCESS), PATIENCE_MS, again=True)
        accepted = {grant.epoch: grant for grant in map(grant_of, rows)}
        return [accepted[epoch] for _, epoch in transfers if epoch in accepted]
