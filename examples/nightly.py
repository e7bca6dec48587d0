"""
A script that exits when everything is done: one job fans out, each of its children writes a row, and the last step
adds them up.

    pip install .                             it needs nothing else
    python examples/nightly.py                run it from cron; a second run on the same day finds its jobs done
"""

from datetime import date, datetime

from leasehold import Lease, Router

router = Router("sqlite:///nightly.db")
SHOPS = ["berlin", "lisbon", "osaka"]
SALES = {"berlin": 120, "lisbon": 80, "osaka": 200}


@router.task
def night(lease: Lease, day: date) -> None:
    """Begin: a job for each shop. Run again after a crash, it finds the children that it has, and adds the others."""
    with lease.transaction() as connection:
        connection.execute("create table if not exists takings (day text, shop text, amount int)")
    for shop in SHOPS:
        count.add(day, shop)


@router.task
def count(lease: Lease, day: date, shop: str) -> int:
    """Write one shop's takings. The row and the completion are one commit, so it is written once."""
    amount = SALES[shop]
    with lease.transaction() as connection:
        connection.execute("insert into takings values (?, ?, ?)", (day.isoformat(), shop, amount))
        lease.complete(amount)
    return amount


def takings(day: date) -> int:
    """Add up what the shops have taken on a day."""
    found = router.jobs(parent=f"night:{day}")
    return sum(job.result for job in found)


if __name__ == "__main__":
    today = datetime.now().astimezone().date()  # local, as cron is: the UTC date can be the same on two nights
    added = night.options(id=f"night:{today}").add(today)
    print("tonight's work" if added.created else "done before:", added.job.id)
    print(router.work(until_empty=True))
    print("taken:", takings(today))
