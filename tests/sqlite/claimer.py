"""
Claims jobs and completes them, one by one, until SIGTERM; logs every grant, and whether each completion counted.

    claimer.py URL LOG OWNER SEED

After SIGUSR1 it stops itself (SIGSTOP) at the worst moment: with leases in hand that it has not settled.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from tests.sqlite.processes import Log

from leasehold import Router, StaleEpoch

asked: set[int] = set()


def main(url: str, path: str, owner: str, seed: int) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: asked.add(number))
    os.write(1, b"ready\n")
    chance, log = random.Random(seed), Log(path)
    with Router(url, lease_seconds=0.4) as router:
        while signal.SIGTERM not in asked:
            began = time.monotonic_ns()
            leases = router.claim_many(owner, limit=chance.randint(1, 8), wait_seconds=0.2)
            for lease in leases:
                log("granted", began, lease.job_id, lease.epoch, lease.payload["lock"])
            if leases and signal.SIGUSR1 in asked:
                asked.discard(signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGSTOP)
            for lease in leases:
                began = time.monotonic_ns()
                try:
                    lease.complete({"epoch": lease.epoch})
                    log("accepted", began, lease.job_id, lease.epoch, lease.payload["lock"])
                except StaleEpoch:
                    log("refused", began, lease.job_id, lease.epoch, lease.payload["lock"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
