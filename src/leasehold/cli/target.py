"""Which store a command works on: `--store`, `LEASEHOLD_STORE`, or a profile of `leasehold.toml`; and who acts."""

from __future__ import annotations

import functools
import getpass
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import InvalidArgument, Router
from ..core.redaction import Redaction
from .loading import load
from .opening import open_existing

F = TypeVar("F", bound=Callable[..., Any])

FILE = "leasehold.toml"
_KNOWN = {"store", "schema", "redact"}


class Target:
    """The store that a command works on, and what is hidden of its data."""

    app_dir = "."  # where the module of *app* is imported from

    def __init__(
        self, url: str, schema: str, redaction: Redaction, app: str | None = None, reveal: bool = False
    ) -> None:
        self.url = url
        self.schema = schema
        self.redaction = redaction
        self.app = app
        self.reveal = reveal

    def open(self) -> Router:
        """Return a router on the store, which must exist; or that of the application, which has its guards."""
        router = open_existing(self.url, self.schema) if self.app is None else load(self.app, self.app_dir)
        router.redaction = Redaction() if self.reveal else router.redaction | self.redaction
        return router


class _Later(Target):
    """What the options of a group name, looked for when a command below it opens the store: its help needs none."""

    def __init__(self, find: Callable[[], Target]) -> None:
        self._find = find

    def open(self) -> Router:
        """Return a router as `Target.open` does; raise `click.UsageError` if the options name no store."""
        return self._find().open()


def target_options(command: F) -> F:
    """Give *command* the options that name a store; it gets a `Target`."""

    @click.option("--store", "url", metavar="URL", help="The store. Default: $LEASEHOLD_STORE, or leasehold.toml.")
    @click.option("--profile", metavar="NAME", help=f"Use this section of {FILE}, which is in this folder or above it.")
    @click.option("--schema", metavar="NAME", help="The store's schema; on SQLite, the prefix of its tables.")
    @click.option(
        "--app", metavar="MODULE:ROUTER", help="Use this Router of an application, with its store and guards."
    )
    @click.option(
        "--reveal",
        is_flag=True,
        help="Show the values that Router(redact=…), $LEASEHOLD_REDACT or leasehold.toml hides.",
    )
    @functools.wraps(command)
    def wrapped(
        url: str | None, profile: str | None, schema: str | None, app: str | None, reveal: bool, **options: Any
    ) -> Any:
        context = click.get_current_context()
        above = {} if context.parent is None else context.parent.params  # as in `leasehold queues --store URL pause`
        url, profile, schema, app = (
            given or above.get(name)
            for name, given in (("url", url), ("profile", profile), ("schema", schema), ("app", app))
        )
        named = functools.partial(find, url, profile, schema, reveal or above.get("reveal", False), app)
        below = context.invoked_subcommand is not None
        return command(target=_Later(named) if below else named(), **options)

    return wrapped  # type: ignore[return-value]  # the same command with more options


def store_options(command: F) -> F:
    """Give *command* what names a store that it looks after, its URL first; it gets a `Target`."""

    @click.argument("located", metavar="[URL]", required=False)
    @click.option(
        "--store", "url", metavar="URL", help="The same as URL. Default: $LEASEHOLD_STORE, or leasehold.toml."
    )
    @click.option("--profile", metavar="NAME", help=f"Use this section of {FILE}, which is in this folder or above it.")
    @click.option("--schema", metavar="NAME", help="The store's schema; on SQLite, the prefix of its tables.")
    @functools.wraps(command)
    def wrapped(located: str | None, url: str | None, profile: str | None, schema: str | None, **options: Any) -> Any:
        if located and url:
            raise click.UsageError("URL and --store both name the store: pass only one of them.")
        return command(target=find(located or url, profile, schema), **options)

    return wrapped  # type: ignore[return-value]  # the same command with more options


def find(
    url: str | None, profile: str | None, schema: str | None, reveal: bool = False, app: str | None = None
) -> Target:
    """Return the store that these options name; raise `click.UsageError` if they name none."""
    settings = _profile(profile)
    if app is not None and (url or schema):
        raise click.UsageError("--app uses the store of the application: leave out --store and --schema.")
    url = url or os.environ.get("LEASEHOLD_STORE") or settings.get("store")
    if not url and app is None:
        raise click.UsageError(
            'no store is named: pass --store URL, set LEASEHOLD_STORE, or write store = "…" into a section of '
            f"{FILE}, such as [default]."
        )
    schema = schema or os.environ.get("LEASEHOLD_SCHEMA") or settings.get("schema") or "leasehold"
    return Target(url or "", schema, Redaction(settings.get("redact", [])), app, reveal)


def redaction_of_file() -> Redaction:
    """Return what the section [default] of leasehold.toml hides, beside what a worker's own Router does."""
    return Redaction(_profile(None).get("redact", []))


def _profile(name: str | None) -> dict[str, Any]:
    path = next((folder / FILE for folder in (Path.cwd(), *Path.cwd().parents) if (folder / FILE).is_file()), None)
    if path is None:
        if name is not None:
            raise click.UsageError(f"--profile {name}: no {FILE} was found in this folder or above it.")
        return {}
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}.") from None
    found = sections.get(name or "default")
    if found is None and name is None:
        return {}
    if not isinstance(found, dict):
        raise click.UsageError(
            f"{path} has no section [{name or 'default'}]; it has: {', '.join(map(str, sections)) or 'none'}."
        )
    if unknown := found.keys() - _KNOWN:
        raise click.UsageError(
            f"{path}: [{name or 'default'}] has the unknown setting {min(unknown)!r}. "
            f"It can have: {', '.join(sorted(_KNOWN))}."
        )
    return found


def actor_option(command: F) -> F:
    """Give *command* the option that says who acts; it gets `by`."""

    @click.option("--as", "by", metavar="NAME", help="The name to record for this action. Default: the system user.")
    @functools.wraps(command)
    def wrapped(by: str | None, **options: Any) -> Any:
        return command(by=by or system_user(), **options)

    return wrapped  # type: ignore[return-value]  # the same command with one option more


def system_user() -> str:
    """Return the system user; under sudo, the one who called it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"


def parsed_json(text: str, option: str) -> Any:
    """Return the JSON that was given as *option*; raise `click.UsageError` if it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} is not JSON: {error}. Text is written with quotes: '\"text\"'.") from None


def json_value(text: str) -> Any:
    """Return *text* as JSON, or as the string that it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """Return KEY=VALUE options as a dict; a value is JSON, or else a string."""
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"{option} takes KEY=VALUE, not {one!r}.")
        found[key] = json_value(value)
    return found
