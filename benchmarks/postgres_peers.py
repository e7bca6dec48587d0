"""The least that could do the same work on PostgreSQL, written by hand: no retries, no locks, no history, one queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg

# As the store does: a plan that was made while a table was small must not read all of it later.
SETTINGS = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off -c jit=off"
LEASE_US = 30_000_000
OWNER = "worker-0"

Claim = tuple[Any, ...]  # seq, epoch, id, payload


def connect(url: str) -> psycopg.Connection[Any]:
    """Return a connection that commits each statement by itself, with the peers' settings."""
    return psycopg.connect(url, autocommit=True, options=SETTINGS)


class OneTable:
    """One wide table: a claim is an UPDATE, and so is a completion."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._connection.execute(
            """
            CREATE SEQUENCE IF NOT EXISTS wide_epochs;
            CREATE TABLE IF NOT EXISTS wide (
                seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
                queue text COLLATE "C" NOT NULL, priority integer NOT NULL, run_at bigint NOT NULL,
                status text NOT NULL DEFAULT 'pending', payload text NOT NULL, epoch bigint NOT NULL DEFAULT 0,
                owner text, attempt integer NOT NULL DEFAULT 0, expires_at bigint, result text,
                created_at bigint NOT NULL, finished_at bigint
            ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
            CREATE INDEX IF NOT EXISTS wide_ready ON wide (queue, priority DESC, run_at, seq) WHERE status = 'pending';
            CREATE INDEX IF NOT EXISTS wide_expiry ON wide (expires_at) WHERE status = 'running';
            """
        )

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def add(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Keep each job; their ids are new."""
        now = time.time_ns() // 1000
        self._connection.execute(
            "INSERT INTO wide (id, queue, priority, run_at, payload, created_at) "
            "SELECT id, 'default', 0, %s, payload, %s FROM unnest(%s::text[], %s::text[]) AS j(id, payload)",
            (now, now, [job[0] for job in jobs], [job[1] for job in jobs]),
        )

    def claim(self, limit: int) -> list[Claim]:
        """Lease the first *limit* jobs."""
        now = time.time_ns() // 1000
        return self._connection.execute(
            "UPDATE wide SET status = 'running', owner = %s, epoch = nextval('wide_epochs'), attempt = attempt + 1, "
            "expires_at = %s WHERE ctid = ANY (ARRAY(SELECT ctid FROM wide WHERE queue = 'default' "
            "AND status = 'pending' ORDER BY priority DESC, run_at, seq LIMIT %s FOR UPDATE SKIP LOCKED)) "
            "RETURNING seq, epoch, id, payload",
            (OWNER, now + LEASE_US, limit),
        ).fetchall()

    def complete(self, claims: Sequence[Claim]) -> int:
        """End each job that still has the claim's epoch; return how many."""
        return self._connection.execute(
            "UPDATE wide AS w SET status = 'done', result = 'null', finished_at = %s, expires_at = NULL "
            "FROM unnest(%s::bigint[], %s::bigint[]) AS c(seq, epoch) "
            "WHERE w.seq = c.seq AND w.epoch = c.epoch AND w.status = 'running'",
            (time.time_ns() // 1000, [claim[0] for claim in claims], [claim[1] for claim in claims]),
        ).rowcount


class NarrowTables:
    """Narrow tables for what is ready and what is leased; claims and completions have a connection each."""

    def __init__(self, url: str) -> None:
        self._claims, self._completions = connect(url), connect(url)
        self._claims.execute(
            """
            CREATE SEQUENCE IF NOT EXISTS narrow_epochs;
            CREATE TABLE IF NOT EXISTS narrow_jobs (
                seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
                payload text NOT NULL, status text NOT NULL DEFAULT 'unfinished', epoch bigint, owner text, result text,
                created_at bigint NOT NULL, finished_at bigint
            ) WITH (fillfactor = 50);
            CREATE TABLE IF NOT EXISTS narrow_ready (
                queue text COLLATE "C" NOT NULL, priority integer NOT NULL, run_at bigint NOT NULL, seq bigint NOT NULL,
                PRIMARY KEY (queue, priority, run_at, seq)
            ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
            CREATE TABLE IF NOT EXISTS narrow_leases (
                seq bigint PRIMARY KEY, epoch bigint NOT NULL, owner text NOT NULL, expires_at bigint NOT NULL
            ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
            CREATE INDEX IF NOT EXISTS narrow_expiry ON narrow_leases (expires_at);
            """
        )

    def close(self) -> None:
        """Hang up."""
        self._claims.close()
        self._completions.close()

    def add(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Keep each job; their ids are new."""
        now = time.time_ns() // 1000
        self._claims.execute(
            "WITH made AS (INSERT INTO narrow_jobs (id, payload, created_at) SELECT id, payload, %s "
            "FROM unnest(%s::text[], %s::text[]) AS j(id, payload) RETURNING seq) "
            "INSERT INTO narrow_ready SELECT 'default', 0, %s, seq FROM made",
            (now, [job[0] for job in jobs], [job[1] for job in jobs], now),
        )

    def claim(self, limit: int) -> list[Claim]:
        """Lease the first *limit* jobs."""
        return self._claims.execute(
            "WITH taken AS MATERIALIZED (DELETE FROM narrow_ready WHERE ctid = ANY (ARRAY("
            "SELECT ctid FROM narrow_ready WHERE queue = 'default' ORDER BY priority, run_at, seq LIMIT %s "
            "FOR UPDATE SKIP LOCKED)) RETURNING seq), leased AS (INSERT INTO narrow_leases "
            "SELECT seq, nextval('narrow_epochs'), %s, %s FROM taken RETURNING seq, epoch) "
            "SELECT l.seq, l.epoch, j.id, j.payload FROM leased AS l "
            "CROSS JOIN LATERAL (SELECT id, payload FROM narrow_jobs WHERE seq = l.seq OFFSET 0) AS j",
            (limit, OWNER, time.time_ns() // 1000 + LEASE_US),
        ).fetchall()

    def complete(self, claims: Sequence[Claim]) -> int:
        """End each job whose lease still has the claim's epoch; return how many."""
        return self._completions.execute(
            "WITH said AS MATERIALIZED (SELECT l.place FROM unnest(%s::bigint[], %s::bigint[]) AS c(seq, epoch) "
            "CROSS JOIN LATERAL (SELECT ctid AS place FROM narrow_leases WHERE seq = c.seq AND epoch = c.epoch "
            "OFFSET 0) AS l), ended AS (DELETE FROM narrow_leases AS l USING said AS s WHERE l.ctid = s.place "
            "RETURNING l.seq, l.epoch, l.owner) "
            "UPDATE narrow_jobs AS j SET status = 'done', epoch = e.epoch, owner = e.owner, result = 'null', "
            "finished_at = %s FROM ended AS e WHERE j.seq = e.seq",
            ([claim[0] for claim in claims], [claim[1] for claim in claims], time.time_ns() // 1000),
        ).rowcount


class SameTables:
    """A raw INSERT of many rows into the tables that a store has made."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def add(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Keep each job; their ids are new."""
        now = time.time_ns() // 1000
        self._connection.execute(
            "WITH made AS (INSERT INTO leasehold.jobs (seq, id, queue, priority, run_at, max_errors, max_reclaims, "
            "payload, created_at, updated_at) SELECT nextval('leasehold.seqs'), id, 'default', 0, %s, 10, 10, payload, "
            "%s, %s FROM unnest(%s::text[], %s::text[]) AS j(id, payload) RETURNING seq) "
            "INSERT INTO leasehold.ready (queue, rank, run_at, seq) SELECT 'default', 0, %s, seq FROM made",
            (now, now, now, [job[0] for job in jobs], [job[1] for job in jobs], now),
        )
