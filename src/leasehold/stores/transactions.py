"""How the stores with a database run their programs on a caller's connection, sync and async."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any, TypeVar

from ..connections import Connection, recognise, recognise_async
from ..connections import Program as Statements
from ..store import Program
from ..transaction import Joined, remember

T = TypeVar("T")


class DatabaseTransactions:
    """The part of `store.Transactions` that is the same for every database."""

    _begun: threading.local  # .connection: what this thread has begun and its caller has not entered yet
    _apart: Sized = ()  # refusals that their own transaction could not record

    def _statements(
        self, callers: Connection, program: Program[T], savepoint: bool, note: Callable[[Joined], None]
    ) -> Statements[T]:
        """Return *program* as statements on *callers*, and tell *note* of the transaction that it is a part of."""
        raise NotImplementedError

    def _explained(self, error: BaseException) -> BaseException:
        """Return *error* in leasehold's words, or as it is."""
        raise NotImplementedError

    def record(self) -> None:
        """Record the refusals that their own transaction could not record."""

    def entered(self, connection: Any) -> None:
        """Forget what this thread has begun: its caller has it now, and will end it."""
        self._begun.connection = None

    def run(
        self,
        connection: Any,
        program: Program[T],
        *,
        savepoint: bool = False,
        note: Callable[[Joined], None] = remember,
    ) -> T:
        """
        Run *program* inside the transaction that *connection* has open, and return its value.

        In psycopg's pipeline mode a fence's answer is not waited for: a refusal is an error of the pipeline.
        """
        callers = recognise(connection)
        try:
            return callers.run(self._statements(callers, program, savepoint, note))
        except Exception as error:
            if self._apart:
                self.record()
            explained = self._explained(error)
            raise explained from cause(explained, error)

    async def run_async(
        self,
        connection: Any,
        program: Program[T],
        *,
        savepoint: bool = False,
        note: Callable[[Joined], None] = remember,
    ) -> T:
        """Run *program* likewise, on a connection of an event loop."""
        callers = await recognise_async(connection)
        try:
            return await callers.run_async(self._statements(callers, program, savepoint, note))
        except Exception as error:
            if self._apart:
                import asyncio

                await asyncio.to_thread(self.record)
            explained = self._explained(error)
            raise explained from cause(explained, error)


def cause(explained: BaseException, error: BaseException) -> BaseException | None:
    """Return what to raise *explained* from: the *error* that it explains, or what that was raised from itself."""
    return error.__cause__ if explained is error else error
