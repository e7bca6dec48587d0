"""Three jobs, two workers. One job is quick, one outlives its lease, one loses its worker. Takes four seconds."""

import threading
import time

from leasehold import Lease, Router, StaleEpoch

router = Router(lease_seconds=1, trace=True)
behaviour = {"job-A": 0.2, "job-B": 2.0, "job-C": None}  # seconds of work, the first time; None is a crash


def work(lease: Lease) -> None:
    seconds = behaviour[lease.job_id] if lease.attempt == 0 else 0.2
    if seconds is None:
        return  # as if the worker had died here: it settles nothing, and the lease will expire
    time.sleep(seconds)
    try:
        lease.complete()
    except StaleEpoch as refusal:
        print(f"{lease.owner} was late: {refusal}")


def worker(name: str) -> None:
    while lease := router.claim(name, wait_seconds=1.5):  # also takes back what has expired
        work(lease)


router.add_many([{"id": job_id} for job_id in behaviour])
workers = [threading.Thread(target=worker, args=(f"worker-{i}",)) for i in range(2)]
for thread in workers:
    thread.start()
for thread in workers:
    thread.join()

for event in router.events():
    facts = " ".join(f"{name}={value}" for name, value in event.facts.items())
    print(f"{event.at:%S.%f}  {event.kind:<9} {event.job_id}  {event.owner or '':<8}  {facts}")
for job in router.snapshot().values():
    print(f"{job.id}: {job.status}, attempt {job.attempt}, owners {[held.owner for held in router.ownerships(job.id)]}")
