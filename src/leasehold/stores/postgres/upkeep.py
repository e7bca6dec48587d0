"""What a PostgreSQL store does without being asked: it takes jobs back, and ends what their owners have left open."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...core.clock import Clock
from ...core.lifecycle import reclaimed_in_part
from ...core.ownership import RECOVERY_EVERY_US, Ownership, Process
from ...errors import LeaseholdError, StoreUnavailable
from ...liveness import is_gone, this_process
from ..reclaimed import Reclaimed
from .database import Database
from .rights import may_not_end
from .rows import Row, taken_back

log = logging.getLogger("leasehold")

END_OUTLIVED_EVERY_US = 1_000_000


class Upkeep:
    """The part of a store that looks after jobs whose owners do not."""

    database: Database
    _timer: Clock
    _reclaimed: Reclaimed
    _recovered_us: int
    _ended_us: int
    _told_of_rights: bool

    def _call(self, function: str, *args: Any, again: bool = False) -> list[Row]:
        raise NotImplementedError

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        ended: list[Ownership] = []
        try:
            while rows := self._call("reclaim"):
                ended += self._taken_back(rows)
            ended += self._recover(always=True)
        except StoreUnavailable as error:
            raise reclaimed_in_part(error, len(ended)) from error.__cause__
        self._end_outlived(always=True)
        return ended

    def take_reclaimed(self) -> list[tuple[str, int]]:
        """Return the job id and epoch of each ownership that claims and reclaims of this store object have ended."""
        return self._reclaimed.take()

    def _taken_back(self, rows: list[Row]) -> list[Ownership]:
        self._note(rows)
        return [taken_back(row) for row in rows]

    def _note(self, ended: Sequence[Sequence[Any]]) -> None:
        """Keep what was taken back: job, epoch, …, and whether a transaction of its owner is open, which is ended."""
        self._reclaimed.note((row[0], row[1]) for row in ended)
        if fenced := [row[1] for row in ended if row[-1]]:
            self._end_fenced(fenced)

    def _recover(self, *, always: bool = False) -> list[Ownership]:
        # Looking up processes costs system calls, so an idle poll looks at most once a second.
        now = self._timer.now()
        if not always and now < self._recovered_us + RECOVERY_EVERY_US:
            return []
        self._recovered_us = now
        mine = this_process()
        known = [(row[0], Process(*row[1:])) for row in self._read(self.database.statements.processes)]
        gone = [number for number, process in known if process != mine and is_gone(process)]
        return self._taken_back(self._call("recover", gone)) if gone else []

    def _read(self, statement: Any, **parameters: Any) -> list[Row]:
        raise NotImplementedError

    def _end_outlived(self, *, always: bool = False) -> None:
        """End what is left of such transactions: who took the job over may have died, or may not have had the right."""
        now = self._timer.now()
        if always or now >= self._ended_us + END_OUTLIVED_EVERY_US:
            self._ended_us = now
            self._end_fenced(None)

    def _end_fenced(self, epochs: list[int] | None) -> None:
        """End the transactions of owners that have lost their job, so that the rows they locked are free; None: all."""
        try:
            self.database.call("end_fenced", epochs)
        except LeaseholdError as error:  # the takeover has been done; the fence itself refuses what they wrote
            if not (self._told_of_rights or self.database.closed):
                self._told_of_rights = True
                log.warning("could not end the transaction of an owner that has lost its job: %s", may_not_end(error))
