"""The file guard: names, crashes, locks, full disks, and what each write costs."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import GuardUnavailable, InDoubt, InvalidArgument, NoLease, Router, StaleEpoch, Unfenced
from leasehold.core.marks import Mark, Writer
from leasehold.guards import FileGuard
from leasehold.guards.files import APPEND_LIMIT, file_systems, names
from leasehold.guards.files.locks import KeyLock, holder
from leasehold.guards.files.mark_files import SECTOR
from leasehold.guards.files.temporary import Temporary, collect

OLD, NEW, NEWEST = 1_794_776_400_000_007, 1_794_776_400_000_011, 1_794_776_400_000_019


def under(epoch: int, owner: str = "a") -> dict[str, Any]:
    """What an owner without a lease presents."""
    return {"epoch": epoch, "owner": owner, "store": "store-1"}


@pytest.fixture
def guard(tmp_path: Path) -> FileGuard:
    """A guard of a folder."""
    return FileGuard(tmp_path, busy_seconds=PATIENCE_SECONDS)


def left_over(guard: FileGuard) -> list[str]:
    """The temporary files."""
    return os.listdir(guard.folder / ".leasehold/tmp")


def mark_path(guard: FileGuard, key: str) -> Path:
    """Where the mark of a key is."""
    return guard.folder / ".leasehold/marks" / f"{names.file_name(key)}.mark"


# Verbs


def test_a_file_is_written_read_appended_and_deleted(guard: FileGuard) -> None:
    """Folders above it are made; the mark goes up with each."""
    guard.write("2024/q3.csv", "grün", **under(OLD))
    assert guard.path("2024/q3.csv").read_text() == "grün"
    guard.append("2024/q3.csv", b" und blau", **under(OLD))
    assert guard.read("2024/q3.csv", **under(OLD)) == "grün und blau".encode()
    guard.delete("2024/q3.csv", **under(OLD))

    assert not guard.path("2024/q3.csv").exists()
    assert guard.mark("2024/q3.csv") == Mark(OLD, 4, "a", "store-1")
    guard.append("2024/q3.csv", b"anew", **under(OLD))
    assert guard.peek("2024/q3.csv") == b"anew"
    assert left_over(guard) == []


def test_the_lease_of_a_handler_is_presented_by_itself(tmp_path: Path) -> None:
    """And a write outside of one is refused."""
    guard, router = FileGuard(tmp_path), Router()

    @router.task
    def report() -> None:
        guard.write("q3.csv", b"1")

    with router:
        report.add()
        assert router.work(until_empty=True).done == 1
        found = guard.mark("q3.csv")
        assert found is not None
        assert found.epoch == router.jobs()[0].epoch
    with pytest.raises(NoLease, match=r"file:q3\.csv"):
        guard.write("q3.csv", b"2")


def test_of_a_file_that_is_not_there_nothing_is_read(guard: FileGuard) -> None:
    """`read` has sealed it all the same: no older owner can create it any more."""
    assert guard.peek("q3.csv") is None
    assert guard.peek("no/folder/q3.csv") is None
    assert guard.mark("q3.csv") is None
    assert guard.read("q3.csv", **under(NEW)) is None
    with pytest.raises(StaleEpoch):
        guard.write("q3.csv", b"", **under(OLD))


def test_a_replaced_file_keeps_its_permissions(guard: FileGuard) -> None:
    """And a new one has those of the process."""
    guard.write("q3.csv", b"1", **under(OLD))
    assert stat.S_IMODE(guard.path("q3.csv").stat().st_mode) == 0o666 & ~_umask()
    guard.path("q3.csv").chmod(0o640)
    guard.write("q3.csv", b"2", **under(OLD))
    assert stat.S_IMODE(guard.path("q3.csv").stat().st_mode) == 0o640


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("data", [None, 7, ["a"]])
def test_data_is_bytes_or_text(guard: FileGuard, data: Any) -> None:
    """Nothing is converted by guess."""
    with pytest.raises(InvalidArgument, match="bytes or a string"):
        guard.write("q3.csv", data, **under(OLD))


def test_a_large_file_is_streamed_and_appears_when_the_block_ends(guard: FileGuard) -> None:
    """Other programs may write to it by its name; text has an encoding."""
    guard.write("big", b"old", **under(OLD))
    with guard.open("big", **under(OLD)) as file:
        for _ in range(64):
            file.write(b"x" * 65_536)
        assert guard.peek("big") == b"old"
    assert guard.peek("big") == b"x" * 64 * 65_536

    with guard.open("big", **under(OLD)) as file:
        subprocess.run(["cp", "/dev/stdin", file.name], input=b"by another program", check=True)
    assert guard.peek("big") == b"by another program"

    with guard.open("text", "w", encoding="latin-1", **under(OLD)) as text:
        text.write("grün")
    assert guard.peek("text") == b"gr\xfcn"
    with guard.open("closed", **under(OLD)) as file:
        file.write(b"closed by its writer")
        file.close()
    assert guard.peek("closed") == b"closed by its writer"
    with pytest.raises(InvalidArgument, match="'a'"), guard.open("big", "a", **under(OLD)):  # type: ignore[call-overload]
        pass


def test_an_exception_in_the_block_leaves_everything_as_it_was(guard: FileGuard) -> None:
    """An error of the caller's own source passes unchanged, even if it is one of the operating system."""
    guard.write("big", b"old", **under(OLD))
    before = guard.mark("big")
    block = guard.open("big", **under(OLD))
    block.__enter__().write(b"half")
    error = OSError("the caller's")
    assert block.__exit__(OSError, error, None) is False, "it passes"

    assert guard.peek("big") == b"old"
    assert guard.mark("big") == before
    assert left_over(guard) == []


def test_a_stale_owner_is_refused_before_it_streams_and_after(guard: FileGuard) -> None:
    """Before, to spare it the work; after, since that is what counts."""
    guard.write("big", b"old", **under(OLD))
    block = guard.open("big", **under(OLD))
    block.__enter__().write(b"late")
    guard.seal("big", **under(NEW))
    with pytest.raises(StaleEpoch):
        block.__exit__(None, None, None)
    with pytest.raises(StaleEpoch), guard.open("big", **under(OLD)):
        pytest.fail("it was let in")

    assert guard.peek("big") == b"old"
    assert guard.refused == 2
    assert left_over(guard) == []


def test_appends_from_many_threads_are_all_kept(guard: FileGuard) -> None:
    """The file that was copied is compared with the one that is there under the lock, and copied again."""
    start = threading.Barrier(8)

    def append(number: int) -> None:
        start.wait()
        for line in range(5):
            guard.append("log", f"{number}-{line}\n", **under(OLD))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = guard.path("log").read_text().split()
    assert sorted(lines) == sorted(f"{number}-{line}" for number in range(8) for line in range(5))


@pytest.mark.parametrize("between", ["replaced", "deleted", "created"])
def test_an_append_is_made_to_what_is_there_when_it_counts(tmp_path: Path, between: str) -> None:
    """A sibling replaces, deletes or creates the file between the copy and the lock."""
    guard, sibling = FileGuard(tmp_path), FileGuard(tmp_path)
    if between != "created":
        guard.write("log", b"old ", **under(OLD))

    def meanwhile(step: str) -> None:
        if step == "prepared":
            if between == "deleted":
                sibling.delete("log", **under(OLD))
            else:
                sibling.write("log", b"sibling ", **under(OLD))

    guard.at = meanwhile
    guard.append("log", b"mine", **under(OLD))

    assert guard.peek("log") == (b"mine" if between == "deleted" else b"sibling mine")


def test_an_append_copies_no_more_than_64_mib(guard: FileGuard) -> None:
    """A larger file is as it was."""
    guard.write("log", b"", **under(OLD))
    os.truncate(guard.path("log"), APPEND_LIMIT - 1)
    guard.append("log", b"1", **under(OLD))
    with pytest.raises(InvalidArgument, match="67,108,864"):
        guard.append("log", b"2", **under(OLD))
    assert guard.path("log").stat().st_size == APPEND_LIMIT
    assert left_over(guard) == []


def test_async_handlers_have_the_same_verbs(guard: FileGuard) -> None:
    """They run on threads; a block that ends with an exception writes nothing."""

    async def work() -> None:
        await guard.aio.write("a", b"1", **under(OLD))
        await guard.aio.append("a", b"2", **under(OLD))
        assert await guard.aio.read("a", **under(OLD)) == b"12"
        async with guard.aio.open("a", **under(OLD)) as file:
            file.write(b"3")
        with pytest.raises(ZeroDivisionError):
            async with guard.aio.open("a", **under(OLD)) as file:
                file.write(bytes([1 // 0]))
        with pytest.raises(StaleEpoch):
            async with guard.aio.open("a", **under(OLD)) as file:
                await guard.aio.seal("a", **under(NEW))
        assert await guard.aio.peek("a") == b"3"
        await guard.aio.delete("a", **under(NEW))
        await guard.aio.prove()
        assert await guard.aio.mark("a") == guard.mark("a")

    asyncio.run(work())


# Names


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "not empty"),
        (".", "does not name"),
        ("./", "slash"),
        ("/", "absolute"),
        ("..", "does not name"),
        ("../q3.csv", "does not name"),
        ("a/../q3.csv", "does not name"),
        ("a/..", "does not name"),
        ("/etc/passwd", "absolute"),
        ("//q3.csv", "absolute"),
        ("q3.csv/", "slash"),
        ("q3\0.csv", "NUL"),
        ("q3\udcff.csv", "half a character"),
        (".leasehold/marks/q3.csv", "marks of this guard"),
        (".leasehold", "marks of this guard"),
        ("./.LEASEHOLD/x", "marks of this guard"),
        ("x" * 300, "longer"),
        (b"q3.csv", "string"),
        (None, "string"),
    ],
)
def test_a_name_that_is_not_a_file_of_the_folder_is_refused(guard: FileGuard, key: Any, why: str) -> None:
    """By every verb, before anything is touched."""
    verbs: list[Callable[[], object]] = [
        lambda: guard.write(key, b"", **under(OLD)),
        lambda: guard.append(key, b"", **under(OLD)),
        lambda: guard.open(key, **under(OLD)).__enter__(),
        lambda: guard.delete(key, **under(OLD)),
        lambda: guard.seal(key, **under(OLD)),
        lambda: guard.read(key, **under(OLD)),
        lambda: guard.peek(key),
        lambda: guard.mark(key),
        lambda: guard.key(key),
    ]
    for verb in verbs:
        with pytest.raises(InvalidArgument, match=why):
            verb()


@pytest.mark.parametrize("name", ["q3.csv", "./q3.csv", ".//q3.csv", "././q3.csv"])
def test_names_of_one_file_are_one_key(guard: FileGuard, name: str) -> None:
    """So they share a mark."""
    guard.seal("q3.csv", **under(NEW))
    with pytest.raises(StaleEpoch) as refusal:
        guard.write(name, b"", **under(OLD))
    assert refusal.value.resource == "file:q3.csv"
    assert guard.canonical(Path("q3.csv")) == "q3.csv"


def test_symbolic_links_are_refused(guard: FileGuard, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They leave the folder, or give one file two names; the message says which name to use."""
    outside = tmp_path_factory.mktemp("outside")
    guard.write("real/q3.csv", b"", **under(OLD))
    (guard.folder / "link").symlink_to("real")
    (guard.folder / "link.csv").symlink_to("real/q3.csv")
    (guard.folder / "out").symlink_to(outside)
    (guard.folder / "out.csv").symlink_to(outside / "x")

    for key in ("link/q3.csv", "link/new.csv"):
        with pytest.raises(InvalidArgument, match="use 'real'"):
            guard.write(key, b"", **under(OLD))
    with pytest.raises(InvalidArgument, match=r"use 'real/q3\.csv'"):
        guard.seal("link.csv", **under(OLD))
    for key in ("out/x", "out.csv"):
        with pytest.raises(InvalidArgument, match=f"leaves the folder, to {outside}"):
            guard.peek(key)
    assert list(outside.iterdir()) == []


def test_a_folder_or_a_device_is_not_a_file(guard: FileGuard) -> None:
    """Nor is what is below a file."""
    guard.write("a/b", b"", **under(OLD))
    os.mkfifo(guard.folder / "pipe")
    for key, why in (("a", "regular file"), ("pipe", "regular file"), ("a/b/c", "not a folder")):
        with pytest.raises(InvalidArgument, match=why):
            guard.write(key, b"", **under(OLD))


def test_a_folder_reached_through_a_link_is_the_same_folder(tmp_path: Path) -> None:
    """Two guards by two names share their marks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    FileGuard(tmp_path / "link").seal("q3.csv", **under(NEW))
    with pytest.raises(StaleEpoch):
        FileGuard(tmp_path / "real").write("q3.csv", b"", **under(OLD))


def test_a_file_has_one_guard_and_not_two_at_two_heights(tmp_path: Path) -> None:
    """They would not see each other's marks; whichever comes second is refused."""
    (tmp_path / "a/b").mkdir(parents=True)
    FileGuard(tmp_path / "a").seal("x", **under(OLD))
    with pytest.raises(InvalidArgument, match=r"keys that begin with 'b'"):
        FileGuard(tmp_path / "a/b").seal("x", **under(OLD))
    with pytest.raises(InvalidArgument, match="guard of its own"):
        FileGuard(tmp_path).seal("a/x", **under(OLD))


KEYS = [
    "a",
    "a.mark",
    "A",
    "a%2Fb",
    "a/b",
    "a b",
    "%sha256-x",
    "é",
    "e\u0301",
    "x" * 250,
    "y" * 250,
    "ß",
    "ss",
    "-",
    "~",
]


def test_two_keys_never_share_a_mark(guard: FileGuard) -> None:
    """Short names are readable in the folder of the marks; long ones are hashed."""
    for key in KEYS:
        guard.seal(key, **under(OLD))
    assert [guard.mark(key) for key in KEYS] == [Mark(OLD, 1, "a", "store-1")] * len(KEYS)
    assert (guard.folder / ".leasehold/marks/a%2Fb.mark").is_file()


def test_where_names_are_folded_two_names_of_one_file_share_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without case, here by a stage on which every lookup ignores it."""
    real = os.path.lexists
    folded = {"probe": False}

    def lexists(path: str) -> bool:
        folder, name = os.path.split(path)
        if name.startswith("probe-"):
            folded["probe"] = True
            return any(names.fold(other) == names.fold(name) for other in os.listdir(folder))
        return real(path)

    monkeypatch.setattr(os.path, "lexists", lexists)
    guard = FileGuard(tmp_path)
    guard.seal("Q3-é.csv", **under(NEW))
    assert folded["probe"]
    for name in ("q3-É.csv", unicodedata.normalize("NFD", "Q3-é.csv")):
        with pytest.raises(StaleEpoch):
            guard.write(name, b"", **under(OLD))


# Marks


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * SECTOR,
        b"{}" + b"\n" * 510,
        b"x",
        pytest.param(None, id="a digit"),
    ],
)
def test_a_damaged_mark_refuses_everything_and_nothing_is_written(guard: FileGuard, damage: bytes | None) -> None:
    """Even a single digit: the checksum sees what JSON does not."""
    guard.write("q3.csv", b"old", **under(NEW))
    path = mark_path(guard, "q3.csv")
    good = path.read_bytes()
    path.write_bytes(good.replace(b"11,", b"01,", 1) if damage is None else damage)

    for verb in (guard.delete, guard.seal, guard.read):
        with pytest.raises(GuardUnavailable, match="its mark cannot be read"):
            verb("q3.csv", **under(NEWEST))
    with pytest.raises(GuardUnavailable, match="Nothing was written"):
        guard.write("q3.csv", b"new", **under(NEWEST))
    assert guard.peek("q3.csv") == b"old"
    assert left_over(guard) == []
    path.write_bytes(good)
    guard.write("q3.csv", b"new", **under(NEWEST))


def test_a_mark_that_is_a_folder_cannot_be_read(guard: FileGuard) -> None:
    """Whatever is wrong with the file."""
    guard.seal("other", **under(OLD))
    mark_path(guard, "q3.csv").mkdir()
    with pytest.raises(GuardUnavailable, match="Is a directory"):
        guard.write("q3.csv", b"", **under(OLD))


def test_marks_of_any_length_are_kept(guard: FileGuard) -> None:
    """One that fits into a sector is overwritten where it is; a longer one is a new file; and back."""
    path = mark_path(guard, "q3.csv")
    for owner in ("a", "b" * 255, "\u2028" * 255, "c", "\1" * 255, "d"):
        guard.write("q3.csv", b"", **under(NEW, owner))
        found = guard.mark("q3.csv")
        assert found is not None
        assert found.owner == owner
        assert (path.stat().st_size == SECTOR) == (len(found.encode().encode()) + 10 <= SECTOR)
        with pytest.raises(StaleEpoch):
            guard.write("q3.csv", b"", **under(OLD))
    before = path.stat().st_ino
    guard.write("q3.csv", b"", **under(NEW))
    assert path.stat().st_ino == before, "a short mark is overwritten where it is"


# What a write costs, and in which order things become durable


@contextmanager
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The list of what is synced, renamed and removed, while the block runs."""
    found: list[str] = []
    calls = {name: getattr(os, name) for name in ("fsync", "fdatasync", "rename", "unlink")}

    def noted(name: str) -> Callable[..., Any]:
        def call(what: Any, *rest: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else rest[0] if rest else what
            calls[name](what, *rest)
            found.append(f"{name} {Path(path).parent.name}/{Path(path).name}")

        return call

    with monkeypatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, noted(name))
        yield found


def test_a_write_syncs_three_times_and_the_mark_before_the_rename(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare write syncs twice: the data and the folder. A seal syncs once."""
    guard.write("q3.csv", b"1", **under(OLD))
    here = f"{guard.folder.parent.name}/{guard.folder.name}"

    with syncs(monkeypatch) as found:
        guard.write("q3.csv", b"2", **under(OLD))
    assert [line.partition("tmp/")[0] for line in found] == [
        "fsync ",  # the data
        "fdatasync marks/q3.csv.mark",
        f"rename {guard.folder.name}/q3.csv",
        f"fsync {here}",
    ]
    with syncs(monkeypatch) as found:
        guard.seal("q3.csv", **under(OLD))
    assert found == ["fdatasync marks/q3.csv.mark"]
    with syncs(monkeypatch) as found:
        guard.delete("q3.csv", **under(OLD))
    assert found == ["fdatasync marks/q3.csv.mark", f"unlink {guard.folder.name}/q3.csv", f"fsync {here}"]
    with syncs(monkeypatch) as found:
        guard.peek("q3.csv") if guard.path("q3.csv").exists() else guard.mark("q3.csv")
    assert found == []


def test_a_first_write_syncs_the_new_mark_and_its_name_before_the_rename(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times; and once more for each folder that it makes."""
    guard.seal("other", **under(OLD))
    with syncs(monkeypatch) as found:
        guard.write("2024/q3.csv", b"1", **under(OLD))
    assert [line.partition("tmp/")[0] for line in found] == [
        "fsync ",  # the data
        "fsync ",  # the mark
        "rename marks/2024%2Fq3.csv.mark",
        "fsync .leasehold/marks",
        f"fsync {guard.folder.parent.name}/{guard.folder.name}",  # the new folder's name
        "rename 2024/q3.csv",
        f"fsync {guard.folder.name}/2024",
    ]


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", ["fsync", "fdatasync", "rename", "pwrite"])
def test_whatever_fails_leaves_old_or_new_under_a_mark_that_is_not_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_first: bool
) -> None:
    """Each call in turn fails as a broken disk does; afterwards the guard works, and no temporary file is left."""
    real = getattr(os, name)
    for failing in range(10):
        guard = FileGuard(tmp_path)
        key = f"{name}-{is_first}-{failing}"
        guard.seal("ready", **under(OLD))
        if not is_first:
            guard.write(key, b"old", **under(OLD))
        count = 0

        def fail(*args: Any, failing: int = failing) -> Any:
            nonlocal count
            count += 1
            if count == failing + 1:
                raise OSError(errno.EIO, "Input/output error")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            try:
                guard.write(key, b"new", **under(NEW))
            except GuardUnavailable:
                is_new = False
            except InDoubt:  # renamed, and the folder could not be synced
                is_new = True
            else:
                is_new = True
        found = guard.path(key).read_bytes() if guard.path(key).exists() else None
        assert found == (b"new" if is_new else None if is_first else b"old")
        mark = guard.mark(key)
        assert not is_new or (mark is not None and mark.epoch == NEW)
        assert left_over(guard) == []
        guard.write(key, b"next", **under(NEW))
        if count <= failing:
            break
    else:
        pytest.fail("there were more calls than this test tries")
    assert failing > 0 or name == "fdatasync"


# Disks and folders


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    """And says so."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        guard = FileGuard(disk)
        guard.write("q3.csv", b"old", **under(OLD))
        with pytest.raises(GuardUnavailable, match="No space left on device"):
            guard.write("q3.csv", b"x" * 2_000_000, **under(OLD))
        with pytest.raises(OSError, match="No space left"), guard.open("q3.csv", **under(OLD)) as file:
            file.write(b"x" * 2_000_000)
        assert guard.peek("q3.csv") == b"old"
        assert left_over(guard) == []
        guard.write("q3.csv", b"new", **under(OLD))

        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (65_536, 4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size):
                        pass
        with pytest.raises(GuardUnavailable, match="No space left on device"):
            guard.write("q3.csv", b"x" * 10_000, **under(NEW))
        guard.seal("q3.csv", **under(NEW))  # a mark that exists needs no space
        guard.delete("q3.csv", **under(NEW))
        filler.unlink()
        guard.write("q3.csv", b"newest", **under(NEW))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a read-only file system")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    """Readers without a lease go on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        guard = FileGuard(disk)
        guard.write("q3.csv", b"old", **under(OLD))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for each in (guard, FileGuard(disk)):
            with pytest.raises(GuardUnavailable, match="Read-only file system"):
                each.write("q3.csv", b"new", **under(OLD))
            assert each.peek("q3.csv") == b"old"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_folder_on_another_file_system_is_named(tmp_path: Path) -> None:
    """A rename cannot cross it."""
    guard = FileGuard(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(GuardUnavailable, match="guard of its own"):
            guard.write("disk/q3.csv", b"", **under(OLD))
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A volume that is not mounted must not look like a folder without marks; nor must one that was removed."""
    guard = FileGuard(tmp_path / "out")
    with pytest.raises(GuardUnavailable, match="is not a folder"):
        guard.write("q3.csv", b"", **under(OLD))
    assert not (tmp_path / "out").exists()
    FileGuard(tmp_path / "out", create=True).write("q3.csv", b"", **under(OLD))
    guard.write("q3.csv", b"", **under(OLD))
    shutil.rmtree(tmp_path / "out")
    for verb in (guard.seal, guard.delete, guard.read):
        with pytest.raises(GuardUnavailable, match="No such file"):
            verb("q3.csv", **under(OLD))
    with pytest.raises(GuardUnavailable, match="No such file"):
        guard.write("q3.csv", b"", **under(OLD))
    assert not (tmp_path / "out").exists()


# Temporary files


def test_temporary_files_of_dead_writers_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    """By their locks, which the kernel releases; whoever had the process id."""
    guard = FileGuard(tmp_path)
    with guard.open("q3.csv", **under(OLD)) as file:
        file.write(b"live")
        program = "import os, sys; from leasehold.guards.files.temporary import Temporary; "
        program += "Temporary(sys.argv[1]); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path / ".leasehold/tmp")], check=False)
        assert len(left_over(guard)) == 2

        FileGuard(tmp_path).seal("other", **under(OLD))

        assert left_over(guard) == [Path(file.name).name]
    assert guard.peek("q3.csv") == b"live"


def test_a_temporary_file_that_was_collected_at_birth_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks between the creation and the lock."""
    real, calls = fcntl.flock, 0

    def flock(fd: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert collect(str(tmp_path)) == 1
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    new = Temporary(str(tmp_path))
    assert [Path(new.path)] == list(tmp_path.iterdir())
    new.discard()
    assert list(tmp_path.iterdir()) == []


# Locks


def test_the_lock_file_names_its_holder_and_is_empty_when_free(guard: FileGuard) -> None:
    """Process, start, host, epoch and owner."""
    path = str(guard.folder / ".leasehold/locks/q3.csv.lock")
    found: list[dict[str, Any] | None] = []
    guard.at = lambda step: found.append(holder(path)) if step == "locked" else None
    guard.write("q3.csv", b"", **under(OLD, "wörker"))

    [facts] = found
    assert facts is not None
    assert (facts["pid"], facts["epoch"], facts["owner"]) == (os.getpid(), OLD, "wörker")
    assert {"started", "host"} <= facts.keys()
    assert holder(path) is None


@pytest.mark.parametrize("verb", ["seal", "write", "delete", "append", "read"])
def test_a_busy_lock_is_waited_for_and_then_names_its_holder(tmp_path: Path, verb: str) -> None:
    """Another key is not affected."""
    guard, other = FileGuard(tmp_path), FileGuard(tmp_path, busy_seconds=0.01)
    errors: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "locked":
            call = getattr(other, verb)
            with pytest.raises(GuardUnavailable) as error:
                call("q3.csv", *([b""] if verb in ("write", "append") else []), **under(NEW))
            errors.append(str(error.value))
            other.write("another", b"", **under(NEW))

    guard.at = meanwhile
    guard.write("q3.csv", b"old", **under(OLD, "slow"))

    [message] = errors
    assert f"process {os.getpid()} on" in message
    assert "'slow'" in message
    assert f"kill -KILL {os.getpid()}" in message
    assert "0.01 seconds" in message
    assert guard.peek("q3.csv") == b"old"


def test_a_lock_file_that_was_removed_excludes_no_one_less(tmp_path: Path) -> None:
    """A lock on a file without a name is not taken for the lock of the key."""
    path = str(tmp_path / "lock")
    writer = Writer(OLD, "a", "s")
    second = KeyLock(path, writer, resource="file:x", busy_seconds=0)
    with KeyLock(path, writer, resource="file:x", busy_seconds=0):
        fd = os.open(path, os.O_RDWR)
        os.unlink(path)
    fcntl.flock(fd, fcntl.LOCK_EX)  # on the removed file: it is not in the way
    with second:
        pass
    os.close(fd)


@pytest.mark.parametrize("step", ["locked", "marked"])
def test_a_lock_file_that_is_removed_while_it_is_held_ends_the_write(tmp_path: Path, step: str) -> None:
    """The next owner takes a new file for the lock, and would find its own data replaced."""
    old, new = FileGuard(tmp_path), FileGuard(tmp_path)

    def removed(now: str) -> None:
        if now == step:
            (tmp_path / ".leasehold" / "locks" / "k.lock").unlink()
            new.write("k", b"new", epoch=9, owner="b", store="s")

    old.at = removed
    with pytest.raises(GuardUnavailable, match="was removed while this process held the lock"):
        old.write("k", b"old", epoch=7, owner="a", store="s")

    assert new.peek("k") == b"new"
    mark = new.mark("k")
    assert mark is not None
    assert mark.epoch == 9


def test_an_interruption_on_the_way_into_a_lock_leaves_it_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt may come at any time, even between the lock and the block that would release it."""
    path, writer = str(tmp_path / "lock"), Writer(OLD, "a", "s")

    def interrupt(lock: KeyLock) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KeyLock, "_name_holder", interrupt)
        with pytest.raises(KeyboardInterrupt):
            KeyLock(path, writer, resource="file:x", busy_seconds=0).__enter__()
    gc.collect()
    with KeyLock(path, writer, resource="file:x", busy_seconds=0):
        pass


def test_a_child_that_is_forked_inside_a_write_neither_writes_nor_holds_the_lock(tmp_path: Path) -> None:
    """In a process of its own, since a fork of this one would copy the threads' locks."""
    program = f"""
import os, sys
from leasehold import GuardUnavailable
from leasehold.guards import FileGuard
guard = FileGuard({str(tmp_path)!r}, busy_seconds=60)
inside, outside = os.pipe()
def at(step):
    if step == "locked" and not forked:
        forked.append(os.fork())
        if forked[0] == 0:
            guard.at = lambda step: None
forked = []
guard.at = at
me = {under(OLD)!r}
try:
    guard.write("q3.csv", b"once", **me)
except GuardUnavailable as error:
    assert forked[0] == 0 and "was forked inside a write" in str(error), error  # the folder has "forked" in its name
    os.read(inside, 1)
    os._exit(7)
assert forked[0] != 0
# The child is alive, and has the parent's files: the lock is free all the same.
guard.write("q3.csv", b"twice", **me)
os.write(outside, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 7
assert guard.peek("q3.csv") == b"twice"
assert guard.mark("q3.csv").counter == 2, guard.mark("q3.csv")
"""
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", program], check=True, timeout=PATIENCE_SECONDS)


# File systems


def test_the_type_of_a_file_system_is_read_from_its_mount() -> None:
    """The longest mount point counts, and of two at one point the later."""
    mounts = (
        "/dev/a / ext4 rw 0 0\n"
        "server:/x /data nfs4 rw 0 0\n"
        "/dev/b /data/local xfs rw 0 0\n"
        "x /da\\040ta fuse.sshfs rw 0 0\n"
        "tmpfs /over tmpfs rw 0 0\n"
        "//s/x /over cifs rw 0 0\n"
    )
    found = {
        path: file_systems.type_of(path, mounts) for path in ("/", "/data", "/data/x", "/data/local/y", "/database")
    }
    assert found == {"/": "ext4", "/data": "nfs4", "/data/x": "nfs4", "/data/local/y": "xfs", "/database": "ext4"}
    assert file_systems.type_of("/da ta/x", mounts) == "fuse.sshfs"
    assert file_systems.type_of("/over", mounts) == "cifs"
    assert [file_systems.is_shared(kind) for kind in ("nfs4", "cifs", "fuse", "fuse.sshfs", "ext4", "fuseblk")] == [
        *(True, True, True, True, False, False)
    ]
    assert file_systems.type_of("/proc") in ("proc", None)


@pytest.mark.parametrize("kind", ["nfs", "smb3", "fuse.s3fs", "9p"])
def test_a_file_system_that_other_machines_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """At the first use, and by `prove`; no mark is made."""
    monkeypatch.setattr(file_systems, "type_of", lambda path: kind)
    guard = FileGuard(tmp_path)
    with pytest.raises(Unfenced, match=kind):
        guard.write("q3.csv", b"", **under(OLD))
    with pytest.raises(Unfenced, match=kind):
        guard.prove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_is_not_known_is_named_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may well work."""
    monkeypatch.setattr(file_systems, "type_of", lambda path: "vfat")
    FileGuard(tmp_path).prove()
    assert "vfat" in caplog.text


def test_prove_fails_where_locks_do_not_exclude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing of its own."""
    guard = FileGuard(tmp_path)
    guard.prove()
    own = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.name for path in own] == ["README.txt"]
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    with pytest.raises(Unfenced, match="granted twice"):
        guard.prove()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == own


def test_the_folder_of_the_marks_says_what_it_is(guard: FileGuard) -> None:
    """An operator who finds it must not tidy it away."""
    guard.seal("q3.csv", **under(OLD))
    assert "Do not remove" in (guard.folder / ".leasehold/README.txt").read_text()
    facts, checksum = (guard.folder / ".leasehold/marks/q3.csv.mark").read_text().split()
    assert json.loads(facts)["epoch"] == OLD
    assert len(checksum) == 8


def test_a_mark_that_is_written_in_part_is_not_kept(tmp_path: Path) -> None:
    """At a limit of the size of files, a write ends early without an error: half a mark would lock every owner out."""
    text = (
        "import resource, signal, sys\n"
        "from leasehold import GuardUnavailable\n"
        "from leasehold.guards import FileGuard\n"
        "guard = FileGuard(sys.argv[1])\n"
        "guard.seal('other', epoch=7, owner='a', store='s')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        "    guard.write('k', b'short', epoch=7, owner='a', store='s')\n"
        "except GuardUnavailable as error:\n"
        "    print(error)\n"
    )
    # Without a measurement of coverage, whose own file would be cut off as well.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-P", "-c", text, str(tmp_path)]
    ran = subprocess.run(command, env=unmeasured, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "File too large" in ran.stdout
    guard = FileGuard(tmp_path)
    assert (guard.mark("k"), guard.peek("k")) == (None, None)
    guard.write("k", b"rightful", epoch=7, owner="a", store="s")
