"""The upkeep that a worker does for its store: see `Store.tend`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core.retention import Retention
from ..errors import LeaseholdError
from ..store import Store
from .log import log

_EVERY_SECONDS = 1.0
_MORE_SECONDS = 0.1  # between two portions
_LAST_SECONDS = 1.0


class Tender(threading.Thread):
    """Tends the store until the end. A thread of its own: no claim, renewal or settlement waits for a prune."""

    def __init__(self, store: Store, retention: Retention, swept: Callable[[], None]) -> None:
        super().__init__(name="leasehold-tend", daemon=True)
        self._store = store
        self._retention = retention
        self._swept = swept
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
            more = self._store.tend(self._retention)
            self._swept()
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
