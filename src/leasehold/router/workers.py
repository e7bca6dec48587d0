"""The list of a store's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.workers import WorkerStatus

if TYPE_CHECKING:  # which has this function as its method
    from .front import Router


def workers(router: Router) -> list[WorkerStatus]:
    """
    Return the workers that have reported to this store, by name: those that are `alive`, and for a day those that died.

    A worker reports when it starts and every 10 seconds; it is alive for 30 seconds after a report, on the store's
    clock. One that stops cleanly is not listed any more.
    """
    return router.store.workers()
