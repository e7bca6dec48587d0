"""How a lease adds a child: under the next number of its name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core.job import Added, NewJob
from ..errors import UnknownJob
from ..store import Program, Transactions
from .children import named

if TYPE_CHECKING:
    from .lease import Lease

log = logging.getLogger("leasehold")


def added_alone(lease: Lease, name: str, child: NewJob) -> Added:
    """Add a child in a transaction of its own."""
    counter = lease._counter()
    while (last := counter.unsure(name, None, lease._is_open_on)) and not _is_stored(lease, name, child, last):
        counter.uncount(name, last)
    with counter.counted(name) as nth:
        child = named(lease._grant.spec, child, name, nth)
        [added] = lease.store.add_children(lease.job_id, lease.epoch, [child])
    return _checked(lease, added, child)


def added_in(lease: Lease, verbs: Transactions, name: str, child: NewJob, within: int) -> Program[Added]:
    """The program that adds a child in a transaction of the caller's; *within* is its number or connection."""
    counter = lease._counter()
    while last := counter.unsure(name, within, lease._is_open_on):
        if (yield from verbs.has_job(named(lease._grant.spec, child, name, last).id)):
            break
        counter.uncount(name, last)
    with counter.counted(name, within) as nth:
        child = named(lease._grant.spec, child, name, nth)
        [added] = yield from verbs.add_children(lease.job_id, lease.epoch, [child])
    return _checked(lease, added, child)


def _is_stored(lease: Lease, name: str, child: NewJob, nth: int) -> bool:
    try:
        lease.store.job(named(lease._grant.spec, child, name, nth).id)
    except UnknownJob:
        return False
    return True


def _checked(lease: Lease, added: Added, child: NewJob) -> Added:
    if child.parent is not None and added.job.parent != child.parent and not added.job.unique:
        log.warning("job %r exists and is not a child of %r; it is left as it is", added.job.id, lease.job_id)
    return added
