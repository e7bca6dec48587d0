"""Which functions can be tasks, what they take, where they run, and which settings they have."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypedDict

from ..core import checks
from ..core.retry import Retry
from ..errors import InvalidArgument
from ..lease import Lease
from .convert import shown, shown_annotation


class Kind(StrEnum):
    """Where a task's function runs."""

    THREAD = "thread"
    LOOP = "loop"
    PROCESS = "process"


class TaskSettings(TypedDict, total=False):
    """What `@router.task(…)` takes."""

    name: str
    queue: str
    priority: int
    lease_seconds: float | None
    stall_seconds: float | None
    keep_seconds: float | None  # None for ever
    run_seconds: float | None
    retry: Retry | None
    process: bool
    final: tuple[type[BaseException], ...]
    delay: Callable[[int, Any], float] | None  # of how many errors so far, and the last one
    seals: Callable[..., Any] | None  # of the handler's arguments: the keys of guards to seal before it begins


class Unresolved(Exception):
    """An annotation names what is not there, or not yet."""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, with annotations that cannot be resolved yet left as they are written."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return *annotation* without strings in it; raise `Unresolved` if it names what is not there."""
    try:
        return typing.get_type_hints(_probe(annotation), globalns=_globals(function))["it"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise Unresolved(str(error)) from None


def _probe(annotation: Any) -> Callable[[], None]:
    def probe() -> None: ...

    probe.__annotations__ = {"it": annotation}
    return probe


def _globals(function: Any) -> dict[str, Any]:
    # Where the handler is written, and not where a decorator around it is.
    return getattr(inspect.unwrap(function), "__globals__", {})


def location(function: Callable[..., Any]) -> str:
    """Return where a function is written, for people."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{function.__module__}.{function.__qualname__}{where}"


def _refuse(function: Any, why: str) -> InvalidArgument:
    named = getattr(function, "__qualname__", None) or shown(function)
    return InvalidArgument(f"{named} cannot be a task: {why}")


def checked_function(function: Any) -> Any:
    """Return the function itself if it can be a task."""
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, classmethod):
        raise _refuse(
            function,
            "it is a classmethod, and a payload has no class to pass. Make it a plain function or a staticmethod.",
        )
    if isinstance(function, type):
        raise _refuse(function, "it is a class. A task is a function.")
    if not callable(function):
        raise _refuse(function, "it is not callable. Options are given by name: @router.task(queue=…).")
    if not isinstance(getattr(function, "__name__", None), str) or not hasattr(function, "__qualname__"):
        raise _refuse(
            function, "it has no __name__. Call it from a function of your own, and make that function the task."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refuse(
            function,
            "it is a generator, so calling it would not run its code. To report progress, use lease.progress(…).",
        )
    return function


def checked_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return what a function takes."""
    try:
        return signature_of(function)
    except (ValueError, TypeError) as error:
        raise _refuse(function, f"its parameters cannot be determined ({error}).") from None


def name_of(function: Any, settings: TaskSettings) -> str:
    """Return the name of a task: what `name=` says, or the function's own."""
    if "name" in settings:
        return checks.name(settings["name"], "name")
    if function.__name__ == "<lambda>":
        raise _refuse(function, "a lambda has no name of its own. Pass name=….")
    return checks.name(function.__name__, "a task's name")


def kind_of(function: Any, settings: TaskSettings) -> Kind:
    """Return where a task runs."""
    process = settings.get("process", False)
    if not isinstance(process, bool):
        raise InvalidArgument(f"process= must be True or False, not {shown(process)}.")
    asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # of an object that is made to look like a function
    )
    if not process:
        return Kind.LOOP if asynchronous else Kind.THREAD
    if asynchronous:
        raise _refuse(function, "process=True needs a plain `def`. An `async def` runs on the worker's event loop.")
    if "<" in function.__qualname__ or isinstance(function, types.MethodType):
        raise _refuse(
            function,
            "process=True imports the function in another process, so it must be defined at the top level of a module.",
        )
    return Kind.PROCESS


def takes_lease(function: Any, signature: inspect.Signature) -> bool:
    """Return whether the first parameter is the lease; the annotations must agree."""
    for position, parameter in enumerate(signature.parameters.values()):
        first = position == 0 and parameter.name == "lease"
        is_lease = _is_lease(function, parameter.annotation)
        if first and is_lease is False:
            raise _refuse(
                function,
                f"its first parameter is called `lease` and annotated as {shown_annotation(parameter.annotation)}. "
                "The worker passes its Lease there: annotate the parameter as Lease, or rename it.",
            )
        if first and parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise _refuse(function, "`lease` must be an ordinary first parameter, neither after `*` nor before `/`.")
        if not first and is_lease:
            raise _refuse(
                function,
                f"parameter {parameter.name!r} is annotated as Lease, but a lease is passed only as the first "
                "parameter, which must be called `lease`.",
            )
    return next(iter(signature.parameters), None) == "lease"


def _is_lease(function: Any, annotation: Any) -> bool | None:
    """Return whether an annotation says Lease; None if it says nothing."""
    if annotation is inspect.Parameter.empty:
        return None
    try:
        return resolved(function, annotation) is Lease
    except Unresolved:  # imported for type checkers alone, most often
        written = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
        return written.strip("'\"").rpartition(".")[2] == "Lease"


def check_parameters(function: Any, parameters: list[inspect.Parameter]) -> None:
    """Raise `InvalidArgument` for a parameter that a payload cannot hold."""
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise _refuse(
                function,
                f"a payload holds arguments by name, so {str(parameter).partition(':')[0]} is not possible. Write "
                "each parameter out, or take one list or dict. (A decorator without functools.wraps hides the names.)",
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise _refuse(
                function,
                f"a payload holds arguments by name, and {parameter.name!r} is positional-only: remove the `/`.",
            )
    # In a class, and not in a function within one.
    outer = function.__qualname__.rpartition(".")[0]
    bound = isinstance(function, types.MethodType)
    if not parameters or bound:
        return
    first, within = parameters[0], bool(outer) and not outer.endswith("<locals>")
    forgotten = first.name == "self" and first.annotation is inspect.Parameter.empty  # moved out of its class
    if forgotten or (first.name in ("self", "cls") and within):
        raise _refuse(
            function, f"a payload has no value for {first.name!r}. Make this a plain function or a staticmethod."
        )


def final_of(settings: TaskSettings) -> tuple[type[BaseException], ...]:
    """Return the exceptions after which a job is not tried again."""
    return checks.exception_classes(settings.get("final", ()), "final=")


def seals_of(settings: TaskSettings, arguments: list[inspect.Parameter]) -> Callable[..., Any] | None:
    """Return the function that names the keys to seal before the handler, or None."""
    seals = settings.get("seals")
    if seals is None:
        return None
    if not callable(seals) or inspect.iscoroutinefunction(seals):
        raise InvalidArgument(
            f"seals= must be a plain function of the handler's arguments that returns keys, not {seals!r}."
        )
    known = {parameter.name for parameter in arguments}
    for parameter in inspect.signature(seals).parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise InvalidArgument(
                "the function passed as seals= gets its arguments by keyword, so it cannot have the parameter "
                f"{parameter}: name each argument that it needs, or take **arguments."
            )
        if parameter.kind is inspect.Parameter.VAR_KEYWORD or parameter.name in known:
            continue
        if parameter.default is inspect.Parameter.empty:
            names = ", ".join(sorted(known)) or "none"
            raise InvalidArgument(
                f"the function passed as seals= has a parameter {parameter.name!r}, but the handler has no argument of "
                f"that name. It can use: {names}."
            )
    return seals


def delay_of(settings: TaskSettings) -> Callable[[int, Any], float] | None:
    """Return the function that says how long a job rests after an error, or None."""
    delay = settings.get("delay")
    if delay is None:
        return None
    if not callable(delay) or inspect.iscoroutinefunction(delay):
        raise InvalidArgument(
            f"delay= must be a plain function of (errors, error) that returns seconds, not {shown(delay)}."
        )
    try:
        inspect.signature(delay).bind(1, ValueError())
    except TypeError as error:
        raise InvalidArgument(
            f"the function passed as delay= is called as delay(errors, error), and {shown(delay)} cannot be called "
            f"like that: {error}."
        ) from None
    except ValueError:
        pass  # a builtin that does not tell
    return delay
