"""
The stores, and the URLs that name them.

    memory:                                    this process, gone with it
    sqlite:///jobs.db, sqlite:////abs/jobs.db  one file, many processes of one machine
    postgresql://host/database                 one schema of a PostgreSQL database, many machines
"""

from __future__ import annotations

import os
import string

from ..core import checks, redaction
from ..core.clock import Clock
from ..errors import InvalidArgument, Unsupported
from ..store import Store

SCHEMES = {
    "memory": "memory: (in this process)",
    "sqlite": "sqlite:///jobs.db (one file; four slashes for an absolute path)",
    "postgresql": "postgresql://host/database (many machines)",
    "postgres": "postgres://host/database (the same)",
}
_NO_FILE = (
    "names no file: write sqlite:///jobs.db for a file in the current folder, sqlite:////var/lib/jobs.db for an "
    "absolute path."
)
_NOT_SHARED = (
    "is a database in memory, and each of the store's connections would get a separate one: write Router() for a store "
    "in this process, or name a file, as in sqlite:///jobs.db."
)
_WORD = string.ascii_letters + string.digits + "+-._"


def open_store(url: str | None, *, clock: Clock | None = None, trace: bool = False, schema: str = "leasehold") -> Store:
    """Return the store that *url* names, with nothing opened yet; its first verb does that."""
    if url is None:
        return _open_memory(clock, trace)
    _check_spelling(url)
    scheme, colon, _ = url.partition(":")
    if not colon and url.endswith((".db", ".sqlite", ".sqlite3")) and not set("@=") & set(url):
        raise InvalidArgument(f"{url!r} is the path of a file, not the URL of a store: did you mean 'sqlite:///{url}'?")
    if not colon or scheme not in SCHEMES:
        raise InvalidArgument(_unknown(url))
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url, clock, trace, schema)
    shown = redaction.shown_url(url)
    if scheme == "sqlite":
        _check_file(url)
    if url.startswith("sqlite://") and not url.startswith("sqlite:///"):
        # Before it is taken apart: what urlsplit says of a host, and we of a setting, may be of a password.
        raise InvalidArgument(f"{shown!r} {_NO_FILE}")
    from urllib.parse import unquote, urlsplit  # on use: a store in memory needs no URL

    parts = urlsplit(url)
    settings = _settings(url, parts.query, ("busy_seconds", "synchronous") if scheme == "sqlite" else ())
    if scheme == "memory":
        return _open_memory(clock, trace)
    if parts.fragment or url.endswith("#"):
        raise InvalidArgument(f"{shown!r} has a '#', which ends a URL's path: write %23 for a '#' in a file's name.")
    if parts.path in ("", "/"):
        raise InvalidArgument(f"{shown!r} {_NO_FILE}")
    from .sqlite import SqliteStore  # on use: sqlite3 is missing from some builds of Python

    busy = settings.get("busy_seconds", "30")
    try:
        busy_seconds = checks.microseconds(float(busy), "busy_seconds", zero=True) / 1_000_000
    except ValueError:
        raise InvalidArgument(f"busy_seconds in {shown!r} must be a number of seconds, not {busy!r}.") from None
    return SqliteStore(
        unquote(parts.path[1:]),
        clock=clock,
        trace=trace,
        schema=schema,
        busy_seconds=busy_seconds,
        synchronous=settings.get("synchronous", "full"),
    )


def _open_memory(clock: Clock | None, trace: bool) -> Store:
    from .memory import MemoryStore  # on use, like the others: `import leasehold` is an eighth faster without it

    return MemoryStore(clock=clock, trace=trace)


def _check_spelling(url: object) -> None:
    """Refuse what is not a URL, and slips that a URL parser would silently repair or carry into a file's name."""
    if not isinstance(url, str):
        # Not the value of just anything: bytes, or a driver's URL object, may hold a password.
        shown = f"{url!r} ({type(url).__name__})" if isinstance(url, int | float | os.PathLike) else _kind(url)
        path = os.fspath(url) if isinstance(url, os.PathLike) else None
        meant = f" Did you mean 'sqlite:///{path}'?" if isinstance(path, str) else ""
        raise InvalidArgument(
            f"the store must be a URL such as 'sqlite:///jobs.db', or None for one in memory, not {shown}.{meant}"
        )
    if not url.strip():
        raise InvalidArgument(
            "the URL of the store is empty (an environment variable that is not set?). For a store in the memory of "
            "this process, write Router(); for a file, Router('sqlite:///jobs.db')."
        )
    if url != url.strip() or set("\t\r\n") & set(url):
        raise InvalidArgument(
            "the URL of the store begins or ends with a space, or contains a tab or a line break: remove it. Write "
            "%20 for a space in a file's name."
        )
    if url == ":memory:":
        raise InvalidArgument(f"':memory:' {_NOT_SHARED}")
    base, plus, driver = url.partition(":")[0].partition("+")
    if plus and base in SCHEMES:
        raise InvalidArgument(
            f"the URL of the store begins with '{base}+{driver}': leave out '+{driver}', which names a driver for "
            f"SQLAlchemy, and write {base}://…."
        )


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _check_file(url: str) -> None:
    """Refuse a SQLite URL without its slashes, and one for a database in memory."""
    path, mark, query = url.removeprefix("sqlite:").partition("?")
    if path.endswith(":memory:"):
        raise InvalidArgument(f"{redaction.shown_url(url)!r} {_NOT_SHARED}")
    if path and not path.startswith("//"):
        # Not guessed: after a lost slash sqlite:/jobs.db is either of two files, and the wrong one begins empty.
        relative, absolute = f"'sqlite:///{path.lstrip('/')}{mark}{query}'", f"'sqlite:////{path[1:]}{mark}{query}'"
        meant = f"{absolute} (an absolute path) or {relative} (in the current folder)" if path[0] == "/" else relative
        raise InvalidArgument(f"{url!r} is missing slashes: did you mean {meant}?")


def _unknown(url: str) -> str:
    # It is not known where in it a password is: so nothing behind its first word is shown.
    first = url[: len(url) - len(url.lstrip(_WORD))]
    rest = url[len(first) :]
    word = first + rest[: len(rest) - len(rest.lstrip(":/"))]
    why = f"it begins with {first!r}"
    if rest.lstrip().startswith("="):
        why = "that is a setting, not a URL"
    elif first in SCHEMES:
        why = f"there is no ':' after {first!r}"
    shown = word if word == url else f"{word}…"
    return f"{shown!r} is not the URL of a store: {why}. A URL is one of these: {'; '.join(SCHEMES.values())}."


def _open_postgres(url: str, clock: Clock | None, trace: bool, schema: str) -> Store:
    try:
        from .postgres import PostgresStore  # on use: its driver is an extra
        from .postgres.connection import split_url
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"a PostgreSQL store needs a driver that is not installed ({error}): pip install 'psycopg[binary]'."
        ) from error
    except ImportError as error:
        why = str(error).strip().partition("\n")[0].rstrip(".:")
        raise Unsupported(
            f"the PostgreSQL driver is installed, but cannot be loaded ({why}). If libpq is missing: pip install "
            "'psycopg[binary]', which brings its own, or install libpq (Debian and Ubuntu: libpq5)."
        ) from error
    bare, own = split_url(url)
    return PostgresStore(bare, clock=clock, trace=trace, schema=schema, **own)


def _settings(url: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    from urllib.parse import parse_qsl  # on use, too

    settings = dict(parse_qsl(query, keep_blank_values=True))
    for name in settings:
        if name not in known:
            import difflib  # on use: for an error

            near = difflib.get_close_matches(name, known, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            takes = ", ".join(known) or "none"
            shown = redaction.shown_url(url)
            raise InvalidArgument(f"{shown!r}: {name!r} is not a setting of this store. Its settings: {takes}.{meant}")
    return settings
