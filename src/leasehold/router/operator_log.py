"""One log line for each verb of an operator, with the names that the event has in `leasehold events --json`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..core.job import Grant, Job
from ..core.redaction import fact
from ..core.wording import printable
from ..logs import log

if TYPE_CHECKING:  # which has the verbs as its methods
    from .front import Router

_DONE = {
    "transferred": "transferred to {owner!r}",
    "requeued": "requeued",
    "cancelled": "cancelled",
    "replayed": "replayed",
    "finished": "completed by hand",
    "resolved": "has its effect {name!r} resolved",
}


def moved(router: Router, kind: str, job: Job | Grant, **facts: Any) -> None:
    """Log what an operator did to one job: *kind* and *facts* are those of the event, *job* the state after it."""
    if not log.isEnabledFor(logging.INFO):
        return
    spec, shown = job.spec, _shown(router, facts)
    done = _DONE[kind].format(owner=job.owner, name=fact(shown, "name"))
    task = f" ({printable(spec.task)})" if spec.task else ""
    named = {"job_id": spec.id, "task": spec.task, "queue": spec.queue, "epoch": job.epoch, "owner": job.owner}
    _write(f"job {spec.id!r}{task} {done}", kind, named, shown)


def acted(router: Router, kind: str, text: str, *, queue: str | None = None, **facts: Any) -> None:
    """Log what an operator did to a queue, to many jobs or to the store: *text* is the line without who and why."""
    if log.isEnabledFor(logging.INFO):
        _write(text, kind, {} if queue is None else {"queue": queue}, _shown(router, facts))


def _shown(router: Router, facts: dict[str, Any]) -> Any:
    return router.redaction.facts({name: value for name, value in facts.items() if value is not None})


def _write(text: str, kind: str, named: dict[str, Any], shown: Any) -> None:
    by, note = fact(shown, "by"), fact(shown, "note")
    line = text + (f" by {by!r}" if by else "") + (f": {printable(note)}" if note else "")
    log.info("%s", line, extra={"kind": kind, **named, "facts": shown})
