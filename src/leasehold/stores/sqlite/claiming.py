"""The program of a claim: what is swept first, which jobs are taken, and what is granted for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.job import Grant
from ...core.ownership import Ownership, Process
from ...core.parking import LOCK, TASK
from ..rows import REASONS, SpecRow, spec_of
from .moving import Moving
from .rows import Program, many, number_of, one

PARKED_AT_ONCE = 500

Candidate = tuple[Any, ...]  # a row of the statement `candidates`
_SPEC = 7  # where its SpecRow begins
_QUEUE = _SPEC + SpecRow._fields.index("queue")
_LOCK = _SPEC + SpecRow._fields.index("lock")
_TASK = _SPEC + SpecRow._fields.index("task")

Known = frozenset["str | None"]  # the tasks of a claim that does not know all of them
Lane = tuple[str, str]  # a task, and a queue of the jobs that are parked behind it


class Claiming(Moving):
    """How a job gets an owner."""

    def claim(
        self,
        owner: str,
        limit: int,
        queues: Sequence[str] | None,
        lease_us: int | None,
        default_lease_us: int,
        claim_id: str | None,
        process: Process | None,
        tasks: Known | None,
        now: int,
    ) -> Program[tuple[list[Grant], bool, list[Ownership]]]:
        """
        Lease what is due, and return what was taken back for that.

        The second value says that more may be there, behind many that were parked.
        """
        ended: list[Ownership] = []
        number = None if process is None else number_of(process)
        [look] = yield one(self.sql.look, number)
        if look[0] <= now:
            ended = yield from self.sweep(now)
            [look] = yield one(self.sql.look, number)
        _, first, last, known, some_paused, some_parked, last_epoch = look
        if first is None and not some_parked:
            return [], False, ended
        paused = {name for (name,) in (yield one(self.sql.paused))} if some_paused else set()
        lanes = (yield from self.lanes(queues, paused, tasks)) if some_parked else []
        if queues is None:
            queues = [first] if first == last else [queue for (queue,) in (yield one(self.sql.queues))]
        queues = [queue for queue in queues if queue is not None and queue not in paused]
        if not queues and not lanes:
            return [], False, ended
        taken, more = yield from self._take(owner, limit, queues, lanes, tasks)
        if not taken:
            return [], more, ended
        if process is not None and not known:
            yield one(self.sql.insert_process, number, *process)
        # The lock keys are known to be free by now. An epoch drawn before that could be below an earlier holder's.
        epoch = (yield from self.draw(len(taken), now, last_epoch)) - len(taken)
        leases, grants = [], []
        for row in taken:
            epoch += 1
            _, _, seq, reason, attempt, errors, checkpoint = row[:_SPEC]
            spec = spec_of(row[_SPEC:])
            lasts = lease_us or spec.lease_us or default_lease_us
            until, stall_us = now + lasts, spec.stall_us
            stalls = None if stall_us is None else now + stall_us
            leases.append(
                (seq, epoch, owner, reason, claim_id, number, spec.lock, now, until, lasts, stalls, stall_us, now)
            )
            held = REASONS[reason], attempt, errors, checkpoint, claim_id, process, now, until, lasts
            grants.append(Grant(spec, epoch, owner, *held))
            if self.trace:
                yield from self.record(
                    "claimed", spec.id, now, epoch=epoch, owner=owner, reason=reason, attempt=attempt
                )
        first_epoch = epoch - len(taken) + 1
        if _alike(leases):
            seqs = json.dumps([lease[0] for lease in leases])
            yield one(
                self.sql.insert_leases, first_epoch, owner, reason, claim_id, number, now, until, lasts, now, seqs
            )
        else:
            yield many(self.sql.insert_lease, leases)
        return grants, more, ended

    def _take(
        self, owner: str, limit: int, queues: Sequence[str], lanes: Sequence[Lane], tasks: Known | None
    ) -> Program[tuple[list[Candidate], bool]]:
        """
        Remove up to *limit* claimable jobs from where they wait: `ready`, and the *lanes* behind tasks.

        Those in between whose task is unknown, or whose key is held, are parked.
        """
        taken: list[Candidate] = []
        keys: set[str] = set()
        parked = 0
        while len(taken) < limit and parked < PARKED_AT_ONCE:
            wanting = limit - len(taken)
            # Where some were passed over, more will be: a long line behind one key is not looked at one by one.
            count = max(wanting, 64) if parked else wanting
            aside: dict[int, str] = {}  # the tasks behind which the candidates are parked, by their seq
            if len(queues) == 1 and not lanes:
                first = yield one(self.sql.candidates, queues[0], count)
            else:
                first, aside = yield from self._merged(queues, lanes, count)
            if not first:
                return taken, False
            unknown = [] if tasks is None else [row for row in first if row[_TASK] not in tasks]
            if unknown:
                # What they let go may come before those that would be next: look again.
                yield from self._pass_over(owner, unknown)
                parked += len(unknown)
                continue
            free: list[Candidate] = first[:wanting]
            blocked: list[Candidate] = []
            wanted = {row[_LOCK] for row in first if row[_LOCK] is not None}
            if wanted:
                keys.update(key for (key,) in (yield one(self.sql.held_locks, json.dumps(sorted(wanted)))))
                free, blocked = _divided(first, wanting, keys)
            taken += free
            gone = free + blocked
            if aside:
                behind = [(TASK, aside[row[2]], row[_QUEUE], *row[:3]) for row in gone if row[2] in aside]
                yield many(self.sql.delete_parked, behind)
                gone = [row for row in gone if row[2] not in aside]
            yield many(self.sql.delete_ready, [(row[_QUEUE], *row[:3]) for row in gone])
            if blocked:
                rows = [(LOCK, row[_LOCK], row[_QUEUE], *row[:3], owner) for row in blocked]
                yield many(self.sql.insert_parked, rows)
                parked += len(blocked)
        return taken, parked >= PARKED_AT_ONCE

    def _pass_over(self, owner: str, unknown: Sequence[Candidate]) -> Program[None]:
        """Park candidates of `ready` behind their tasks, and wake the next behind each key that one could have held."""
        yield many(self.sql.delete_ready, [(row[_QUEUE], *row[:3]) for row in unknown])
        rows = [(TASK, row[_TASK] or "", row[_QUEUE], *row[:3], owner) for row in unknown]
        yield many(self.sql.insert_parked, rows)
        for lock, queue in sorted({(row[_LOCK], row[_QUEUE]) for row in unknown if row[_LOCK] is not None}):
            yield from self.wake(lock, queue)

    def _merged(
        self, queues: Sequence[str], lanes: Sequence[Lane], count: int
    ) -> Program[tuple[list[Candidate], dict[int, str]]]:
        """Return the first candidates of queues and lanes, and the tasks behind which those of lanes are parked."""
        heads: list[tuple[int, int, int]] = []
        aside: dict[int, str] = {}
        for queue in queues:
            heads += yield one(self.sql.heads, queue, count)
        for task, queue in lanes:
            parked = yield one(self.sql.parked_heads, task, queue, count)
            heads += parked
            aside.update((seq, task) for _, _, seq in parked)
        heads.sort()
        return (yield one(self.sql.chosen, json.dumps([seq for _, _, seq in heads[:count]]))), aside


def _alike(leases: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether they differ in job and epoch alone, and hold no key; and are more than one."""
    _, _, *rest = leases[0]
    return len(leases) > 1 and rest[4] is None and rest[8] is None and all(lease[2:] == tuple(rest) for lease in leases)


def _divided(candidates: Sequence[Candidate], wanting: int, keys: set[str]) -> tuple[list[Candidate], list[Candidate]]:
    """Return who of *candidates* is free to be taken, and who is blocked by one of the *keys*; add those taken now."""
    free: list[Candidate] = []
    blocked: list[Candidate] = []
    for row in candidates:
        if row[_LOCK] in keys:
            blocked.append(row)
        elif len(free) < wanting:
            free.append(row)
            if row[_LOCK] is not None:
                keys.add(row[_LOCK])
    return free, blocked
