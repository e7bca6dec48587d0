"""
Every verb, again and again, for as long as it is told to: `python old_worker.py URL SCHEMA`.

One Router for all of it, opened once. Each line on stdin is a round, and is answered with one; `fence` begins a fenced
transaction, and `commit` ends it.
"""

from __future__ import annotations

import sys

from leasehold import Router, StaleEpoch


def round_of_verbs(router: Router, n: str) -> None:
    """Do everything once that a producer, an owner, an operator and a reader can do."""
    queue = f"queue-{n}"
    router.add_many(
        [
            {"id": f"{n}-a", "payload": {"n": n}, "queue": queue, "lock": n, "unique": n},
            {"id": f"{n}-b", "queue": queue, "lock": n},
            {"id": f"{n}-c", "queue": queue, "delay_seconds": 3600},
            {"id": f"{n}-d", "queue": queue},
        ]
    )
    assert not router.add(f"{n}-a", {"n": n}).created
    [a, d] = router.claim_many("worker", limit=9, queues=[queue])
    assert (a.job_id, d.job_id) == (f"{n}-a", f"{n}-d")
    assert router.lease(a.job_id, owner="worker").epoch == a.epoch
    a.renew()
    a.progress(0.5, note="half", checkpoint={"page": 1})
    a.check()
    a.add("child", {"of": n}, queue="children")
    assert a.once("charge", lambda key: key) == a.once("charge", lambda key: "again")
    with a.transaction() as connection:
        connection.execute("select 1")
        a.complete({"done": n}, connection=connection)
    d.fail("once", delay_seconds=0)
    [b, d] = router.claim_many("worker", limit=9, queues=[queue])
    assert (b.job_id, d.job_id) == (f"{n}-b", f"{n}-d")
    moved = router.transfer(router.job(d.job_id), to="other", by="ann", note="by hand")
    try:
        d.complete()
    except StaleEpoch:
        pass
    else:
        raise AssertionError("a stale owner has completed")
    moved.complete()
    router.cancel(router.job(f"{n}-c"), by="ann")
    router.replay(router.job(f"{n}-c"), by="ann")
    router.complete(router.job(f"{n}-c"), by="ann", result=1)
    b.complete(then=[{"id": f"{n}-then"}])
    router.reclaim()
    router.prune(keep_seconds=10**7)
    router.advance()
    assert [job.status for job in router.jobs(queue=queue)] == ["done"] * 4
    assert router.job(f"{n}-a").result == {"done": n}
    assert all([router.ownerships(f"{n}-d"), router.events(f"{n}-d"), router.effects(f"{n}-a")])
    assert router.counts().running == 0
    assert router.verify() == []


def tell(line: str) -> None:
    """Say something to whoever listens."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Do as told."""
    with Router(sys.argv[1], schema=sys.argv[2]) as router:
        fenced = None
        for line in sys.stdin:
            try:
                match line.split():
                    case ["round", n]:
                        round_of_verbs(router, n)
                    case ["fence", n]:
                        router.add(n, queue=n)
                        lease = router.claim("fenced", queues=[n])
                        assert lease is not None
                        fenced = lease.transaction()
                        connection = fenced.__enter__()
                        lease.complete("fenced", connection=connection)
                    case ["commit", n]:
                        assert fenced is not None
                        fenced.__exit__(None, None, None)
                        assert router.job(n).result == "fenced"
                tell("done")
            except Exception as error:  # told in one line, to whoever listens
                tell(f"failed: {type(error).__name__}: {error}".replace("\n", " "))


if __name__ == "__main__":
    main()
