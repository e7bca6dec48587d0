"""
The process that is killed while it holds a lease.

As `python -m leasehold.cli.demo.victim URL SCHEMA QUEUE OWNER LEASE_SECONDS`, it claims one job, says so and waits
for its end: by SIGKILL, or by the end of its input, so that it never outlives the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ... import Router
from .venue import Venue

PATIENCE_SECONDS = 60.0


class Victim:
    """The process, seen from the demo. As a context manager, it is gone at the end of the block."""

    def __init__(self, venue: Venue, queue: str, owner: str, lease_seconds: float) -> None:
        home = str(Path(__file__).parents[3])  # where this very package was imported from
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, venue.url or "", venue.schema, queue, owner, str(lease_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def claimed(self) -> str:
        """Wait until it holds a job, and return that job's id; the empty string if it ended instead."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> str:
        """End it without a chance to say anything, and return what it had written to its standard error."""
        self._process.kill()
        _, stderr = self._process.communicate()
        return stderr


def hold(url: str, schema: str, queue: str, owner: str, lease_seconds: str) -> None:
    """Claim one job and do nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo decides
    router = Router(url, trace=True, schema=schema)
    lease = router.claim(owner, queues=[queue], lease_seconds=float(lease_seconds), wait_seconds=PATIENCE_SECONDS)
    print(lease.job_id if lease else "", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    hold(*sys.argv[1:])
