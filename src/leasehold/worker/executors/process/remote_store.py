"""
The store as a process of handlers sees it.

A handler in a process of its own has no connection to the store: its verbs are executed by the worker, which holds the
lease. Only a transaction is opened in the process itself, since its rows are written there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ....core.job import Grant, Progress
from ....errors import Unsupported
from ....store import Store, Transactions
from .messages import VERBS


class RemoteStore:
    """The worker's store, in a process of a handler; `transactions` are of the process's *own* store, opened on use."""

    def __init__(self, own: Store, ask: Callable[..., Any], elsewhere: str = "") -> None:
        self.own = own
        self._ask = ask
        self._elsewhere = elsewhere  # why there are no transactions

    @property
    def transactions(self) -> Transactions | None:
        """The verbs inside a transaction, on a connection of this process."""
        if self._elsewhere:
            raise Unsupported(self._elsewhere)
        return self.own.transactions

    def __getattr__(self, name: str) -> Any:
        """Return a verb, which the worker executes; what is not part of the contract is the own store's."""
        if name not in VERBS:
            return getattr(self.own, name)
        return functools.partial(self._verb, name)

    def _verb(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        return self._ask(verb, *args, **kwargs)


class RemoteReports:
    """The progress of one lease, in a process of a handler: the worker keeps it back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waits = False

    def put(self, grant: Grant, report: Progress) -> bool:
        """Hand *report* to the worker, and raise the refusal if the worker has written it at once."""
        self._waits = True
        [refusal] = self._store.progress([report])
        if refusal is not None:
            raise refusal
        return True

    def take(self, epoch: int, *, wait: bool = True) -> None:
        """Return nothing: the worker adds what waits to a report that it has to write at once."""

    def flush(self, grant: Grant) -> None:
        """Have the worker write what waits: on SQLite it cannot while this process has a transaction open."""
        if self._waits:
            self._waits = False
            self._store.progress([])
