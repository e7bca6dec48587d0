"""What an owner holds: one job, under one epoch, for a while."""

from .aio import AsyncLease
from .current import _current, current_lease, lease_here
from .lease import Lease

__all__ = ["AsyncLease", "Lease", "_current", "current_lease", "lease_here"]
