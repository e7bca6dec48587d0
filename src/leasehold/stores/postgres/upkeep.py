"""What a PostgreSQL store does without a claim: taking jobs back, ending what their owners left open, pruning."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ...core.clock import Clock
from ...core.lifecycle import reclaimed_in_part
from ...core.ownership import RECOVERY_EVERY_US, Ownership, Process
from ...core.retention import Retention
from ...errors import LeaseholdError, StoreUnavailable
from ...liveness import is_gone, this_process
from ..policy import EVENTS, IDS, PORTION, WORKERS, Pass, Place
from ..reclaimed import Reclaimed
from .database import Database
from .rights import may_not_end
from .rows import Row, taken_back

log = logging.getLogger("leasehold")

END_OUTLIVED_EVERY_US = 1_000_000
PATIENCE_MS = 1_000  # with a lock that another transaction holds; the next upkeep tries again


class Upkeep:
    """Looks after jobs whose owners do not, and removes what is no longer needed."""

    def __init__(self, database: Database, timer: Clock, now: Callable[[], int | None]) -> None:
        self._database = database
        self._timer = timer
        self._now = now
        self.reclaimed = Reclaimed()
        self.portions = Pass()
        self.recovered_us = 0
        self.ended_us = timer.now()
        self._warned_of_rights = False

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        ended: list[Ownership] = []
        try:
            while rows := self._database.call("reclaim", self._now()):
                ended += self._taken_back(rows)
            ended += self.recover(always=True)
        except StoreUnavailable as error:
            raise reclaimed_in_part(error, len(ended)) from error.__cause__
        self.end_outlived(always=True)
        return ended

    def tend(self, retention: Retention) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        self._taken_back(self._database.call("reclaim", self._now()))
        self.recover()
        self.end_outlived()
        return self.portions.portion(self._timer.now(), retention, functools.partial(self._prune, retention))

    def _taken_back(self, rows: list[Row]) -> list[Ownership]:
        self.note(rows)
        return [taken_back(row) for row in rows]

    def note(self, ended: Sequence[Sequence[Any]]) -> None:
        """Keep what was taken back: job, epoch, …, and whether a transaction of its owner is open, which is ended."""
        self.reclaimed.note((row[0], row[1]) for row in ended)
        if fenced := [row[1] for row in ended if row[-1]]:
            self.end_fenced(fenced)

    def recover(self, *, always: bool = False) -> list[Ownership]:
        """Take back the jobs of processes of this machine that are gone."""
        # Looking up processes costs system calls, so this looks at most once a second.
        now = self._timer.now()
        if not always and now < self.recovered_us + RECOVERY_EVERY_US:
            return []
        self.recovered_us = now
        mine = this_process()
        rows = self._database.read(self._database.statements.processes, {})
        known = [(row[0], Process(*row[1:])) for row in rows]
        gone = [number for number, process in known if process != mine and is_gone(process)]
        return self._taken_back(self._database.call("recover", gone, self._now())) if gone else []

    def end_outlived(self, *, always: bool = False) -> None:
        """End what is left of such transactions: the taker may have died, or may not have had the right."""
        now = self._timer.now()
        if always or now >= self.ended_us + END_OUTLIVED_EVERY_US:
            self.ended_us = now
            self.end_fenced(None)

    def end_fenced(self, epochs: list[int] | None) -> None:
        """End the transactions of owners that have lost their job, so that the rows they locked are free; None: all."""
        try:
            self._database.call("end_fenced", epochs)
        except LeaseholdError as error:  # the takeover has been done; the fence itself refuses what they wrote
            if not (self._warned_of_rights or self._database.closed):
                self._warned_of_rights = True
                log.warning("could not end the transaction of an owner that has lost its job: %s", may_not_end(error))

    def _prune(self, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
        """Prune one portion by policy (see `policy.Pass`)."""
        call, now = self._database.call, self._now()
        if kind == IDS:
            [(count,)] = call("prune_ids", keep_us, PORTION, PATIENCE_MS, now)
            return place if count else None
        if kind == WORKERS:
            call("forget_workers", keep_us, PATIENCE_MS, now)
            return None
        if kind == EVENTS:
            [(_, following)] = call("prune_events", keep_us, place[0], PORTION, PATIENCE_MS, now)
        else:
            ids_us = retention.keep_us(IDS)
            [(_, following)] = call("prune_due", kind, keep_us, place[0], PORTION, ids_us, PATIENCE_MS, now)
        return None if following is None else (following, 0)
