"""The verbs of operators on a whole store: reclaim, prune, advance, verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..aio import alone
from ..core import checks
from ..core.ownership import CLOCK_LIMIT, Ownership
from ..core.retention import KEEP_IDS_US
from ..core.wording import counted
from ..store import Pruned
from .guards import note_failed
from .operator_log import acted

if TYPE_CHECKING:  # which has these functions as its methods
    from .front import Router


def reclaim(router: Router) -> list[Ownership]:
    """
    Take back what expired, stalled, or whose process is gone. Return the ended ownerships.

    Then do the rest of the upkeep that workers do: prune what `retention` no longer keeps, and record what an operator
    should look at (`observations`). At last, since a resource may keep a seal waiting, each guarded key of a job that
    has failed for good with it is sealed, and of jobs that have ended before, each that was not. What cannot be reached
    is logged and recorded.
    """
    from ..reconciler import Reconciler  # on use: most programs only add jobs, or run them

    ended = alone(router.store).reclaim()
    for one in ended:
        note_failed(router, one)
    while alone(router.store).tend(router._retention):
        pass
    Reconciler(router.store, router._clock, router.redaction).look()
    router._registry.guards.seal_all_open()
    return ended


def prune(router: Router, *, keep_seconds: float, keep_ids_seconds: float | None = KEEP_IDS_US / 1_000_000) -> Pruned:
    """
    Remove jobs that finished more than *keep_seconds* ago, and events that old; return how many of each.

    Of a job whose id you chose, the id, status, epoch and end are kept until *keep_ids_seconds* after its end, None
    for ever: adding that id again still does nothing. `job` shows it with `pruned=True`.

    A child stays as long as its parent, and a job with guarded keys that are not sealed stays until they are.

    Each portion is a short transaction of its own: what was removed before an interruption stays removed. The epoch
    counter is not touched.
    """
    keep = checks.microseconds(keep_seconds, "keep_seconds", zero=True)
    ids = None if keep_ids_seconds is None else checks.microseconds(keep_ids_seconds, "keep_ids_seconds", zero=True)
    removed = Pruned(0, 0)
    while any(portion := alone(router.store).prune(keep, keep_ids_us=ids)):
        removed = Pruned(*map(sum, zip(removed, portion, strict=True)))
    if any(removed):
        text = f"pruned {counted(removed.jobs, 'job', 'jobs')} and {counted(removed.events, 'event', 'events')}"
        acted(router, "pruned", text, keep_seconds=keep_seconds, **removed._asdict())
    return removed


def advance(router: Router, *, above: int = 0) -> int:
    """
    Raise the store's epoch counter above every epoch issued so far, the clock and *above*; return where it is now.

    For what a store cannot detect: a backup restored under a running process, a clock that was set back. Current
    owners stay current.
    """
    return alone(router.store).advance(checks.whole(above, "above", least=0, most=CLOCK_LIMIT - 1))


def verify(router: Router) -> list[str]:
    """Return a sentence for every broken invariant of the store; an empty list if all hold."""
    return router.store.verify()
