"""
One of the two processes: `python -m leasehold.cli.demo.zombie.worker FOLDER OWNER LEASE_SECONDS guarded|bare`.

It claims the job, waits for a line on its input, then writes its report to every resource. It prints one JSON object a
line.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from .... import Router, StaleEpoch
from .resources import resources

WAIT_SECONDS = 60.0


def work(folder: str, owner: str, lease_seconds: str, form: str) -> None:
    """Claim, wait, and write."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo decides
    logging.getLogger("leasehold").setLevel(logging.CRITICAL)  # refusals are this program's output
    home = Path(folder)
    router = Router(f"sqlite:///{home / 'jobs.db'}")
    # Without a process on record: a stopped process is alive, and time alone frees the job.
    lease = router.claim(owner, lease_seconds=float(lease_seconds), wait_seconds=WAIT_SECONDS, process=None)
    if lease is None:
        _print(claimed=None)
        return
    _print(claimed=lease.epoch)
    sys.stdin.readline()
    for resource in resources(home):
        try:
            resource.write(lease, f"report by {owner}", guarded=form == "guarded")
            _print(resource=resource.name, outcome="written")
        except StaleEpoch as refusal:
            facts = {"presented": refusal.presented, "current": refusal.current, "owner": refusal.owner}
            reason = None if refusal.reason is None else refusal.reason.value
            _print(resource=resource.name, outcome="refused", **facts, reason=reason)
        except Exception as error:
            _print(resource=resource.name, outcome="error", error=f"{type(error).__name__}: {error}")


def _print(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
