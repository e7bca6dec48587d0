"""
For the tests of those who use leasehold, and of those who write a store for it.

    ManualClock       time that moves only by hand
    store_contract    the clauses of `leasehold.store`, as tests for any store
"""

from .clock import ManualClock

__all__ = ["ManualClock"]
