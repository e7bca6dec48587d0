"""
Read-only questions with plain answers: what JSON has, and nothing else.

The command line asks them, and so can a server or a page. Instants are ISO 8601 in UTC, durations are seconds. What
`Router.redaction` names is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .core import instants
from .core.job import Job, Status
from .core.ownership import Event, LiveLease, Ownership
from .core.search import LOOKS_AT, Page, Search
from .core.workers import WorkerStatus
from .router import Router

JOB_FIELDS = (
    *("id", "status", "task", "queue", "epoch", "owner", "attempt", "errors", "reclaims", "priority", "progress"),
    *("error", "error_type", "meta", "created_at", "run_at", "updated_at", "finished_at"),
)
COUNTED_BY = ("error_type", "task", "queue", "status")
EVENT_FIELDS = ("kind", "number", "at", "job_id", "epoch", "owner", "facts")
OWNERSHIP_FIELDS = ("kind", "at", "epoch", "owner", "began", "ended", "ended_at", "ended_by", "note")
QUEUE_FIELDS = (
    *("name", "pending", "running", "parked", "oldest_pending_at", "added_per_minute", "finished_per_minute"),
    *("workers", "paused", "paused_at", "paused_by", "paused_note"),
)
WORKER_FIELDS = (
    *("name", "given_name", "alive", "idle", "holding", "running", "concurrency", "queues", "tasks"),
    *("started_at", "seen_at", "renewed_at", "progressed_at", "holds"),
)


_AT_ONCE = 1_000


class Views:
    """The questions, asked of one router; its `redaction` hides parts of what producers and handlers wrote."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._redaction = router.redaction

    # Jobs

    def page(self, search: Search, *, limit: int = 50, cursor: str | None = None) -> dict[str, Any]:
        """
        Return a page of jobs, the cursor of the next one, and whether the search was complete.

        The cursor is None if no more jobs fit. Behind a full page this takes a second search, for one job.
        """
        store = self._router.store
        page: Page = store.search(search, limit=limit, cursor=cursor)
        jobs = [self.short(job) for job in page.jobs]
        if page.complete and page.cursor is not None:
            more = store.search(search, limit=1, cursor=page.cursor)
            if not more.jobs:  # the rest was looked at, or its first part
                page = more
        return {"jobs": jobs, "cursor": page.cursor, "complete": page.complete}

    def tally(self, search: Search, by: str, *, cursor: str | None = None) -> dict[str, Any]:
        """
        Return how many jobs fit for each value of *by*, one of `COUNTED_BY`, the most first.

        Like a page, it looks at about 10,000 jobs; if not *complete*, the *cursor* is where to count on.
        """
        found, left = Counter[str | None](), LOOKS_AT
        while True:
            page = self._router.store.search(search, limit=_AT_ONCE, cursor=cursor)
            found.update(self.short(job)[by] for job in page.jobs)
            cursor, left = page.cursor, left - _AT_ONCE
            if cursor is None or not page.complete or left <= 0:
                rows = [{by: value, "jobs": count} for value, count in found.most_common()]
                return {"rows": rows, "cursor": cursor, "complete": cursor is None}

    def short(self, job: Job) -> dict[str, Any]:
        """Return a job as a list shows it."""
        return self._redaction.apply(
            {
                "id": job.id,
                "status": job.status.value,
                "task": job.task,
                "queue": job.queue,
                "epoch": job.epoch,
                "owner": job.owner,
                "attempt": job.attempt,
                "errors": job.errors,
                "reclaims": job.reclaims,
                "priority": job.priority,
                "progress": job.progress,
                "error": job.error_message,
                "error_type": job.error_type,
                "meta": job.meta,
                "created_at": _iso(job.created_at),
                "run_at": _iso(job.run_at),
                "updated_at": _iso(job.updated_at),
                "finished_at": _iso(job.finished_at),
            }
        )

    def job(self, id: str) -> dict[str, Any]:
        """Return everything that is known of a job."""
        job = self._router.job(id)
        parked = None if job.parked is None else job.parked._asdict()
        return {
            **self.short(job),
            **self._redaction.apply(
                {
                    "payload": job.payload,
                    "result": job.result,
                    "checkpoint": job.checkpoint,
                    "note": job.note,
                    "lock": job.lock,
                    "unique": job.unique,
                    "parent": job.parent,
                    "parked": parked,
                    "granted_at": _iso(job.granted_at),
                    "expires_at": _iso(job.expires_at),
                    "renewed_at": _iso(job.renewed_at),
                    "progressed_at": None if job.owner is None else _iso(job.updated_at),
                    "lease_seconds": job.lease_seconds,
                    "stall_seconds": job.stall_seconds,
                    "run_seconds": job.run_seconds,
                    "start_within_seconds": job.start_within_seconds,
                    "max_errors": job.retry.max_errors,
                    "max_reclaims": job.retry.max_reclaims,
                    "pruned": job.pruned,
                    "effects": [
                        {"name": one.name, "key": one.key, "epoch": one.epoch, "known": one.known}
                        for one in self._router.effects(id)
                    ],
                }
            ),
            "explanation": self._router.explain(job),
        }

    def history(self, id: str) -> list[dict[str, Any]]:
        """Return the ownerships of a job and what was recorded of it in between, oldest first."""
        rows = [(held.granted_us, 0, self._ownership(held)) for held in self._router.ownerships(id)]
        rows += [(event.at_us, 1, self.event(event)) for event in self._router.events(id, limit=None)]
        return [row for _, _, row in sorted(rows, key=lambda row: row[:2])]

    def _ownership(self, held: Ownership) -> dict[str, Any]:
        return self._redaction.apply(
            {
                "kind": "ownership",
                "at": _iso(held.granted_at),
                "epoch": held.epoch,
                "owner": held.owner,
                "began": held.began.value,
                "ended": held.ended,
                "ended_at": _iso(held.ended_at),
                "ended_by": held.by,
                "note": held.note,
            }
        )

    def event(self, event: Event) -> dict[str, Any]:
        """Return a recorded event."""
        return self._redaction.apply(
            {
                "kind": event.kind,
                "number": event.number,
                "at": _iso(event.at),
                "job_id": event.job_id,
                "epoch": event.epoch,
                "owner": event.owner,
                "facts": event.facts,
            }
        )

    # Queues and workers

    def queues(self) -> list[dict[str, Any]]:
        """
        Return each queue that is paused, has unfinished jobs, or had jobs that came or went lately.

        The depths are exact. `oldest_pending_at` is when the oldest due job became due. `added_per_minute` and
        `finished_per_minute` are over the last five minutes: exact for up to 2,000 jobs each way; of more, a sample of
        2,000 is split by queue, so a queue with a tenth of the jobs is right within about 7 % (one standard deviation).
        If more than 10,000 have finished, it is over the time of the last 10,000.
        """
        store = self._router.store
        counts, paused = self._router.counts(), {queue.name: queue for queue in self._router.queues()}
        oldest = {row.queue: row.since_us for row in store.oldest() if row.task is None}
        lately = store.lately()
        names = sorted({*counts.queues, *paused, *lately.added, *lately.finished})
        live = [worker for worker in self._router.workers() if worker.alive]
        rows = []
        for name in names:
            queue = paused.get(name)
            counted = counts.queues.get(name, {})
            rows.append(
                {
                    "name": name,
                    "pending": counted.get("pending", 0),
                    "running": counted.get("running", 0),
                    "parked": {task: found[name] for task, found in counts.parked.items() if name in found},
                    "oldest_pending_at": _at(oldest.get(name)),
                    "added_per_minute": round(lately.added_per_minute(name), 2),
                    "finished_per_minute": round(lately.finished_per_minute(name), 2),
                    "workers": sum(worker.queues is None or name in worker.queues for worker in live),
                    "paused": queue is not None and queue.paused,
                    "paused_at": None if queue is None else _iso(queue.paused_at),
                    "paused_by": None if queue is None else queue.paused_by,
                    "paused_note": None if queue is None else queue.paused_note,
                }
            )
        return rows

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers that have reported, with what they hold: last renewal and last progress side by side."""
        held: dict[str, list[LiveLease]] = {}
        for lease in self._router.store.leases():
            held.setdefault(lease.owner, []).append(lease)
        return [_worker(worker, held.get(worker.name, [])) for worker in self._router.workers()]

    def counts(self) -> dict[str, int]:
        """Return how many jobs have each status."""
        counts = self._router.counts()
        return {status.value: getattr(counts, status.value) for status in Status}


def _worker(worker: WorkerStatus, held: Sequence[LiveLease]) -> dict[str, Any]:
    return {
        "name": worker.name,
        "given_name": worker.given_name,
        "alive": worker.alive,
        "idle": not held and worker.running == 0,
        "holding": len(held),  # now; `running` is how many handlers it reported last, up to 10 seconds ago
        "running": worker.running,
        "concurrency": worker.concurrency,
        "queues": None if worker.queues is None else list(worker.queues),
        "tasks": list(worker.tasks),
        "started_at": _iso(worker.started_at),
        "seen_at": _iso(worker.seen_at),
        "renewed_at": _at(max((lease.renewed_us for lease in held), default=None)),
        "progressed_at": _at(max((lease.progressed_us for lease in held), default=None)),
        "holds": [
            {
                "id": lease.job_id,
                "epoch": lease.epoch,
                "granted_at": _at(lease.granted_us),
                "expires_at": _at(lease.expires_us),
                "renewed_at": _at(lease.renewed_us),
                "progressed_at": _at(lease.progressed_us),
            }
            for lease in held
        ],
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _at(micros: int | None) -> str | None:
    return _iso(instants.as_datetime(micros))
