"""Adds, claims and completes jobs, and says so once each is acknowledged, until it is killed."""

from __future__ import annotations

import itertools
import os
import sys

from leasehold import Router


def main(url: str) -> None:
    """Work for ever."""
    with Router(url) as router:
        for number in itertools.count():
            router.add(f"job-{number}")
            say("added", f"job-{number}")
            lease = router.claim("writer", lease_seconds=600)
            assert lease is not None
            say("claimed", lease.epoch)
            lease.complete(number)
            say("done", lease.job_id)


def say(kind: str, what: object) -> None:
    """By one write, so that a kill cannot tear it."""
    os.write(1, f"{kind} {what}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
