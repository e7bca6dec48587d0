"""
The reference of the public Python names, as Markdown pages, written from signatures and docstrings. For scripts/docs.

The package is imported and inspected, not parsed: many verbs of `Router` and `Lease` are functions of other modules
that the class takes as methods, and a parser would show them as attributes without a signature.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

# The modules whose names are public (docs/reference/versions.md), and what is left out of each.
MODULES: dict[str, set[str]] = {
    "leasehold": set(),
    "leasehold.guards": set(),
    "leasehold.guards.http": {"HttpGuard"},  # which leasehold.guards has too
    "leasehold.credentials": set(),
    "leasehold.testing": set(),
    "leasehold.testing.store_contract": set(),
    "leasehold.testing.guard_contract": {"Child", "Race", "Staged", "races"},
    "leasehold.store": {"EVENTS_AT_ONCE", "Begun", "Program", "Pruned", "ids_before"},
    "leasehold.worker.events": {"listen", "Observers"},
}
FIRST = ("Router", "Lease", "current_lease", "Task", "TaskOptions", "Worker", "AsyncRouter", "AsyncLease", "AsyncTask")
_WIDE = 96  # characters of a signature that stay on one line
_SPAN = re.compile(r"(?<![`\[])`([A-Z]\w+)`(?!`)")


class Page(NamedTuple):
    """A page: where it goes below `reference/`, and its text."""

    path: str
    text: str


def pages() -> list[Page]:
    """Return a page for each public module."""
    names = {module: public_names(module) for module in MODULES}
    homes: dict[str, str] = {}
    for module, found in names.items():
        for name in found:
            homes.setdefault(name, module)
    return [Page(path_of(module), _page(module, names[module], homes)) for module in MODULES]


def path_of(module: str) -> str:
    """Return the file of a module's page, below `reference/`."""
    return f"python/{module}.md"


def public_names(module: str) -> list[str]:
    """Return the public names of a module: what callers begin with first, errors last, and the rest by name."""
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", None)
    if listed is None:
        listed = [name for name, value in vars(found).items() if getattr(value, "__module__", None) == module]
    names = [name for name in listed if not name.startswith("_") and name not in MODULES[module]]

    def rank(name: str) -> tuple[int, str]:
        value = getattr(found, name)
        if name in FIRST:
            return FIRST.index(name), name
        return len(FIRST) + _is_error(value), name

    return sorted(names, key=rank)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _page(module: str, names: list[str], homes: dict[str, str]) -> str:
    found = importlib.import_module(module)
    parts = [f"# {module}", ""]
    if module != "leasehold":  # whose docstring is a map of folders
        parts += [_linked(inspect.getdoc(found) or "", module, homes), ""]
    for name in names:
        parts += _entry(module, name, getattr(found, name), homes)
    return "\n".join(parts) + "\n"


def _entry(module: str, name: str, value: Any, homes: dict[str, str]) -> Iterator[str]:
    yield f"## {name} {{ #{module}.{name} }}\n"
    if not isinstance(value, type) and not callable(value):
        yield f"```py\n{name} = {value!r}\n```\n"
        return
    yield f"```py\n{_head(name, value)}\n```\n"
    yield _linked(_words(value), module, homes) + "\n"
    if not isinstance(value, type):
        return
    fields = _fields(value)
    if fields:
        yield "| member | value |\n|---|---|" if issubclass(value, enum.Enum) else "| field | type |\n|---|---|"
        yield from (f"| `{field}` | `{kind}` |" for field, kind in fields)
        yield ""
    for attribute, member in _members(value):
        yield f"### {name}.{attribute} {{ #{module}.{name}.{attribute} }}\n"
        if isinstance(member, property):
            kind = _type(getattr(member.fget, "__annotations__", {}).get("return", ""))
            yield f"```py\n{attribute}: {kind}\n```\n" if kind else ""
            yield _linked(_words(member), module, homes) + "\n"
        else:
            yield f"```py\n{_head(attribute, member)}\n```\n"
            yield _linked(_words(member), module, homes) + "\n"


def _words(value: Any) -> str:
    words = inspect.getdoc(value) or ""
    if isinstance(value, type) and words == inspect.getdoc(value.__base__ or object):
        return ""  # inherited
    if dataclasses.is_dataclass(value) and words.startswith(f"{getattr(value, '__name__', '')}("):
        return ""  # which `dataclass` made of the signature
    return words


def _linked(words: str, module: str, homes: dict[str, str]) -> str:
    """Make a link of each public class that a docstring names."""

    def link(match: re.Match[str]) -> str:
        home = homes.get(match[1])
        if home is None:
            return match[0]
        return f"[`{match[1]}`]({'' if home == module else home + '.md'}#{home}.{match[1]})"

    return _SPAN.sub(link, words)


def _fields(kind: type) -> list[tuple[str, str]]:
    """The public fields of a value: of a dataclass, a named tuple or a dict of options; the members of an enum."""
    if issubclass(kind, enum.Enum):
        return [(member.name, repr(member.value)) for member in kind]
    if _is_error(kind) or not (dataclasses.is_dataclass(kind) or issubclass(kind, tuple | dict)):
        return []
    own = {name: _type(at) for base in reversed(kind.__mro__) for name, at in inspect.get_annotations(base).items()}
    return [(name, at) for name, at in own.items() if not name.startswith("_")]


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class, or a private base of it, defines, in that order."""
    if issubclass(kind, enum.Enum):
        return
    seen = set[str]()
    for base in kind.__mro__:
        if not base.__module__.startswith("leasehold") or (base is not kind and not base.__name__.startswith("_")):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, functools.cached_property | property):
                yield name, value if isinstance(value, property) else property(value.func)
            elif isinstance(value, types.FunctionType | classmethod | staticmethod):
                yield name, value


def _head(name: str, value: Any) -> str:
    """The signature, on one line or with a line for each parameter."""
    if isinstance(value, type) and (issubclass(value, enum.Enum | dict) or getattr(value, "_is_protocol", False)):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"class {name}({bases})"
    before = "class " if isinstance(value, type) else ""
    function = getattr(value, "__func__", value)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function)):
        before = "async "
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return before + name
    parameters = list(signature.parameters.values())
    if not isinstance(value, type | staticmethod) and parameters and _is_receiver(parameters[0], name, value):
        parameters = parameters[1:]
    shown = [_parameter(one) for one in parameters]
    for index, one in reversed(list(enumerate(parameters))):
        if one.kind is one.KEYWORD_ONLY and all(
            other.kind not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL) for other in parameters[:index]
        ):
            shown.insert(index, "*")
        if one.kind is one.POSITIONAL_ONLY and (
            index + 1 == len(parameters) or parameters[index + 1].kind is not one.POSITIONAL_ONLY
        ):
            shown.insert(index + 1, "/")
    returns = _type(signature.return_annotation)
    after = f" -> {returns}" if returns and not isinstance(value, type) else ""
    line = f"{before}{name}({', '.join(shown)}){after}"
    if len(line) <= _WIDE:
        return line
    return f"{before}{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){after}"


def _is_receiver(first: inspect.Parameter, name: str, value: Any) -> bool:
    """Return whether it is what a method is called on; a function of another module calls it `router` or `lease`."""
    if first.name in ("self", "cls"):
        return True
    return first.name in ("router", "lease") and _type(first.annotation) in ("Router", "AsyncRouter", "Lease")


def _parameter(one: inspect.Parameter) -> str:
    kind = _type(one.annotation)
    text = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
    if kind:
        text += f": {kind}"
    if one.default is not one.empty:
        text += f" = {_default(one.default)}" if kind else f"={_default(one.default)}"
    return text


def _default(value: object) -> str:
    if isinstance(value, type):
        return value.__name__
    text = value.name if isinstance(value, enum.Enum) else repr(value)
    return "…" if " at 0x" in text or len(text) > 40 else text


def _type(annotation: object) -> str:
    if annotation in (inspect.Parameter.empty, inspect.Signature.empty, ""):
        return ""
    if isinstance(annotation, str):
        text = annotation
    else:
        text = getattr(annotation, "__forward_arg__", None) or inspect.formatannotation(annotation)
    return re.sub(r"\b(?:typing|collections\.abc|datetime|leasehold(?:\.\w+)*)\.(?=[A-Za-z])", "", text)
