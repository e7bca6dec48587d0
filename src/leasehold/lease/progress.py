"""Progress reports: written at once, or kept back for a worker's next batch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from ..core import checks, documents, inputs
from ..core.job import Grant, Progress, Settlement
from ..store import Program, Transactions
from ..transaction import Joined
from .record import Recorded

T = TypeVar("T")


class Reports(Protocol):
    """Keeps the newest report of each lease back, so that a handler which reports often costs few transactions."""

    def put(self, grant: Grant, report: Progress) -> bool:
        """Write *report* before long; return False if the caller must write it now."""
        ...

    def take(self, epoch: int, *, wait: bool = True) -> Progress | None:
        """Return what waits to be written and have the caller write it; *wait* for a write that is under way."""
        ...

    def flush(self, grant: Grant) -> None:
        """Write what waits, now. A refusal is left to the verb that follows."""
        ...


class Reporting(Recorded):
    """The part of a lease that reports progress."""

    __slots__ = ("_moves", "_reports")

    _lost: bool
    _moves: int  # how many reports of progress the owner made
    _reports: Reports | None  # None: each is written at once

    def progress(
        self,
        fraction: float | None = None,
        *,
        note: str | None = None,
        checkpoint: object = None,
        connection: Any = None,
        savepoint: bool = False,
    ) -> None:
        """
        Record that the work moves. A *checkpoint* is durable on return, and the next owner finds it.

        In a worker's handler, a report without a checkpoint is written within a second, together with those that follow
        it: the newest wins. It is written before the job is settled, and in time for `stall_seconds`. If it is refused,
        `lost` is true from then on, and the next verb raises.

        With *connection*, the report is part of that transaction: rows and how far they go are one commit. An earlier
        report that still waits goes with it, and is rolled back with it.

        Raises `StaleEpoch` if the job has moved on; then nothing was recorded.
        """
        report = Progress(
            self._grant.spec.id,
            self._grant.epoch,
            inputs.fraction(fraction),
            None if note is None else checks.text(note, "note"),
            None if checkpoint is None else documents.encode(checkpoint, "checkpoint"),
        )
        self._moves += 1
        return self._write(
            connection, savepoint, lambda verbs: self._report_in(verbs, report), lambda: self._report(report)
        )

    def _report(self, report: Progress) -> Exception | None:
        """Write the report by itself, now or later; return the refusal."""
        reports = self._reports
        if reports is not None:
            # A lease that is lost or settled learns at once from the store that it is.
            can_wait = report.checkpoint is None and self._settled is False and not self._lost
            if can_wait and reports.put(self._grant, report):
                return None
            report = report.after(reports.take(report.epoch))
        return self._store.progress([report])[0]

    def _report_in(self, verbs: Transactions, report: Progress) -> Generator[Any, Any, None]:
        yield from verbs.progress(report.after(self._waiting()))

    def _settle_in(self, verbs: Transactions, settlement: Settlement) -> Generator[Any, Any, None]:
        # What waits becomes part of the transaction: on SQLite, writing it separately would wait for this transaction.
        if (waiting := self._waiting()) is not None:
            yield from verbs.progress(waiting)
        yield from verbs.settle(settlement)

    def _waiting(self) -> Progress | None:
        """Take what waits into a transaction. A write that is under way may itself wait for that transaction to end."""
        return None if self._reports is None else self._reports.take(self._grant.epoch, wait=False)

    def _flush(self) -> None:
        """Write what waits, before a transaction is opened or the lease is settled."""
        if self._reports is not None:
            self._reports.flush(self._grant)

    def _write(
        self,
        connection: Any,
        savepoint: bool,
        program: Callable[[Transactions], Program[T]],
        separately: Callable[[], T | Exception],
        *,
        note: Callable[[Joined], None] | None = None,
    ) -> T:
        """Run a verb where it belongs."""
        raise NotImplementedError
