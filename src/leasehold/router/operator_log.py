"""One log line for each verb of an operator, with the names that the event has in `leasehold events --json`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..core.job import Grant, Job
from ..core.redaction import HIDDEN
from ..logs import log

if TYPE_CHECKING:  # which has the verbs as its methods
    from .front import Router

_DONE = {
    "transferred": "transferred to {owner!r}",
    "requeued": "requeued",
    "cancelled": "cancelled",
    "replayed": "replayed",
    "finished": "completed by hand",
    "resolved": "has its effect {effect!r} resolved",
}


def moved(router: Router, kind: str, job: Job | Grant, **facts: Any) -> None:
    """Log what an operator did to one job: *kind* is that of the event, *job* the state after it."""
    if not log.isEnabledFor(logging.INFO):
        return
    named = {"job_id": job.spec.id, "task": job.spec.task, "queue": job.spec.queue}
    done = _DONE[kind].format(owner=job.owner, **facts)
    task = f" ({job.spec.task})" if job.spec.task else ""
    _write(router, f"job {job.spec.id!r}{task} {done}", kind, {**named, "epoch": job.epoch, "owner": job.owner}, facts)


def acted(router: Router, kind: str, text: str, *, queue: str | None = None, **facts: Any) -> None:
    """Log what an operator did to a queue, to many jobs or to the store: *text* is the line without who and why."""
    if log.isEnabledFor(logging.INFO):
        _write(router, text, kind, {} if queue is None else {"queue": queue}, facts)


def _write(router: Router, text: str, kind: str, named: dict[str, Any], facts: dict[str, Any]) -> None:
    shown = router.redaction.apply({"facts": {name: value for name, value in facts.items() if value is not None}})
    by, note = (shown["facts"].get(name) if isinstance(shown["facts"], dict) else HIDDEN for name in ("by", "note"))
    line = text + (f" by {by!r}" if by else "") + (f": {note}" if note else "")
    log.info("%s", line, extra={"kind": kind, **named, **shown})
