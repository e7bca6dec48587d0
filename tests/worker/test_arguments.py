"""A handler's arguments: what may be passed, how it is kept, and that it comes back as it was."""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Optional,
    Union,
)
from zoneinfo import ZoneInfo

import msgspec
import pytest

from leasehold import InvalidArgument, Router
from leasehold.core import documents
from leasehold.tasks.arguments import Unbindable
from leasehold.tasks.task import AnyTask

if TYPE_CHECKING:
    from fractions import Fraction
from .argument_types import (
    Box,
    Checked,
    Colour,
    CustomerId,
    Film,
    Fussy,
    Key,
    Level,
    Model,
    OneWay,
    Opaque,
    Pair,
    Partial,
    Picky,
    Place,
    Point,
    Point3,
    Rights,
    Shape,
    Struct,
    Tree,
    WithInitVar,
)


@pytest.fixture
def router() -> Router:
    """Where the tasks of a test are."""
    return Router()


def task_of(annotation: Any, router: Router | None = None) -> AnyTask:
    """A task whose only argument, x, has this annotation."""

    def handle(x: Any) -> None: ...

    handle.__annotations__ = {"x": annotation, "return": None}
    return (router or Router()).task(handle)


NOW = datetime(2026, 11, 16, 12, 30, 0, 123456, tzinfo=UTC)
ZURICH = ZoneInfo("Europe/Zurich")


def numbered(cases: list[tuple[Any, Any, Any]]) -> list[str]:
    """Names that are the same in every process, which a set or an object's address in them would not be."""
    return [f"{number}-{getattr(annotation, '__name__', '')}" for number, (annotation, _, _) in enumerate(cases)]


KEPT: list[tuple[Any, Any, Any]] = [
    # annotation, value, as it is kept
    (int, 42, 42),
    (int, 2**80, 2**80),
    (int, True, True),
    (float, 1.5, 1.5),
    (float, 3, 3),
    (str, "ü\u2028", "ü\u2028"),
    (bool, False, False),
    (None, None, None),
    (Any, {"a": [1, None]}, {"a": [1, None]}),
    (object, "x", "x"),
    (list, [1, "a"], [1, "a"]),
    (dict, {"a": 1}, {"a": 1}),
    (tuple, (1, "a"), [1, "a"]),
    (set, {1}, [1]),
    (list[int], [1, 2], [1, 2]),
    (list[datetime], [NOW], ["2026-11-16T12:30:00.123456+00:00"]),
    (dict[str, date], {"a": NOW.date()}, {"a": "2026-11-16"}),
    (dict[Key, int], {Key("a"): 1}, {"a": 1}),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (Sequence[int], [1, 2], [1, 2]),
    (tuple[int, datetime], (1, NOW), [1, "2026-11-16T12:30:00.123456+00:00"]),
    (tuple[int, ...], (1, 2, 3), [1, 2, 3]),
    (tuple[()], (), []),
    (set[str], {"b", "a", "c"}, ["a", "b", "c"]),
    (frozenset[date], frozenset({date(2026, 1, 2)}), ["2026-01-02"]),
    (datetime, NOW, "2026-11-16T12:30:00.123456+00:00"),
    (datetime, NOW.astimezone(timezone(timedelta(hours=-3))), "2026-11-16T09:30:00.123456-03:00"),
    (date, date(2026, 11, 16), "2026-11-16"),
    (time, time(23, 59, 1), "23:59:01"),
    (time, time(1, 2, tzinfo=UTC), "01:02:00+00:00"),
    (timedelta, timedelta(days=1, microseconds=1), 86400.000001),
    (uuid.UUID, uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Decimal, Decimal("1.10"), "1.10"),
    (bytes, b"\x00\xff", "AP8="),
    (Path, Path("/etc/hosts"), "/etc/hosts"),
    (PurePosixPath, PurePosixPath("a/b"), "a/b"),
    (Colour, Colour.RED, "red"),
    (Shape, Shape.WIDE, "WIDE"),
    (Rights, Rights.READ | Rights.WRITE, 3),
    (Level, Level.LOW, 1),
    (Literal["a", 1, None], 1, 1),
    (Literal[Colour.RED], Colour.RED, "red"),
    (int | None, None, None),
    (Optional[datetime], NOW, "2026-11-16T12:30:00.123456+00:00"),  # noqa: UP045  # both ways of writing it
    (Union[int, str], "x", "x"),  # noqa: UP007
    (datetime | str, "tomorrow", "tomorrow"),
    (datetime | str, NOW, "2026-11-16T12:30:00.123456+00:00"),
    (Decimal | int, 5, 5),
    (Colour | Point | None, Point(1), {"x": 1, "y": 0}),
    (CustomerId, CustomerId(7), 7),
    (Annotated[date, "a day"], date(2026, 11, 16), "2026-11-16"),
    (Point, Point(1, 2), {"x": 1, "y": 2}),
    (Tree, Tree(NOW, [Tree(NOW)]), None),
    (Place, Place(NOW), {"at": "2026-11-16T12:30:00.123456+00:00", "name": "here"}),
    (Pair, Pair(1, "b"), {"left": 1, "right": "b"}),
    (Film, {"title": "Alien"}, {"title": "Alien"}),
    (Film, {"title": "Alien", "shown": date(1979, 5, 25)}, {"title": "Alien", "shown": "1979-05-25"}),
    (Partial, {"title": "Alien"}, {"title": "Alien"}),
    (Model, Model(when=NOW, theSize=3), {"when": "2026-11-16T12:30:00.123456Z", "theSize": 3}),
    (Struct, Struct(NOW, {1: "a"}), {"when": "2026-11-16T12:30:00.123456Z", "names": {"1": "a"}}),
    (Checked, Checked(1, date(2026, 11, 16)), {"n": 1, "on": "2026-11-16"}),
    (list[Model], [Model(when=NOW, theSize=3)], None),
]


@pytest.mark.parametrize(("annotation", "value", "kept"), KEPT, ids=numbered(KEPT))
def test_what_is_passed_comes_back_as_it_was(annotation: Any, value: Any, kept: Any) -> None:
    """Equal, of the same type, and in between as the page on tasks says."""
    task = task_of(annotation)

    job = task.job(value)

    assert kept is None or job.payload == {"x": kept}
    back = task.arguments(job.document)["x"]
    assert back == value
    assert type(back) is type(value)


REFUSED: list[tuple[Any, Any, str]] = [
    (int, "x", "argument 'x' of task 'handle': it must be int, not 'x' (str)."),
    (int, 1.0, "argument 'x' of task 'handle': it must be int, not 1.0 (float)."),
    (int, None, "argument 'x' of task 'handle': it must be int, not None (NoneType)."),
    (bool, 1, "argument 'x' of task 'handle': it must be bool, not 1 (int)."),
    (float, math.nan, "argument 'x' of task 'handle' cannot be stored as JSON: "),
    (Any, Opaque(), "argument 'x' of task 'handle' cannot be stored as JSON: "),
    (Any, {1: "a"}, "argument 'x' of task 'handle' has the key 1 (int): keys in JSON are strings"),
    (dict, {1: "a"}, "argument 'x' of task 'handle': its key 1 (int) is not a string: JSON has only string keys"),
    (set, {Opaque()}, "argument 'x' of task 'handle': its content cannot be stored as JSON: Object of type Opaque is"),
    ({}, 1, "argument 'x' of task 'handle' is annotated as {}, and a payload cannot hold {}: "),
    (dict[str, int], {"a": "b"}, "argument 'x.a' of task 'handle': it must be int, not 'b' (str)."),
    (dict[str, int], {"a b": "b"}, "argument \"x['a b']\" of task 'handle': it must be int, not 'b' (str)."),
    (dict[str, int], [1], "argument 'x' of task 'handle': it must be dict[str, int], not [1] (list)."),
    (dict[int, str], {1: "a"}, "hold dict[int, str], whose keys are not strings, as JSON's are: pass"),
    (list[list[int]], [[1], [2, "x"]], "argument 'x[1][1]' of task 'handle': it must be int, not 'x' (str)."),
    (list[int], (1,), "it must be list[int], not (1,) (tuple)."),
    (Sequence[str], "ab", "it must be collections.abc.Sequence[str], not 'ab' (str)."),
    (tuple[int, int], (1,), "it must be tuple[int, int], not (1,) (tuple)."),
    (set[int], {"a"}, "it must be int, not 'a' (str)."),
    (datetime, NOW.replace(tzinfo=None), "a datetime must have a time zone, and 2026-11-16T12:30:00.123456 has none"),
    (date, NOW, "would lose its time: pass its .date()."),
    (time, time(1, tzinfo=ZURICH), "depends on the day, so "),
    (
        timedelta,
        timedelta(days=10**6, microseconds=1),
        "is too long: stored as a number of seconds, it would lose its microseconds.",
    ),
    (timedelta, timedelta.max, "is too long: stored as a number of seconds, it would lose its microseconds."),
    (Decimal, Decimal("nan"), "it must be finite, not Decimal('NaN') (Decimal)."),
    (Decimal, 1, "it must be Decimal, not 1 (int)."),
    (bytes, bytearray(b"x"), "it must be bytes, not bytearray(b'x') (bytearray)."),
    (Path, "/etc", "it must be Path, not '/etc' (str)."),
    (Path, Path("\udce4"), "argument 'x' of task 'handle' contains half a character"),
    (Colour, "red", "it must be Colour, not 'red' (str)."),
    (Literal["a", 1], True, "it must be Literal['a', 1], not True (bool)."),
    (Literal["a"], ["a"], "it must be Literal['a'], not ['a'] (list)."),
    (int | None, "x", "it must be int, not 'x' (str)."),
    (int | datetime, "x", "it must be int | datetime.datetime, not 'x' (str)."),
    (
        datetime | str,
        "2026-11-16T12:30:00+00:00",
        "would come back as datetime: its JSON fits more than one member of the annotation datetime.datetime | str",
    ),
    (Point, {"x": 1}, "it must be Point, not {'x': 1} (dict)."),
    (Point, Point3(1), "it must be Point, not Point3(x=1, y=0, z=0) (Point3)."),
    (Point, Point("a"), "argument 'x.x' of task 'handle': it must be int, not 'a' (str)."),  # type: ignore[arg-type]
    (Film, {}, "Film needs 'title'."),
    (Partial, {"year": 1979}, "Partial needs 'title'."),
    (Film, {"title": "Alien", "year": 1979}, "Film has no 'year'."),
    (Model, {"when": NOW}, "it must be Model, not {'when': "),
    (OneWay, OneWay.model_validate({"in": 1}), "OneWay refuses it: 1 validation error for OneWay in Field required"),
    (Struct, Struct("later", {}), "Struct refuses it: Invalid RFC3339 encoded datetime - at `$.when`."),  # type: ignore[arg-type]
    (Struct, Struct(NOW, {1: Opaque()}), "Struct cannot be stored: Encoding objects of type Opaque is unsupported."),  # type: ignore[dict-item]
    (Struct, None, "it must be Struct, not None (NoneType)."),
    (Opaque, Opaque(), "argument 'x' of task 'handle' is annotated as Opaque, and a payload cannot hold Opaque: "),
    (
        list[Opaque],
        [],
        "is annotated as list[tests.worker.argument_types.Opaque], and a payload cannot hold Opaque: ",
    ),
    (
        Callable[[], int],
        len,
        "a payload cannot hold collections.abc.Callable[[], int]: pass something from which the value can be rebuilt",
    ),
    (WithInitVar, 1, "a payload cannot hold WithInitVar, which takes an InitVar, whose value cannot be read back: "),
    (Box[int], Box(1), "and a payload cannot hold tests.worker.argument_types.Box[int]: "),
    (Literal[b"a"], b"a", "a payload cannot hold Literal[b'a']: "),
    (Literal["red", Colour.RED], "red", "of which two look alike in JSON: "),
]


@pytest.mark.parametrize(("annotation", "value", "said"), REFUSED, ids=numbered(REFUSED))
def test_what_would_not_come_back_is_refused_and_the_argument_named(annotation: Any, value: Any, said: str) -> None:
    """At add, before anything is stored."""
    router = Router()

    with pytest.raises(InvalidArgument) as refusal:
        task_of(annotation, router).add(value)

    assert said in str(refusal.value)
    assert "'x" in str(refusal.value) or '"x' in str(refusal.value)
    assert router.jobs() == []


def test_what_contains_itself_is_refused() -> None:
    """With an error of ours, not with a full stack."""
    endless: list[Any] = []
    endless.append(endless)
    tree = Tree(NOW, [])
    tree.below.append(tree)

    with pytest.raises(InvalidArgument, match="argument 'x' of task 'handle' is nested too deeply, or contains itself"):
        task_of(list[Any]).job(endless)
    with pytest.raises(InvalidArgument, match="argument 'x' of task 'handle' is nested too deeply, or contains itself"):
        task_of(Tree).job(tree)


def test_arguments_that_are_too_long_together_are_refused(router: Router) -> None:
    """Each may fit, and the payload not."""

    @router.task
    def join(a: str, b: str) -> None: ...

    half = "x" * (documents.DOCUMENT_LIMIT // 2)
    with pytest.raises(InvalidArgument, match=r"^the arguments of task 'join': payload has 1,048,591 bytes as JSON"):
        join.job(half, half)
    with pytest.raises(InvalidArgument, match=r"^argument 'b' of task 'join' has 1,572,866 bytes as JSON"):
        join.job("", half * 3)


def test_a_set_is_kept_in_the_same_order_in_every_process() -> None:
    """A child without a name is named by its payload: a second run in another process must find it."""
    names = {f"name-{n}" for n in range(50)}

    class Named(msgspec.Struct):
        names: set[str]

    assert task_of(set[str]).job(names).payload == {"x": sorted(names)}
    assert task_of(Named).job(Named(names)).payload == {"x": {"names": sorted(names)}}
    assert task_of(None).encode_result(names) == documents.encode(sorted(names), "x")


# Binding


def test_arguments_are_kept_by_name_in_the_order_of_the_signature(router: Router) -> None:
    """However they were passed, so that the same call is the same payload."""

    @router.task
    def send(to: str, subject: str = "", *, urgent: bool = False) -> None: ...

    documents = {
        send.job("a", "b", urgent=True).document,
        send.job("a", urgent=True, subject="b").document,
        send.job(urgent=True, subject="b", to="a").document,
    }

    assert documents == {'{"to":"a","subject":"b","urgent":true}'}


def test_a_default_is_not_kept_unless_it_was_passed(router: Router) -> None:
    """So a deploy may change it for the jobs that wait."""

    @router.task
    def send(to: str, retries: int = 3) -> None: ...

    assert send.job("a").document == '{"to":"a"}'
    assert send.job("a", 3).document == '{"to":"a","retries":3}'
    assert send.arguments('{"to":"a"}') == {"to": "a"}


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (
            (),
            {},
            "task 'send' needs argument 'to', 'urgent': its arguments are (to: str, n: int = 1, *, urgent: bool).",
        ),
        (("a",), {}, "task 'send' needs argument 'urgent': "),
        (("a", 1, True), {}, "task 'send' takes 2 positional arguments, not 3: its arguments are (to: "),
        (("a",), {"to": "b", "urgent": True}, "task 'send' got argument 'to' twice, by position and by name."),
        (("a",), {"queue": "q", "urgent": True}, "task 'send' has no argument 'queue': its arguments are (to: "),
    ],
)
def test_a_call_that_does_not_fit_the_signature_is_refused(router: Router, args: Any, kwargs: Any, said: str) -> None:
    """With what the signature is."""

    @router.task
    def send(to: str, n: int = 1, *, urgent: bool) -> None: ...

    with pytest.raises(InvalidArgument) as refusal:
        send.add(*args, **kwargs)

    assert said in str(refusal.value)


def test_a_task_without_arguments_has_an_empty_object_as_payload(router: Router) -> None:
    """And one added by name, without any payload, runs too."""

    @router.task
    def sweep() -> None: ...

    assert sweep.job().document == "{}"
    assert sweep.arguments("{}") == {}
    assert sweep.arguments("null") == {}
    with pytest.raises(InvalidArgument, match="task 'sweep' takes 0 positional arguments, not 1"):
        sweep.job(*[1])


# What no longer fits


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            "{}",
            "the payload has no 'to', which task 'send' in this process needs: its arguments are "
            "(to: str, at: datetime | None = None).",
        ),
        ("null", "the payload has no 'to', which task 'send' in this process needs: its arguments are (to: "),
        (
            '{"to":"a","cc":1}',
            "the payload has 'cc', which task 'send' in this process does not take: its arguments are (to: ",
        ),
        ("[1]", "task 'send' takes its arguments by name from a JSON object, and the payload is [1]."),
        ('"to"', 'and the payload is "to".'),
        (
            '{"to":"a","at":"x"}',
            "argument 'at' in the payload does not fit task 'send': 'x' (str) is not a valid datetime.",
        ),
        (
            '{"to":"a","at":"2026-01-01"}',
            "argument 'at' in the payload does not fit task 'send': '2026-01-01' has no time zone.",
        ),
        (
            '{"to":"a","at":5}',
            "argument 'at' in the payload does not fit task 'send': 5 (int) is not a valid datetime.",
        ),
    ],
)
def test_a_payload_that_does_not_fit_the_handler_here_is_unbindable(router: Router, document: str, said: str) -> None:
    """The worker releases such a job: another release of the program may know it."""

    @router.task
    def send(to: str, at: datetime | None = None) -> None: ...

    with pytest.raises(Unbindable) as refusal:
        send.arguments(document)

    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("annotation", "kept", "said"),
    [
        (Colour, '"green"', "'green' (str) is not a valid Colour."),
        (Shape, '"ROUND"', "'ROUND' (str) is not a valid Shape."),
        (Literal["a"], '"b"', "it must be Literal['a'], not 'b' (str)."),
        (uuid.UUID, '"7"', "'7' (str) is not a valid UUID."),
        (Decimal, '"x"', "'x' (str) is not a valid Decimal."),
        (Decimal, '"Infinity"', "'Infinity' is not finite."),
        (bytes, '"*"', "'*' (str) is not a valid bytes."),
        (timedelta, "true", "True (bool) is not a number of seconds."),
        (timedelta, "1e300", "1e+300 seconds are too long for a timedelta."),
        (Point, "[1]", "[1] (list) is not a valid Point."),
        (Point, '{"y":1}', "Point needs 'x'."),
        (Point, '{"x":1,"z":1}', "Point has no 'z'."),
        (
            Tree,
            '{"when":"2026-01-01T00:00Z","below":[{"when":1}]}',
            "argument 'x.below[0].when' in the payload does not fit task 'handle': 1 ",
        ),
        (Picky, '{"n":-1}', "Picky refuses it: LookupError: n is below zero."),
        (Model, '{"when":"2026-01-01T00:00Z","theSize":-1}', "Model refuses it: 1 validation error for Model theSize"),
        (Fussy, '{"n":2}', "argument 'x' in the payload does not fit task 'handle': KeyError: 2."),
        (Struct, '{"when":1}', "Struct refuses it: Expected `datetime`, got `int` - at `$.when`."),
        (set[Any], "[[1]]", "[[1]] (list) is not a valid set[typing.Any]."),
        (tuple[int, ...], "1", "1 (int) is not a valid tuple[int, ...]."),
        (tuple[int, int], "[1]", "[1] (list) is not a valid tuple[int, int]."),
        (dict[str, date], "[1]", "[1] (list) is not a valid dict[str, datetime.date]."),
        (
            list[date],
            '["x"]',
            "argument 'x[0]' in the payload does not fit task 'handle': 'x' (str) is not a valid date.",
        ),
        (int | date, '"x"', "it must be int | datetime.date, not 'x' (str)."),
        (Opaque, "1", "argument 'x' of task 'handle' in this process is annotated as Opaque: Opaque."),
    ],
)
def test_a_value_that_cannot_be_brought_back_is_unbindable(annotation: Any, kept: str, said: str) -> None:
    """With the argument, and what is wrong with it."""
    with pytest.raises(Unbindable) as refusal:
        task_of(annotation).arguments(f'{{"x":{kept}}}')

    assert said.replace("typing.", "") in str(refusal.value)


def test_fields_with_defaults_may_be_missing_in_what_was_kept() -> None:
    """So a deploy may add one."""
    assert task_of(Point).arguments('{"x":{"x":1}}') == {"x": Point(1)}
    assert task_of(Place).arguments('{"x":{"at":"2026-11-16T12:30:00.123456Z"}}') == {"x": Place(NOW)}


# Annotations


def test_a_name_that_is_defined_later_is_resolved_when_it_is_needed(router: Router) -> None:
    """Annotations are strings here, and the class comes after the task."""
    later = globals()
    later.pop("DefinedLater", None)

    @router.task
    def handle(y: int, x: DefinedLater) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidArgument) as refusal:
        handle.job(0, Colour.RED)
    assert str(refusal.value) == (
        "argument 'x' of task 'handle' is annotated as DefinedLater, which cannot be resolved: name 'DefinedLater' is "
        f"not defined. Import the name in {__name__}, at its top level and not under TYPE_CHECKING."
    )
    with pytest.raises(Unbindable, match="annotated as DefinedLater: name 'DefinedLater' is not defined"):
        handle.arguments('{"y":0,"x":"red"}')

    later["DefinedLater"] = Colour
    try:
        assert handle.arguments(handle.job(0, Colour.RED).document) == {"y": 0, "x": Colour.RED}
    finally:
        del later["DefinedLater"]


def test_an_annotation_that_is_never_resolved_matters_only_if_a_value_is_passed(router: Router) -> None:
    """As is one that cannot be kept: with its default, the handler runs."""

    @router.task
    def handle(n: int, ratio: Fraction | None = None, opaque: Opaque = Opaque()) -> None: ...  # noqa: B008

    assert handle.job(1).document == '{"n":1}'
    assert handle.arguments('{"n":1}') == {"n": 1}
    with pytest.raises(InvalidArgument, match=r"annotated as Fraction \| None, which cannot be resolved"):
        handle.job(1, ratio=None)
    with pytest.raises(InvalidArgument, match="annotated as Opaque, and a payload cannot hold Opaque"):
        handle.job(1, opaque=Opaque())


def test_a_parameter_without_an_annotation_takes_what_json_has(router: Router) -> None:
    """As Any does."""

    @router.task
    def handle(x, y=1):  # type: ignore[no-untyped-def]
        return x, y

    assert handle.job([1], y=None).payload == {"x": [1], "y": None}
    with pytest.raises(InvalidArgument, match="argument 'x' of task 'handle' cannot be stored as JSON"):
        handle.job(Opaque())


def test_plain_arguments_are_not_looked_at_again_when_a_job_runs(router: Router) -> None:
    """The names are, and JSON's own values are passed on as they are."""

    @router.task
    def handle(a: int, b: list[str] | None, c: dict[str, Any]) -> None: ...

    given = handle.arguments('{"a":"not an int","b":[],"c":{}}')

    assert given == {"a": "not an int", "b": [], "c": {}}
    assert handle._arguments._loaders == ()


def test_other_libraries_are_not_imported_for_those_who_do_not_use_them() -> None:
    """A model's class is known by the module that is loaded already."""
    import subprocess

    program = (
        "import sys\nfrom leasehold import Router\nrouter = Router()\n"
        "class Plain: ...\n"
        "@router.task\ndef handle(x: int, y: Plain = None): ...\n"
        "handle.add(1)\nprint(sorted({'pydantic', 'msgspec'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_a_recursive_alias_is_kept() -> None:
    """As `type nested = …` makes one from Python 3.12 on; here an object that looks like it."""

    class Alias:
        __name__ = "nested"
        __value__: Any = None

        def __call__(self) -> None: ...  # what typing asks of an annotation

    nested = Alias()
    Alias.__value__ = dict[str, nested] | date  # type: ignore[valid-type]
    task = task_of(nested)
    value = {"a": {"b": date(2026, 11, 16)}}

    assert task.job(value).payload == {"x": {"a": {"b": "2026-11-16"}}}
    assert task.arguments(task.job(value).document) == {"x": value}


def test_the_hour_that_comes_twice_is_told_apart() -> None:
    """The offset is kept, and so the instant."""
    task = task_of(datetime)
    second = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZURICH)

    back = task.arguments(task.job(second).document)["x"]

    assert back.astimezone(UTC) == second.astimezone(UTC) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
