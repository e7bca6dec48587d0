"""`lease.keep()`: renews a lease that was claimed by hand, in the background, until the end of a block."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from ..core.clock import Clock, SteadyClock
from ..errors import InvalidArgument, Settled, StoreUnavailable
from ..logs import log
from ..store import Renewal
from .progress import Reporting

_AGAIN_US = 1_000_000  # at most, after a renewal that failed
_LAST_SECONDS = 5.0  # for a renewal that is under way at the end

_steady: Clock = SteadyClock()


class Keeping(Reporting):
    """The part of a lease that renews it in the background."""

    __slots__ = ("_asked_us", "_expires_us")

    _asked_us: int  # by a renewal of its owner's own; others do not make it shorter again
    _expires_us: int

    @contextmanager
    def keep(self, *, on_lost: Callable[[Self], object] | None = None) -> Iterator[Self]:
        """
        Renew the lease in the background until the end of the block: at once, and whenever a third of it has passed.

        A renewal that the store cannot do now is tried again: unknown is not lost. If the lease is lost, `lost` is true
        from then on, and *on_lost* is called once with the lease, on another thread; the block goes on. What *on_lost*
        raises is logged, and the end of the block raises nothing. In a worker's handler, which the worker renews, it
        changes nothing else.

        Raises `InvalidArgument` at the beginning if *on_lost* is not a plain function.
        """
        keeper = Keeper(self, checked(on_lost))
        keeper.start()
        try:
            yield self
        finally:
            keeper.end()


def checked(on_lost: Any) -> Any:
    """Return *on_lost* if it is a plain function, or None."""
    if on_lost is not None and (not callable(on_lost) or inspect.iscoroutinefunction(on_lost)):
        raise InvalidArgument(f"on_lost must be a plain function that takes the lease, not {on_lost!r}.")
    return on_lost


class Keeper(threading.Thread):
    """The thread that renews the lease of one block."""

    def __init__(self, lease: Keeping, on_lost: Callable[[Any], object] | None) -> None:
        super().__init__(name="leasehold-keep", daemon=True)
        self._lease = lease
        self._on_lost = on_lost
        self._steady = _steady
        self._changed = threading.Condition()
        self._ended = False
        self._failing = False
        self._calling = threading.Lock()

    def run(self) -> None:
        """Renew until the end of the block, or of the lease."""
        while not self._ended:
            rest = self._renewed()
            if rest is None:
                return
            with self._changed:
                until = self._steady.now() + rest
                while not self._ended and self._steady.now() < until:
                    self._steady.wait(self._changed, until)

    def end(self) -> None:
        """Renew no more; wait for a renewal that is under way, unless the store keeps it waiting."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.join(_LAST_SECONDS)
        if self._lease._lost:  # a verb in the block may have been refused
            self._call_on_lost()

    def _renewed(self) -> int | None:
        """Renew; return after how long to do it again, or None if there is nothing left to renew."""
        lease = self._lease
        grant = lease._grant
        if lease._lost:
            self._call_on_lost()
            return None
        if lease._settled is True:
            return None
        # A third longer, as a worker does: so at any moment a whole lease is left to a process that stands still.
        lasts = max(grant.lease_us * 4 // 3, lease._asked_us)
        try:
            [reply] = lease._store.renew([Renewal(grant.spec.id, grant.epoch, lasts)])
        except Exception as error:
            self._failed(error)
            return min(_AGAIN_US, grant.lease_us // 9)
        self._failing = False
        if isinstance(reply, int):
            lease._expires_us = reply
            return grant.lease_us // 3
        if not isinstance(reply, Settled):  # which is its own owner's doing
            lease._note_refusal(reply)
            self._call_on_lost()
        return None

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            known = error if isinstance(error, StoreUnavailable) else None
            text = "could not renew the lease of job %r (outcome unknown; retrying): %s"
            log.warning(text, self._lease._grant.spec.id, error, exc_info=None if known else error)
        self._failing = True

    def _call_on_lost(self) -> None:
        with self._calling:
            on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            try:
                on_lost(self._lease)
            except Exception:
                log.exception(
                    "the function passed as on_lost= for the lease of job %r raised an error",
                    self._lease._grant.spec.id,
                )
