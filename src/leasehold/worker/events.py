"""
What happens to jobs in a worker, as events that code can listen to.

    claimed ──▶ started ──▶ settled
                   │    ├─▶ refused     the store did not accept its settlement
                   │    └─▶ lost        its lease, while the handler ran
                   └ beside them: failed (for good, also by upkeep), cancelled (by an operator)

The tally and the log are the first two listeners, and are called in place (`reporting`). Those of `@router.on` are
called on a thread of their own, so that a slow one delays no job: `Observers`.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from ..core.job import Job, Settlement, Status
from ..core.ownership import Ownership
from ..core.redaction import HIDDEN
from ..core.wording import counted, printable
from ..errors import InvalidArgument, StaleEpoch, UnknownJob
from ..lease import Lease
from ..store import Store
from .log import log

Outcome = Literal["done", "retried", "failed", "released", "crashed", "settled"]  # as in a `Tally`

_MOST = 10_000  # events that wait for their listeners


class Claimed(NamedTuple):
    """The worker has leased a job, and will run its handler."""

    lease: Lease


class Started(NamedTuple):
    """The handler begins."""

    lease: Lease


class Settled(NamedTuple):
    """The store has confirmed how a run ended; "settled" is by the handler itself. *error* is the handler's."""

    lease: Lease
    outcome: Outcome
    error: BaseException | None = None
    settlement: Settlement | None = None


class Refused(NamedTuple):
    """The store has refused to settle a run: *refusal* says why. *error* is the handler's."""

    lease: Lease
    refusal: Exception
    error: BaseException | None = None


class Lost(NamedTuple):
    """The lease was lost while the handler ran; without a *refusal*, it was not renewed in time."""

    lease: Lease
    refusal: Exception | None


class Cancelled(NamedTuple):
    """An operator has cancelled a job that runs here; *refusal* says who and why."""

    lease: Lease
    refusal: StaleEpoch


class Failed(NamedTuple):
    """A job has failed for good: by an error, or because its last reclaim was spent. *job* was read afterwards."""

    job: Job


Event = Claimed | Started | Settled | Refused | Lost | Cancelled | Failed
Listener = Callable[[Any], object]

NAMES: dict[type[Event], str] = {
    Claimed: "claimed",
    Started: "started",
    Settled: "settled",
    Refused: "refused",
    Lost: "lost",
    Failed: "failed",
    Cancelled: "cancelled",
}


def listen(listeners: dict[str, list[Listener]], event: str, listener: Listener) -> None:
    """Have *listener* called with each *event*; raise `InvalidArgument` for one that cannot be."""
    if event not in NAMES.values():
        raise InvalidArgument(f"{event!r} is not an event. The events are: {', '.join(NAMES.values())}.")
    if not callable(listener):
        raise InvalidArgument(f"@router.on({event!r}) takes a function, not {listener!r}.")
    if inspect.iscoroutinefunction(listener):
        raise InvalidArgument(f"@router.on({event!r}) takes a plain function, and {listener!r} is async.")
    try:
        inspect.signature(listener).bind(None)
    except TypeError:
        raise InvalidArgument(
            f"@router.on({event!r}) calls its function with one argument, the event, and {listener!r} cannot be "
            "called like that."
        ) from None
    listeners.setdefault(event, []).append(listener)


class _Ended(NamedTuple):
    """An ownership that ended; whether its job has failed with it is for the store to say."""

    job_id: str
    epoch: int
    taken_back: bool = False  # by upkeep: no run has ended here that would be logged


class Observers:
    """
    Calls the listeners of a worker, one after the other and in the order of the events, on one thread.

    The thread starts with the first event that a listener is for, or with the first job that upkeep takes back: a
    final failure of that kind is logged here. If they fall behind by 10,000 events, further ones are dropped.
    """

    def __init__(
        self,
        store: Store,
        listeners: Mapping[str, Sequence[Listener]],
        on_taken_back: Listener | None = None,
        hides_errors: bool = False,
    ) -> None:
        self._store = store
        self._hides_errors = hides_errors
        self._listeners = listeners
        self._on_taken_back = on_taken_back
        self._queue: SimpleQueue[Event | _Ended | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dropping = False

    def want(self, event: type[Event]) -> bool:
        """Return whether there is a listener for *event*."""
        return bool(self._listeners) and NAMES[event] in self._listeners

    def put(self, event: Event) -> None:
        """Have *event* heard before long, if there is a listener for it."""
        if self.want(type(event)):
            self._put(event)

    def ended(self, job_id: str, epoch: int) -> None:
        """Have `failed` heard if the job has failed for good, and this was its last ownership."""
        if self.want(Failed):
            self._put(_Ended(job_id, epoch))

    def swept(self) -> None:
        """Have what upkeep in this process has failed logged, and `failed` heard of it."""
        for job_id, epoch in self._store.take_reclaimed():
            self._put(_Ended(job_id, epoch, taken_back=True))

    def close(self, seconds: float) -> None:
        """Hear no more; wait up to *seconds* until the listeners have heard what came before."""
        with self._starting:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(seconds)

    def _put(self, item: Event | _Ended) -> None:
        if self._queue.qsize() >= _MOST:
            if not self._dropping:
                log.error(
                    "the listeners of @router.on are %d events behind; dropping events until they catch up", _MOST
                )
            self._dropping = True
            return
        self._dropping = False
        with self._starting:
            if self._closed:
                return
            self._queue.put(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="leasehold-events", daemon=True)
                self._thread.start()

    # On the thread

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            event = self._failed(item) if isinstance(item, _Ended) else item
            if event is not None:
                if isinstance(item, _Ended) and item.taken_back and self._on_taken_back is not None:
                    self._call(self._on_taken_back, event)
                for listener in tuple(self._listeners.get(NAMES[type(event)], ())):
                    self._call(listener, event)

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except BaseException as error:  # a SystemExit here would end the thread, and the other listeners with it
            log.error(
                "the listener %r raised an error when it got a %r event", listener, NAMES[type(event)], exc_info=error
            )

    def _failed(self, ended: _Ended) -> Failed | None:
        """Return the event if the job has failed as this ownership ended, and not later under another owner."""
        try:
            job = self._store.job(ended.job_id)
            last = self._store.ownerships(job.id)[-1] if job.status is Status.FAILED else None
            if last is not None and last.epoch == ended.epoch:
                if ended.taken_back:
                    _write(job, last, self._hides_errors)
                return Failed(job)
        except UnknownJob:  # pruned already
            pass
        except Exception as error:
            # Without a listener only a line of the log is lost, for instance where the role may not read jobs.
            level = logging.ERROR if self.want(Failed) else logging.DEBUG
            text = "could not determine whether job %r has failed, so its 'failed' event is lost: %s"
            log.log(level, text, ended.job_id, error)
        return None


def _write(job: Job, ended: Ownership, hides_errors: bool) -> None:
    """Log a job whose owners died, went silent or stalled too often, as a handler's last error is logged."""
    named = repr(job.id) if job.task is None else f"{job.id!r} ({printable(job.task)})"
    after, why = counted(job.reclaims, "reclaim", "reclaims"), HIDDEN if hides_errors else job.error_message
    facts = {"kind": "failed", "job_id": job.id, "task": job.task, "queue": job.queue, "epoch": ended.epoch}
    facts |= {
        "owner": ended.owner,
        "attempt": job.attempt,
        "errors": job.errors,
        "reclaims": job.reclaims,
        "error": why,
    }
    log.error("job %s failed for good, after %s: %s", named, after, why, extra=facts)
