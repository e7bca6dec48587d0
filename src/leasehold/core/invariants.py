"""What `verify` reports: a sentence for each kind of broken invariant, made from the facts that a store found."""

from __future__ import annotations

_SENTENCES = {
    "places": "job {!r} is {} but is listed {} times as ready, scheduled, parked or running.",
    "stray": "row {} is listed as ready, scheduled, parked or running, but its job does not exist.",
    "ended lease": "the lease of row {} has ended, but is not marked for removal.",
    "free lock": "jobs of queue {!r} are parked behind lock {!r}, which is free.",
    "lock": "job {!r} runs without its lock.",
    "wrong place": "job {!r} is listed under the wrong queue, priority, time, lock or task.",
    "epoch": "job {!r} has epoch {}, above the last one issued.",
    "earlier epoch": "job {!r} is leased under epoch {}, which is not above its earlier ones.",
    "finished": "job {!r} is {}, but its entry among the finished jobs differs.",
    "finished twice": "row {} is listed {} times among the finished jobs.",
    "job": "job {!r} contradicts itself: no job can have the values of its row.",
    "lease": "the lease of row {} contradicts itself: no lease can have its values.",
    "unique key": "job {!r} and the table of unique keys differ.",
    "pruned": "job {!r} was pruned, but more than its id is kept.",
    "issued twice": "epoch {} was issued {} times.",
    "no job": "row {} of {} belongs to no job.",
}


def violation(kind: str, *facts: object) -> str:
    """Return the sentence about a broken invariant of that *kind*, with its *facts* in the order of the sentence."""
    return _SENTENCES[kind].format(*facts)
