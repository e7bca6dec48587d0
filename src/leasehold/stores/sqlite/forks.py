"""Every open store of the process: what happens to it at a fork, and at the end of the process."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .store import SqliteStore

stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _for_each_store(step: Callable[[SqliteStore], object]) -> Callable[[], None]:
    def every() -> None:
        for store in list(stores):
            step(store)

    return every


atexit.register(_for_each_store(lambda store: store.transactions.record_all()))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        # No connection may be carried into a forked child.
        before=_for_each_store(lambda store: store.database.before_fork()),
        after_in_parent=_for_each_store(lambda store: store.database.forked_parent()),
        after_in_child=_for_each_store(lambda store: store.forked_child()),
    )
