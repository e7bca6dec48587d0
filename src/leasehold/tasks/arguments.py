"""A handler's arguments: checked against its signature when a job is added, and bound to it when the job runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..core import documents
from ..errors import InvalidArgument
from .convert import Converter, Half, Mismatch, UnsupportedAnnotation, converter, shown_annotation
from .signature import Unresolved, resolved

_EMPTY: Any = inspect.Parameter.empty
_loads = json.loads


class Unbindable(InvalidArgument):
    """What was stored does not fit the handler that is here: an older or a newer one was meant."""


class Unready(Unbindable):
    """The handler could not begin, whatever its arguments are: its process, or its module there, is not to be had."""


class Arguments:
    """The parameters of one task's function, but for the lease, and how each is kept."""

    __slots__ = ("_converters", "_function", "_loaders", "_names", "_parameters", "_positional", "_required", "_task")

    def __init__(self, task: str, function: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> None:
        self._task = task
        self._function = function
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._names = self._parameters.keys()
        self._positional = tuple(
            name for name, each in self._parameters.items() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        self._required = frozenset(name for name, each in self._parameters.items() if each.default is _EMPTY)
        self._converters: dict[str, Converter] = {}
        self._loaders: tuple[tuple[str, Half], ...] | None = None
        with suppress(Unbindable):  # what names something that is defined later is resolved when it is needed
            self._loaders = tuple(self._loaders_of(self._names))

    # When a job is added

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the payload of a job with these arguments: a JSON object of those that were passed."""
        given = self._bind(args, kwargs)
        if not given:
            return "{}"
        converters, kept, name = self._converters, {}, ""
        try:
            for name, value in given.items():
                kept[name] = (converters.get(name) or self._converter(name)).dump(value)
        except (Mismatch, Unresolved, UnsupportedAnnotation, RecursionError) as error:
            raise self._refused(name, error) from None
        try:
            return documents.encode(kept, "payload")
        except InvalidArgument as error:
            raise self._blame(kept, error) from None

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(args) > len(self._positional):
            takes = len(self._positional)
            raise InvalidArgument(
                f"task {self._task!r} takes {takes} positional argument{'' if takes == 1 else 's'}, not {len(args)}: "
                f"its arguments are ({self._shown()})."
            )
        given: Mapping[str, Any] = dict(zip(self._positional, args, strict=False))
        if kwargs:
            if unknown := [name for name in kwargs if name not in self._names]:
                raise InvalidArgument(
                    f"task {self._task!r} has no argument {unknown[0]!r}: its arguments are ({self._shown()}). "
                    "Options of the job, such as queue or priority, go into task.options(…)."
                )
            if twice := [name for name in given if name in kwargs]:
                raise InvalidArgument(f"task {self._task!r} got argument {twice[0]!r} twice, by position and by name.")
            # In the order of the signature, however it was called: a child without a name is named by its payload.
            given = {**given, **kwargs}
            given = {name: given[name] for name in self._names if name in given}
        if len(given) < len(self._required) or not self._required <= given.keys():
            missing = [name for name in self._names if name in self._required and name not in given]
            raise InvalidArgument(
                f"task {self._task!r} needs argument {', '.join(map(repr, missing))}: "
                f"its arguments are ({self._shown()})."
            )
        return given

    def _refused(self, name: str, error: Exception) -> InvalidArgument:
        if isinstance(error, Mismatch):
            return InvalidArgument(f"argument {name + error.where!r} of task {self._task!r}: {error}.")
        of = f"argument {name!r} of task {self._task!r}"
        if isinstance(error, RecursionError):
            return InvalidArgument(f"{of} is nested too deeply, or contains itself.")
        annotated = f"{of} is annotated as {self._annotation(name)}"
        if isinstance(error, Unresolved):
            return InvalidArgument(
                f"{annotated}, which cannot be resolved: {error}. Import the name in {self._function.__module__}, "
                "at its top level and not under TYPE_CHECKING."
            )
        return InvalidArgument(
            f"{annotated}, and a payload cannot hold {error}: pass something from which the value can be "
            "rebuilt, such as an id."
        )

    def _blame(self, kept: dict[str, Any], error: InvalidArgument) -> InvalidArgument:
        """Return the error that names the argument which cannot be kept."""
        for name, value in kept.items():
            try:
                documents.encode(value, f"argument {name!r} of task {self._task!r}")
            except InvalidArgument as found:
                return found
        return InvalidArgument(f"the arguments of task {self._task!r}: {error}")  # each fits, and all together do not

    # When a job runs

    def decode(self, document: str) -> dict[str, Any]:
        """Return the keyword arguments that *document* holds; raise `Unbindable` if they do not fit this handler."""
        if (document == "{}" or document == "null") and not self._required:
            return {}
        given = _loads(document)
        if type(given) is not dict:
            if given is not None:
                raise Unbindable(
                    f"task {self._task!r} takes its arguments by name from a JSON object, and the payload is "
                    f"{document[:60]}."
                )
            given = {}
        if given.keys() != self._names:
            self._fits(given)
        loaders = self._loaders
        if loaders is None or loaders:
            self._load(given, self._loaders_of(given) if loaders is None else loaders)
        return given

    def _fits(self, given: dict[str, Any]) -> None:
        if unknown := [name for name in given if name not in self._names]:
            raise Unbindable(
                f"the payload has {', '.join(map(repr, unknown))}, which task {self._task!r} in this process does not "
                f"take: its arguments are ({self._shown()})."
            )
        if missing := [name for name in self._names if name in self._required and name not in given]:
            raise Unbindable(
                f"the payload has no {', '.join(map(repr, missing))}, which task {self._task!r} in this process "
                f"needs: its arguments are ({self._shown()})."
            )

    def _load(self, given: dict[str, Any], loaders: Iterable[tuple[str, Half]]) -> None:
        for name, load in loaders:
            if name in given:
                try:
                    given[name] = load(given[name])
                except Mismatch as mismatch:
                    reason, where = str(mismatch), mismatch.where
                except Exception as error:  # of a class or a validator of the user's own
                    reason, where = f"{type(error).__name__}: {error}", ""
                else:
                    continue
                raise Unbindable(
                    f"argument {name + where!r} in the payload does not fit task {self._task!r}: {reason}."
                )

    # Annotations

    def _loaders_of(self, names: Iterable[str]) -> list[tuple[str, Half]]:
        """Return the loaders of these arguments. Raises `Unbindable` for an annotation that cannot be resolved."""
        found = []
        for name in names:
            try:
                each = self._converter(name)
            except (Unresolved, UnsupportedAnnotation) as error:
                raise Unbindable(
                    f"argument {name!r} of task {self._task!r} in this process is annotated as "
                    f"{self._annotation(name)}: {error}."
                ) from None
            if each.load is not None:
                found.append((name, each.load))
        return found

    def _converter(self, name: str) -> Converter:
        found = self._converters.get(name)
        if found is None:
            annotation = self._parameters[name].annotation
            annotation = Any if annotation is _EMPTY else resolved(self._function, annotation)
            found = self._converters[name] = converter(annotation)
        return found

    def _annotation(self, name: str) -> str:
        return shown_annotation(self._parameters[name].annotation)

    def _shown(self) -> str:
        return str(inspect.Signature([_as_written(each) for each in self._parameters.values()]))[1:-1]


class _Written(str):
    __slots__ = ()
    __repr__ = str.__str__


def _as_written(parameter: inspect.Parameter) -> inspect.Parameter:
    annotation = parameter.annotation
    return parameter.replace(annotation=_Written(annotation)) if isinstance(annotation, str) else parameter
