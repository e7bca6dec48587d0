"""What operators and upkeep look at: the oldest due jobs, what came and went lately, live leases."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence

from ...core.backlog import LATELY_US, LOOKS_AT, SAMPLE, Lately, Oldest
from ...core.clock import Clock
from ...core.observations import Noted, Observation, Observed, ended
from ...core.ownership import LiveLease
from ...core.parking import TASK
from ...core.search import LOOKS_AT as OVERDUE
from .database import Database
from .programs import Program, Session, one


class Observing:
    """The verbs of `SqliteStore` that ask about queues and owners, and not about one job."""

    database: Database
    _clock: Clock
    _session: Session

    def oldest(self) -> list[Oldest]:
        """Return since when the oldest due job of each queue waits, by queue."""
        return self.database.read(oldest(self._session, self._clock.now()))

    def lately(self) -> Lately:
        """Return how many jobs of each queue were added and how many have finished within the last five minutes."""
        return self.database.read(lately(self._session, self._clock.now()))

    def observed(self) -> Observed:
        """Return the round in which upkeep has looked last, when that was, and what was observed then."""
        return self.database.read(observed(self._session, self._clock.now()))

    def observe(self, round: int, found: Sequence[Observation]) -> bool:
        """Record that *found* is what there is to be observed, by a look that began at *round*."""
        # Without `notify`, as for a worker's report: no claim waits for it.
        return self.database.write(self._session, observe, round, found)

    def leases(self) -> list[LiveLease]:
        """Return every lease that lasts, by insertion of its job."""
        return self.database.read(leases(self._session))


# The programs


def oldest(session: Session, now: int) -> Program[list[Oldest]]:
    """Return since when the oldest due job of each queue waits, by one seek for each place that jobs wait in."""
    queues: dict[str, int] = {}
    tasks: dict[tuple[str, str], int] = {}

    def found(queue: str, run_us: int) -> None:
        queues[queue] = min(queues.get(queue, run_us), run_us)

    lane = "", 0
    while rows := (yield one(session.sql.next_lane, *lane)):
        [(queue, rank, run_us)] = rows
        lane = queue, rank
        found(queue, run_us)
    place = "", "", "", 0
    while rows := (yield one(session.sql.next_parked, *place)):
        [(kind, behind, queue, rank, run_us)] = rows
        place = kind, behind, queue, rank
        found(queue, run_us)
        if kind == TASK:
            tasks[queue, behind] = min(tasks.get((queue, behind), run_us), run_us)
    for queue, run_us in (yield one(session.sql.overdue, now, OVERDUE)):
        found(queue, run_us)
    rows = [Oldest(queue, None, since) for queue, since in queues.items()]
    rows += [Oldest(queue, task, since) for (queue, task), since in tasks.items()]
    return sorted(rows, key=lambda row: (row.queue, row.task is not None, row.task))


def lately(session: Session, now: int) -> Program[Lately]:
    """Return how many jobs of each queue were added and have finished lately."""
    since_us = now - LATELY_US
    [(first, last)] = yield one(session.sql.first_and_last)
    added: dict[str, float] = {}
    if last is not None:
        # Jobs are numbered as they are added: where the window begins is found by halving.
        low, high = first, last
        while low <= high:
            middle = (low + high) // 2
            [(created_us,)] = yield one(session.sql.created, middle)
            low, high = (middle + 1, high) if created_us < since_us else (low, middle - 1)
        added = yield from _by_queue(session, range(low, last + 1))
    rows = yield one(session.sql.finished_lately, *[since_us, LOOKS_AT] * 3, LOOKS_AT)
    finished = yield from _by_queue(session, [seq for seq, _ in rows])
    finished_since_us = since_us if len(rows) < LOOKS_AT else rows[-1][1]
    return Lately(now, added, since_us, finished, finished_since_us)


def _by_queue(session: Session, seqs: Sequence[int]) -> Program[dict[str, float]]:
    """Return how many of these jobs are of each queue; of many, as a sample says."""
    sample = seqs if len(seqs) <= SAMPLE else random.sample(seqs, SAMPLE)
    rows = yield one(session.sql.queues_of, json.dumps(list(sample)))
    return {queue: count * len(seqs) / len(sample) for queue, count in Counter(queue for (queue,) in rows).items()}


def observed(session: Session, now: int) -> Program[Observed]:
    """Return what is recorded as observed."""
    [(round, looked_us)] = (yield one(session.sql.round)) or [(0, 0)]
    rows = yield one(session.sql.observations)
    return Observed(now, round, looked_us, [Noted(*row[:4]) for row in rows])


def observe(session: Session, now: int, round: int, found: Sequence[Observation]) -> Program[bool]:
    """Record what has begun and what has ended since *round*, unless another look has been recorded since."""
    [(last, _)] = (yield one(session.sql.round)) or [(0, 0)]
    if last != round:
        return False
    yield one(session.sql.set_round, round + 1, now)
    before = {tuple(row[:3]): row for row in (yield one(session.sql.observations))}
    after = {one.key: one for one in found}
    for key in sorted(before.keys() - after.keys()):
        job_id, epoch, owner, facts = before[key][4:]
        yield one(session.sql.delete_observation, *key)
        yield from session.record(now, "cleared", job_id, epoch=epoch, owner=owner, **ended(json.loads(facts)))
    for key in sorted(after.keys() - before.keys()):
        facts = after[key].facts()
        job_id, epoch, owner = after[key].held or (None, None, None)
        yield one(session.sql.insert_observation, *key, now, job_id, epoch, owner, json.dumps(facts))
        yield from session.record(now, "observed", job_id, epoch=epoch, owner=owner, **facts)
    return True


def leases(session: Session) -> Program[list[LiveLease]]:
    """Return every lease that lasts."""
    return [LiveLease(*row) for row in (yield one(session.sql.live_leases))]
