"""
A CSV file into a table, in batches: the rows of a batch and the checkpoint behind it are one commit.

    pip install .                                                it needs nothing else
    python examples/import_csv.py people.csv                     kill it, start it again: it goes on where it was
    python examples/import_csv.py people.csv postgresql://localhost/shop      with: pip install '.[postgres]'

However often it is killed, each row is there exactly once, and the checkpoint says how many there are.
"""

import csv
import json
import sys
from itertools import islice

from leasehold import Lease, Retry, Router

BATCH = 500
URL = sys.argv[2] if len(sys.argv) > 2 else "sqlite:///import.db"

router = Router(URL)
TABLE = "create table if not exists imported (file text, number int, content text)"
INSERT = "insert into imported values (?, ?, ?)"
if not URL.startswith("sqlite"):
    INSERT = INSERT.replace("?", "%s")  # psycopg's placeholders


# A kill is a reclaim. By default the fourth fails the job, in case the job itself is what kills its workers.
@router.task(stall_seconds=60, retry=Retry(max_reclaims=1000))
def import_csv(lease: Lease, path: str) -> int:
    """Import the rows that are not there yet, and return how many the file has."""
    done = (lease.checkpoint or {"row": 0})["row"]
    with open(path, newline="") as file:
        total = sum(1 for _ in csv.DictReader(file))
        file.seek(0)
        rows = islice(enumerate(csv.DictReader(file), 1), done, None)
        while batch := [(path, number, json.dumps(row)) for number, row in islice(rows, BATCH)]:
            # Both are committed, or neither; and neither if another worker has the job by now: then this raises.
            with lease.transaction() as connection:
                connection.execute(TABLE)
                connection.executemany(INSERT, batch)
                done += len(batch)
                lease.progress(done / total, checkpoint={"row": done})
            print(f"{done:6} of {total}", flush=True)
    return total


def main(path: str) -> None:
    """Import *path*, unless that has been done."""
    added = import_csv.options(id=f"import:{path}").add(path)
    router.work(until_empty=True, concurrency=1)
    job = router.job(added.job.id)
    if job.status != "done":
        sys.exit(f"the import is {job.status}, and the last error is {job.last_error}")
    print(job.result, "rows")
    router.close()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1])
