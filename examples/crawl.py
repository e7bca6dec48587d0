"""
A long crawl that survives being killed: what it has seen is its checkpoint.

    pip install .                                          it needs nothing else
    python examples/crawl.py http://localhost:8000/        kill it, start it again: it goes on where it was

A crawl is one job. `progress(checkpoint=…)` is on the disk when it returns, so the next owner, in this process
or another, begins with that page and not with the first.
"""

import re
import sys
from urllib.parse import urljoin
from urllib.request import urlopen

from leasehold import Lease, Router

router = Router("sqlite:///crawl.db", lease_seconds=10)
LINK = re.compile(r'href="([^"#]+)"')


@router.task(stall_seconds=60)
def crawl(lease: Lease, start: str, most: int = 1000) -> int:
    """Read every page below *start*, and return how many there are."""
    found = lease.checkpoint or {"waiting": [start], "seen": []}
    waiting, seen = found["waiting"], found["seen"]
    while waiting and len(seen) < most:
        page = waiting.pop(0)
        seen.append(page)
        with urlopen(page, timeout=10) as reply:
            text = reply.read().decode()
        links = {urljoin(page, link) for link in LINK.findall(text)}
        waiting += sorted(link for link in links if link.startswith(start) and link not in {*seen, *waiting})
        # Refused if another owner has the job by now: then this raises, and the crawl here is over.
        lease.progress(
            len(seen) / (len(seen) + len(waiting)),
            note=page,
            checkpoint={"waiting": waiting, "seen": seen},
        )
        print(f"{len(seen):4}  {page}", flush=True)
    return len(seen)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    start = sys.argv[1]
    job = crawl.options(id=f"crawl:{start}").add(start).job
    router.work(until_empty=True, concurrency=1)
    job = router.job(job.id)
    if job.status != "done":
        sys.exit(f"the crawl is {job.status}, and the last error is {job.last_error}")
    print(job.result, "pages")
