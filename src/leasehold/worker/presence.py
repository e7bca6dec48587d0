"""
How a worker shows that it is there, and gets what is transferred to it.

A thread of its own: it writes a row every ten seconds, and asks for transfers twice a second. No claim, renewal or
settlement waits for it, and what the store does not answer is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from ..core.clock import Clock
from ..core.ids import new_claim_id
from ..core.job import Grant, Progress, handed_back
from ..core.workers import WorkerReport
from ..errors import LeaseholdError, StoreUnavailable
from ..liveness import this_process
from ..store import Store
from .log import log
from .run import Run

_EVERY_SECONDS = 0.4  # between two looks for transfers
_REPORT_US = 10_000_000
_RETRY_US = 1_000_000  # after a report that failed
_LAST_SECONDS = 1.0


class Recipient(Protocol):
    """What this needs of the runs of its worker."""

    closing: bool

    def begin(self, grants: Sequence[Grant], sent_us: int, *, transferred: bool = False) -> None:
        """Begin what a call, sent at that instant, has got."""
        ...

    def waiting_transfers(self) -> list[Run]:
        """Return what was transferred here and waits for a slot."""
        ...


class _Accept(NamedTuple):
    """A call whose reply may be lost; repeated, it answers the same."""

    claim_id: str
    transfers: list[tuple[str, int]]


class Presence(threading.Thread):
    """Reports the worker and picks up what is transferred to it, until the end; then the worker is listed no more."""

    def __init__(
        self, store: Store, owner: str, runs: Recipient, report: Callable[[], WorkerReport], steady: Clock
    ) -> None:
        super().__init__(name="leasehold-presence", daemon=True)
        self._store = store
        self._owner = owner
        self._runs = runs
        self._made_report = report
        self._steady = steady
        self._ended = threading.Event()
        self._report_us = 0  # when to report again
        self._unknown: _Accept | None = None
        self._failing = False
        self._reported = False

    def run(self) -> None:
        """Report and look, again and again."""
        while not self._ended.is_set():
            self._try(self._report)
            self._try(self._look)
            self._try(self._hold_off_stalls)
            self._ended.wait(_EVERY_SECONDS)
        # A transfer that is under way goes before the retirement, so the last look finds it.
        self._try(lambda: self._store.retire(self._owner))
        self._try(self._look)

    def is_reported(self) -> bool:
        """Return whether `Store.workers` lists this worker: it has reported, and is not about to retire."""
        return self._reported and not self._ended.is_set()

    def end(self) -> None:
        """Look no more; return when the worker has retired, unless the store keeps it waiting."""
        self._ended.set()
        if self.is_alive():
            self.join(_LAST_SECONDS)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except LeaseholdError as error:
            if not (self._failing or self._ended.is_set()):
                log.warning(
                    "could not send this worker's report or check for transfers; retrying until the store answers: %s",
                    error,
                )
            self._failing = True
        except Exception:
            log.exception("could not send this worker's report or check for transfers; retrying")

    def _report(self) -> None:
        now = self._steady.now()
        if now < self._report_us:
            return
        self._report_us = now + _RETRY_US
        self._store.report(self._made_report())
        self._report_us = now + _REPORT_US
        self._reported = True
        self._failing = False

    def _look(self) -> None:
        """Accept what was transferred here; after a lost reply, first ask for what that call has got."""
        if self._unknown is None:
            transfers = self._store.transfers(self._owner)
            if not transfers:
                return
            self._unknown = _Accept(new_claim_id(), transfers)
        claim_id, transfers = self._unknown
        sent = self._steady.now()
        grants = self._store.accept(self._owner, transfers, claim_id=claim_id, process=this_process())
        self._unknown = None
        if grants and self._runs.closing:
            with suppress(StoreUnavailable):  # then they wait for their deadline
                self._store.settle([handed_back(grant) for grant in grants])
        elif grants:
            self._runs.begin(grants, sent, transferred=True)

    def _hold_off_stalls(self) -> None:
        """Keep the store from taking back, as stalled, what has yet to begin."""
        now = self._steady.now()
        due = [run for run in self._runs.waiting_transfers() if run.nears_stall(now)]
        if due:
            self._store.progress([Progress(run.grant.spec.id, run.grant.epoch) for run in due])
            for run in due:
                run.moved(now)
