"""What a PostgreSQL URL may say beside what libpq understands, and what is wrong with what it says."""

from __future__ import annotations

import difflib
from typing import TypedDict
from urllib.parse import unquote_plus

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from ...core import checks
from ...core.redaction import shown_url
from ...errors import InvalidArgument
from .errors import ENCODE, without_secrets

CONNECTIONS_LIMIT = 1_000
_LIBPQ = ("application_name", "connect_timeout", "host", "hostaddr", "options", "passfile", "port", "sslmode", "user")


class Settings(TypedDict, total=False):
    """What the store itself takes."""

    connections: int
    wait_seconds: float


def split(url: str) -> tuple[str, Settings]:
    """Return *url* as libpq takes it, and the settings in it that are the store's own; refuse values that cannot be."""
    scheme, slashes, _ = url.partition("://")
    if not slashes or ":" in scheme:
        raise InvalidArgument(
            "a PostgreSQL store is named by a URL such as postgresql://user:password@host/database, and behind "
            f"{scheme.partition(':')[0]!r} there is no '://'."
        )
    before, query = _halves(url)
    theirs, ours = list[str](), Settings()
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        match name:
            case "connections":
                ours["connections"] = _whole(value, name, url, least=1, most=CONNECTIONS_LIMIT)
            case "wait_seconds":
                ours["wait_seconds"] = _seconds(value, name, url)
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
        message = without_secrets(str(error).strip(), url)
        raise InvalidArgument(f"{shown_url(url)} is not a URL that PostgreSQL understands: {message}.{meant}") from None
    if (timeout := settings.get("connect_timeout")) is not None:
        _whole(str(timeout), "connect_timeout", url, least=0, most=86_400)
    for port in str(settings.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            # It may be the first part of a password, which ends at the first "/" for libpq: so it is not shown.
            raise InvalidArgument(
                "the port in a PostgreSQL URL must be a whole number from 1 to 65535: look at what is behind the ':' "
                f"of the host.{f' {ENCODE}' if '@' in url else ''}"
            )
    return bare, ours


def _halves(url: str) -> tuple[str, str]:
    """Return what is before the settings in *url*, and the settings; a "?" of the user or the password is no start."""
    at = url.find("@")
    start = at if at >= 0 and "/" not in url[:at].partition("://")[2] else 0
    mark = url.find("?", start)
    return (url, "") if mark < 0 else (url[:mark], url[mark + 1 :])


def _whole(value: str, name: str, url: str, *, least: int, most: int) -> int:
    try:
        number = int(unquote_plus(value))
    except ValueError:
        got = without_secrets(repr(unquote_plus(value)), url)
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a whole number, not {got}.") from None
    return checks.whole(number, name, least=least, most=most)


def _seconds(value: str, name: str, url: str) -> float:
    try:
        number = float(unquote_plus(value))
    except ValueError:
        got = without_secrets(repr(unquote_plus(value)), url)
        raise InvalidArgument(f"{name} in a PostgreSQL URL must be a number of seconds, not {got}.") from None
    return checks.microseconds(number, name, zero=True) / 1_000_000
