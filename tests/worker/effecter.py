"""
A worker in a process of its own, which is killed and stopped: `python effecter.py URL SCHEMA NAP_SECONDS`.

Each job writes one row beside the store's own, and completes in the same transaction.
"""

from __future__ import annotations

import random
import sys
import time

from leasehold import Lease, Router

url, schema, nap_seconds = sys.argv[1:]
mark = "?" if url.startswith("sqlite") else "%s"
router = Router(url, schema=schema, lease_seconds=0.8)


@router.task
def effect(lease: Lease, number: int) -> None:
    """Take some time, then write."""
    time.sleep(random.uniform(0, 2 * float(nap_seconds)))
    with lease.transaction() as connection:
        connection.execute(
            f"insert into effects (job_id, epoch, number) values ({mark}, {mark}, {mark})",
            [lease.job_id, lease.epoch, number],
        )
        lease.complete(connection=connection)


if __name__ == "__main__":
    router.work(concurrency=4)
