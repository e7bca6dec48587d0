"""What is set up before a worker's first handler, and taken down after its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack

from ..tasks.hooks import Hooks


class Lifespan:
    """The lifespans of a worker, entered in their order and left in reverse, the async ones on the handlers' loop."""

    def __init__(self, hooks: Hooks, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._hooks = hooks
        self._loop = loop
        self._stack = ExitStack()
        self.is_over = False

    def enter(self) -> None:
        """Be inside all of them; if one fails, be inside none."""
        with ExitStack() as stack:
            for hook in self._hooks.lifespans:
                manager = hook()
                if isinstance(manager, AbstractAsyncContextManager):
                    self._enter_async(stack, manager)
                else:
                    stack.enter_context(manager)
            self._stack = stack.pop_all()

    def exit(self) -> None:
        """Leave all of them."""
        self.is_over = True
        self._stack.close()

    def _enter_async(self, stack: ExitStack, manager: AbstractAsyncContextManager[object]) -> None:
        """Enter on the loop, in a task that stays inside: cancel scopes and context variables belong to a task."""
        loop = self._loop()
        entered: Future[None] = Future()
        over = asyncio.Event()

        async def live() -> None:
            try:
                async with AsyncExitStack() as inner:
                    await inner.enter_async_context(manager)
                    entered.set_result(None)
                    await over.wait()
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                    return
                raise

        living = asyncio.run_coroutine_threadsafe(live(), loop)
        entered.result()

        def leave() -> None:
            loop.call_soon_threadsafe(over.set)
            living.result()

        stack.callback(leave)
