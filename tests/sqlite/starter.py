"""
The first start of a store: answers "ready", waits for a line, and then adds and claims in a file that may be new.

    starter.py URL NAME

Answers with the epoch that it was granted.
"""

from __future__ import annotations

import os
import sys

from leasehold import Router


def main(url: str, name: str) -> None:
    with Router(url) as router:
        os.write(1, b"ready\n")
        sys.stdin.readline()
        router.add(name)
        lease = router.claim(name)
        assert lease is not None
        lease.complete()
        os.write(1, f"{lease.epoch}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
