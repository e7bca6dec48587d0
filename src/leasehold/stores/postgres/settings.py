"""What a PostgreSQL URL may say beside what libpq understands, and what is wrong with what it says."""

from __future__ import annotations

import difflib
from typing import TypedDict
from urllib.parse import unquote_plus

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from ...core import values
from ...core.values import shown_url
from ...errors import InvalidArgument
from .faults import without_secrets

CONNECTIONS_LIMIT = 1_000
_LIBPQ = ("application_name", "connect_timeout", "host", "hostaddr", "options", "passfile", "port", "sslmode", "user")


class Settings(TypedDict, total=False):
    """What the store itself takes."""

    connections: int
    wait_seconds: float


def split(url: str) -> tuple[str, Settings]:
    """Return *url* as libpq takes it, and the settings in it that are the store's own; refuse values that cannot be."""
    before, _, query = url.partition("?")
    theirs, ours = list[str](), Settings()
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        match name:
            case "connections":
                ours["connections"] = _whole(unquote_plus(value), name, least=1, most=CONNECTIONS_LIMIT)
            case "wait_seconds":
                ours["wait_seconds"] = _seconds(unquote_plus(value), name)
            case _:
                theirs.append(part)
    bare = f"{before}?{'&'.join(theirs)}" if theirs else before
    try:
        settings = conninfo_to_dict(bare)
    except ProgrammingError as error:
        names = [part.partition("=")[0] for part in theirs]
        near = [
            found
            for name in names
            for found in difflib.get_close_matches(name, (*Settings.__annotations__, *_LIBPQ), 1)
        ]
        meant = f" Did you mean {near[0]!r}?" if near and near[0] not in names else ""
        said = without_secrets(str(error).strip(), url)
        raise InvalidArgument(f"{shown_url(url)} is not a URL that PostgreSQL understands: {said}.{meant}") from None
    if (timeout := settings.get("connect_timeout")) is not None:
        _whole(str(timeout), "connect_timeout", least=0, most=86_400)
    return bare, ours


def _whole(value: str, name: str, *, least: int, most: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a whole number, not {value!r}.") from None
    return values.whole(number, name, least=least, most=most)


def _seconds(value: str, name: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a number of seconds, not {value!r}.") from None
    return values.microseconds(number, name, zero=True) / 1_000_000
