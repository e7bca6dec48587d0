"""
The requests to an object store, and what their errors mean: refused by the condition, not done, or unknown.

Pointers are replaced by a client that sends each request once. A client that repeats a conditional request whose reply
was lost meets its own write, and reports the refusal of a write that took effect. The guard repeats it instead, after
it has read the pointer back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store, from_url

from ...core.marks import unreadable
from ...core.wording import shown
from ...errors import GuardUnavailable, InvalidArgument, Unsupported
from .pointer import LIMIT, Pointer

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

CHUNK_BYTES = 5 * 1024 * 1024  # more is uploaded in parts of this size, the smallest that S3 takes
ERRORS = (BaseError, OSError)  # FileNotFoundError stands for a key, and for a bucket, that is not there
_NOT_DONE = (FileNotFoundError, NotSupportedError, PermissionDeniedError, UnauthenticatedError)
_ATTRIBUTES = {"Content-Type": "application/json", "Cache-Control": "no-store"}  # of a pointer
_LINE = 400
_XML = ': <?xml version="1.0" encoding="UTF-8"?>'  # the first line of a body, which says nothing

Piece: TypeAlias = bytes | bytearray | memoryview


class Version(TypedDict, total=False):
    """What a store calls a state of an object: an ETag (S3, Azure), a generation (GCS), or both."""

    e_tag: str
    version: str


class Found(NamedTuple):
    """A pointer as a store has it."""

    pointer: Pointer
    version: Version


class Stored(NamedTuple):
    """An object of a listing."""

    path: str
    modified: datetime


class Refused(Exception):
    """The store has compared, and the object is in another state; or another write is under way (409)."""


class Unknown(Exception):
    """The request was sent, and its reply was not received."""


class Bucket:
    """An object store, as a guard uses it."""

    def __init__(self, store: Any) -> None:
        if isinstance(store, str):
            store = _at(store)
        if isinstance(store, HTTPStore | LocalStore):
            raise Unsupported(
                f"{type(store).__name__} has no conditional writes (replace an object only if it has not changed), "
                "which the guard needs: use S3Store, GCSStore, AzureStore, or FileGuard for a folder."
            )
        if not isinstance(store, S3Store | GCSStore | AzureStore | MemoryStore):
            raise InvalidArgument(
                "store must be an S3Store, GCSStore, AzureStore or MemoryStore of obstore, or a URL, not "
                f"{shown(store)}."
            )
        self._store: ObjectStore = store
        self._once = _sending_once(store)

    def __repr__(self) -> str:
        return repr(self._store)

    # The pointer

    def pointer(self, key: str, resource: str) -> Found | None:
        """Return the pointer at *key*, None if there is none. Raises `GuardUnavailable` if it cannot be read."""
        try:
            result = obstore.get(self._store, key)
            meta = result.meta
            content = bytes(result.bytes()) if meta["size"] <= LIMIT else b""
        except FileNotFoundError:
            return None
        except ERRORS as error:
            raise unreadable(resource, brief(error)) from error
        if meta["size"] > LIMIT:
            raise unreadable(
                resource,
                f"the object at the key has {meta['size']} bytes, so the guard did not write it: what the guard writes "
                "there is small, and points to the data",
            )
        return Found(Pointer.decode(content, key, resource), _version(meta))

    def replace(self, key: str, content: bytes, seen: Version | None) -> Version:
        """
        Put *content* at *key* if the object there is in the state *seen*, or if there is none (None); one request.

        Raises `Refused`, `GuardUnavailable` if nothing was done, and `Unknown` if that is unknown.
        """
        mode: PutMode = "create" if seen is None else {**seen}
        try:
            return _version(obstore.put(self._once, key, content, mode=mode, attributes=dict(_ATTRIBUTES)))
        except (AlreadyExistsError, PreconditionError) as error:
            raise Refused(brief(error)) from error
        except _NOT_DONE as error:
            raise GuardUnavailable(
                f"{self!r} did not accept the object {key!r}: {brief(error)}. Nothing was written."
            ) from error
        except ERRORS as error:
            raise Unknown(brief(error)) from error

    # Data

    def upload(self, path: str, data: bytes | Iterable[Piece]) -> None:
        """Store *data* at *path*, in parts if it is long. An error of an iterable itself is passed on."""
        failing = _Failing(self, "take the data", path)
        if isinstance(data, bytes):
            with failing:
                obstore.put(self._store, path, data, chunk_size=CHUNK_BYTES)
            return
        # By a writer, so that the iterable is run here. Inside `put`, one that reads from an object store is a panic.
        # A writer that is never closed leaves no object.
        with failing:
            writer = obstore.open_writer(self._store, path, buffer_size=CHUNK_BYTES)
        for piece in data:
            with failing:
                writer.write(piece)
        with failing:
            writer.close()

    def download(self, path: str) -> bytes | None:
        """Return the data at *path*; None if it is not there."""
        with _Failing(self, "return the data", path):
            try:
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    def stored(self, folder: str) -> list[Stored]:
        """Return the objects directly below *folder*."""
        with _Failing(self, "list", folder):
            found = obstore.list_with_delimiter(self._store, folder)["objects"]
        return [Stored(meta["path"], meta["last_modified"]) for meta in found]

    def remove(self, paths: Sequence[str]) -> None:
        """Delete what is at *paths*, as far as it is there. Raises `GuardUnavailable`."""
        with _Failing(self, "delete", paths):
            try:
                obstore.delete(self._store, list(paths))
            except FileNotFoundError:  # GCS and Azure report it, and leave the rest
                for path in paths if len(paths) > 1 else ():
                    self.remove([path])


class _Failing(NamedTuple):
    """A context in which an error of the store is a `GuardUnavailable`."""

    bucket: Bucket
    verb: str
    what: object

    def __enter__(self) -> None:
        """Begin a request."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, ERRORS):
            why = f"{self.bucket!r} did not {self.verb} {shown(self.what)}: {brief(error)}"
            raise GuardUnavailable(f"{why}. The key was not changed; try again.") from error


def brief(error: BaseException) -> str:
    """Return the first line of an error of obstore, whose text goes on with its inner state."""
    line = str(error).strip().partition("\n")[0].removesuffix(_XML).rstrip(".")
    return line if len(line) <= _LINE else f"{line[:_LINE]}…"


def _at(url: str) -> Any:
    try:
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise InvalidArgument(f"{url!r} cannot be opened as an object store: {brief(error)}.") from error


def _sending_once(store: Any) -> Any:
    """Return a client of the same store that repeats no request. The memory store sends none."""
    if isinstance(store, MemoryStore):
        return store
    args, settings = store.__getnewargs_ex__()
    retries = {**(settings.get("retry_config") or {}), "max_retries": 0}
    return type(store)(*args, **{**settings, "retry_config": retries})


def _version(reply: Any) -> Version:
    """Return the state that *reply* names. obstore takes no None in a condition."""
    version: Version = {}
    if reply["e_tag"] is not None:
        version["e_tag"] = reply["e_tag"]
    if reply["version"] is not None:
        version["version"] = reply["version"]
    return version
