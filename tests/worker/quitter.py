"""
A worker in a process of its own that does not end well: `python quitter.py URL HOW`.

It claims one job and says so; "die": the handler ends the process at once; "wait": it waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time

from leasehold import Lease, Router

url, how = sys.argv[1:]
router = Router(url, lease_seconds=3600)


@router.task
def work(lease: Lease) -> None:
    """Do not return."""
    sys.stdout.write(f"{lease.job_id} {lease.epoch} {lease.owner}\n")
    sys.stdout.flush()
    if how == "die":
        os._exit(1)
    time.sleep(3600)


if __name__ == "__main__":
    router.work(concurrency=1, name="same-name")
