"""Finds the Router that `module.sub:attribute` names; its errors list the names that exist."""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import click

from .. import Router

ATTRIBUTE = "router"
_PACKAGE = str(Path(__file__).parents[1])
_FRAMES = 8  # of a traceback, beginning with the innermost
_SHOWN = 8  # names in a list


class NotLoaded(click.ClickException):
    """The path names no Router that can be used."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        """Print the message on stderr."""
        click.echo(f"leasehold: {self.message}", err=True)


def load(path: str, folder: str = ".") -> Router:
    """Return the Router that *path* names, with *folder* importable and the modules of its `imports` imported."""
    home = os.path.abspath(folder)
    if not os.path.isdir(home):
        raise NotLoaded(f"--app-dir {folder!r} is not a folder; name one that exists.")
    if home not in sys.path:
        sys.path.insert(0, home)
    name, _, attribute = path.partition(":")
    _check(path, name, attribute)
    module = _imported(name, home, f"cannot import {name!r}")
    router = _attribute(module, attribute or ATTRIBUTE, path)
    for extra in router.imports:
        _imported(extra, home, f"Router(imports=…) of {path!r} names {extra!r}, which cannot be imported")
    return router


def shortened(error: BaseException) -> str:
    """Return the traceback without what Python and leasehold did on the way: the user's own frames, the last few."""
    frames = _own(error)
    shown = traceback.format_list(frames[-_FRAMES:])
    left = len(frames) - _FRAMES
    head = "Traceback (most recent call last):\n" + (f"  … {left} more\n" if left > 0 else "") if shown else ""
    return (head + "".join(shown) + "".join(traceback.format_exception_only(error))).rstrip()


def _own(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [
        frame
        for frame in frames
        if not frame.filename.startswith(("<frozen", _PACKAGE + os.sep)) and frame.filename != importlib.__file__
    ]


# The module


def _check(path: str, name: str, attribute: str) -> None:
    if name.endswith(".py") or "/" in name or os.sep in name:
        module = name.removesuffix(".py").removeprefix("./").replace(os.sep, ".").replace("/", ".").strip(".")
        hint = f"{module}:{attribute}" if attribute else module
        raise NotLoaded(f"{path!r} is the path of a file. Pass the name of the module instead: {hint}")
    parts = [*name.split("."), *(attribute.split(".") if attribute or path.endswith(":") else [])]
    if not all(part.isidentifier() for part in parts):
        raise NotLoaded(f"{path!r} is not a valid import path. Write module:attribute, for instance app:{ATTRIBUTE}.")


def _imported(name: str, home: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Missing is the module itself, or a package that it is in; what a module imports in turn is its own affair.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise NotLoaded(f"{what}: {_missing(error.name, home)}") from None
        raise NotLoaded(f"{what}: it raised an error.\n{shortened(error)}") from None
    except (Exception, SystemExit) as error:
        raise NotLoaded(f"{what}: it raised an error.\n{shortened(error)}") from None


def _missing(name: str, home: str) -> str:
    parent, _, last = name.rpartition(".")
    if not parent:
        return f"no module {last!r} was found in {home} or on Python's own path.{_near(last, _modules([home]))}"
    package = sys.modules[parent]
    paths = getattr(package, "__path__", None)
    if paths is None:
        return (
            f"{parent!r} is a module, not a package, so it contains no module {last!r}. Did you mean {parent}:{last}?"
        )
    return f"no module {last!r} was found in the package {parent!r}.{_near(last, _modules(paths))}"


def _modules(paths: Iterable[str]) -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(list(paths)) if not found.name.startswith("_"))


def _near(name: str, names: list[str]) -> str:
    """Return a sentence with the close matches, or else with the names that exist."""
    if near := difflib.get_close_matches(name, names, n=3):
        return f" Did you mean {' or '.join(map(repr, near))}?"
    if not names:
        return " It contains no modules."
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f" Modules there: {', '.join(names[:_SHOWN])}{more}."


# The attribute


def _attribute(module: ModuleType, attribute: str, path: str) -> Router:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = f"the module {module.__name__!r}" if found is module else f"{_kind(found)} in {path!r}"
            raise NotLoaded(f"{where} has no {part!r}.{_routers(module)}") from None
    if not isinstance(found, Router):
        raise NotLoaded(f"{module.__name__}:{attribute} is {_kind(found)}, not a Router.{_routers(module)}")
    return found


def _kind(value: object) -> str:
    # Not its repr, which may hold a password.
    kind = type(value)
    if kind.__module__ == "builtins":
        return {"function": "a function", "module": "a module", "type": "a class"}.get(
            kind.__name__, f"a value of type {kind.__name__}"
        )
    return f"a value of type {kind.__module__}.{kind.__qualname__}"


def _routers(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Router)]
    if not names:
        return f" There is no Router in {module.__name__!r}: write {ATTRIBUTE} = Router(…) at its top level."
    return f" It has: {', '.join(f'{module.__name__}:{name}' for name in names)}."


def others(router: Router) -> str:
    """Return a sentence with the other Routers that have tasks, in the modules that are imported."""
    found: dict[int, tuple[str, int]] = {}
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            # By the type itself: asking a lazy object for its class may load what is behind it.
            if issubclass(type(value), Router) and value is not router and value.tasks:
                found.setdefault(id(value), (f"{name}:{attribute}", len(value.tasks)))
    if not found:
        return ""
    shown = " and ".join(f"{path} has {count} task{'' if count == 1 else 's'}" for path, count in found.values())
    return f" {shown}: did you mean {'it' if len(found) == 1 else 'one of them'}?"
