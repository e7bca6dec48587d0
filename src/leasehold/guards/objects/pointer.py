"""
The pointer: the small JSON object at a key, with the mark of the key and the path of its data, or small data itself.

An object store compares states and not epochs, and the ETag of S3 covers the content alone. So all of the mark is in
the content: no two pointers of a key are equal, and neither are their ETags. An epoch in the object's metadata would
fence nothing, since a seal rewrites equal content.
"""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

from ...core.marks import Mark, unreadable

FOLDER = ".leasehold"  # where data is kept; no key of a caller is below it
NONCES = 16  # how many of the last changes a pointer names
LIMIT = 64 * 1024  # bytes; a larger object at a key is not a pointer

_NAME = re.compile(r"(\d{16})-\d+-[0-9a-f]+")


class Content(NamedTuple):
    """The data of a key: its path (None: no data), and, if it is in the pointer, the data itself."""

    path: str | None = None
    inline: bytes | None = None


class Pointer(NamedTuple):
    """What is at a key: its mark, the path of its data (None: no data), and the nonces of the last changes."""

    mark: Mark
    data: str | None
    nonces: tuple[str, ...]  # the newest is the last one, and belongs to the mark's counter
    inline: bytes | None = None  # the data, if it is small: then nothing is at the path, until `locate` puts it there

    def encode(self) -> bytes:
        """Return the pointer as it is stored."""
        facts: dict[str, Any] = {**self.mark._asdict(), "data": self.data, "nonces": self.nonces}
        if self.inline is not None:
            facts["inline"] = base64.b64encode(self.inline).decode()
        return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes, key: str, resource: str) -> Pointer:
        """
        Return the pointer of stored *content*. Raises `GuardUnavailable` if it is not one of *key*.

        The path that it names is removed once it is replaced, so it must be a path of the key's own data.
        """
        mark = Mark.decode(content, resource)
        facts: dict[str, Any] = json.loads(content)
        data, nonces, inline = facts.get("data"), facts.get("nonces"), facts.get("inline")
        if (data is None or _is_own(data, key, mark)) and isinstance(nonces, list) and 0 < len(nonces) <= NONCES:
            if inline is None:
                return cls(mark, data, tuple(map(str, nonces)))
            with suppress(TypeError, ValueError):
                return cls(mark, data, tuple(map(str, nonces)), base64.b64decode(inline, validate=True))
        raise unreadable(resource, f"its fields are {facts!r}")

    def shows(self, nonce: str, counter: int) -> bool | None:
        """
        Tell whether the change with *nonce*, sent to become number *counter* of the key, took effect.

        None if this pointer cannot tell: that change is older than the last 16, or the pointer was replaced by hand.
        """
        if nonce in self.nonces:
            return True
        return False if 0 <= self.mark.counter - counter < len(self.nonces) else None


def follow(before: Pointer | None, mark: Mark, content: Content, nonce: str) -> Pointer:
    """Return the pointer that comes after *before*, with the *mark* that was admitted."""
    earlier = () if before is None else before.nonces
    return Pointer(mark, content.path, (*earlier, nonce)[-NONCES:], content.inline)


def data_folder(key: str) -> str:
    """Return the path below which the data of *key* is, and of keys that begin with it and a slash."""
    return f"{FOLDER}/{key}"


def data_path(key: str, mark: Mark, nonce: str) -> str:
    """Return where a write keeps its data. No other write has that path, so data never changes."""
    return f"{data_folder(key)}/{mark.epoch:016}-{mark.counter}-{nonce}"


def epoch_of(path: str, key: str) -> int | None:
    """Return the epoch under which the data at *path* was written; None if it is not data of *key*."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name) if folder == data_folder(key) else None
    return None if found is None else int(found[1])


def _is_own(data: object, key: str, mark: Mark) -> bool:
    epoch = epoch_of(data, key) if isinstance(data, str) else None
    return epoch is not None and epoch <= mark.epoch
