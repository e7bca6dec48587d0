"""What goes through the pipe between a worker and a process of handlers."""

from __future__ import annotations

from typing import Any, NamedTuple

from ....core.job import Grant
from ....store import Store

# Every verb of the contract, but for those that are about a store object of one's own.
VERBS = frozenset(
    name for name, verb in vars(Store).items() if callable(verb) and not name.startswith("_")
) - {"close", "take_reclaimed", "wake"}  # fmt: skip


class Start(NamedTuple):
    """To the process: run this handler for this lease."""

    task: str
    module: str
    qualname: str
    grant: Grant
    url: str | None  # of the worker's router
    imports: tuple[str, ...]  # modules with its hooks


class Reply(NamedTuple):
    """To the process: how a call came out."""

    number: int
    value: Any
    error: BaseException | None = None


class Call(NamedTuple):
    """From the process: execute a verb of the store."""

    number: int
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Began(NamedTuple):
    """From the process: the handler has been found, and begins now."""


class Ended(NamedTuple):
    """From the process: the handler's result, as JSON text, or its error, and whether it has settled the job."""

    document: str | None
    error: Exception | None
    settled: bool | None
