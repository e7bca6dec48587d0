"""`ObjectGuard`: a pointer at each key, replaced on a condition, and data that never changes."""

from __future__ import annotations

import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeAlias, Unpack, cast

from ...core import checks
from ...core.clock import Clock, SystemClock
from ...core.marks import admit
from ...core.wording import shown
from ...errors import GuardUnavailable, InDoubt, InvalidArgument, StaleEpoch
from ...guard import Guard, Mark, Presented, Seal, Verifier, Writer
from .bucket import CHUNK_BYTES, Bucket, Found, Piece, Refused, Unknown
from .garbage import Replaced, collect
from .pointer import FOLDER, Content, Pointer, data_path, follow
from .proof import prove

if TYPE_CHECKING:
    from .aio import AsyncObjectGuard

INLINE_LIMIT = 32 * 1024  # bytes of data in a pointer, which may have 64 KiB in all
KEY_LIMIT = 900  # bytes of UTF-8: S3 has 1024 for a path, and that of the data is longer than the key
CONFLICTS = 64  # other changes that an attempt may meet; each of them is progress of another writer
REPEATS = 5  # of a request whose reply was lost, or that was refused although nothing has changed
_NOT_NAMES = {"", ".", ".."}  # as parts of a key
_READS = 8  # of a pointer whose data is collected before it can be read
_KNOWN = 1024  # keys whose pointer is remembered
_PAUSE_SECONDS = 0.02  # before the first repeat; twice as long before each one after it

Data: TypeAlias = "Piece | PathLike[str] | IO[bytes] | Iterable[Piece]"


class ObjectGuard(Guard):
    """
    Guards objects in S3, Google Cloud Storage, Azure Blob Storage, or the memory of this process.

    *store* is a store of `obstore`, or a URL such as `"s3://bucket/prefix"`. A write under an old epoch is refused by
    the object store itself, which compares the state of a small pointer at the key. The data is in objects of its own,
    below `.leasehold/`, so a plain client that reads the key finds the pointer: read through `read` or `peek`.

    A store that ignores conditions protects nothing: `prove` finds that. A guard cannot stop a client that writes past
    it; a bucket policy can (docs/how-to/guard-objects.md).

    Data of up to *inline_bytes* is kept in the pointer, so that its write is one request, which also compares.

    What a write has replaced is removed *grace_seconds* later, by a later write of this guard, so that readers can end.
    `collect` removes what other processes have left.
    """

    kind: ClassVar[str] = "object"
    STEPS: ClassVar[tuple[str, ...]] = ("begun", "uploaded", "compared", "replaced")

    def __init__(
        self,
        store: Any,
        *,
        grace_seconds: float = 60,
        inline_bytes: int = 4096,
        clock: Clock | None = None,
        keys: Verifier | None = None,
        audience: str | None = None,
        strict_store: bool = False,
    ) -> None:
        super().__init__(keys=keys, audience=audience, strict_store=strict_store)
        self._bucket = Bucket(store)
        self._inline_bytes = checks.whole(inline_bytes, "inline_bytes", least=0, most=INLINE_LIMIT)
        self._clock = clock or SystemClock()
        self._replaced = Replaced(
            self._bucket, self._clock, checks.microseconds(grace_seconds, "grace_seconds", zero=True)
        )
        self._located: set[str] = set()  # paths at which `locate` has put data that is in a pointer
        self._known: OrderedDict[str, Found] = OrderedDict()  # pointers as they were last seen; the store compares
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def __repr__(self) -> str:
        return f"<ObjectGuard {self.name or self._bucket!r}>"

    @property
    def aio(self) -> AsyncObjectGuard:
        """The verbs of this guard, to be awaited."""
        from .aio import AsyncObjectGuard  # which stands on this module

        return AsyncObjectGuard(self)

    def canonical(self, key: str) -> str:
        """Return *key*, or raise `InvalidArgument` if an object store could know it by another name, or not at all."""
        if not isinstance(key, str):
            raise InvalidArgument(f"key must be a string, not {shown(key)} ({type(key).__name__}).")
        parts = key.split("/")
        if not _NOT_NAMES.isdisjoint(parts) or not key.isprintable():
            raise InvalidArgument(
                f"{shown(key)} cannot be a key. A key is names separated by single slashes, such as 'reports/may.csv'; "
                "no name is '.' or '..', and every character is printable."
            )
        if parts[0] == FOLDER:
            raise InvalidArgument(
                f"{shown(key)} cannot be a key: the guard keeps the data of other keys below {FOLDER}/. Choose "
                "another name."
            )
        if len(checks.encodable(key, "key")) > KEY_LIMIT:
            raise InvalidArgument(f"a key has at most {KEY_LIMIT} bytes, and this one is longer: {shown(key)}.")
        return key

    # Readers

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key* as it stands, without a lease; None if no owner has written or sealed it."""
        found = self._fetch(self.canonical(key))
        return None if found is None else found.pointer.mark

    def peek(self, key: str) -> bytes | None:
        """
        Return the data of *key* without a lease and without sealing; None if there is none.

        An owner may write at any time, also between this and the caller's next line: use `read` to build on it. Raises
        `GuardUnavailable` if the pointer or its data cannot be read.
        """
        key = self.canonical(key)
        return self._data(key, self._fetch(key))

    def read(self, key: str, **presented: Unpack[Presented]) -> bytes | None:
        """
        Seal *key* for this owner, check that its lease is current, and return the data; None if there is none.

        What was read stays so until this owner or a newer one writes. Raises `StaleEpoch` if a newer owner has been
        here, `NoLease` without a lease, and `GuardUnavailable` if the pointer or its data cannot be read.
        """
        key = self.canonical(key)
        with self._attempt(key, "read", presented) as writer:
            found = self._fetch(key)
            if found is None or (found.pointer.mark.epoch, found.pointer.mark.store) != (writer.epoch, writer.store):
                found = self._change(key, writer, "read", _same_data, found)
            self._check_current(presented)
            return self._data(key, found)

    def locate(self, key: str) -> str | None:
        """
        Return the path of the data of *key* in the store, None if there is none: for streams, ranges and signed URLs.

        The object there never changes. It is removed some time after another write has replaced it. Data that is in
        the pointer is put there first, for which this client needs the right to write. Raises `GuardUnavailable`.
        """
        found = self._fetch(self.canonical(key))
        if found is None or found.pointer.data is None:
            return None
        path, inline = found.pointer.data, found.pointer.inline
        if inline is not None and path not in self._located:
            self._bucket.upload(path, inline)  # twice has the same effect: the path belongs to this data alone
            self._located.add(path)
        return path

    # Writers

    def write(self, key: str, data: Data, **presented: Unpack[Presented]) -> None:
        """
        Replace the data of *key*: bytes, a path, an open binary file, or an iterable of bytes; long data in parts.

        A reader finds the old data or the new, never a part. Raises `StaleEpoch` if a newer owner has been here,
        `NoLease` without a lease, `GuardUnavailable` if nothing was written, and `InDoubt` if that is unknown.
        """
        key = self.canonical(key)
        with self._attempt(key, "write", presented) as writer, _opened(data) as content:
            self.at("begun")
            # A refusal here saves the upload. What protects is the comparison when the pointer is replaced.
            found, mark = self._start(key, writer, "write")
            nonce = secrets.token_hex(8)
            path = data_path(key, mark, nonce)
            if inline := isinstance(content, bytes) and len(content) <= self._inline_bytes:
                new = Content(path, content)
            else:
                self._bucket.upload(path, content)
                new = Content(path)
            self.at("uploaded")
            try:
                self._change(key, writer, "write", lambda _: new, found, nonce=nonce)
            except StaleEpoch:
                if not inline:
                    self._replaced.discard(path)
                raise
            self.at("replaced")

    def delete(self, key: str, **presented: Unpack[Presented]) -> None:
        """Remove the data of *key*, and keep its mark: the pointer stays and names no data. Raises as `write` does."""
        key = self.canonical(key)
        with self._attempt(key, "delete", presented) as writer:
            self._change(key, writer, "delete", lambda _: Content(), self._start(key, writer, "delete")[0])

    def collect(self, key: str, *, grace_seconds: float = 3600) -> int:
        """
        Remove data of *key* that no pointer can name again and that is older than *grace_seconds*; return how much.

        It needs no lease. Only data of older epochs than the pointer's is removed, and none that the pointer names,
        before the listing and after it. Raises `GuardUnavailable`.
        """
        key = self.canonical(key)
        grace = checks.microseconds(grace_seconds, "grace_seconds", zero=True)
        return collect(self._bucket, key, lambda: self._fetch(key), before=self._clock.now() - grace)

    # How a pointer changes

    def _seal(self, key: str, writer: Writer) -> Seal:
        found, _ = self._start(key, writer, "seal")
        return Seal(key, self._change(key, writer, "seal", _same_data, found).pointer.mark)

    def _prove(self) -> None:
        prove(self._bucket)

    def _change(
        self,
        key: str,
        writer: Writer,
        verb: str,
        content: Callable[[Pointer | None], Content],
        found: Found | None,
        *,
        nonce: str | None = None,
    ) -> Found:
        """
        Replace the pointer of *key*, which was *found*, by one with this writer's mark and *content*.

        Another change in between is met with another attempt, if the mark still admits the writer. An attempt whose
        reply was lost is sought in the pointer by its nonce. As long as the pointer has not changed, the same request
        is sent again: of the two only one can take effect.
        """
        nonce = nonce or secrets.token_hex(8)
        pending: int | None = None  # the counter of an attempt that may have taken effect, or may yet
        conflicts = repeats = 0
        while conflicts <= CONFLICTS and repeats <= REPEATS:
            before = None if found is None else found.pointer
            mark = self._admit(key, None if before is None else before.mark, writer, verb)
            after = follow(before, mark, content(before), nonce)
            if verb == "write":
                self.at("compared")
            try:
                version = self._bucket.replace(key, after.encode(), None if found is None else found.version)
            except Refused as error:
                failure: Exception = error
            except Unknown as error:
                failure, pending = error, after.mark.counter
            except GuardUnavailable as error:
                if pending is None:
                    raise
                raise self._doubt(key, writer, verb, error) from error
            else:
                return self._made(key, before, Found(after, version))
            now = self._read_back(key, writer, verb, pending)
            if now is not None and now.pointer.shows(nonce, after.mark.counter):
                return self._made(key, before, now)
            if before == (None if now is None else now.pointer):
                self._rest(repeats)  # a lost reply, or 409: another write is under way
                repeats, found = repeats + 1, now
                continue
            if pending is not None and (now is None or now.pointer.shows(nonce, pending) is None):
                raise self._doubt(key, writer, verb, failure) from failure
            if now is None:
                self._forget(key)
                raise GuardUnavailable(
                    f"{self.resource(key)}: its object was deleted without the guard, and its mark with it. Nothing "
                    "was written. Seal the key again once you know that no older owner is still running."
                ) from failure
            conflicts, pending, found = conflicts + 1, None, now
        if pending is not None:
            raise self._doubt(key, writer, verb, failure) from failure
        raise GuardUnavailable(
            f"{self.resource(key)}: {verb} with epoch {writer.epoch} met {conflicts} changes by other writers, and "
            f"was refused {repeats} times although nothing had changed ({failure}). Nothing was written: try again, "
            "with fewer writers at once."
        ) from failure

    def _start(self, key: str, writer: Writer, verb: str) -> tuple[Found | None, Mark]:
        """Return the pointer of *key* as far as it is known, and the mark that *writer* would make of it."""
        rule: dict[str, Any] = {"resource": self.resource(key), "verb": verb, "strict_store": self.strict_store}
        with self._lock:
            found = self._known.get(key)
        if found is not None:
            try:
                return found, admit(found.pointer.mark, writer, **rule)
            except StaleEpoch:  # by the pointer of a while ago: a refusal names the present owner
                pass
        found = self._fetch(key)
        return found, admit(None if found is None else found.pointer.mark, writer, **rule)

    def _read_back(self, key: str, writer: Writer, verb: str, pending: int | None) -> Found | None:
        try:
            return self._fetch(key)
        except GuardUnavailable as error:
            if pending is None:
                raise
            raise self._doubt(key, writer, verb, error) from error

    def _doubt(self, key: str, writer: Writer, verb: str, failure: Exception) -> GuardUnavailable | InDoubt:
        self._forget(key)
        if verb in ("seal", "read"):  # to raise a mark twice does no harm
            return GuardUnavailable(f"{self.resource(key)}: the reply of the {verb} was lost: {failure}. Try again.")
        return InDoubt.of_resource(self.resource(key), epoch=writer.epoch, verb=verb, why=str(failure))

    def _made(self, key: str, before: Pointer | None, after: Found) -> Found:
        self._remember(key, after)
        if before is None or before.data is None or before.data == after.pointer.data:
            return after
        if before.inline is None or before.data in self._located:
            self._located.discard(before.data)
            self._replaced.add(before.data)
        return after

    def _rest(self, repeats: int) -> None:
        self._pause.wait(_PAUSE_SECONDS * 2**repeats * random.uniform(0.5, 1))

    # Pointers and data

    def _fetch(self, key: str) -> Found | None:
        """Read the pointer of *key*, and remember it."""
        found = self._bucket.pointer(key, self.resource(key))
        self._remember(key, found)
        return found

    def _remember(self, key: str, found: Found | None) -> None:
        with self._lock:
            if found is None or not found.version:
                self._known.pop(key, None)
                return
            self._known[key] = found
            self._known.move_to_end(key)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)

    def _forget(self, key: str) -> None:
        self._remember(key, None)

    def _data(self, key: str, found: Found | None) -> bytes | None:
        """Return the data that the pointer names; if it is gone, the pointer is read again, which names other data."""
        for _ in range(_READS):
            if found is None or found.pointer.data is None:
                return None
            if found.pointer.inline is not None:
                return found.pointer.inline
            data = self._bucket.download(found.pointer.data)
            if data is not None:
                return data
            earlier, found = found, self._fetch(key)
            if found is not None and found.pointer == earlier.pointer:
                raise GuardUnavailable(
                    f"{self.resource(key)}: its data {found.pointer.data!r} is missing: it was deleted without the "
                    "guard. Write the key again, or restore the object."
                )
        raise GuardUnavailable(
            f"{self.resource(key)}: tried {_READS} times to read it, and each time a newer write had already removed "
            "the data. Try again, or give the guard a longer grace_seconds, so that replaced data is kept longer."
        )


def _same_data(before: Pointer | None) -> Content:
    """Return what a seal leaves in place."""
    return Content() if before is None else Content(before.data, before.inline)


def _opened(data: Data) -> AbstractContextManager[bytes | Iterable[Piece]]:
    """Return a context that has *data* as bytes, or as an iterable of pieces."""
    if isinstance(data, bytes | bytearray | memoryview):
        return nullcontext(bytes(data))
    if isinstance(data, PathLike):
        return _file(data)
    if hasattr(data, "read"):
        return nullcontext(_chunks(cast(IO[bytes], data)))
    if isinstance(data, Iterable) and not isinstance(data, str):
        return nullcontext(data)
    raise InvalidArgument(
        f"data must be bytes, a path, an open binary file or an iterable of bytes, not {shown(data)} "
        f"({type(data).__name__}). Encode a string first."
    )


@contextmanager
def _file(path: PathLike[str]) -> Iterator[Iterable[Piece]]:
    with Path(path).open("rb") as file:
        yield _chunks(file)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        if not isinstance(chunk, bytes):
            raise InvalidArgument(f"data must be a file opened in binary mode, not one that returns {shown(chunk)}.")
        yield chunk
