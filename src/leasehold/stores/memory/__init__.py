"""
The memory store: jobs in this process, gone with it. The shortest reading of the contract.

    store     the verbs, each one turn of the lock
    record    the row of a job; its lease is a `Grant` beside it
    state     rows and leases, whose turn is next, and the one function that writes
    moving    how jobs move: what is decided before it is written
    fencing   who may write, and refusals
    reading   what readers ask, and the checker
    guarded   which guarded keys are open
    observing what upkeep has observed last
    upkeep    pruning
"""

from .store import MemoryStore

__all__ = ["MemoryStore"]
