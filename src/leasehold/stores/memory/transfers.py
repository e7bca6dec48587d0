"""Transfers in the memory store: to whom, and how they are picked up; and the workers that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.job import Grant
from ...core.lifecycle import Verb, lock_held, no_lease
from ...core.ownership import Process, Reason
from ...core.workers import WorkerReport, WorkerStatus, is_alive, recipient
from ...errors import StoreUnavailable
from .record import PENDING, RUNNING
from .state import State
from .turn import turn

_LOOK_FROM = 128  # where no worker asks for its transfers, entries of ended ones are removed now and then


class Transfers(State):
    """The verbs by which a job gets to an owner that did not claim it."""

    @turn
    def transfer(
        self,
        job_id: str,
        epoch: int,
        *,
        to: str,
        by: str,
        note: str | None = None,
        lease_us: int | None = None,
        default_lease_us: int = 30_000_000,
    ) -> Grant:
        """Give the job to *to* under a new epoch."""
        now = self._now()
        record = self._seen(job_id, epoch, Verb.TRANSFER, now, by)
        key = record.spec.lock
        holder = self._held.get(key) if key is not None else None
        if key is not None and holder is not None and holder is not record:
            raise lock_held(job_id, key, holder.spec.id, holder.epoch)
        alive = [worker for worker in self._workers.values() if is_alive(worker.seen_us, now)]
        to = recipient(job_id, to, [worker.name for worker in alive if to in (worker.name, worker.given_name)])
        self._begin(record)
        was = record.grant.owner if record.grant else None
        if record.status is RUNNING:
            self._archive(record, Reason.MANUAL, now, by=by, note=note)
            self._let_go(record, wake=False)
            record.attempt += 1
            self._move(record, PENDING)  # for an instant: a grant begins there
        else:
            self._leave(record)
        if key is not None:
            self._held[key] = record
        record.reason = Reason.MANUAL
        [grant] = self._grant([record], to, lease_us, default_lease_us, None, None, now)
        record.awaited = grant.epoch
        self._transfers[record.seq] = record
        if (count := len(self._transfers)) >= _LOOK_FROM and count & (count - 1) == 0:
            self._forget_picked_up()
        self._note("transferred", record, now, owner=to, was=was, by=by, note=note)
        self._undo = None
        self._wake_claims()
        return grant

    @turn
    def lease(self, job_id: str, owner: str, *, wait_us: int = 0) -> Grant:
        """Return the live lease of *owner* on the job; wait up to *wait_us* for it."""
        now = self._now()
        until = now + wait_us
        while not self._closed:
            record = self._find(job_id)
            holder = record.grant.owner if record.grant is not None and record.status is RUNNING else None
            if holder == owner:
                record.awaited = 0
                return self._live(record)
            if now >= until:
                raise no_lease(job_id, record.status, holder, record.epoch, owner)
            self._expecting += 1
            try:
                before, now = now, self._sleep(until)
            finally:
                self._expecting -= 1
            until -= max(before - now, 0)
        raise StoreUnavailable("this store was closed while the call waited for a lease.")

    @turn
    def transfers(self, owner: str) -> list[tuple[str, int]]:
        """Return the job id and epoch of each transfer to *owner* that was not picked up, oldest first."""
        self._forget_picked_up()
        waiting = [record for record in self._transfers.values() if record.grant and record.grant.owner == owner]
        return [(record.spec.id, record.epoch) for record in sorted(waiting, key=lambda record: record.epoch)]

    @turn
    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], *, claim_id: str, process: Process | None = None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        now = self._now()
        grants = []
        for job_id, epoch in transfers:
            record = self._jobs.get(job_id)
            grant = None if record is None or record.status is not RUNNING else record.grant
            if record is None or grant is None or (grant.epoch, grant.owner) != (epoch, owner):
                continue
            if not record.awaits_pick_up and grant.claim_id != claim_id:
                continue
            self._begin(record)
            record.awaited = 0
            record.expires_us, record.renewed_us = now + grant.lease_us, now
            record.grant = grant._replace(claim_id=claim_id, process=process)
            self._watch([record], now)
            if process is not None and process is not self._own:
                self._processes.add(process)
            self._undo = None
            grants.append(self._live(record))
        self._wake_claims()
        return grants

    def _forget_picked_up(self) -> None:
        self._transfers = {seq: record for seq, record in self._transfers.items() if record.awaits_pick_up}

    @turn
    def report(self, report: WorkerReport) -> None:
        """Note that the worker is there, and what it says of itself."""
        now = self._now()
        known = self._workers.get(report.name)
        started = now - report.up_us if known is None else known.started_us
        self._workers[report.name] = WorkerStatus(*report[:-1], started_us=started, seen_us=now, alive=True)

    @turn
    def retire(self, name: str) -> None:
        """Forget the worker of that name, which has ended."""
        self._workers.pop(name, None)

    @turn
    def workers(self) -> list[WorkerStatus]:
        """Return the workers that have reported, by name."""
        now = self._now()
        listed = [self._workers[name] for name in sorted(self._workers)]
        return [replace(worker, alive=is_alive(worker.seen_us, now)) for worker in listed]
