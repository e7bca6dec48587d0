"""Finding jobs, and why one of them is not running."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core import checks, instants
from ..core.job import Job, Status
from ..core.parking import LOCK

if TYPE_CHECKING:
    from ..core.search import Page
    from .front import Router  # which has these functions as its methods

_MOST = 10_000  # jobs of one page


def search(
    router: Router,
    *,
    status: Status | str | None = None,
    queue: str | None = None,
    task: str | None = None,
    owner: str | None = None,
    parent: str | None = None,
    lock: str | None = None,
    error_type: str | None = None,
    id_prefix: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    meta: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    newest: bool = True,
    limit: int = 50,
    cursor: str | None = None,
) -> Page:
    """
    Return a page of the jobs that are all of this, newest first, and the cursor of the next page.

    Finished jobs of one status come by their end, jobs with an *id_prefix* by id, all others by insertion. *since* and
    *until* bound the end of a finished job, and the creation of any other. *meta* has top-level keys with their values,
    *payload* dotted paths, as in `{"order.total": 10}`. If the page is not `complete`, 10,000 jobs were looked at: go
    on with its cursor.

    Raises `InvalidArgument` for a cursor of another search.
    """
    from ..core.search import checked  # on use: most programs only add jobs, or run them

    wanted = checked(
        status=status,
        queue=queue,
        task=task,
        owner=owner,
        parent=parent,
        lock=lock,
        error_type=error_type,
        id_prefix=id_prefix,
        since_us=None if since is None else instants.instant(since, "since"),
        until_us=None if until is None else instants.instant(until, "until"),
        meta=meta,
        payload=payload,
        newest=newest,
    )
    most = checks.whole(limit, "limit", least=1, most=_MOST)
    return router.store.search(wanted, limit=most, cursor=cursor)


def explain(router: Router, job: Job | str) -> str:
    """
    Return one sentence: why the job is not running, or not moving.

    Its queue is paused; it is due later; it waits for a lock; no live worker serves its queue or knows its task; or
    who runs it, since when, and when it last made progress. Raises `UnknownJob`.
    """
    from ..core import explanation  # on use, as above
    from ..core.search import Search

    found = router.job(job) if isinstance(job, str) else job
    now, hidden = router._clock.now(), router.redaction.hides_errors
    if found.status is not Status.PENDING:
        return explanation.explain(found, now, hides_errors=hidden)
    store, holder = router.store, None
    if found.parked is not None and found.parked.kind == LOCK:
        held = store.search(Search(Status.RUNNING, lock=found.parked.behind), limit=1).jobs
        holder = held[0] if held else None
    return explanation.explain(
        found, now, queues=store.queues(), workers=store.workers(), holder=holder, hides_errors=hidden
    )
