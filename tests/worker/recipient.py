"""
A worker in a process of its own, to which jobs are transferred: `python recipient.py URL SCHEMA NAME FOLDER TASK`.

It knows one task, whose handler says in FOLDER that it has begun, and waits there for a file named "open".
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from leasehold import Lease, Router

url, schema, name, folder, task = sys.argv[1:]
router = Router(url, schema=schema, lease_seconds=3600)


@router.task(name=task)
def gated(lease: Lease) -> str:
    """Wait for the gate, and say who ran it."""
    Path(folder, f"begun-{lease.job_id}-{lease.owner}").touch()
    while not Path(folder, "open").exists():
        time.sleep(0.02)
    return lease.owner


if __name__ == "__main__":
    router.work(concurrency=1, name=name)
