"""The upkeep that a worker does for its store, and for the guards of its router: see `Store.tend`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.clock import Clock
from ..core.redaction import Redaction
from ..core.retention import Retention
from ..errors import LeaseholdError
from ..reconciler import Reconciler
from ..store import Store
from .log import log

_EVERY_SECONDS = 1.0
_MORE_SECONDS = 0.1  # between two portions
_LAST_SECONDS = 1.0


class Upkeep(threading.Thread):
    """
    Calls *portion* each second until the end, and sooner if it returns that more is due.

    A thread of its own: no claim, renewal or settlement waits for it.
    """

    def __init__(self, name: str, portion: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._portion = portion
        self._ended = threading.Event()
        self._failing = False

    def run(self) -> None:
        """Tend on."""
        while not self._ended.wait(_MORE_SECONDS if self._tend() else _EVERY_SECONDS):
            pass

    def end(self) -> None:
        """Tend no more; return when what is under way is over, unless the store keeps it waiting."""
        self._ended.set()
        if self.is_alive():
            self.join(_LAST_SECONDS)

    def _tend(self) -> bool:
        try:
            more = self._portion()
        except LeaseholdError as error:
            if not (self._failing or self._ended.is_set()):
                log.warning("upkeep failed; retrying until the store answers: %s", error)
            self._failing = True
            return False
        except Exception:
            log.exception("upkeep failed")
            return False
        self._failing = False
        return more


def tender(
    store: Store,
    retention: Retention,
    swept: Callable[[], None],
    clock: Clock,
    is_reported: Callable[[], bool],
    redaction: Redaction,
) -> Upkeep:
    """
    Return what tends *store*, calls *swept* each time, and records what an operator should look at.

    It looks once the worker *is_reported*: before that, the queues of a lone worker would seem to have no consumer.
    """
    reconciler = Reconciler(store, clock, redaction)

    def portion() -> bool:
        more = store.tend(retention)
        swept()
        if is_reported():
            reconciler.look()
        return more

    return Upkeep("leasehold-tend", portion)


def sealer(seal_open: Callable[[], bool]) -> Upkeep:
    """Return what seals the keys of jobs that have ended: not the tender, since a resource may keep a seal waiting."""
    return Upkeep("leasehold-seal", seal_open)
