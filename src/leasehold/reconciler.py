"""Compares what a store shows, and records what an operator should look at when it begins and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .core.clock import Clock
from .core.job import Job
from .core.observations import OBSERVE_EVERY_US, Bounds, Key, Noted, Observation, noted_first, observe
from .core.redaction import HIDDEN, Redaction, fact
from .logs import log
from .store import Store

_USUAL = Bounds()
_RECORDED = Bounds(unserved_us=30_000_000)  # a deployment that starts or restarts its workers is no news


def look(
    store: Store, now: int, bounds: Bounds = _USUAL, *, running: Iterable[Job] = (), hides_errors: bool = False
) -> list[Observation]:
    """Return what is worth a look at *now*; read only, and nothing is counted."""
    return observe(
        now,
        leases=store.leases(),
        oldest=store.oldest(),
        queues=store.queues(),
        workers=store.workers(),
        running=running,
        hides_errors=hides_errors,
        bounds=bounds,
    )


class Reconciler:
    """
    Looks every ten seconds, records what has begun and what has ended since the last time, and logs it.

    Many processes may share a store: the one whose turn it is looks for all, and of two that look at the same time the
    store takes the word of the first (`Store.observe`).
    """

    def __init__(self, store: Store, clock: Clock, redaction: Redaction | None = None) -> None:
        self._store = store
        self._clock = clock
        self._redaction = redaction or Redaction()
        self._looked_us: int | None = None

    def look(self) -> bool:
        """Look if it is time; return whether this call has recorded what it saw."""
        now = self._clock.now()
        if self._looked_us is not None and 0 <= now - self._looked_us < OBSERVE_EVERY_US:
            return False
        self._looked_us = now
        seen = self._store.observed()
        if 0 <= seen.now_us - seen.looked_us < OBSERVE_EVERY_US:
            return False  # another process has looked
        found = noted_first(look(self._store, seen.now_us, _RECORDED), seen.noted)
        if not self._store.observe(seen.round, found):
            return False
        _write(found, seen.noted, self._redaction)
        return True


def _write(found: Iterable[Observation], noted: Iterable[Noted], redaction: Redaction) -> None:
    """Log what has begun and what has ended, with the facts that the events have in `leasehold events --json`."""
    was, now = {one.key for one in noted}, set[Key]()
    for one in found:
        now.add(one.key)
        if one.key not in was:
            job_id, epoch, owner = one.held or (None, None, None)
            held = {"job_id": job_id, "epoch": epoch, "owner": owner} if job_id else {}
            shown = redaction.facts(one.facts())
            is_hidden = fact(shown, "sentence") == HIDDEN
            text = f"observation began: {_named(shown)}" if is_hidden else one.sentence
            log.warning("%s", text, extra={"kind": "observed", **held, "facts": shown})
    for kind, subject, task in sorted(was - now):
        facts = {"observation": kind, "subject": subject, **({"task": task} if task else {})}
        shown = redaction.facts(facts)
        log.info("observation ended: %s", _named(shown), extra={"kind": "cleared", "facts": shown})


def _named(shown: Any) -> str:
    """Return which observation it is, from the facts that may be shown."""
    if not isinstance(shown, dict):
        return HIDDEN
    task = f", task {shown['task']!r}" if "task" in shown else ""
    return f"{shown['observation']}, {shown['subject']!r}{task}"
