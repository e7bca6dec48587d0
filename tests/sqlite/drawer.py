"""
Draws epochs: claims jobs and gives them back, as often as it is told, and logs every epoch that it was granted.

    drawer.py LOG SEED      then, line by line on its input:

    URL COUNT       claim until COUNT epochs were granted there, and answer "drawn"
    close           close every store, and answer "closed"

It stays alive, with its connections, while the files are replaced under it.
"""

from __future__ import annotations

import os
import random
import sys
import time

from tests.sqlite.processes import Log

from leasehold import Router, StaleEpoch, StoreUnavailable, UnknownJob


def main(path: str, seed: int) -> None:
    chance, log, routers = random.Random(seed), Log(path), dict[str, Router]()
    for line in sys.stdin:
        if line.strip() == "close":
            while routers:
                routers.popitem()[1].close()
            os.write(1, b"closed\n")
            continue
        url, count = line.split()
        router = routers.setdefault(url, Router(url))
        drawn = 0
        while drawn < int(count):
            drawn += draw(router, log, chance.randint(1, 3))
        os.write(1, b"drawn\n")


def draw(router: Router, log: Log, limit: int) -> int:
    """Claim and release; return how many epochs were granted."""
    began = time.monotonic_ns()
    try:
        leases = router.claim_many(f"drawer-{os.getpid()}", limit=limit)
    except StoreUnavailable:  # the file is just being replaced
        return 0
    for lease in leases:
        log("granted", began, lease.job_id, lease.epoch)
    for lease in leases:
        try:
            lease.release()
        except (StaleEpoch, UnknownJob, StoreUnavailable):  # the store has forgotten this lease
            log("forgotten", began, lease.job_id, lease.epoch)
    return len(leases)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
