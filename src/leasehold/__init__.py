"""
Background jobs whose stale owners cannot write.

    errors        everything that leasehold raises on purpose
    core/         the rules, as functions of values
    connections/  a caller's database connection: what it is, its transaction, and how to run statements on it
    credentials   signed statements of an ownership, for guards
    store         CONTRACT: the verbs of a store       stores/   memory, sqlite, postgres
    reconciler    compares owners, queues and workers, and records what an operator should look at
    lease         what an owner holds
    guard         CONTRACT: what a guarded resource must refuse       guards/   files, and more
    tasks/        what a task is: its signature, arguments and their conversion
    worker/       runs the handlers of tasks: claim, run, settle
    router        the front door: producers, owners, operators, readers
    views         read-only questions with plain answers, for the command line and others
    cli/          the command
    testing/      a clock to move by hand, and the contract as a suite
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.clock import Clock
from .core.counts import Counts
from .core.effects import Effect
from .core.job import Added, Job, NewJob, Status
from .core.ownership import Ending, Event, Ownership, Process, Reason
from .core.parking import Parked
from .core.queues import Queue
from .core.retention import Retention
from .core.retry import Retry
from .core.settings import JobOptions, JobSettings
from .core.workers import WorkerStatus
from .errors import (
    Conflict,
    CredentialExpired,
    CredentialRefused,
    GuardUnavailable,
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
    Unfenced,
    UnknownJob,
    Unsupported,
)
from .lease import Lease, current_lease
from .router import Router
from .store import Pruned

if TYPE_CHECKING:  # imported on use: most programs that add jobs need no tasks, and no worker
    from .core.observations import Observation, ObservationKind
    from .core.search import Page, Search
    from .guard import Guard
    from .lease.aio import AsyncLease
    from .router.aio import AsyncRouter
    from .router.bulk import BulkOutcome, Moved
    from .tasks.guarded import Sealed, Unreached
    from .tasks.signature import TaskSettings
    from .tasks.task import AsyncTask, Task, TaskOptions
    from .worker.reporting import Tally
    from .worker.worker import Health, Worker

__version__ = "0.1.0"

__all__ = [
    "Added",
    "AsyncLease",
    "AsyncRouter",
    "AsyncTask",
    "BulkOutcome",
    "Clock",
    "Conflict",
    "Counts",
    "CredentialExpired",
    "CredentialRefused",
    "Effect",
    "Ending",
    "Event",
    "Guard",
    "GuardUnavailable",
    "Health",
    "InDoubt",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobOptions",
    "JobSettings",
    "Lease",
    "LeaseholdError",
    "Moved",
    "NewJob",
    "NoLease",
    "NotFinished",
    "NotInTransaction",
    "Observation",
    "ObservationKind",
    "Ownership",
    "Page",
    "Parked",
    "Process",
    "Pruned",
    "Queue",
    "Reason",
    "Retention",
    "Retry",
    "Router",
    "Sealed",
    "Search",
    "Settled",
    "StaleEpoch",
    "StaleSnapshot",
    "Status",
    "StoreIncompatible",
    "StoreUnavailable",
    "Tally",
    "Task",
    "TaskOptions",
    "TaskSettings",
    "Unfenced",
    "UnknownJob",
    "Unreached",
    "Unsupported",
    "Worker",
    "WorkerStatus",
    "current_lease",
]

_ON_USE = {
    "AsyncLease": ".lease.aio",
    "AsyncRouter": ".router.aio",
    "AsyncTask": ".tasks.task",
    "BulkOutcome": ".router.bulk",
    "Guard": ".guard",
    "Health": ".worker.worker",
    "Moved": ".router.bulk",
    "Observation": ".core.observations",
    "ObservationKind": ".core.observations",
    "Page": ".core.search",
    "Sealed": ".tasks.guarded",
    "Search": ".core.search",
    "Tally": ".worker.reporting",
    "Task": ".tasks.task",
    "TaskOptions": ".tasks.task",
    "TaskSettings": ".tasks.signature",
    "Unreached": ".tasks.guarded",
    "Worker": ".worker.worker",
}


def __getattr__(name: str) -> Any:
    """Import what is imported on use."""
    if name not in _ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_USE[name], __name__), name)


def __dir__() -> list[str]:
    """Return every name, those that are imported on use too."""
    return sorted({*globals(), *__all__})
