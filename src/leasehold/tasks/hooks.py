"""The hooks of a router: `@router.around` wraps handlers, `@router.lifespan` wraps a worker."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar

from ..errors import InvalidArgument
from ..lease import Lease

Hook = TypeVar("Hook", bound=Callable[..., Any])
Around = Callable[[Lease], AbstractContextManager[Any]]
AsyncAround = Callable[[Lease], AbstractAsyncContextManager[Any]]
Lifespan = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class Hooks:
    """The hooks of a router, in the order in which they were given: the first is the outermost."""

    def __init__(self) -> None:
        self.around: list[Around] = []
        self.around_async: list[AsyncAround] = []  # and the plain ones, for handlers on an event loop
        self.lifespans: list[Lifespan] = []

    def add_around(self, hook: Hook) -> Hook:
        """Wrap each handler in *hook*."""
        entered = _entered(hook, "around", parameters=1)
        if _is_async(hook):
            self.around_async.append(entered)
        else:
            self.around.append(entered)
            self.around_async.append(lambda lease: _as_async(entered(lease)))
        return hook

    def add_lifespan(self, hook: Hook) -> Hook:
        """Wrap each worker in *hook*."""
        self.lifespans.append(_entered(hook, "lifespan", parameters=0))
        return hook

    @contextmanager
    def entered(self, lease: Lease) -> Iterator[None]:
        """Be inside every hook that a plain handler has around it."""
        with ExitStack() as stack:
            for around in self.around:
                stack.enter_context(around(lease))
            yield

    @asynccontextmanager
    async def entered_async(self, lease: Lease) -> AsyncIterator[None]:
        """Be inside every hook that an async handler has around it."""
        async with AsyncExitStack() as stack:
            for around in self.around_async:
                await stack.enter_async_context(around(lease))
            yield


@asynccontextmanager
async def _as_async(manager: AbstractContextManager[Any]) -> AsyncIterator[None]:
    with manager:
        yield


def _entered(hook: Callable[..., Any], what: str, *, parameters: int) -> Callable[..., Any]:
    """Return what makes a context manager, of a function that may just `yield`."""
    takes = "the lease" if parameters else "nothing"
    if not callable(hook):
        raise InvalidArgument(f"@router.{what} takes a function that yields once, not {hook!r}.")
    try:
        inspect.signature(hook).bind(*[None] * parameters)
    except TypeError:
        raise InvalidArgument(
            f"@router.{what} calls its function with {takes}, and {hook!r} cannot be called like that."
        ) from None
    if inspect.isasyncgenfunction(hook):
        return asynccontextmanager(hook)
    if inspect.isgeneratorfunction(hook):
        return contextmanager(hook)
    if inspect.iscoroutinefunction(hook):
        raise InvalidArgument(
            f"{hook!r} does not yield: @router.{what} runs the code before the `yield` first, and the code after "
            "it last."
        )
    return hook


def _is_async(hook: Callable[..., Any]) -> bool:
    made = inspect.unwrap(hook)
    return inspect.isasyncgenfunction(hook) or inspect.isasyncgenfunction(made)
