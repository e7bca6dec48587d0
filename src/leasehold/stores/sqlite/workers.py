"""The programs about workers: what they report, to which of them a transfer goes, and how it is picked up."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...core.job import Grant
from ...core.ownership import Process
from ...core.workers import WorkerReport, WorkerStatus, is_alive, recipient
from ..rows import grant_of, worker_of
from .base import Base
from .rows import Program, Standing, number_of, one


class Workers(Base):
    """What the store knows of workers, and what they get without a claim."""

    def report(self, report: WorkerReport, now: int) -> Program[None]:
        """Note that the worker is there."""
        name, given_name, process, queues, tasks, concurrency, running, up_us = report
        yield one(
            self.sql.report,
            name,
            given_name,
            None if process is None else json.dumps(process),
            None if queues is None else json.dumps(queues),
            json.dumps(tasks),
            concurrency,
            running,
            now - up_us,
            now,
        )

    def retire(self, name: str) -> Program[None]:
        """Forget a worker."""
        yield one(self.sql.retire, name)

    def workers(self, now: int) -> Program[list[WorkerStatus]]:
        """Return the workers that have reported."""
        return [worker_of(row, is_alive(row[-1], now)) for row in (yield one(self.sql.workers))]

    def may_forget_workers(self, before_us: int) -> Program[bool]:
        """Return whether some have not been seen since that instant."""
        [(some,)] = yield one(self.sql.forgettable_workers, before_us)
        return bool(some)

    def forget_workers(self, before_us: int) -> Program[None]:
        """Forget them."""
        yield one(self.sql.forget_workers, before_us)

    def recipient(self, job_id: str, to: str, now: int) -> Program[str]:
        """Return the owner that a transfer to *to* is for."""
        named = yield self.sql.named_workers, {"name": to}, False
        return recipient(job_id, to, [name for name, seen_us in named if is_alive(seen_us, now)])

    # Picking up

    def transfers(self, owner: str) -> Program[list[tuple[str, int]]]:
        """Return the transfers to *owner* that were not picked up."""
        return [(job_id, epoch) for job_id, epoch in (yield one(self.sql.transfers, owner))]

    def pick_up(self, job_id: str, epoch: int) -> Program[None]:
        """Mark the lease as picked up, if *epoch* is still its own."""
        held = yield from self.standing(job_id)
        if held is not None and held.lease_epoch == epoch:
            yield one(self.sql.pick_up, held.seq)

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], claim_id: str, process: Process | None, now: int
    ) -> Program[list[Grant]]:
        """Pick up what is still the owner's."""
        number = None if process is None else number_of(process)
        grants = []
        for job_id, epoch in transfers:
            held = yield from self.standing(job_id)
            if held is None or not _may_accept(held, epoch, owner, claim_id):
                continue
            if process is not None:
                yield one(self.sql.insert_process, number, *process)
            values = {"seq": held.seq, "claim_id": claim_id, "process": number, "now": now}
            yield self.sql.accept, values, False
            [row] = yield one(self.sql.grant, job_id)
            grants.append(grant_of(row))
        return grants


def _may_accept(held: Standing, epoch: int, owner: str, claim_id: str) -> bool:
    if (held.lease_epoch, held.owner) != (epoch, owner):
        return False
    return not held.picked_up or held.claim_id == claim_id
