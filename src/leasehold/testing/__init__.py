"""
For the tests of applications that use leasehold, and of stores written for it.

    ManualClock       time that moves only by hand
    lease             a lease to call a handler with
    take_over         makes a lease stale: another owner gets its job
    elsewhere         calls a verb as another process would
    plugin            the fixtures that pytest has once leasehold is installed
    store_contract    the clauses of `leasehold.store`, as tests for any store
    guard_contract    the clauses of `leasehold.guard`, as tests for any guard
    hunt              random owners, takeovers and fenced transactions on a real store, and a judge: a command
"""

from .clock import ManualClock
from .leases import elsewhere, lease, take_over

__all__ = ["ManualClock", "elsewhere", "lease", "take_over"]
