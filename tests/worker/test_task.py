"""
What may be a task, and how its jobs are added: as their own, as children, and in a transaction.

Long on purpose: the ways to declare a task and to add its jobs are one table of cases, which share their tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import pickle
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from tests.support import claimed

import leasehold
from leasehold import InvalidArgument, Lease, NewJob, Retry, Router, StaleEpoch, Unsupported
from leasehold.core.children import child_name
from leasehold.core.retry import DEFAULT_RETRY
from leasehold.core.settings import JobOptions, JobSettings
from leasehold.tasks.signature import TaskSettings
from leasehold.tasks.task import Kind, Task
from leasehold.testing import ManualClock

if TYPE_CHECKING:
    from leasehold import Lease as LeaseForCheckersOnly  # never there when a test runs

elsewhere = Router()


@elsewhere.task(process=True, name="cut")
def cut_out(image_id: int) -> int:
    """Cut it out."""
    return image_id + 1


@dataclass(frozen=True)
class Report:
    """A result."""

    on: date
    total: Decimal

    def show(self) -> None:
        """Show it."""


class Opaque:
    """Nothing can be known of it."""


def refused(router: Router, function: Any, **settings: Any) -> str:
    """What is said about a function that cannot be a task."""
    with pytest.raises(InvalidArgument) as refusal:
        router.task(function, **settings)
    assert not router.tasks
    return str(refusal.value)


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Router]:
    """A store of each kind in turn, whole at the end."""
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    with Router(url, clock=clock) as router:
        yield router
        assert router.verify() == []


# What a task is


def test_a_task_is_its_function_with_a_name_and_a_place_to_run() -> None:
    """What a worker needs to know of it."""
    router = Router()

    @router.task
    def resize(lease: Lease, image_id: int) -> str:
        """Make it smaller."""
        return f"{lease.job_id}: {image_id}"

    @router.task(run_seconds=1.5, final=(ValueError, OSError), delay=lambda errors, error: 2.0 * errors)
    async def thumb(image_id: int) -> str:
        return f"thumb of {image_id}"

    assert isinstance(resize, Task)
    assert (resize.name, resize.kind, resize.takes_lease) == ("resize", Kind.THREAD, True)
    assert (resize.run_us, resize.final, resize.backoff) == (None, (), None)
    assert (thumb.name, thumb.kind, thumb.takes_lease) == ("thumb", Kind.LOOP, False)
    assert (thumb.run_us, thumb.final) == (1_500_000, (ValueError, OSError))
    assert thumb.backoff is not None
    assert thumb.backoff(3, ValueError()) == 6.0
    assert (cut_out.name, cut_out.kind, cut_out.takes_lease) == ("cut", Kind.PROCESS, False)
    assert (cut_out.module, cut_out.qualname) == (__name__, "cut_out")
    assert dict(router.tasks) == {"resize": resize, "thumb": thumb}
    assert repr(cut_out) == f"<Task 'cut' {__name__}.cut_out>"


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "enqueue", "defer"])
def test_what_other_libraries_call_add_is_refused_with_advice(router: Router, name: str) -> None:
    """An AttributeError, so that `hasattr` and copies work as ever."""

    @router.task(delay=lambda errors, error: 1.0)
    def thumb(image_id: int) -> None: ...

    with pytest.raises(AttributeError, match=rf"task 'thumb' has no attribute '{name}'\. Use thumb\.add\(…\); later"):
        getattr(thumb, name)
    assert not hasattr(thumb, "colour")
    with pytest.raises(AttributeError, match=r"'thumb' has no attribute 'colour'\.$"):
        thumb.colour  # type: ignore[attr-defined]  # noqa: B018


def test_calling_a_task_just_calls_its_function(router: Router) -> None:
    """No job is added; an async one returns its coroutine."""

    @router.task
    def resize(lease: Lease, image_id: int) -> str:
        return f"{lease.job_id}: {image_id}"

    @router.task
    async def thumb(image_id: int) -> int:
        return image_id * 2

    router.add("a")
    assert resize(claimed(router), 42) == "a: 42"
    assert asyncio.run(thumb(image_id=4)) == 8
    assert [job.id for job in router.jobs()] == ["a"]


def test_a_task_looks_like_its_function_and_is_pickled_by_its_name() -> None:
    """So that tools that read docstrings and signatures work, and another process can find it."""
    assert (cut_out.__name__, cut_out.__qualname__, cut_out.__module__) == ("cut_out", "cut_out", __name__)
    assert cut_out.__doc__ == "Cut it out."
    assert str(inspect.signature(cut_out)) == "(image_id: 'int') -> 'int'"
    assert copy.deepcopy(cut_out) is cut_out
    assert b"cut_out" in pickle.dumps(cut_out)


def test_two_tasks_cannot_have_the_same_name() -> None:
    """At import, with both places."""
    router = Router()

    @router.task
    def send() -> None: ...

    def other() -> None: ...

    with pytest.raises(InvalidArgument) as refusal:
        router.task(other, name="send")

    place = r"test_two_tasks_cannot_have_the_same_name.<locals>"
    assert str(refusal.value).startswith(f"two tasks are called 'send': {__name__}.{place}.send ({__file__}:")
    assert f" and {__name__}.{place}.other ({__file__}:" in str(refusal.value)
    assert router.tasks["send"] is send
    Router().task(other, name="send")  # another router, another set of names


def test_the_tasks_can_be_read_and_not_changed() -> None:
    """Through the door."""
    with pytest.raises(TypeError):
        elsewhere.tasks["x"] = cut_out  # type: ignore[index]


# What cannot be one


def test_generators_classes_and_nameless_things_are_refused() -> None:
    """Each with its reason."""
    router = Router()

    def steps() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    class Handler:
        def __call__(self) -> None: ...

    generator = "it is a generator, so calling it would not run its code. To report progress, use lease.progress(…)."
    assert refused(router, steps).endswith(f"steps cannot be a task: {generator}")
    assert refused(router, later).endswith(f"later cannot be a task: {generator}")
    assert refused(router, Handler).endswith("Handler cannot be a task: it is a class. A task is a function.")
    nameless = "it has no __name__. Call it from a function of your own, and make that function the task."
    assert refused(router, Handler()).endswith(nameless)
    assert refused(router, functools.partial(print, 1)).endswith(nameless)
    assert refused(router, "images").startswith("'images' (str) cannot be a task: it is not callable. Options are ")
    assert refused(router, lambda: None).endswith("a lambda has no name of its own. Pass name=….")
    assert refused(router, dict.fromkeys).startswith("dict.fromkeys cannot be a task: ")
    assert refused(router, cut_out) == f"<Task 'cut' {__name__}.cut_out> is already a task."
    assert router.task(lambda: None, name="nothing").name == "nothing"


def test_parameters_that_a_payload_cannot_hold_are_refused() -> None:
    """It holds them by name."""
    router = Router()

    def many(*ids: int) -> None: ...
    def named(**ids: int) -> None: ...
    def by_place(id: int, /) -> None: ...

    def hides(function: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)

        return wrapper

    said = "a payload holds arguments by name, so"
    assert f"{said} *ids is not possible. Write each parameter out, or take one list or dict." in refused(router, many)
    assert f"{said} **ids is not possible. " in refused(router, named)
    assert refused(router, by_place).endswith("by name, and 'id' is positional-only: remove the `/`.")
    assert refused(router, hides(many)).endswith("(A decorator without functools.wraps hides the names.)")


def test_a_decorator_that_keeps_the_signature_may_stand_below() -> None:
    """The wrapper is called, with the arguments of what it wraps."""
    router, seen = Router(), []

    def logged(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> int:
            seen.append(kwargs)
            return function(*args, **kwargs)

        return wrapper

    @router.task
    @logged
    def double(lease: Lease, n: int, on: date) -> int:
        return n * 2

    job = double.job(4, date(2026, 11, 16))
    assert double.takes_lease
    assert double.name == "double"
    arguments = double.arguments(job.document)
    assert double.function(None, **arguments) == 8
    assert seen == [{"n": 4, "on": date(2026, 11, 16)}]
    assert router.task(functools.lru_cache(cut_out.function), name="cached").job(1).payload == {"image_id": 1}


def test_names_are_looked_up_where_the_handler_is_written() -> None:
    """And not where a decorator around it is."""

    class Timed(contextlib.ContextDecorator):  # which makes its wrapper in the standard library's module
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    @Router().task
    @Timed()
    def file(report: Report) -> Report:
        return report

    report = Report(date(2026, 11, 16), Decimal(1))
    assert file.arguments(file.job(report).document) == {"report": report}
    assert file.decode_result(file.encode_result(report)) == report


def test_methods_are_refused_and_static_and_bound_ones_are_not() -> None:
    """Nobody could say which `self` is meant."""
    router = Router()

    class Images:
        def resize(self, lease: Lease, image_id: int) -> None: ...

        @classmethod
        def made(cls, image_id: int) -> None: ...

        @staticmethod
        def cut(image_id: int) -> int:
            return image_id

        @staticmethod
        async def blur(image_id: int) -> int:
            return image_id

        def tint(self, image_id: int) -> int:
            return image_id + 1

    said = "cannot be a task: a payload has no value for 'self'. Make this a plain function or a staticmethod."
    assert refused(router, Images.resize).endswith(f"Images.resize {said}")
    assert "it is a classmethod, and a payload has no class to pass" in refused(router, vars(Images)["made"])
    assert router.task(vars(Images)["cut"])(image_id=3) == 3
    assert router.task(vars(Images)["blur"]).kind is Kind.LOOP
    assert router.task(Images().tint)(image_id=3) == 4

    def moved(self, image_id: int) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArgument, match="a payload has no value for 'self'"):
        router.task(moved)

    def free(self: int) -> None: ...

    assert router.task(free).job(1).payload == {"self": 1}


def test_a_process_needs_a_plain_function_at_the_top_of_a_module() -> None:
    """Another process imports it."""
    router = Router()

    async def thumb() -> None: ...
    def local() -> None: ...

    assert refused(router, thumb, process=True).endswith(
        "process=True needs a plain `def`. An `async def` runs on the worker's event loop."
    )
    said = "process=True imports the function in another process, so it must be defined at the top level of a module."
    assert refused(router, local, process=True).endswith(f"<locals>.local cannot be a task: {said}")
    assert refused(router, lambda: None, process=True, name="x").endswith(said)
    assert refused(router, Report(date.max, Decimal(1)).show, process=True).endswith(
        f"Report.show cannot be a task: {said}"
    )
    assert refused(router, local, process=1) == "process= must be True or False, not 1 (int)."


# The lease


def test_the_lease_is_passed_iff_the_first_parameter_is_called_lease() -> None:
    """Annotated as Lease, in whatever way, or not at all."""
    router = Router()

    def bare(lease, n: int) -> None: ...  # type: ignore[no-untyped-def]
    def named(lease: Lease, n: int) -> None: ...
    def dotted(lease: leasehold.Lease, n: int) -> None: ...
    def unseen(lease: LeaseForCheckersOnly.Lease, n: int) -> None: ...  # type: ignore[name-defined]
    def quoted(lease: "Lease", n: int) -> None: ...  # noqa: UP037
    def real(lease: Any, n: int) -> None: ...

    real.__annotations__["lease"] = Lease
    for function in (bare, named, dotted, unseen, quoted, real):
        task = router.task(function)
        assert task.takes_lease, function
        assert task.job(*[1]).payload == {"n": 1}

    def last(n: int, lease: str) -> None: ...

    task = router.task(last)
    assert not task.takes_lease
    assert task.job(1, "flat 4").payload == {"n": 1, "lease": "flat 4"}


def test_a_lease_in_another_place_or_of_another_type_is_refused() -> None:
    """It would be somebody's mistake."""
    router = Router()

    def flat(lease: str) -> None: ...
    def optional(lease: Lease | None) -> None: ...
    def by_name(*, lease: Lease) -> None: ...
    def second(n: int, lease: Lease) -> None: ...
    def other_name(held: Lease) -> None: ...

    said = "The worker passes its Lease there: annotate the parameter as Lease, or rename it."
    assert refused(router, flat).endswith(f"its first parameter is called `lease` and annotated as str. {said}")
    assert refused(router, optional).endswith(f"annotated as Lease | None. {said}")
    assert refused(router, by_name).endswith(
        "`lease` must be an ordinary first parameter, neither after `*` nor before `/`."
    )
    only = "is annotated as Lease, but a lease is passed only as the first parameter, which must be called `lease`."
    assert refused(router, second).endswith(f"parameter 'lease' {only}")
    assert refused(router, other_name).endswith(f"parameter 'held' {only}")


def test_a_lease_among_the_arguments_of_add_is_refused(router: Router) -> None:
    """The worker passes its own."""

    @router.task
    def resize(lease: Lease, image_id: int) -> None: ...

    router.add("a")
    with pytest.raises(InvalidArgument, match=r"task 'resize' takes 1 positional argument, not 2: .*\(image_id: int\)"):
        resize.add(claimed(router), 42)  # type: ignore[arg-type, call-arg]


# Settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": ""}, "name must have 1 to 255 characters"),
        ({"name": None}, "name must be a string, not None"),
        ({"queue": 5}, "queue must be a string, not 5 (int)."),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"lease_seconds": 0}, "lease_seconds must be above zero, not 0."),
        ({"stall_seconds": -1}, "stall_seconds must be above zero"),
        ({"run_seconds": "10"}, "run_seconds must be a number of seconds, not '10' (str)."),
        ({"retry": 5}, "retry= must be a Retry(…), not 5."),
        (
            {"final": ValueError},
            "final= must be a tuple of exception classes, such as (ValueError,), not <class 'ValueError'>",
        ),
        ({"final": (ValueError, "x")}, "final= must be a tuple of exception classes"),
        ({"delay": 5}, "delay= must be a plain function of (errors, error) that returns seconds, not 5 (int)."),
        ({"delay": lambda errors: 1}, "cannot be called like that: too many positional arguments."),
        ({"delay": asyncio.sleep}, "delay= must be a plain function of (errors, error)"),
        (
            {"queues": ["a"]},
            "@router.task has no 'queues': it takes name, queue, priority, lease_seconds, stall_seconds, ",
        ),
        ({"lock": "a"}, "@router.task has no 'lock': it takes name, "),
        ({"unique": "a"}, "It is an option of each job: task.options(unique=…)."),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",  # the same in every process
)
def test_settings_are_checked_where_they_are_written(settings: dict[str, Any], said: str) -> None:
    """At import, and not with the first job."""
    router = Router()

    def handle() -> None: ...

    assert said in refused(router, handle, **settings)
    with pytest.raises(InvalidArgument):
        router.task(**settings)(handle)


def test_settings_of_a_task_hold_for_its_jobs(router: Router) -> None:
    """And those of one job come first."""
    retry = Retry(max_errors=2)

    @router.task(queue="images", priority=3, lease_seconds=7, stall_seconds=9, retry=retry, name="shrink")
    def resize(image_id: int) -> None: ...

    job = resize.add(1).job
    assert (job.task, job.queue, job.priority, job.lease_seconds, job.stall_seconds) == ("shrink", "images", 3, 7, 9)
    assert job.retry == retry
    job = resize.options(queue="now", priority=0, stall_seconds=None, retry=None).add(1).job
    assert (job.task, job.queue, job.priority, job.lease_seconds, job.stall_seconds) == ("shrink", "now", 0, 7, None)
    assert job.retry is DEFAULT_RETRY or job.retry == DEFAULT_RETRY


def test_every_option_of_add_is_an_option_of_a_tasks_jobs() -> None:
    """But the task itself; and what a task sets for them is one of them."""
    assert JobSettings.__annotations__.keys() == JobOptions.__annotations__.keys() - {"task"}
    own = {"name", "process", "final", "delay", "seals"}
    assert TaskSettings.__annotations__.keys() - own <= JobSettings.__annotations__.keys()


def test_imports_are_the_names_of_modules() -> None:
    """For a worker to import; a Router imports nothing."""
    assert Router(imports=["app.tasks"]).imports == ("app.tasks",)
    assert Router().imports == ()
    with pytest.raises(InvalidArgument, match=r"imports= must be a list of modules: write \['app.tasks'\]"):
        Router(imports="app.tasks")
    with pytest.raises(InvalidArgument, match="a module's name must be a string"):
        Router(imports=[5])  # type: ignore[list-item]


# Adding


def test_add_is_what_router_add_does(router: Router) -> None:
    """With the arguments by name as payload, and the task's name."""

    @router.task
    def resize(lease: Lease, image_id: int, big: bool = False) -> None: ...

    added = resize.add(42, big=True)

    assert added.created
    assert added.job.task == "resize"
    assert added.job.payload == {"image_id": 42, "big": True}
    assert added.job.parent is None
    assert resize.add(42).job.id != resize.add(42).job.id
    assert router.job(added.job.id) == added.job


def test_options_are_those_of_the_job(router: Router, clock: ManualClock) -> None:
    """And never mix with the handler's arguments, however those are called."""

    @router.task
    def move(id: int, queue: str, parent: str) -> None: ...

    run_at = datetime(2100, 1, 1, tzinfo=UTC)
    options = move.options(id="move:1", queue="q", run_at=run_at, lock="a", unique="b", priority=2)
    added = options.add(1, queue="x", parent="y")

    job = router.job("move:1")
    assert added.created
    assert not options.add(1, "x", "y").created
    assert (job.queue, job.run_at, job.lock, job.unique, job.priority) == ("q", run_at, "a", "b", 2)
    assert job.payload == {"id": 1, "queue": "x", "parent": "y"}
    later = move.options(delay_seconds=5)
    clock.advance(60)
    assert (later.add(1, "x", "y").job.run_at - clock.time).total_seconds() == 5, "from the add, not from options()"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": ""}, "a job's id must have 1 to 255 characters"),
        ({"task": "other"}, "options(…) has no 'task': it takes id, parent, connection, savepoint, queue, "),
        ({"run_seconds": 0}, "run_seconds must be above zero, not 0."),
        ({"process": True}, "options(…) has no 'process'"),
        ({"parent": "job-1"}, "parent= must be a Lease, or None for no parent, not 'job-1' (str)."),
        (
            {"delay_seconds": 1, "run_at": datetime(2100, 1, 1, tzinfo=UTC)},
            "a job takes delay_seconds or run_at, not both",
        ),
    ],
)
def test_options_are_checked(router: Router, options: dict[str, Any], said: str) -> None:
    """At once, before an argument is looked at."""

    @router.task
    def move() -> None: ...

    with pytest.raises(InvalidArgument) as refusal:
        move.options(**options)
    assert said in str(refusal.value)


def test_a_job_for_later_gets_its_id_where_it_is_added(router: Router) -> None:
    """One of its own from add_many; from a lease, one that a second run asks for again."""

    @router.task(queue="images")
    def resize(image_id: int) -> None: ...

    wish = resize.job(7)
    assert isinstance(wish, NewJob)
    assert (wish.id, wish.task, wish.queue, wish.payload) == ("", "resize", "images", {"image_id": 7})

    first, second, named = router.add_many([wish, wish, resize.options(id="own").job(7)])
    assert first.created
    assert second.created
    assert first.job.id != second.job.id
    assert named.job.id == "own"

    lease = claimed(router)
    name = child_name("resize", wish.document)
    assert lease.add(wish).job.id == f"{lease.job_id}/{name}"
    assert lease.add(wish).job.id == f"{lease.job_id}/{name}#2"
    assert lease.add(resize.options(id="own").job(7)).job.id == f"{lease.job_id}/own"
    lease.complete(then=[wish, resize.options(id="last").job(8)])
    children = {job.id.removeprefix(lease.job_id) for job in router.jobs(parent=lease.job_id)}
    assert children == {f"/{name}", f"/{name}#2", f"/{name}#3", "/own", "/last"}
    with pytest.raises(InvalidArgument, match="a NewJob already has a payload and options: pass no others"):
        lease.add(wish, {"image_id": 8})


def test_a_job_for_later_does_not_swallow_what_only_add_can_use(router: Router) -> None:
    """Silence would look like consent."""

    @router.task
    def resize() -> None: ...

    router.add("a")
    lease = claimed(router)
    for options in (resize.options(connection=object()), resize.options(parent=lease)):
        with pytest.raises(
            InvalidArgument, match="only describes a job: pass connection= and parent= to the call that adds it"
        ):
            options.job()


# Inside a handler


def test_inside_a_handler_add_makes_a_child_that_a_second_run_finds(router: Router, clock: ManualClock) -> None:
    """The id comes from the parent and the arguments."""

    @router.task
    def step(n: int) -> None: ...

    router.add("parent", lease_seconds=10)
    with claimed(router).active():
        first = step.add(1)
        again = step.add(1)
        named = step.options(id="named").add(n=1)
    clock.advance(11)

    with claimed(router).active():
        assert step.add(1) == (first.job, False)
        assert step.add(1) == (again.job, False)
        assert step.options(id="named").add(1) == (named.job, False)
        assert step.add(2).created

    assert first.job.parent == "parent"
    assert named.job.id == "parent/named"
    assert len(router.jobs(parent="parent")) == 4


def test_a_stale_handler_adds_nothing(router: Router, clock: ManualClock) -> None:
    """Neither a child, nor by its async form; detached, it does."""

    @router.task
    def step(n: int) -> None: ...

    router.add("parent", lease_seconds=10)
    stale = claimed(router)
    clock.advance(11)
    claimed(router)

    with stale.active():
        with pytest.raises(StaleEpoch):
            step.add(1)
        with pytest.raises(StaleEpoch):
            step.options(id="x").add(1)
        with pytest.raises(StaleEpoch):
            asyncio.run(step.aio.add(1))
        with pytest.raises(StaleEpoch):
            step.options(parent=stale).add(1)
        assert len(router.jobs()) == 1
        detached = step.options(parent=None).add(1)
    assert detached.created
    assert detached.job.parent is None
    assert stale.lost


def test_a_detached_job_of_a_completion_has_the_id_that_it_was_given(any_router: Router) -> None:
    """With `then=` and with `lease.add`; a job that has that id is left alone, and without an id it dedupes as ever."""

    @any_router.task
    def step(n: int) -> None: ...

    any_router.add("parent", retry=Retry(max_errors=5, delay_seconds=0))
    lease = claimed(any_router)
    apart = lease.add(step.options(id="apart", parent=None).job(0))
    assert (apart.id, apart.created, apart.job.parent) == ("apart", True, None)
    assert not lease.add(step.options(id="apart", parent=None).job(0)).created
    nameless = lease.add(step.options(parent=None).job(7))
    assert (nameless.created, nameless.job.parent) == (True, None)
    lease.fail("once more")

    again = claimed(any_router)
    assert again.job_id == "parent"
    assert not again.add(step.options(parent=None).job(7)).created
    solo, child = step.options(id="solo", parent=None).job(1), step.options(id="mine").job(2)
    again.complete(then=[solo, child, step.options(id="apart", parent=None).job(9)])

    found = {job.id: (job.parent, job.payload) for job in any_router.jobs() if job.id != "parent"}
    assert found == {
        "apart": (None, {"n": 0}),
        nameless.id: (None, {"n": 7}),
        "solo": (None, {"n": 1}),
        "parent/mine": ("parent", {"n": 2}),
    }


def test_a_detached_job_of_a_refused_completion_is_not_there() -> None:
    """It is part of the completion, whatever its id is."""
    clock = ManualClock()
    router = Router(clock=clock, lease_seconds=10)

    @router.task
    def step(n: int) -> None: ...

    router.add("parent")
    stale = claimed(router)
    clock.advance(11)
    claimed(router)
    with pytest.raises(StaleEpoch):
        stale.complete(then=[step.options(id="solo", parent=None).job(1)])
    assert [job.id for job in router.jobs()] == ["parent"]


def test_a_detached_job_can_be_added_by_the_router(any_router: Router) -> None:
    """Where it would have had no parent anyway."""

    @any_router.task
    def step(n: int) -> None: ...

    named, nameless = any_router.add_many(
        [step.options(id="solo", parent=None).job(1), step.options(parent=None).job(2)]
    )
    assert (named.id, named.job.parent, nameless.job.parent) == ("solo", None, None)


def test_a_lease_of_another_store_is_no_parent() -> None:
    """Its epochs mean nothing there; saying that it is one is refused."""
    here, there = Router(), Router()

    @there.task
    def step(n: int) -> None: ...

    here.add("parent")
    with claimed(here).active() as lease:
        assert step.add(1).job.parent is None
        with pytest.raises(
            InvalidArgument, match=r"in the same store as task .*, and <Lease 'parent' .*> belongs to another"
        ):
            step.options(parent=lease)


def test_a_thread_of_ones_own_names_the_parent(router: Router) -> None:
    """It does not inherit the lease."""

    @router.task
    def step(n: int) -> None: ...

    router.add("parent")
    lease = claimed(router)
    parents: list[str | None] = []

    def run() -> None:
        parents.append(step.add(1).job.parent)
        parents.append(step.options(parent=lease).add(1).job.parent)

    with lease.active():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert parents == [None, "parent"]


def test_async_callers_await_the_same(router: Router) -> None:
    """As their own jobs, and as children."""

    @router.task
    async def step(n: int) -> None: ...

    async def main() -> list[str | None]:
        alone = await step.aio.add(1)
        named = await step.options(id="named").aio.add(n=2)
        with claimed(router).active():
            child = await step.aio.add(3)
            detached = await step.options(parent=None).aio.add(4)
        assert router.job("named") == named.job
        return [added.job.parent for added in (alone, named, child, detached)]

    parents = asyncio.run(main())
    assert parents == [None, None, router.jobs()[0].id, None]
    with pytest.raises(InvalidArgument, match="it must be int"):
        asyncio.run(step.aio.add("x"))  # type: ignore[arg-type]


# In a transaction


def test_a_job_joins_the_callers_transaction(tmp_path: Path) -> None:
    """It exists with the caller's rows or not at all, as a job of its own and as a child; awaited too."""
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}") as router:

        @router.task
        def send(to: str) -> None: ...

        router.add("parent")
        lease = claimed(router)
        connection = sqlite3.connect(path)
        connection.execute("create table letters (id)")
        for ending, left in ((connection.rollback, []), (connection.commit, [None, None, "parent"])):
            connection.execute("insert into letters values (1)")
            send.options(connection=connection).add("a")
            asyncio.run(send.options(connection=connection).aio.add("b"))
            with lease.active():
                send.options(connection=connection).add("c")
            ending()
            assert sorted(str(job.parent) for job in router.jobs(task="send")) == [str(parent) for parent in left]
        connection.close()


def test_a_job_joins_the_transaction_of_an_async_session(tmp_path: Path) -> None:
    """Which belongs to its loop, so only the async form may use it."""
    with Router(f"sqlite:///{tmp_path / 'jobs.db'}") as router:

        @router.task
        def send(to: str) -> None: ...

        async def main() -> None:
            engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}", poolclass=NullPool)
            async with AsyncSession(engine) as session, session.begin():
                joined = send.options(connection=session)
                assert (await joined.aio.add("a")).created
                with lease.active():
                    assert (await joined.aio.add("b")).job.parent == "parent"
                with pytest.raises(Unsupported, match="is an async connection: await the async form"):
                    joined.add("c")
            await engine.dispose()

        router.add("parent")
        lease = claimed(router)
        asyncio.run(main())
        assert [job.payload["to"] for job in router.jobs(task="send")] == ["a", "b"]


# Results


@pytest.mark.parametrize(
    ("annotation", "value", "document"),
    [
        (None, None, "null"),
        (str, "a", '"a"'),
        (Report, Report(date(2026, 11, 16), Decimal("1.5")), '{"on":"2026-11-16","total":"1.5"}'),
        (list[date], [date(2026, 11, 16)], '["2026-11-16"]'),
        (Report | None, None, "null"),
    ],
    ids=repr,
)
def test_a_result_comes_back_as_its_annotation_says(annotation: Any, value: Any, document: str) -> None:
    """By the same rules as arguments."""

    def handle() -> Any: ...

    handle.__annotations__["return"] = annotation
    task = Router().task(handle)

    assert task.encode_result(value) == document
    assert task.decode_result(document) == value


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (Report(date(2026, 11, 16), Decimal(1)), '{"on":"2026-11-16","total":"1"}'),
        ({"a": [date(2026, 11, 16), (1, None)]}, '{"a":["2026-11-16",[1,null]]}'),
        ({"b", "a"}, '["a","b"]'),
        (Kind.LOOP, '"loop"'),
        (type("Mine", (dict,), {})(a=Decimal(1)), '{"a":"1"}'),
        (type("Mine", (float,), {})(1.5), "1.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_result_that_nothing_is_said_about_is_kept_by_its_own_type(value: Any, document: str) -> None:
    """Without an annotation, with one that cannot be resolved or kept, and with one that does not hold."""
    for annotation in (inspect.Signature.empty, "Nowhere", Opaque, int, Any):

        def handle() -> Any: ...

        handle.__annotations__.clear()
        if annotation is not inspect.Signature.empty:
            handle.__annotations__["return"] = annotation
        assert Router().task(handle).encode_result(value) == document


def test_what_was_kept_by_another_release_comes_back_as_json_has_it() -> None:
    """A reader of old results is not stopped by a new annotation."""

    def handle() -> Report: ...  # type: ignore[empty-body]

    task = Router().task(handle)
    assert task.decode_result('{"on":"2026-11-16"}') == {"on": "2026-11-16"}
    assert task.decode_result(None) is None


def test_an_unstorable_result_names_the_task_and_the_type() -> None:
    """And what to do instead."""
    router = Router()

    @router.task
    def handle() -> Any: ...

    def said(value: object) -> str:
        with pytest.raises(InvalidArgument) as refusal:
            handle.encode_result(value)
        return str(refusal.value)

    assert "the result of task 'handle' is <" in said(Opaque())
    advice = " Return a value that JSON can hold, or None. The work is done, so the job is not retried."
    assert said(Opaque()).endswith(f" (Opaque) and cannot be stored: JSON has no form for Opaque.{advice}")
    assert "and cannot be stored at .a[0]: JSON has no form for Opaque." in said({"a": [Opaque()]})
    assert said({1: 2}).startswith("the result of task 'handle' has the key 1 (int)")
    assert said(float("nan")).startswith("the result of task 'handle' cannot be stored as JSON: ")
    assert said("x" * 2**20).startswith("the result of task 'handle' has 1,048,578 bytes as JSON")
    endless: list[Any] = []
    endless.append(endless)
    assert said(endless) == "the result of task 'handle' is nested too deeply, or contains itself." + advice


def test_a_coroutine_that_nobody_awaits_is_no_result() -> None:
    """A plain wrapper around an `async def` runs on a thread, and nothing would have happened."""
    router = Router()

    async def work() -> None: ...

    @router.task
    @functools.wraps(work)
    def wrapper() -> Any:
        return work()

    with pytest.raises(InvalidArgument, match="task 'work' returned a coroutine, which was never awaited"):
        wrapper.encode_result(wrapper())
