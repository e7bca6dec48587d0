"""
What the stores are compared with: the least that could do the job, and the obvious way to do it.

Each is written to be as fast as its idea allows; none checks its arguments, keeps a history or says why.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class BareJob:
    """A job of the bare router. It runs while it has an owner."""

    __slots__ = ("attempt", "epoch", "id", "owner", "payload", "result")

    def __init__(self, id: str, payload: object) -> None:
        self.id = id
        self.payload = payload
        self.epoch = 0
        self.owner: str | None = None
        self.attempt = 0
        self.result: object = None


class BareClaim(NamedTuple):
    """
    What the bare router hands out. It has names, as leasehold's has.

    A plain tuple would make it about a quarter faster one by one, and up to twice as fast in batches.
    """

    id: str
    epoch: int
    payload: object


class BareRouter:
    """A deque of what is pending, a heap of deadlines and a dict of jobs under one lock, with epochs and expiry."""

    def __init__(self, lease_seconds: float = 30.0) -> None:
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._jobs: dict[str, BareJob] = {}
        self._pending: deque[BareJob] = deque()
        # One entry for each claim, whose jobs have consecutive epochs from the entry's on. It stays until its time.
        self._deadlines: list[tuple[float, int, Sequence[BareJob]]] = []
        self._epoch = time.time_ns() // 1000

    def add(self, id: str, payload: object) -> bool:
        """Keep a job, unless one with this id exists."""
        with self._lock:
            if id in self._jobs:
                return False
            job = self._jobs[id] = BareJob(id, payload)
            self._pending.append(job)
            return True

    def add_many(self, jobs: Iterable[tuple[str, object]]) -> int:
        """Keep each job whose id is new; return how many were."""
        with self._lock:
            before = len(self._jobs)
            for id, payload in jobs:
                if id not in self._jobs:
                    job = self._jobs[id] = BareJob(id, payload)
                    self._pending.append(job)
            return len(self._jobs) - before

    def claim(self, owner: str) -> BareClaim | None:
        """Lease the next job."""
        with self._lock:
            now = time.monotonic()
            if self._deadlines and self._deadlines[0][0] <= now:
                self._sweep(now)
            if not self._pending:
                return None
            job = self._pending.popleft()
            self._epoch = epoch = self._epoch + 1
            job.epoch = epoch
            job.owner = owner
            heappush(self._deadlines, (now + self._lease_seconds, epoch, (job,)))
            return BareClaim(job.id, epoch, job.payload)

    def claim_many(self, owner: str, limit: int) -> list[BareClaim]:
        """Lease up to *limit* jobs."""
        with self._lock:
            now = time.monotonic()
            if self._deadlines and self._deadlines[0][0] <= now:
                self._sweep(now)
            take = self._pending.popleft
            jobs = [take() for _ in range(min(limit, len(self._pending)))]
            if not jobs:
                return []
            epoch = self._epoch
            heappush(self._deadlines, (now + self._lease_seconds, epoch + 1, jobs))
            claims = []
            for job in jobs:
                epoch += 1
                job.epoch = epoch
                job.owner = owner
                claims.append(BareClaim(job.id, epoch, job.payload))
            self._epoch = epoch
            return claims

    def complete(self, id: str, epoch: int, result: object = None) -> bool:
        """End a job, for the owner of its newest epoch only."""
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.epoch != epoch or job.owner is None:
                return False
            job.owner = None
            job.result = result
            return True

    def complete_many(self, ends: Iterable[tuple[str, int, object]]) -> list[bool]:
        """End each job, for the owner of its newest epoch only."""
        reply = []
        with self._lock:
            jobs = self._jobs
            for id, epoch, result in ends:
                job = jobs.get(id)
                if job is None or job.epoch != epoch or job.owner is None:
                    reply.append(False)
                    continue
                job.owner = None
                job.result = result
                reply.append(True)
        return reply

    def _sweep(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, first, jobs = heappop(self._deadlines)
            for epoch, job in enumerate(jobs, first):
                if job.epoch == epoch and job.owner is not None:
                    self._epoch += 1
                    job.epoch = self._epoch
                    job.owner = None
                    job.attempt += 1
                    self._pending.append(job)


class ScannedJob:
    """A job of the scanning router."""

    __slots__ = ("added_at", "attempt", "expires_at", "id", "owner", "payload", "status")

    def __init__(self, id: str, payload: object, added_at: float) -> None:
        self.id = id
        self.payload = payload
        self.status = "pending"
        self.owner: str | None = None
        self.attempt = 0
        self.expires_at = 0.0
        self.added_at = added_at


class ScanningRouter:
    """A dict of jobs under one lock; each claim looks at every job twice, for what expired and for the oldest."""

    def __init__(self, lease_seconds: float = 30.0) -> None:
        self._lease_seconds = lease_seconds
        self._lock = threading.RLock()
        self._jobs: dict[str, ScannedJob] = {}

    def add(self, id: str, payload: object) -> None:
        """Keep a job, unless one with this id exists."""
        with self._lock:
            if id not in self._jobs:
                self._jobs[id] = ScannedJob(id, payload, time.time())

    def claim(self, owner: str) -> ScannedJob | None:
        """Lease the oldest pending job."""
        with self._lock:
            now = time.time()
            for job in self._jobs.values():
                if job.status == "running" and job.expires_at <= now:
                    job.status, job.owner = "pending", None
                    job.attempt += 1
            pending = [job for job in self._jobs.values() if job.status == "pending"]
            if not pending:
                return None
            oldest = min(pending, key=lambda job: job.added_at)
            oldest.status, oldest.owner, oldest.expires_at = "running", owner, now + self._lease_seconds
            return oldest

    def complete(self, owner: str, id: str) -> bool:
        """End a job, for whoever has the name of its owner."""
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.status != "running" or job.owner != owner:
                return False
            job.status, job.owner = "done", None
            return True


class RawClaim(NamedTuple):
    """What the raw statements hand out."""

    seq: int
    epoch: int
    owner: str
    granted_at: int
    expires_at: int
    id: str
    payload: str


class RawSqlite:
    """
    Hand-written statements on the tables that a SQLite store has made in *path*: a transaction for each call.

    They change what the store must change for plain jobs of one queue, and look at nothing else: no deadlines, no lock
    keys, no other queues, no process. The connection has SQLite's own settings but for WAL, and FULL as the store has.
    """

    def __init__(self, path: str, *, lease_seconds: float = 30.0) -> None:
        self._lease_us = round(lease_seconds * 1_000_000)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add_many(self, jobs: Iterable[tuple[str, object]]) -> None:
        """Keep each job; their ids are new."""
        execute, now = self._connection.execute, time.time_ns() // 1000
        execute("BEGIN IMMEDIATE")
        [(last,)] = execute("SELECT coalesce(max(seq), 0) FROM leasehold_jobs")
        rows = [(seq, id, now, json.dumps(payload), now, now) for seq, (id, payload) in enumerate(jobs, last + 1)]
        self._connection.executemany(
            "INSERT INTO leasehold_jobs "
            "(seq, id, queue, priority, run_at, max_errors, max_reclaims, payload, created_at, updated_at) "
            "VALUES (?, ?, 'default', 0, ?, 5, 3, ?, ?, ?)",
            rows,
        )
        self._connection.executemany(
            "INSERT INTO leasehold_ready (queue, rank, run_at, seq) VALUES ('default', 0, ?, ?)",
            [(now, row[0]) for row in rows],
        )
        execute("COMMIT")

    def claim(self, owner: str, limit: int) -> list[RawClaim]:
        """Lease the first *limit* jobs."""
        execute, now = self._connection.execute, time.time_ns() // 1000
        expires = now + self._lease_us
        execute("BEGIN IMMEDIATE")
        first = execute(
            "SELECT r.rank, r.run_at, r.seq, j.id, j.payload FROM leasehold_ready AS r "
            "CROSS JOIN leasehold_jobs AS j ON j.seq = r.seq "
            "WHERE r.queue = 'default' ORDER BY r.rank, r.run_at, r.seq LIMIT ?",
            (limit,),
        ).fetchall()
        self._connection.executemany(
            "DELETE FROM leasehold_ready WHERE queue = 'default' AND rank = ? AND run_at = ? AND seq = ?",
            [row[:3] for row in first],
        )
        [(last,)] = execute(
            "UPDATE leasehold_store SET last_epoch = last_epoch + ? RETURNING last_epoch", (len(first),)
        ).fetchall()
        claims = [
            RawClaim(seq, epoch, owner, now, expires, id, payload)
            for epoch, (_, _, seq, id, payload) in enumerate(first, last - len(first) + 1)
        ]
        self._connection.executemany(
            "INSERT INTO leasehold_leases (seq, epoch, owner, reason, granted_at, expires_at, lease_us, updated_at) "
            "VALUES (?, ?, ?, 'claim', ?, ?, ?, ?)",
            [(claim.seq, claim.epoch, owner, now, expires, self._lease_us, now) for claim in claims],
        )
        execute("COMMIT")
        return claims

    def complete(self, claims: Sequence[RawClaim]) -> int:
        """End each job whose lease still has the claim's epoch; return how many."""
        now = time.time_ns() // 1000
        self._connection.execute("BEGIN IMMEDIATE")
        ended = self._connection.executemany(
            "UPDATE leasehold_jobs SET status = 'done', result = 'null', epoch = ?, owner = ?, granted_at = ?, "
            "expires_at = ?, settlement = 'complete', updated_at = ?, finished_at = ? "
            "WHERE seq = ? AND ? = (SELECT epoch FROM leasehold_leases AS l WHERE l.seq = leasehold_jobs.seq)",
            [
                (epoch, owner, granted_at, expires_at, now, now, seq, epoch)
                for seq, epoch, owner, granted_at, expires_at, _, _ in claims
            ],
        ).rowcount
        self._connection.executemany(
            "DELETE FROM leasehold_leases WHERE seq = ? AND epoch = ?", [claim[:2] for claim in claims]
        )
        self._connection.execute("COMMIT")
        return ended
