"""The URLs of stores without their passwords."""

from __future__ import annotations

import re

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
