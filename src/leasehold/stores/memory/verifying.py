"""The checker of the memory store."""

from __future__ import annotations

from collections import Counter

from ...core.lifecycle import FINISHED
from ...core.parking import LOCK, TASK
from .state import State


def broken(state: State) -> list[str]:
    """Return a sentence for every broken invariant; the lock is held."""
    places: Counter[str] = Counter()
    due = list(state._ready.records())
    parked = list(state._parking.records(LOCK))
    unknown = list(state._parking.records(TASK))
    places.update(record.spec.id for record in due)
    places.update(record.spec.id for record in state._scheduled.records())
    places.update(record.spec.id for _, record in parked + unknown)
    running = state._running()
    places.update(record.spec.id for record in running)
    wrong = []
    for job_id, record in state._jobs.items():
        expected = 0 if record.status in FINISHED else 1
        if places.pop(job_id, 0) != expected:
            wrong.append(f"job {job_id!r} is {record.status} and not in exactly {expected} place(s).")
    wrong += [f"job {job_id!r} is in a place and not in the store." for job_id in places]
    keys = Counter(record.spec.lock for record in running if record.spec.lock is not None)
    wrong += [f"lock {key!r} is held by {count} running jobs." for key, count in keys.items() if count > 1]
    if set(keys) != set(state._held):
        wrong.append(f"held keys are {sorted(state._held)}, running jobs have {sorted(keys)}.")
    turns = {(record.spec.lock, record.spec.queue) for record in due}
    free = {(key, r.spec.queue) for key, r in parked if key not in state._held} - turns
    wrong += [f"jobs of {queue!r} are parked behind lock {key!r}, which is free." for key, queue in sorted(free)]
    wrong += [
        f"job {record.spec.id!r} waits in the wrong place."
        for kind, some in ((LOCK, parked), (TASK, unknown), ("", [("", record) for record in due]))
        for name, record in some
        if (record.parked[:2] if record.parked else ("", "")) != (kind, name)
        or (kind and name != (record.spec.lock if kind == LOCK else record.spec.task or ""))
    ]
    wrong += [
        f"job {record.spec.id!r} has epoch {record.epoch}, above the last one issued, {state._last}."
        for record in state._jobs.values()
        if record.epoch > state._last
    ]
    return wrong
