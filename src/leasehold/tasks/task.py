"""A task: a function that handles the jobs of one name, and the way to add such jobs with its own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from ..aio import warn_if_it_blocks
from ..core import checks, documents, suggestions
from ..core.job import DETACHED, Added, NewJob, as_new_job
from ..core.retry import Retry
from ..core.settings import JobSettings
from ..errors import InvalidArgument
from ..lease import Lease, lease_here
from .adder import Adder
from .arguments import Arguments, Unbindable, Unready
from .convert import PLAIN, Converter, Mismatch, UnsupportedAnnotation, converter, dump_by_type, shown
from .signature import (
    Kind,
    TaskSettings,
    Unresolved,
    check_parameters,
    checked_function,
    checked_signature,
    delay_of,
    final_of,
    kind_of,
    name_of,
    resolved,
    seals_of,
    signature_of,
    takes_lease,
)

__all__ = ["AnyTask", "Kind", "TaskOptions", "TaskSettings", "Task", "Unbindable", "Unready", "Unstorable"]

if TYPE_CHECKING:
    from .registry import Registry

C = ParamSpec("C")  # what a call of the function takes
P = ParamSpec("P")  # what a job takes: the same without the lease
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _CurrentLease:
    """Stands for the lease of the handler that adds a job, if there is one."""

    def __repr__(self) -> str:
        return "<the current lease>"


_CURRENT: Final[Any] = _CurrentLease()

_RETURN: Final = "Return a value that JSON can hold, or None. The work is done, so the job is not retried."


class Unstorable(InvalidArgument):
    """What a handler returned cannot be kept, and would not be the next time either."""


class TaskOptions(Generic[P]):
    """A task with options for the jobs that are added through it. Made by `Task.options`."""

    __slots__ = ("_adder", "_arguments", "_connection", "_parent", "_savepoint", "_template")

    def __init__(
        self,
        adder: Adder,
        arguments: Arguments,
        template: NewJob,
        parent: Lease | None,
        connection: Any,
        savepoint: bool,
    ) -> None:
        self._adder = adder
        self._arguments = arguments
        self._template = template
        self._parent = parent
        self._connection = connection
        self._savepoint = savepoint

    def add(self, *args: P.args, **kwargs: P.kwargs) -> Added:
        """
        Add a job with these arguments of the handler; they are checked against its signature.

        Inside a handler the job is a child of the current lease: with an id that a second run of the handler finds
        again. Raises `StaleEpoch` if the lease is no longer current, `InvalidArgument` for arguments that do not fit,
        and what `Router.add` raises.
        """
        if self._connection is None:
            warn_if_it_blocks("add", f"{self._template.task}.aio.add")
        lease = self._adopter()
        if lease is not None:
            return lease.add(self._job("", args, kwargs), connection=self._connection, savepoint=self._savepoint)
        job = self._job(self._adder.new_id(), args, kwargs)
        return self._adder.add(job, connection=self._connection, savepoint=self._savepoint)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """
        Return the job that `add` would add, for `add_many`, `then=` or `lease.add`, which give it an id.

        With `parent=None` it is no child there either, and an id given in the options stays as it is.

        Raises `InvalidArgument` for arguments that do not fit, and for options that only `add` can use.
        """
        if self._connection is not None or isinstance(self._parent, Lease):
            raise InvalidArgument("job(…) only describes a job: pass connection= and parent= to the call that adds it.")
        job = self._job("", args, kwargs)
        return job._replace(parent=DETACHED) if self._parent is None else job

    @property
    def aio(self) -> AsyncTask[P]:
        """The same for async callers."""
        return AsyncTask(self)

    def _job(self, id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        return self._template.like(self._template.id or id, self._arguments.encode(args, kwargs))

    def _adopter(self) -> Lease | None:
        """Return the lease whose child a job would be."""
        if self._parent is not _CURRENT:
            return self._parent
        lease = lease_here()
        # What belongs to another store cannot be a child there; its epochs mean nothing here.
        return lease if lease is not None and lease.store is self._adder.store else None


class AsyncTask(Generic[P]):
    """`add`, to be awaited."""

    __slots__ = ("_of",)

    def __init__(self, of: TaskOptions[P]) -> None:
        self._of = of

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> Added:
        """Add a job as `TaskOptions.add` does. Raises as it does."""
        of = self._of
        lease = of._adopter()
        job = of._job("" if lease is not None else of._adder.new_id(), args, kwargs)
        verbs = of._adder.aio if lease is None else lease.aio
        return await verbs.add(job, connection=of._connection, savepoint=of._savepoint)


class Task(Generic[C, P, R_co]):
    """A function that handles the jobs of one name. Made by `@router.task`; calling it just calls the function."""

    def __init__(self, registry: Registry, function: Callable[C, R_co], settings: TaskSettings) -> None:
        _known(settings)
        self.function: Callable[..., R_co] = checked_function(function)
        signature = checked_signature(self.function)
        self.module: str = self.function.__module__
        self.qualname: str = self.function.__qualname__
        self.name = name_of(self.function, settings)
        self.kind = kind_of(self.function, settings)
        check_parameters(self.function, list(signature.parameters.values()))
        self.takes_lease = takes_lease(self.function, signature)
        run_seconds = settings.get("run_seconds")
        self.run_us = None if run_seconds is None else checks.microseconds(run_seconds, "run_seconds")
        self.final = final_of(settings)
        self.only: tuple[type[BaseException], ...] = ()
        self.backoff = delay_of(settings)
        parameters = list(signature.parameters.values())[int(self.takes_lease) :]
        self._arguments = Arguments(self.name, self.function, parameters)
        self.seals = seals_of(settings, parameters)
        self.defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        self.registry = registry
        self._stored: JobSettings = {key: settings[key] for key in _STORED if key in settings}  # type: ignore[literal-required, assignment]  # by name
        if isinstance(retry := settings.get("retry"), Retry) and retry.only:
            self.only, self._stored["retry"] = retry.only, replace(retry, only=())
        self._plain = self.options()
        # What a function has, so that a task is shown, documented and pickled as one.
        self.__name__ = self.function.__name__
        self.__qualname__ = self.qualname
        self.__module__ = self.module
        self.__doc__ = self.function.__doc__
        self.__wrapped__ = self.function

    def __repr__(self) -> str:
        return f"<Task {self.name!r} {self.module}.{self.qualname}>"

    def __reduce__(self) -> str:
        return self.qualname

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless their options name another."""
        return self._stored.get("queue", "default")

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the function; no job is involved."""
        if self.takes_lease and _lacks_lease(args, kwargs):
            own = self.__name__
            raise TypeError(
                f"{own}(…) is missing its lease: a call just runs the function, so pass a Lease first, as in "
                f"{own}(lease, …); leasehold.testing.lease(…) makes one for a test. To add a job: {own}.add(…)."
            )
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Refuse what there is not, with advice on what other libraries call `add`."""
            what, own = f"task {self.__dict__.get('name', '?')!r}", self.__dict__.get("__name__", "task")
            raise suggestions.no_attribute(self, what, name, suggestions.TASK, own=own)

    # Producers

    def add(self, *args: P.args, **kwargs: P.kwargs) -> Added:
        """Add a job with these arguments, as `TaskOptions.add` does. Raises as it does."""
        return self._plain.add(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job that `add` would add, as `TaskOptions.job` does. Raises as it does."""
        return self._plain.job(*args, **kwargs)

    @property
    def aio(self) -> AsyncTask[P]:
        """The same for async callers."""
        return AsyncTask(self._plain)

    def options(
        self,
        *,
        id: str | None = None,
        parent: Lease | None = _CURRENT,
        connection: Any = None,
        savepoint: bool = False,
        **options: Unpack[JobSettings],
    ) -> TaskOptions[P]:
        """
        Return the same task with options for the jobs added through it: those of `Router.add`.

        *parent* is the lease whose child the job is: by default the current one, None for no parent. Raises
        `InvalidArgument` for an option that there is not.
        """
        if parent is not _CURRENT and parent is not None:
            if not isinstance(parent, Lease):
                raise InvalidArgument(f"parent= must be a Lease, or None for no parent, not {shown(parent)}.")
            if parent.store is not self.registry.adder.store:
                raise InvalidArgument(
                    f"parent= must be a lease of a job in the same store as task {self.name!r}, and {parent!r} belongs "
                    "to another store."
                )
        unknown = [key for key in options if key not in JobSettings.__annotations__]
        if unknown:
            raise InvalidArgument(
                f"options(…) has no {unknown[0]!r}: it takes id, parent, connection, savepoint, "
                f"{', '.join(JobSettings.__annotations__)}."
            )
        wish = {"id": "unnamed" if id is None else id, "task": self.name, **self._stored, **options}
        template = as_new_job(wish)
        if id is None:
            template = template.made("")
        return TaskOptions(self.registry.adder, self._arguments, template, parent, connection, savepoint)

    # Workers

    def arguments(self, document: str) -> dict[str, Any]:
        """Return the keyword arguments that a payload holds; raise `Unbindable` if they do not fit this function."""
        return self._arguments.decode(document)

    def encode_result(self, value: object) -> str:
        """Return what the function returned as JSON; raise `Unstorable` if it has no form there."""
        if value is None:
            return "null"
        if inspect.iscoroutine(value):
            value.close()  # else Python warns later that it was never awaited
            raise InvalidArgument(
                f"task {self.name!r} returned a coroutine, which was never awaited: a decorator around an `async def` "
                "must itself return an `async def`, so that the task runs on the event loop."
            )
        what = f"the result of task {self.name!r}"
        try:
            return documents.encode(self._dump_result(value), what)
        except Mismatch as mismatch:
            at = f" at {mismatch.where}" if mismatch.where else ""
            raise Unstorable(f"{what} is {shown(value)} and cannot be stored{at}: {mismatch}. {_RETURN}") from None
        except RecursionError:
            raise Unstorable(f"{what} is nested too deeply, or contains itself. {_RETURN}") from None
        except InvalidArgument as error:
            raise Unstorable(f"{error} {_RETURN}") from None

    def _dump_result(self, value: object) -> Any:
        found = self._result
        if found is None or type(value) in PLAIN:
            return dump_by_type(value)
        try:
            return dump_by_type(found.dump(value))
        except Mismatch:
            # The work is done: a return annotation that does not hold is no reason to do it again.
            return dump_by_type(value)

    def decode_result(self, document: str | None) -> Any:
        """Return a stored result as the function returned it, where its return annotation tells how; else as JSON."""
        value = documents.decode(document)
        found = self._result
        if found is None or found.load is None or value is None:
            return value
        try:
            return found.load(value)
        except Mismatch:
            return value

    @cached_property
    def _result(self) -> Converter | None:
        """How results are kept by the return annotation; looked at with the first result, when all is imported."""
        annotation = signature_of(self.function).return_annotation
        if annotation is inspect.Signature.empty or annotation is None:
            return None
        try:
            return converter(resolved(self.function, annotation))
        except (Unresolved, UnsupportedAnnotation):
            return None


AnyTask = Task[..., ..., Any]


class Decorator(Protocol):
    """What `@router.task(…)` with settings returns: it makes a function a task."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R], /) -> Task[Concatenate[Lease, P], P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, P, R]: ...


def _lacks_lease(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call passes no lease: nothing, or what belongs in a payload. A test's stand-in is a lease."""
    return isinstance(args[0], _PAYLOAD) if args else "lease" not in kwargs


_PAYLOAD = (str, int, float, bytes, list, tuple, dict, set, date, UUID, Decimal, PurePath, Enum)
_STORED = ("queue", "priority", "lease_seconds", "stall_seconds", "keep_seconds", "retry")


def _known(settings: TaskSettings) -> None:
    for key in settings:
        if key not in TaskSettings.__annotations__:
            elsewhere = ""
            if key in JobSettings.__annotations__:
                elsewhere = f" It is an option of each job: task.options({key}=…)."
            elif key in suggestions.RETRY:
                elsewhere = f" In retry=Retry(…), {suggestions.RETRY[key]}"
            raise InvalidArgument(
                f"@router.task has no {key!r}: it takes {', '.join(TaskSettings.__annotations__)}.{elsewhere}"
            )
