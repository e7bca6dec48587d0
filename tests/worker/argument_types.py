"""Types that arguments of tasks have, in tests."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime
from typing import (
    TYPE_CHECKING,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pydantic.dataclasses

if TYPE_CHECKING:
    pass

T = TypeVar("T")
CustomerId = NewType("CustomerId", int)
Key = NewType("Key", str)


class Colour(enum.Enum):
    """By value."""

    RED = "red"
    BLUE = "blue"


class Shape(enum.Enum):
    """By name: JSON would make lists of the values."""

    SQUARE = (1, 1)
    WIDE = (2, 1)


class Rights(enum.Flag):
    """By value, also several at once."""

    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    """An int, and more."""

    LOW = 1


@dataclass(frozen=True)
class Point:
    """A plain record."""

    x: int
    y: int = 0


@dataclass(frozen=True)
class Tree:
    """A record that contains itself."""

    when: datetime
    below: list[Tree] = field(default_factory=list)
    size: int = field(init=False, default=1)


@dataclass
class Picky:
    """A record that looks at what it gets."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise LookupError("n is below zero")


@dataclass
class WithInitVar:
    """What it is made from cannot be read back."""

    n: int
    hidden: InitVar[int]


@dataclass
class Box(Generic[T]):
    """A generic record."""

    content: T


@dataclass(frozen=True)
class Point3(Point):
    """More than a point."""

    z: int = 0


class Place(NamedTuple):
    """A tuple with names."""

    at: datetime
    name: str = "here"


Pair = namedtuple("Pair", "left right")  # one without types


class Film(TypedDict):
    """A dictionary with names."""

    title: str
    shown: NotRequired[date]


class Partial(TypedDict, total=False):
    """Where most may be missing."""

    title: Required[str]
    year: int


class Model(pydantic.BaseModel):
    """Of pydantic."""

    model_config = pydantic.ConfigDict(strict=True)

    when: datetime
    size: int = pydantic.Field(alias="theSize", ge=0)


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass that pydantic looks after."""

    n: int
    on: date


class OneWay(pydantic.BaseModel):
    """It writes what it would not read."""

    size: int = pydantic.Field(validation_alias="in", serialization_alias="out")


class Fussy(pydantic.BaseModel):
    """Its validator fails in a way that pydantic does not expect."""

    n: int

    @pydantic.field_validator("n")
    @classmethod
    def look_up(cls, n: int) -> int:
        """Look it up."""
        return {1: 1}[n]


class Struct(msgspec.Struct):
    """Of msgspec."""

    when: datetime
    names: dict[int, str]


class Opaque:
    """Nothing can be known of it."""

    def __repr__(self) -> str:
        return "<opaque>"
