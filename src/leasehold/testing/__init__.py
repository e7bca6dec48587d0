"""
For the tests of those who use leasehold, and of those who write a store for it.

    ManualClock       time that moves only by hand
    store_contract    the clauses of `leasehold.store`, as tests for any store
    hunt              random owners, takeovers and fenced transactions on a real store, and a judge: a command
"""

from .clock import ManualClock

__all__ = ["ManualClock"]
