"""Which names a guarded folder admits, and how a key's mark and lock are named."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import unicodedata
from urllib.parse import quote

from ...core.checks import encodable
from ...core.wording import shown
from ...errors import InvalidArgument

RESERVED = ".leasehold"
_LONGEST = 200  # of an encoded name; file systems take 255 bytes


def canonical(root: str, key: object) -> str:
    """Return the one name of *key* below *root*; raise `InvalidArgument` if it leaves the folder or is not a file's."""
    if isinstance(key, os.PathLike):
        key = os.fspath(key)
    if not isinstance(key, str) or not key:
        raise _refused(key, "the name of a file must be a string that is not empty")
    if "\0" in key:
        raise _refused(key, "it contains NUL")
    encodable(key, "the name of a file")
    if key.startswith("/"):
        raise _refused(key, f"it is absolute; names are relative to {root}")
    if key.endswith("/"):
        raise _refused(key, "it ends with a slash, so it names a folder")
    parts = [part for part in key.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise _refused(key, f"it does not name a file below {root}")
    if fold(parts[0]) == RESERVED:
        raise _refused(key, f"{RESERVED} holds the marks of this guard")
    _refuse_links(root, key, parts)
    return "/".join(parts)


def _refuse_links(root: str, key: str, parts: list[str]) -> None:
    """Refuse a path through a symbolic link: it may leave the folder, and it gives one file two names."""
    path = root
    for number, part in enumerate(parts, 1):
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise _refused(key, f"{os.path.dirname(path)} is not a folder") from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _refused(key, "it is longer than the file system allows") from None
            raise
        if stat.S_ISLNK(mode):
            target = os.path.realpath(path)
            inside = os.path.commonpath((root, target)) == root
            advice = f"use {os.path.relpath(target, root)!r}" if inside else f"it leads out of the folder, to {target}"
            raise _refused(key, f"{path} is a symbolic link: {advice}")
        if number < len(parts) and _has_guard(path):
            raise _refused(key, f"{path} has a file guard of its own")
        if number == len(parts) and not stat.S_ISREG(mode):
            raise _refused(key, f"{path} is not a regular file")


def guarded_above(root: str) -> str | None:
    """Return the folder above *root* that has a file guard; None if there is none."""
    path = root
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        if _has_guard(path):
            return path
    return None


def _has_guard(folder: str) -> bool:
    return os.path.lexists(os.path.join(folder, RESERVED, "marks"))


def _refused(key: object, why: str) -> InvalidArgument:
    return InvalidArgument(f"{shown(key)} cannot be a key of a file guard: {why}.")


def file_name(key: str) -> str:
    """Return the name of *key*'s mark and lock; two keys never share one."""
    encoded = quote(key, safe=" +,=@~")
    if len(encoded) <= _LONGEST:
        return encoded
    return "%sha256-" + hashlib.sha256(key.encode()).hexdigest()  # no encoded name has a % before an s


def fold(key: str) -> str:
    """Return what *key* has in common with the other names of its file, where names are compared without case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", key).casefold())


def is_folding(folder: str) -> bool:
    """Try in *folder* whether the file system takes two names for one: by case, or by the form of an accent."""
    made = f"probe-{secrets.token_hex(8)}-A\N{LATIN SMALL LETTER E WITH ACUTE}"
    others = (made.replace("A", "a"), unicodedata.normalize("NFD", made))
    path = os.path.join(folder, made)
    with open(path, "xb"):
        try:
            return any(os.path.lexists(os.path.join(folder, other)) for other in others)
        finally:
            os.unlink(path)
