"""
Background jobs whose stale owners cannot write.

    errors      everything that leasehold raises on purpose
    core/       the rules, as functions of values
    store       CONTRACT: the verbs of a store       stores/   memory, sqlite, postgres
    lease       what an owner holds
    worker/     tasks, and what runs them
    router      the front door: producers, owners, operators, readers
    cli/        the command
    testing/    a clock to move by hand, and the contract as a suite
"""

from .core.clock import Clock
from .core.job import Added, Counts, Job, NewJob, Status
from .core.ownership import Event, Ownership, Reason
from .core.retry import Retry
from .errors import (
    Conflict,
    InDoubt,
    InvalidArgument,
    JobFailed,
    LeaseholdError,
    NoLease,
    NotFinished,
    NotInTransaction,
    Settled,
    StaleEpoch,
    StaleSnapshot,
    StoreIncompatible,
    StoreUnavailable,
    UnknownJob,
    Unsupported,
)
from .lease import Lease, current_lease
from .router import Router

__version__ = "0.1.0"

__all__ = [
    "Added",
    "Clock",
    "Conflict",
    "Counts",
    "Event",
    "InDoubt",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "Lease",
    "LeaseholdError",
    "NewJob",
    "NoLease",
    "NotFinished",
    "NotInTransaction",
    "Ownership",
    "Reason",
    "Retry",
    "Router",
    "Settled",
    "StaleEpoch",
    "StaleSnapshot",
    "Status",
    "StoreIncompatible",
    "StoreUnavailable",
    "UnknownJob",
    "Unsupported",
    "current_lease",
]
