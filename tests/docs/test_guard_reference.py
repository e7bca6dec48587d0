"""The reference of the guards has each of them, with the arguments that it takes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from leasehold import guards
from leasehold.guard import Guard

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
NAMES = ["FileGuard", "Gate", "GitGuard", "HttpGuard", "ObjectGuard", "SqlGuard"]


def written(function: Any) -> str:
    """How the page writes the arguments."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return re.sub("'", '"', str(inspect.Signature(plain)))


def test_every_guard_is_among_them() -> None:
    """One that is added comes with its line."""
    found = [getattr(guards, name) for name in guards.__all__]
    assert sorted(one.__name__ for one in found if issubclass(one, Guard) and one is not Guard) == [
        name for name in NAMES if issubclass(getattr(guards, name), Guard)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_its_arguments_and_defaults(name: str) -> None:
    """As the class takes them."""
    assert f"`{name}{written(getattr(guards, name))}`" in PAGE


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_only_verbs_that_there_are(name: str) -> None:
    """In the rows that begin with the guard's name."""
    for verbs in re.findall(rf"^\| `{name}`: (.*?) \|", PAGE, re.MULTILINE):
        for verb in re.findall(r"`(\w+)", verbs):
            assert hasattr(getattr(guards, name), verb), verb
