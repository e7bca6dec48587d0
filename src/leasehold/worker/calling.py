"""
How a handler is called, and what its end says about the job.

The same for a thread, an event loop, a process of its own and `router.drain`.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from contextvars import copy_context
from itertools import takewhile
from typing import Any, NamedTuple

from ..aio import handling_on_loop
from ..core import checks, failure
from ..core.job import Grant, Outcome, Settlement, completion, handed_back
from ..errors import InvalidArgument, StaleEpoch, StoreUnavailable
from ..lease import Lease, worker_side
from ..tasks.guarded import Unsealed, keys_of
from ..tasks.hooks import Hooks
from ..tasks.task import Task, Unbindable, Unstorable
from .log import log

_FRAMES = 12  # of a traceback, beginning with the innermost
_UNBOUND_SECONDS = 60.0  # the longest rest of a job whose arguments do not fit


class End(NamedTuple):
    """How a handler ended: with a result, as JSON text, or with an error."""

    document: str | None
    error: BaseException | None = None


class Crashed(Exception):
    """The process of a handler has ended by itself. The text says how."""


class Unsettled(RuntimeError):
    """The handler returned, and what it settled in a transaction of its own did not commit."""


# Not what the handler's own work came to, so an allow list of its exceptions does not speak of it.
_OWN = (StoreUnavailable, Unsettled)


class Raised(Exception):
    """An error in the process of a handler: as text, and as what it means for the job where its class was known."""

    def __init__(self, text: str, settlement: Settlement | None, refusal: StaleEpoch | None = None) -> None:
        super().__init__(text)
        self.settlement = settlement
        self.__cause__ = refusal

    def traceback(self) -> str:
        """Return the error as Python shows one, with the frames of its process."""
        message, header, frames = str(self.args[0]).rpartition(f"\n{failure.HEADER}")
        shown = f"Traceback, in the process of the handler (most recent call last):{frames}\n{message}"
        return shown if header else frames

    def __reduce__(self) -> tuple[Any, ...]:
        return Raised, (self.args[0], self.settlement, self.__cause__)


def call(task: Task[..., ..., Any], grant: Grant, lease: Lease, hooks: Hooks) -> End:
    """Call a plain handler, inside its hooks, and return how it ended. Nothing is raised but what stops the thread."""
    return copy_context().run(_call, task, grant, lease, hooks)


def _call(task: Task[..., ..., Any], grant: Grant, lease: Lease, hooks: Hooks) -> End:
    worker_side.activate(lease)
    try:
        arguments = task.arguments(grant.spec.document)
        if task.seals is not None:
            _seal(task, lease, arguments)
        if hooks.around:
            value = None
            with hooks.entered(lease):
                value = task.function(lease, **arguments) if task.takes_lease else task.function(**arguments)
        else:
            value = task.function(lease, **arguments) if task.takes_lease else task.function(**arguments)
        worker_side.leave_transactions(lease)
        return End("null" if value is None else task.encode_result(value))
    except BaseException as error:
        worker_side.forget_transactions(lease)
        return End(None, _own(error))
    finally:
        if task.registry.notes:
            task.registry.guards.flush()


async def call_async(task: Task[..., ..., Any], grant: Grant, lease: Lease, hooks: Hooks) -> End:
    """Call an async handler in the same way. The caller gives it a context of its own."""
    worker_side.activate(lease)
    handling_on_loop(task.name)
    try:
        arguments = task.arguments(grant.spec.document)
        if task.seals is not None:
            await asyncio.to_thread(_seal, task, lease, arguments)
        if hooks.around_async:
            value = None
            async with hooks.entered_async(lease):
                value = await (task.function(lease, **arguments) if task.takes_lease else task.function(**arguments))
        else:
            value = await (task.function(lease, **arguments) if task.takes_lease else task.function(**arguments))
        if worker_side.has_joined(lease):  # only then the server may have to be asked
            await asyncio.to_thread(worker_side.leave_transactions, lease)
        return End("null" if value is None else task.encode_result(value))
    except BaseException as error:
        worker_side.forget_transactions(lease)
        return End(None, _own(error))
    finally:
        if task.registry.notes:
            task.registry.guards.flush()


def _seal(task: Task[..., ..., Any], lease: Lease, arguments: dict[str, Any]) -> None:
    """Seal the keys that the task names for these arguments, before the first line of its handler."""
    assert task.seals is not None
    # A payload has only what was passed at add: for the rest, the handler's own defaults hold.
    task.registry.guards.seal(keys_of(task.seals, {**task.defaults, **arguments}), lease)


def _own(error: BaseException) -> BaseException:
    """Return *error* with the user's frames: its traceback begins where the handler does."""
    trace = error.__traceback__
    return error.with_traceback(trace.tb_next) if trace is not None and trace.tb_next is not None else error


def settlement(task: Task[..., ..., Any], grant: Grant, lease: Lease, end: End) -> Settlement | None:
    """
    Return what the end of a handler says about its job, or None if the store must be asked.

    That is so when the handler has settled the job itself, inside a transaction that may have rolled back, and when it
    was refused.
    """
    document, error = end
    if error is None:
        return completion(grant, document) if worker_side.settled(lease) is False else None
    if isinstance(error, Crashed):
        return Settlement(grant.spec.id, grant.epoch, Outcome.CRASH, error=str(error))
    if worker_side.settled(lease) is True or (isinstance(error, StaleEpoch) and _is_of(error, grant)):
        return None
    if isinstance(error, Raised):
        return error.settlement
    if isinstance(error, (Unbindable, Unsealed)):
        return released(grant, _unbound_delay(grant), _storable(str(error)))
    return failed(task, grant, error)


def failed(task: Task[..., ..., Any], grant: Grant, error: BaseException, text: str | None = None) -> Settlement:
    """Return what records an error of the handler, with its back-off."""
    retry = not isinstance(error, (Unstorable, *task.final))
    if task.only and not isinstance(error, (*_OWN, *task.only)):
        retry = False
    return Settlement(
        grant.spec.id,
        grant.epoch,
        Outcome.FAIL,
        error=text or described(error),
        retry=retry,
        delay_us=checks.microseconds(_delay(task, grant, error), "delay", zero=True),
    )


def released(grant: Grant, delay_seconds: float = 0, why: str | None = None) -> Settlement:
    """Return what hands the job back, maybe with the reason as its last error, its budgets untouched."""
    return handed_back(grant, checks.microseconds(delay_seconds, "delay", zero=True), why)


def _unbound_delay(grant: Grant) -> float:
    """Return how long a job rests whose arguments do not fit here: they may elsewhere, or after a later deploy."""
    return float(min(2.0 ** min(grant.attempt, 16), _UNBOUND_SECONDS) * random.uniform(0.5, 1.0))


def described(error: BaseException) -> str:
    """Return what is kept of an error: its name and message, and where it was raised."""
    lines = traceback.format_exception_only(error)
    # Of a SyntaxError, where it is comes first, like a frame.
    where = list(takewhile(lambda line: line.startswith("  "), lines))
    frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[-_FRAMES:])
    text = failure.written("".join(lines[len(where) :]).strip(), "".join([*frames, *where]).rstrip())
    return _storable(text)


def _storable(text: str) -> str:
    return checks.text(text.encode("utf-8", "backslashreplace").decode(), "error")


def _delay(task: Task[..., ..., Any], grant: Grant, error: BaseException) -> float:
    errors = grant.errors + 1
    if task.backoff is not None:
        try:
            delay = float(task.backoff(errors, error))
            checks.microseconds(delay, "delay", zero=True)
            return delay
        except BaseException as failed:  # a SystemExit there would end a thread that others need
            # Of its own error the class and the frames alone: the message may quote the handler's, which may be hidden.
            what = str(failed) if isinstance(failed, InvalidArgument) else type(failed).__qualname__
            text = "the delay function of task %r failed (%s); using the default delay\n%s"
            log.error(text, task.name, what, "".join(traceback.format_tb(failed.__traceback__)).rstrip())
    return grant.spec.retry.delay(errors, random.random())


def _is_of(refusal: StaleEpoch, grant: Grant) -> bool:
    return refusal.job_id == grant.spec.id and refusal.presented == grant.epoch
