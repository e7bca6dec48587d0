"""
The memory store: jobs in this process, gone with it. The shortest reading of the contract.

    store     the verbs
    state     where each job is, and the steps that move one
    record    all that is kept of one job
    lines     what waits, in the order of its turn
    verifying the checker
"""

from .store import MemoryStore

__all__ = ["MemoryStore"]
