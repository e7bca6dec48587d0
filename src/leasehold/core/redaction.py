"""What is left out of messages, logs and answers: the passwords in URLs, and parts of jobs by their paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidArgument

HIDDEN = "[redacted]"
VARIABLE = "LEASEHOLD_REDACT"
_DATA = ("payload", "result", "meta", "checkpoint", "error", "facts")
_OPERATORS = ("manual", "cancellation")  # ownerships that they ended have their note, and others the error

# From the first ":" behind the user to the last "@" of all: libpq takes a "?" or "#" of a password as it stands, and
# people write "@" and "/" as they stand too. A file's path begins with a "/", and has no user.
_BEFORE_HOST = re.compile(r"\A(?:(?:sqlite|memory)://[^/:]*:|postgres(?:ql)?:/*[^:]*:)(.*)@", re.DOTALL)
# Among the settings of a URL. A value with a "&" is hidden as a whole, unless what follows may be another setting.
_SETTING = re.compile(r"\w*(?:pass|secret|client_key)\w*\s*=(.*?)(?=&[a-z_]{4,}=|\Z)", re.IGNORECASE | re.DOTALL)


def shown_url(url: str) -> str:
    """Return the *url* of a store without its password, for messages."""
    shown, done = "", 0
    for start, end in _secret(url):
        if end > done:
            shown, done = shown + (f"{url[done:start]}…" if start > done or not done else ""), end
    return shown + url[done:]


def secrets_of(url: str) -> list[str]:
    """Return what `shown_url` leaves out of *url*."""
    return [url[start:end] for start, end in _secret(url)]


def _secret(url: str) -> list[tuple[int, int]]:
    """Return the spans of the secrets in *url*, by where they begin; they may overlap."""
    found = [_BEFORE_HOST.match(url), *_SETTING.finditer(url)]
    return sorted(match.span(1) for match in found if match)


class Redaction:
    """
    Hides values by their path: `payload.card.number`, `meta.token`, `error`; `*` stands for any one key.

    A path hides its value wherever it is shown: in a job, in the facts of events and the filters of bulk actions that
    repeat it, and `error` in ownerships, explanations and the logs of workers too. What the store keeps, and what a
    handler gets, is not changed. Raises `InvalidArgument` for a path that begins with another word.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        if isinstance(paths, str):
            raise InvalidArgument(f"redact= must be a list of paths: write [{paths!r}].")
        self.paths = tuple(dict.fromkeys(path.strip() for path in paths if path.strip()))
        self._split = [tuple(path.split(".")) for path in self.paths]
        for path in self._split:
            if path[0] not in _DATA or "" in path:
                raise InvalidArgument(
                    f"{'.'.join(path)!r} cannot be redacted: a path has no empty part and begins with one of "
                    f"{', '.join(_DATA)}, such as payload.card.number."
                )

    @classmethod
    def of_environment(cls) -> Redaction:
        """Return what LEASEHOLD_REDACT hides: paths with commas between them."""
        return cls(os.environ.get(VARIABLE, "").split(","))

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __or__(self, other: Redaction) -> Redaction:
        return Redaction([*self.paths, *other.paths])

    @property
    def hides_errors(self) -> bool:
        """Whether the messages of errors are hidden."""
        return ("error",) in self._split

    def apply(self, view: dict[str, Any]) -> dict[str, Any]:
        """Return *view* of a job, an ownership or an event without what is hidden."""
        for path in self._split:
            name = path[0]
            if name in view:
                view = {**view, name: _hidden(view[name], path[1:])}
            if isinstance(facts := view.get("facts"), Mapping):
                view = {**view, "facts": _in_facts(facts, name, path[1:])}
        if self.hides_errors and view.get("kind") == "ownership" and view.get("ended") not in _OPERATORS:
            view = {**view, "note": _hidden(view["note"], ())}
        facts = view.get("facts")
        if isinstance(facts, Mapping) and "sentence" in facts and HIDDEN in (facts.get("subject"), facts.get("task")):
            view = {**view, "facts": {**facts, "sentence": HIDDEN}}  # the sentence of an observation names both
        return view

    def facts(self, facts: Mapping[str, Any]) -> Any:
        """Return the *facts* of an event without what is hidden: a mapping, or `HIDDEN` if all of them are."""
        return self.apply({"facts": facts})["facts"]


def fact(shown: Any, name: str) -> Any:
    """Return one of the facts that `Redaction.facts` has returned; None if there is no such fact."""
    return shown.get(name) if isinstance(shown, Mapping) else HIDDEN


def _hidden(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return None if value is None else HIDDEN
    if isinstance(value, Mapping):
        return {key: _hidden(one, path[1:]) if path[0] in ("*", key) else one for key, one in value.items()}
    if isinstance(value, list):
        return [_hidden(one, path[1:] if path[0] == "*" else path) for one in value]
    return value


def _in_facts(facts: Mapping[str, Any], name: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts of an event without the value of that path: as it is, or as a bulk action filtered by it."""
    shown = dict(facts)
    if name in shown:
        shown[name] = _hidden(shown[name], path)
    filters = shown.get("filters")
    if isinstance(filters, Mapping) and isinstance(found := filters.get(name), Mapping):
        chosen = {key: HIDDEN if _meets(path, tuple(key.split("."))) else value for key, value in found.items()}
        shown["filters"] = {**filters, name: chosen}
    return shown


def _meets(path: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Return whether one of the two leads to, or into, what the other names."""
    return all(one in ("*", other) for one, other in zip(path, key, strict=False))
