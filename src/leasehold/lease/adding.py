"""`lease.add`: adds a child job under the next number of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.job import Added, NewJob
from ..logs import log
from ..store import Program, Transactions
from .children import Within, named

if TYPE_CHECKING:
    from .lease import Lease


def added_alone(lease: Lease, name: str, child: NewJob) -> Added:
    """Add a child in a transaction of its own."""
    counter = lease._counter()
    counter.recount(name, lease._is_stored)
    with counter.counted(name) as nth:
        child = named(lease._grant.spec, child, name, nth)
        [added] = lease.store.add_children(lease.job_id, lease.epoch, [child])
    return _checked(lease, added, child)


def added_in(lease: Lease, verbs: Transactions, name: str, child: NewJob, within: Within) -> Program[Added]:
    """The program that adds a child in a transaction of the caller's."""
    counter = lease._counter()
    counter.recount(name, lease._is_stored)
    # A savepoint that was rolled back has taken children along that this very transaction had added.
    while (last := counter.last_in(name, within.asked)) is not None and not (yield from verbs.has_job(last)):
        counter.forget_last(name, last)
    with counter.counted(name) as nth:
        child = named(lease._grant.spec, child, name, nth)
        [added] = yield from verbs.add_children(lease.job_id, lease.epoch, [child])
    counter.added_in(name, nth, child.id, added, within)
    return _checked(lease, added, child)


def _checked(lease: Lease, added: Added, child: NewJob) -> Added:
    if child.parent is not None and added.job.parent != child.parent and not added.job.unique:
        log.warning("job %r exists already and is not a child of %r; it was not changed", added.job.id, lease.job_id)
    return added
