"""
Waits for a job, in one claim.

    waiter.py URL SECONDS [QUEUE]

Answers "waiting" once the claim has looked and found nothing, then the job's id, the reason of its grant and its epoch,
or "nothing". Then it holds the lease until its input ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from leasehold import Router
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.database import Database


class Announced:
    """A file that tells, once, that somebody waits for it to change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._said = False

    def version(self) -> object:
        version = self._database.version()
        if not self._said:
            os.write(1, b"waiting\n")
        self._said = True
        return version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def main(url: str, seconds: float, queues: list[str] | None) -> None:
    router = Router(url)
    assert isinstance(router.store, SqliteStore)
    router.store.database = Announced(router.store.database)  # type: ignore[assignment]  # it passes all on
    lease = router.claim("waiter", wait_seconds=seconds, queues=queues)
    os.write(1, b"nothing\n" if lease is None else f"{lease.job_id} {lease.reason} {lease.epoch}\n".encode())
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:] or None)
