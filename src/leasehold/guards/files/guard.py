"""The verbs of a file guard."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, Unpack, overload

from ...aio import Facade, threaded, warn_on_loops
from ...core import checks
from ...core.marks import Mark, Writer, admit
from ...errors import GuardUnavailable, InDoubt, InvalidArgument, StaleEpoch, Unfenced
from ...guard import Guard, Presented, Seal, Verifier
from ...logs import log
from . import file_systems, names
from .locks import KeyLock
from .mark_files import MarkFile
from .syncing import make_folders, sync_file, sync_folder
from .temporary import Temporary, collect

APPEND_LIMIT = 64 * 1024 * 1024  # bytes of a file after an append, which copies it
_PATHS = 1024  # keys whose paths are remembered
_SMALL = 1024 * 1024  # bytes that cost less to write than it costs every write to compare twice

_README = """\
This folder holds the mark of each guarded file in the folder above: the newest epoch that has written the file.
Do not remove this folder while jobs write to the files: a stale owner could then overwrite a newer owner's file.
A backup of the files has to include it.
"""


class FileGuard(Guard):
    """
    Refuses to replace or delete a file of a folder under an epoch below the highest that the file has admitted.

    A file changes by a rename, so a reader sees the old content or the new one. Data is written and synced first; then,
    under the lock of the key, the mark is compared, raised and synced, and the file gets its name. A crash between any
    two steps leaves old or new data, under a mark that is not below it.

    It protects on local file systems, where all processes share one kernel: not on NFS, SMB or FUSE. It protects only
    files that are written by nothing else.

    *folder* has to exist, unless *create*: a volume that is not mounted must not look like a folder without marks.
    *busy_seconds* is how long a write or seal waits for the lock of its key before it raises `GuardUnavailable`.
    """

    kind = "file"
    STEPS = ("prepared", "locked", "marked", "renamed")

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        create: bool = False,
        busy_seconds: float = 10,
        keys: Verifier | None = None,
        audience: str | None = None,
        strict_store: bool = False,
    ) -> None:
        super().__init__(keys=keys, audience=audience, strict_store=strict_store)
        self.folder = Path(os.path.realpath(folder))
        self._root = str(self.folder)
        self._own = os.path.join(self._root, names.RESERVED)
        self._create = create
        self._busy_seconds = checks.microseconds(busy_seconds, "busy_seconds", zero=True) / 1_000_000
        self._is_ready = False
        self._is_folding = False
        self._own_paths: dict[str, tuple[str, str]] = {}  # of the mark and the lock, by key
        self._preparing = threading.Lock()

    @property
    def aio(self) -> AsyncFileGuard:
        """The same verbs for async callers."""
        return AsyncFileGuard(self)

    # Names

    def canonical(self, key: str | os.PathLike[str]) -> str:
        """
        Return the one name of *key*: a path relative to the folder, without `.` and doubled slashes.

        Raises `InvalidArgument` for an absolute path, one with `..`, one through a symbolic link, and one that names a
        folder or the guard's own files.
        """
        with self._failures(f"{self.kind}:{key}", "read"):
            return names.canonical(self._root, key)

    def path(self, key: str) -> Path:
        """Return where the file of *key* is, for programs that read it."""
        return self.folder / self.canonical(key)

    # Readers

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key* as it stands, without a lease; None if no owner has written or sealed it."""
        key = self.canonical(key)
        self._get_ready(key)
        return self._mark_file(key).read()

    def peek(self, key: str) -> bytes | None:
        """Return the content of the file without a lease; None if there is no file. Seals nothing."""
        key = self.canonical(key)
        with self._failures(self.resource(key), "peek"):
            try:
                with open(self._path(key), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def read(self, key: str, **presented: Unpack[Presented]) -> bytes | None:
        """
        Seal the key, check that the lease is current, and return the content of the file; None if there is no file.

        No older owner can change what was read, or create what was not there. Raises what `seal` raises.
        """
        self.seal(key, **presented)
        self._check_current(presented)
        return self.peek(key)

    # Writers

    def write(self, key: str, data: bytes | bytearray | memoryview | str, **presented: Unpack[Presented]) -> None:
        """
        Replace the file by *data* (a string as UTF-8), durably; folders above it are made.

        Raises `StaleEpoch` if a newer owner has been here, `NoLease` without a lease, and `GuardUnavailable` if the
        disk is full, the lock is busy or the mark cannot be read; in each case the file is as it was.
        """
        content = _encoded(data)
        key = self.canonical(key)
        with (
            self._attempt(key, "write", presented) as writer,
            self._temporary(key, writer, "write", advise=len(content) > _SMALL) as new,
        ):
            with self._failures(self.resource(key), "write"):
                new.write(content)
            self._commit(key, writer, "write", new)

    @overload
    def open(
        self, key: str, mode: Literal["wb"] = ..., **presented: Unpack[Presented]
    ) -> AbstractContextManager[BinaryIO]: ...
    @overload
    def open(
        self, key: str, mode: Literal["w"], *, encoding: str | None = ..., **presented: Unpack[Presented]
    ) -> AbstractContextManager[TextIO]: ...

    def open(
        self, key: str, mode: Literal["wb", "w"] = "wb", *, encoding: str | None = None, **presented: Unpack[Presented]
    ) -> AbstractContextManager[Any]:
        """
        Return a context manager that yields a file to write to; it replaces the key's file when the block ends.

        For data that is large or made piece by piece. The file that is yielded has a `name`, which another program may
        write to. An exception in the block leaves everything as it was. The epoch is compared when the block ends, and
        once when it begins, to spare a stale owner the work; raises what `write` raises.
        """
        return self._open(key, mode, encoding, presented)

    @contextmanager
    def _open(self, key: str, mode: str, encoding: str | None, presented: Presented) -> Iterator[IO[Any]]:
        if mode not in ("wb", "w"):
            raise InvalidArgument(
                f"mode= must be 'wb' or 'w', not {mode!r}: a guarded file is replaced as a whole, not changed in place."
            )
        key = self.canonical(key)
        with self._attempt(key, "write", presented) as writer, self._temporary(key, writer, "write") as new:
            with _opened(new, mode, encoding) as file:
                yield file
            self._commit(key, writer, "write", new)

    def append(self, key: str, data: bytes | bytearray | memoryview | str, **presented: Unpack[Presented]) -> None:
        """
        Add *data* to the end of the file, by a copy and a rename; a missing file begins empty.

        Appends of one owner from several threads or processes are all kept. The file may have up to 64 MiB afterwards;
        raises `InvalidArgument` if it would be larger, and what `write` raises.
        """
        content = _encoded(data)
        key = self.canonical(key)
        with self._attempt(key, "append", presented) as writer, self._temporary(key, writer, "append") as new:
            with self._failures(self.resource(key), "append"):
                old = self._copy(key, content, new)
            with closing(old) if old is not None else nullcontext():
                # Copied before the lock, which is held shortly; and once more inside if the file has changed since.
                self._commit(key, writer, "append", new, again=lambda: self._copy_if_changed(key, content, new, old))

    def delete(self, key: str, **presented: Unpack[Presented]) -> None:
        """Remove the file, if there is one; its mark stays. Raises what `write` raises."""
        key = self.canonical(key)
        with self._attempt(key, "delete", presented) as writer:
            self._get_ready(key)
            self.at("prepared")
            self._commit(key, writer, "delete", None)

    # Inside

    def _seal(self, key: str, writer: Writer) -> Seal:
        self._get_ready(key)
        with self._failures(self.resource(key), "seal"), self._lock(key, writer):
            return Seal(key, self._raise_mark(key, writer, "seal"))

    def _commit(self, key: str, writer: Writer, verb: str, new: Temporary | None, again: Any = lambda: None) -> None:
        """Compare, raise the mark, and give *new* its name, or remove the file; all under the key's lock."""
        path = self._path(key)
        if new is not None:
            with self._failures(self.resource(key), verb):
                with suppress(FileNotFoundError):
                    os.fchmod(new.fd, os.stat(path).st_mode & 0o7777)
                sync_file(new.fd)
            self.at("prepared")
        with self._failures(self.resource(key), verb), self._lock(key, writer) as lock:
            self.at("locked")
            lock.check()
            again()
            # The mark first: a crash before the rename leaves old data under a newer mark, which refuses more and not
            # less. The other way round, new data under an older mark would let a stale owner replace it.
            self._raise_mark(key, writer, verb)
            self.at("marked")
            lock.check()
            if new is None:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                make_folders(os.path.dirname(path))
                new.rename(path)
            self.at("renamed")
            try:
                sync_folder(os.path.dirname(path))
            except FileNotFoundError:  # deleted, and there never was a folder
                pass
            except OSError as error:
                raise InDoubt.of_resource(
                    self.resource(key),
                    epoch=writer.epoch,
                    verb=verb,
                    why=f"the folder could not be synced ({error.strerror}), so a power loss may undo it",
                ) from error

    def _raise_mark(self, key: str, writer: Writer, verb: str) -> Mark:
        file = self._mark_file(key)
        mark = self._admit(key, file.read(), writer, verb)
        file.write(mark)
        return mark

    def _copy(self, key: str, content: bytes, new: Temporary) -> BinaryIO | None:
        """Make *new* the file with *content* at its end; return that file, open, so that no other gets its inode."""
        try:
            old: BinaryIO | None = open(self._path(key), "rb")  # noqa: SIM115  # the caller closes it
        except FileNotFoundError:
            old = None
        size = 0 if old is None else os.fstat(old.fileno()).st_size
        if size + len(content) > APPEND_LIMIT:
            if old is not None:
                old.close()
            raise InvalidArgument(
                f"{self.resource(key)} has {size:,} bytes and cannot grow by {len(content):,}: append() copies the "
                f"whole file, so it is limited to files of {APPEND_LIMIT:,} bytes. Begin another file, or write this "
                "one with open()."
            )
        with _opened(new, "wb", None) as file:
            if old is not None:
                shutil.copyfileobj(old, file)
            file.write(content)
        return old

    def _copy_if_changed(self, key: str, content: bytes, new: Temporary, old: BinaryIO | None) -> None:
        try:
            now = os.stat(self._path(key))
        except FileNotFoundError:
            is_same = old is None
        else:
            is_same = old is not None and os.path.samestat(now, os.fstat(old.fileno()))
        if not is_same:
            copied = self._copy(key, content, new)
            if copied is not None:
                copied.close()
            sync_file(new.fd)

    @contextmanager
    def _temporary(self, key: str, writer: Writer, verb: str, *, advise: bool = True) -> Iterator[Temporary]:
        """Yield a file for the data of a write that the mark admits so far; removed at the end if it has no name."""
        self._get_ready(key)
        if advise:  # to spare a stale owner the work; the comparison that counts is under the lock
            mark = self._mark_file(key).read()
            admit(mark, writer, resource=self.resource(key), verb=verb, strict_store=self.strict_store)
        with self._failures(self.resource(key), verb):
            new = Temporary(self._folder_of("tmp"))
        try:
            yield new
        finally:
            new.discard()

    def _lock(self, key: str, writer: Writer, busy_seconds: float | None = None) -> KeyLock:
        busy_seconds = self._busy_seconds if busy_seconds is None else busy_seconds
        path = self._own_path("locks", key)
        return KeyLock(path, writer, resource=self.resource(key), busy_seconds=busy_seconds)

    def _mark_file(self, key: str) -> MarkFile:
        path = self._own_path("marks", key)
        return MarkFile(path, self._folder_of("tmp"), self.resource(key))

    def _own_path(self, folder: Literal["marks", "locks"], key: str) -> str:
        found = self._own_paths.get(key)
        if found is None:
            if len(self._own_paths) >= _PATHS:
                self._own_paths.clear()
            name = names.file_name(names.fold(key) if self._is_folding else key)
            # With an ending of its own, so that a search for *.csv below the folder does not find the marks.
            found = f"{self._own}/marks/{name}.mark", f"{self._own}/locks/{name}.lock"
            self._own_paths[key] = found
        return found[0 if folder == "marks" else 1]

    def _folder_of(self, what: str) -> str:
        return os.path.join(self._own, what)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    # At the beginning

    def _get_ready(self, key: str) -> None:
        """Make the guard's own folders, remove what dead writers left, and look at the file system; once."""
        if self._is_ready:
            return
        with self._preparing:
            if self._is_ready:
                return
            with self._failures(self.resource(key), "write"):
                if self._create:
                    make_folders(self._root)
                elif not os.path.isdir(self._root):
                    raise GuardUnavailable(
                        f"{self._root} is not a folder, so no file in it can be guarded. Create it, mount its file "
                        "system, or pass create=True."
                    )
                self._refuse_shared_file_system()
                if outer := names.guarded_above(self._root):
                    raise InvalidArgument(
                        f"{self._root} is inside {outer}, which already has a file guard: two guards of one file "
                        f"would not see each other's marks. Use the guard of {outer}, with keys that begin with "
                        f"{os.path.relpath(self._root, outer)!r}."
                    )
                for folder in ("marks", "locks", "tmp"):
                    make_folders(self._folder_of(folder))
                with suppress(FileExistsError), open(os.path.join(self._own, "README.txt"), "x") as file:
                    file.write(_README)
                self._is_folding = names.is_folding(self._own)
                self._own_paths.clear()
                if stale := collect(self._folder_of("tmp")):
                    log.info("removed %s temporary files of writers that have ended, in %s", stale, self._own)
            self._is_ready = True

    def _refuse_shared_file_system(self) -> None:
        kind = file_systems.type_of(self._root)
        if kind is not None and file_systems.is_shared(kind):
            raise Unfenced(
                f"{self._root} is on a file system of type {kind}, where other machines may write without respecting "
                "the locks of this machine: a file guard there would protect nothing. Use a local disk, or an "
                "ObjectGuard."
            )
        if kind is not None and kind not in file_systems.LOCAL:
            log.warning(
                "%s is on a file system of type %s, on which the file guard has not been tested. The guard needs "
                "atomic renames, and locks (flock) that hold for every writer",
                self._root,
                kind,
            )

    def _prove(self) -> None:
        """With a key of its own, which is removed afterwards."""
        key = f"{names.RESERVED}/proof-{secrets.token_hex(8)}"
        self._get_ready(key)
        self._refuse_shared_file_system()
        with self._failures(self.resource(key), "write"):
            collect(self._folder_of("tmp"))
        older, newer = (Writer(epoch, "prove", "prove") for epoch in (1, 2))
        try:
            self._prove_lock(key, newer)
            self._prove_write(key, newer, b"new")
            with suppress(StaleEpoch):
                self._prove_write(key, older, b"old")
                raise Unfenced(
                    f"prove() failed: in {self._root}, a test write under an older epoch was accepted, so a stale "
                    "owner could overwrite files there. Only a file of the test's own was written, and it was "
                    "removed. Use a folder on a local disk, or an ObjectGuard."
                )
            if Path(self._path(key)).read_bytes() != b"new":
                raise Unfenced(
                    f"prove() failed: in {self._root}, a test write that was refused has changed its file all the "
                    "same, so a stale owner could overwrite files there. Only a file of the test's own was written, "
                    "and it was removed. Use a folder on a local disk, or an ObjectGuard."
                )
        finally:
            for path in (self._path(key), self._own_path("marks", key), self._own_path("locks", key)):
                Path(path).unlink(missing_ok=True)

    def _prove_lock(self, key: str, writer: Writer) -> None:
        first, second = self._lock(key, writer), self._lock(key, writer, busy_seconds=0)
        with self._failures(self.resource(key), "write"), first, suppress(GuardUnavailable), second:
            raise Unfenced(
                f"prove() failed: in {self._root}, a test lock was granted twice, so two owners could write at once. "
                "The file system ignores flock. Use a folder on a local disk, or an ObjectGuard."
            )

    def _prove_write(self, key: str, writer: Writer, data: bytes) -> None:
        with self._temporary(key, writer, "write") as new:
            os.pwrite(new.fd, data, 0)
            self._commit(key, writer, "write", new)

    @contextmanager
    def _failures(self, resource: str, verb: str) -> Iterator[None]:
        """Turn an error of the operating system into `GuardUnavailable`; the file is as it was."""
        try:
            yield
        except OSError as error:
            raise self._unavailable(resource, verb, error) from error

    def _unavailable(self, resource: str, verb: str, error: OSError) -> GuardUnavailable:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno == errno.EXDEV:
            where = (
                ": a folder above it is on a different file system than the guard. Give that folder a guard of its own"
            )
        return GuardUnavailable(
            f"{resource}: {verb} failed: {error.strerror or error}{where}. The file was not changed; try again once "
            f"{self._root} can be used."
        )


def _encoded(data: object) -> bytes:
    if isinstance(data, str):
        return checks.encodable(data, "data")
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"data must be bytes or a string, not {type(data).__name__}: encode it first, or use open().")


@contextmanager
def _opened(new: Temporary, mode: str, encoding: str | None) -> Iterator[IO[Any]]:
    """Open the temporary file for its data; by its path, since some writers want a name, and some close the file."""
    encoding = (encoding or "utf-8") if mode == "w" else None
    with open(new.path, mode, encoding=encoding) as file:
        yield file


class AsyncFileGuard(Facade):
    """
    The verbs of a `FileGuard`, to be awaited; they run on threads.

    A caller that is cancelled inside a write does not learn whether it happened: the thread goes on to the end.
    """

    mark = threaded(FileGuard.mark)
    peek = threaded(FileGuard.peek)
    read = threaded(FileGuard.read)
    write = threaded(FileGuard.write)
    append = threaded(FileGuard.append)
    delete = threaded(FileGuard.delete)
    seal = threaded(FileGuard.seal)
    prove = threaded(FileGuard.prove)

    @asynccontextmanager
    async def open(
        self, key: str, mode: Literal["wb", "w"] = "wb", *, encoding: str | None = None, **presented: Unpack[Presented]
    ) -> AsyncIterator[IO[Any]]:
        """Yield a file that replaces the key's file when the block ends, as `FileGuard.open` does."""
        block = self._sync._open(key, mode, encoding, presented)
        file = await asyncio.to_thread(block.__enter__)
        try:
            yield file
        except BaseException:
            if not await asyncio.to_thread(block.__exit__, *sys.exc_info()):
                raise
        else:
            await asyncio.to_thread(block.__exit__, None, None, None)


warn_on_loops(FileGuard, lambda: AsyncFileGuard, "guard")
