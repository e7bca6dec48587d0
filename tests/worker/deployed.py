"""
A worker of one release, for test_deployments.py: URL, schema, and `old` or `new`.

Both know `common`; only the new one knows `added_later`. It says "up" once it works, and ends with its standard input.
"""

from __future__ import annotations

import sys

from leasehold import Router

url, schema, release = sys.argv[1:]
router = Router(url, schema=schema)


@router.task
def common() -> str:
    """Known to both."""
    return release


if release == "new":

    @router.task
    def added_later() -> str:
        """Known to the new one alone."""
        return release


with router.worker(concurrency=4, name=release):
    sys.stdout.write("up\n")
    sys.stdout.flush()
    sys.stdin.read()
router.close()
