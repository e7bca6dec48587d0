"""What `verify` reports: a sentence for each kind of broken invariant, made from the facts that a store found."""

from __future__ import annotations

_SENTENCES = {
    "places": "job {!r} is {} and in {} places.",
    "stray": "row {} is in a place and not a job.",
    "ended lease": "row {} is a lease that ended, and nothing says that it is to be removed.",
    "free lock": "jobs of queue {!r} are parked behind lock {!r}, which is free.",
    "lock": "job {!r} runs without its lock.",
    "wrong place": "job {!r} waits in the wrong place.",
    "epoch": "job {!r} has epoch {}, above the last one issued.",
    "earlier epoch": "job {!r} is leased under epoch {}, which is not above its earlier ones.",
    "finished": "job {!r} is {} and its record among the finished ones differs.",
    "finished twice": "row {} is among the finished ones {} times.",
    "job": "job {!r} contradicts itself: its row says what no job can be.",
    "lease": "the lease of row {} contradicts itself: it says what no lease can be.",
    "unique key": "job {!r} and its unique key differ.",
    "pruned": "job {!r} was pruned, and more than its id is kept.",
    "issued twice": "epoch {} was issued {} times.",
    "no job": "row {} of {} belongs to no job.",
}


def violation(kind: str, *facts: object) -> str:
    """Return the sentence about a broken invariant of that *kind*, with its *facts* in the order of the sentence."""
    return _SENTENCES[kind].format(*facts)
