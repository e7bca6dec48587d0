"""
The memory store: jobs in this process, gone with it. The shortest reading of the contract.

    store     the verbs, each one turn of the lock
    turn      that lock, and the calls that wait for a change
    row       the row of a job: its lease, what its owners have left, its two moves in place
    state     the rows, where each job waits, who may write, and the one function that writes
    moving    how jobs move: what owners, operators and deadlines do to a row
    reading   what readers ask, and the checker
    upkeep    guarded keys and pruning: what is kept of jobs that have ended
"""

from .store import MemoryStore

__all__ = ["MemoryStore"]
