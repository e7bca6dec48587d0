"""`Lease`: what an owner holds on one job, under one epoch, until it expires, settles or is lost."""

from .current import current_lease, lease_here
from .lease import Lease

__all__ = ["Lease", "current_lease", "lease_here"]
