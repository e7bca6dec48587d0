"""
A store as an operator meets it: many jobs, most of them done; some wait, some run, some failed.

The rows are written into the tables as they are, since a million adds, claims and completions would take many minutes.
`verify` finds nothing wrong with them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from leasehold.core.clock import SystemClock
from leasehold.core.failure import written

WORKERS = 10
QUEUES = ("mail", "images", "reports", "billing", "imports")
TASKS = ("send", "resize", "render", "charge", "load")
OVER_US = 3_600_000_000  # the jobs were added within the last hour
BATCH = 100  # jobs that finished together

JOB = (
    *("seq", "id", "task", "queue", "priority", "run_at", "max_errors", "max_reclaims", "meta", "payload", "status"),
    *("attempt", "errors", "epoch", "reason", "result", "last_error", "created_at", "updated_at", "finished_at"),
    *("owner", "granted_at", "expires_at", "settlement"),
)
LEASE = ("seq", "epoch", "owner", "reason", "granted_at", "expires_at", "lease_us", "updated_at", "renewed_at")
OWNERSHIP = (
    *("seq", "epoch", "owner", "began", "granted_at", "expires_at", "ended", "ended_at", "ended_by"),
    "settlement",
)
EVENT = ("at", "kind", "job_id", "epoch", "owner", "facts")
WORKER = ("name", "given_name", "tasks", "concurrency", "running", "started_at", "seen_at")


class Row(NamedTuple):
    """One row of a table."""

    table: str
    columns: tuple[str, ...]
    values: tuple[Any, ...]


def rows(count: int, now: int, share: int) -> Iterator[Row]:
    """Yield the rows of *count* jobs; the last of them, one in *share*, are unfinished."""
    error = written("ConnectionError: no route to host", '  File "app.py", line 7, in send')
    finished = count - count // share
    for n in range(1, count + 1):
        created = now - OVER_US + OVER_US * n // (count + 1)
        queue, task = QUEUES[n % 5], TASKS[n % 5]
        meta = json.dumps({"tenant": f"t{n % 1_000}"}) if n % 10 == 0 else None
        payload = json.dumps({"n": n, "order": {"total": n % 1_000}, "text": "x" * 100})
        owner = f"worker-{n % WORKERS}"
        fixed = (n, f"job-{n:08}", task, queue, n % 3, created, 5, 3, meta, payload)
        if n > finished:
            yield from _unfinished(n, fixed, created, now, owner)
            continue
        ended = now - OVER_US + OVER_US * (n // BATCH * BATCH + BATCH) // (count + 1)  # together with others
        status = "failed" if n % 50 == 0 else "cancelled" if n % 100 == 1 else "done"
        if status == "done":
            last: tuple[Any, ...] = (
                "done",
                0,
                0,
                n,
                "claim",
                "null",
                None,
                created,
                ended,
                ended,
                owner,
                created,
                ended,
                "complete",
            )
        else:
            why = error if status == "failed" else None
            reason = "retry" if status == "failed" else "cancellation"
            last = (status, 0, 0, n, reason, None, why, created, ended, ended, None, None, None, None)
            how = ("failed", "fail:1", owner) if status == "failed" else ("cancellation", None, "ops")
            held = (n, n, owner, "claim", created, ended, how[0], ended, how[2], how[1])
            yield Row("ownerships", OWNERSHIP, held)
            yield Row("events", EVENT, (ended, status, f"job-{n:08}", n, owner, "{}"))
        yield Row("jobs", JOB, fixed + last)
    for number in range(WORKERS):
        name = f"worker-{number}"
        yield Row("workers", WORKER, (name, "shop", json.dumps(TASKS), 100, 100, now - OVER_US, now))


def _unfinished(n: int, fixed: tuple[Any, ...], created: int, now: int, owner: str) -> Iterator[Row]:
    queue, task, rank = fixed[3], fixed[2], -fixed[4]
    run_at = now + 7_200_000_000 + n if n % 70 == 1 else created  # due after the benchmark
    state = ("unfinished", 0, 0, 0, "claim", None, None, created, created, None, None, None, None, None)
    yield Row("jobs", JOB, (*fixed[:5], run_at, *fixed[6:], *state))
    if n % 70 == 0:
        lease = (n, n, owner, "claim", created, now + 7_200_000_000, 7_200_000_000, created, now)
        yield Row("leases", LEASE, lease)
    elif n % 70 == 1:
        yield Row("scheduled", ("run_at", "seq", "queue"), (run_at, n, queue))
    elif n % 70 == 2:
        columns = ("kind", "behind", "queue", "rank", "run_at", "seq", "parked_by")
        yield Row("parked", columns, ("task", task, queue, rank, run_at, n, owner))
    else:
        yield Row("ready", ("queue", "rank", "run_at", "seq"), (queue, rank, run_at, n))


def fill_sqlite(path: str, count: int, *, share: int = 15) -> None:
    """Write *count* jobs into the file of a new store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, columns, values in _in_parts(rows(count, SystemClock().now(), share)):
            marks = ", ".join("?" for _ in columns)
            connection.executemany(f"INSERT INTO leasehold_{table} ({', '.join(columns)}) VALUES ({marks})", values)
        connection.execute("ANALYZE")


def fill_postgres(url: str, count: int, *, share: int = 15) -> None:
    """Write *count* jobs into the schema of a new store."""
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction(), connection.cursor() as cursor:
            for table, columns, values in _in_parts(rows(count, SystemClock().now(), share)):
                if table == "scheduled":
                    columns, values = (*columns, "rank"), [(*value, -(value[1] % 3)) for value in values]
                into = sql.SQL("COPY {} ({}) FROM STDIN").format(
                    sql.Identifier("leasehold", table), sql.SQL(", ").join(map(sql.Identifier, columns))
                )
                with cursor.copy(into) as copy:
                    for value in values:
                        copy.write_row(value)
            cursor.execute(
                "INSERT INTO leasehold.finished (finished_at, status, seqs) "
                "SELECT finished_at, status, array_agg(seq ORDER BY seq) FROM leasehold.jobs "
                "WHERE finished_at IS NOT NULL GROUP BY status, finished_at"
            )
            cursor.execute("SELECT setval('leasehold.seqs', %s)", [count])
        connection.execute("VACUUM ANALYZE")


def _in_parts(found: Iterator[Row]) -> Iterator[tuple[str, tuple[str, ...], Sequence[tuple[Any, ...]]]]:
    """Yield the rows by table, many at a time."""
    waiting: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {}
    for table, columns, values in found:
        part = waiting.setdefault(table, (columns, []))[1]
        part.append(values)
        if len(part) == 20_000:
            yield table, columns, part.copy()
            part.clear()
    for table, (columns, part) in waiting.items():
        yield table, columns, part
