"""CONTRACT: what is known of a caller's connection, and what can be done with it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ..errors import Conflict, InvalidArgument, NotInTransaction
from .drivers import Driver, SqliteDriver

T = TypeVar("T")

_SQLITE, _OTHERS = SqliteDriver(), Driver()

Row = tuple[Any, ...]
Statement = tuple[str, Any, bool]  # its parameters, by position or name; and whether it is run once for each of them
Program = Generator[Statement, list[Any], T]  # yields statements and is sent their rows; knows no driver


class Connection:
    """A caller's connection, whose transaction the caller ends."""

    library: str
    how_to_begin: str
    savepoint_advice = ""
    is_async = False  # whether it belongs to an event loop: then only the methods in _async can be used
    is_piped = False  # whether answers come later

    def __init__(self, handle: Any) -> None:
        self.handle = handle  # the object whose transaction it is: not a session, nor a proxy

    @property
    def vendor(self) -> str:
        """The kind of database, "sqlite" or "postgresql" for instance."""
        raise NotImplementedError

    @property
    def style(self) -> str:
        """How its first parameter is written: "?", "%s" or "$1"."""
        return "?" if self.vendor == "sqlite" else "%s"

    # The transaction

    def in_transaction(self) -> bool:
        """Return whether a transaction is open on it, by its driver's account if that has one."""
        begun = _driver(self.vendor).has_begun(self.driver_of(self.handle))
        return self.has_begun() and self.begins() if begun is None else begun

    def has_begun(self) -> bool:
        """Return whether the library has begun a transaction, where the driver does not say if it has."""
        return False

    def begins(self) -> bool:
        """Return whether its driver begins a transaction by itself: with the next statement, or the next write."""
        return _driver(self.vendor).begins(self.driver_of(self.handle))

    def in_savepoint(self) -> bool | None:
        """Return whether it is inside a savepoint; None if its library does not know."""
        return None

    def watch(self) -> Callable[[Any], bool]:
        """
        Return a function that tells of a `handle` whether the transaction that is open on it now still is.

        It keeps nothing alive. Where the library cannot tell two transactions apart, a later one counts as this one.
        """
        driver, driver_of = _driver(self.vendor), self.driver_of
        shows_the_end = driver.shows_the_end(driver_of(self.handle))
        return lambda handle: shows_the_end and driver.is_still_open(driver_of(handle))

    def watch_loss(self) -> Callable[[], bool | None]:
        """Return a function that tells whether the driver's connection of now was lost; None: it cannot be known."""
        driver = _driver(self.vendor)
        try:
            found = weakref.ref(self.innermost_of(self.handle))
        except TypeError:
            return lambda: None
        return lambda: None if (connection := found()) is None else driver.is_lost(connection)

    @staticmethod
    def driver_of(handle: Any) -> Any:
        """Return the driver's connection below *handle*."""
        return handle

    def innermost_of(self, handle: Any) -> Any:
        """Return the driver's own connection, below any adapter that a library has around it."""
        return self.driver_of(handle)

    def require_vendor(self, vendor: str) -> None:
        """Raise `InvalidArgument` if it is to another kind of database."""
        if self.vendor != vendor:
            raise InvalidArgument(
                f"the connection that you passed is to {self.vendor}, and this call needs one to {vendor}: only rows "
                "in the same database can commit together."
            )

    def require_transaction(self) -> None:
        """Raise `NotInTransaction` if each statement would commit by itself."""
        if not self.begins() and not self.in_transaction():
            raise NotInTransaction(
                "the connection that you passed has no open transaction, so each statement would commit by itself: "
                f"begin one first ({self.library}: {self.how_to_begin})."
            )

    def require_no_savepoint(self) -> None:
        """Raise `Conflict` if it is known to be inside a savepoint."""
        if self.in_savepoint():
            raise Conflict(IN_SAVEPOINT + self.savepoint_advice)

    # Statements

    def enter(self) -> None:
        """Take a session's connection; wait for what was sent, where only that tells whether a transaction is open."""

    async def enter_async(self) -> None:
        """Do the same on an event loop."""

    def execute(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement and return its rows; if *several*, run it for each of *params*, and return none."""
        raise NotImplementedError

    async def execute_async(self, sql: str, params: Any = (), *, several: bool = False) -> list[Row]:
        """Run a statement likewise, on an event loop."""
        raise NotImplementedError

    def run(self, program: Program[T]) -> T:
        """Run the statements of *program*, which gets their rows or errors, and return its value."""
        step: Callable[[Any], Statement] = program.send
        answer: Any = None
        try:
            while True:
                sql, params, several = step(answer)
                try:
                    step, answer = program.send, self.execute(sql, params, several=several)
                except BaseException as error:
                    step, answer = program.throw, error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as the program is
        finally:
            program.close()

    async def run_async(self, program: Program[T]) -> T:
        """Run *program* likewise, on an event loop."""
        step: Callable[[Any], Statement] = program.send
        answer: Any = None
        try:
            while True:
                sql, params, several = step(answer)
                try:
                    step, answer = program.send, await self.execute_async(sql, params, several=several)
                except BaseException as error:
                    step, answer = program.throw, error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as the program is
        finally:
            program.close()


IN_SAVEPOINT = (
    "the connection that you passed is inside a savepoint. If the savepoint is rolled back, this call is undone, "
    "but the outer transaction can still commit. Make the call outside of the savepoint, or pass savepoint=True if "
    "you know that the savepoint will not be rolled back."
)


def _driver(vendor: str) -> Driver:
    return _SQLITE if vendor == "sqlite" else _OTHERS


def is_a(connection: Any, module: str, name: str) -> bool:
    """Return whether *connection* is an instance of that class, which it can only be if *module* is loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(connection, kind)


def loaded(module: str, *names: str) -> tuple[type[Any], ...]:
    """Return these classes of *module*, if it is loaded."""
    found: Any = sys.modules.get(module)
    return () if found is None else tuple([getattr(found, name) for name in names if hasattr(found, name)])


def run_on(cursor: Any, sql: str, params: Any, several: bool) -> list[Row]:
    """Run a statement on *cursor*, whatever that makes of a row."""
    if several:
        cursor.executemany(sql, params)
        return []
    cursor.execute(sql, params)
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's error that SQLAlchemy has wrapped as *error*; or *error* itself."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, BaseException) else error
