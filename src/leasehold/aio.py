"""
How async callers use the synchronous core: on threads, except inside a transaction that belongs to an event loop.

`threaded` turns a verb into its async form; there are no hand-kept twins, and a test compares the lists of verbs.
`warn_on_loops` has the synchronous forms log a warning where an async handler calls them and blocks its loop.

asyncio is a third of what `import leasehold` would load, so it is imported on use, and the async faces with it
(python benchmarks/core.py --only import).
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from .errors import Unsupported
from .logs import log
from .store import Store, Transactions
from .transaction import Joined, is_anything_open, refuse_inside, remember, running_loop

P = ParamSpec("P")
R = TypeVar("R")

_awaited: contextvars.ContextVar[bool] = contextvars.ContextVar("leasehold_awaited", default=False)

handling_task: contextvars.ContextVar[str | None] = contextvars.ContextVar("leasehold_async_handler", default=None)
"""The task of the async handler that runs here."""

_warned: set[tuple[str, str]] = set()  # tasks and verbs
_unwatched: list[tuple[type, Callable[[], type[Facade]], str]] = []  # whose verbs do not warn yet


class Facade:
    """The async face of `_sync`; its verbs are made by `threaded`."""

    __slots__ = ("_sync",)

    def __init__(self, sync: Any) -> None:
        self._sync = sync


def threaded(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """
    Return the async form of *verb*: it runs on a thread, and the event loop goes on.

    With a connection it runs where it is called, since a connection belongs to its loop or thread.
    """
    joins = "connection" in inspect.signature(verb).parameters

    @functools.wraps(verb)
    async def call(self: Facade, *args: P.args, **kwargs: P.kwargs) -> R:
        if joins and (kwargs.get("connection") is not None or verb.__name__ == "fence"):
            token = _awaited.set(True)
            try:
                value = verb(self._sync, *args, **kwargs)
            finally:
                _awaited.reset(token)
            return cast(R, await value) if inspect.isawaitable(value) else value
        if is_anything_open():
            # On a thread of its own: the shared ones may all be waiting for the transaction that this is a part of.
            return await abandonable(lambda _: verb(self._sync, *args, **kwargs))
        import asyncio

        return await asyncio.to_thread(verb, self._sync, *args, **kwargs)

    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], call)


def warn_on_loops(sync: type, facade: Callable[[], type[Facade]], what: str) -> None:
    """
    Have each verb of *sync* that its async face has too log a warning, once per task, where it blocks a handlers' loop.

    Here and not in the verbs: so none is forgotten, and the facade's own, made of the bare verbs, never warn. A verb
    with a connection is left alone; its transaction belongs to the caller, who has chosen where it runs.

    It takes effect with the first async handler of the process. Before that there is nothing to warn of, and the
    wrappers would cost a claim and completion in memory a tenth
    (python benchmarks/core.py --only "memory: claim + complete, one by one"). Only then is the face itself loaded.
    """
    _unwatched.append((sync, facade, what))


def handling_on_loop(task: str) -> None:
    """Note that an async handler of *task* runs in this context."""
    while _unwatched:
        sync, facade, what = _unwatched.pop()
        for name in vars(facade()):
            if not name.startswith("_"):
                setattr(sync, name, _warning(getattr(sync, name), name, f"{what}.aio.{name}"))
    handling_task.set(task)


def _warning(verb: Callable[P, R], name: str, awaited: str) -> Callable[P, R]:
    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if running_loop() is not None and name != "fence" and kwargs.get("connection") is None:
            warn_if_it_blocks(name, awaited)
        return verb(*args, **kwargs)

    return call


def warn_if_it_blocks(name: str, awaited: str) -> None:
    """Log, once per task, that the verb *name* blocks the event loop, if an async handler calls it there."""
    if running_loop() is None or (task := handling_task.get()) is None or (task, name) in _warned:
        return
    _warned.add((task, name))
    form = f"async with {awaited}(…)" if name in ("keep", "open", "transaction") else f"await {awaited}(…)"
    log.warning(
        "task %r calls %s(…), which blocks the event loop and every handler on it: write `%s`",
        task,
        awaited.replace(".aio", ""),
        form,
        stacklevel=3,
    )


async def abandonable(call: Callable[[Callable[[], bool]], R], give_back: Callable[[R], None] = lambda _: None) -> R:
    """
    Return what *call* returns, from a thread of its own; if the caller is cancelled meanwhile, give the value back.

    *call* gets a function that tells whether that has happened, so that it need not go on. The thread is its own,
    since a call that waits would, on the shared pool, keep the verbs out that it may be waiting for.
    """
    import asyncio
    from concurrent.futures import Future, InvalidStateError

    reply: Future[R] = Future()  # either takes the value or is cancelled, whichever comes first, and never both

    def run() -> None:
        try:
            value = call(reply.cancelled)
        except BaseException as error:
            with suppress(InvalidStateError):
                reply.set_exception(error)
            return
        try:
            reply.set_result(value)
        except InvalidStateError:
            give_back(value)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="leasehold-wait", daemon=True).start()
    try:
        return await asyncio.wrap_future(reply)
    except asyncio.CancelledError:
        if not reply.cancel() and reply.exception() is None:
            # The value has come, and this task was cancelled before its turn to take it.
            threading.Thread(target=give_back, args=(reply.result(),), name="leasehold-give-back").start()
        raise


def require_awaited(connection: Any) -> None:
    """Raise `Unsupported` unless the async form of a verb is being called, whose value is awaited."""
    if not _awaited.get():
        raise Unsupported(
            f"{type(connection).__name__} is an async connection: await the async form of this call, which is "
            "under `.aio`."
        )


def transactions_of(store: Store, what: str) -> Transactions:
    """Return the store's verbs inside a transaction, or say which stores have them."""
    if store.transactions is None:
        raise Unsupported(
            f"{what} needs a database that holds both the jobs and your rows, and the memory store has none: "
            'use Router("sqlite:///jobs.db").'
        )
    return store.transactions


def alone(store: Store) -> Store:
    """Return *store*, for a verb that commits by itself; refuse it inside a transaction that its caller has open."""
    if is_anything_open() and store.transactions is not None:
        refuse_inside(store.transactions.database)
    return store


def joined(
    store: Store,
    connection: Any,
    program: Callable[[Transactions], Generator[Any, Any, R]],
    *,
    savepoint: bool,
    note: Callable[[Joined], None] = remember,
) -> R:
    """
    Run *program* in the transaction of *connection* and return its value; *note* keeps in mind that it is open.

    On a connection of an event loop the value is a coroutine, which only the async form of a verb may await.
    """
    from .connections import is_async  # only now: most programs never pass a connection

    transactions = transactions_of(store, "connection=…")
    if is_async(connection):
        require_awaited(connection)
        return cast(R, transactions.run_async(connection, program(transactions), savepoint=savepoint, note=note))
    return transactions.run(connection, program(transactions), savepoint=savepoint, note=note)
