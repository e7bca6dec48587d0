"""The file guard: its verbs, the names of files, and marks."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold import GuardUnavailable, InvalidArgument, NoLease, Router, StaleEpoch
from leasehold.core.marks import Mark
from leasehold.guards import FileGuard
from leasehold.guards.files import APPEND_LIMIT, names
from leasehold.guards.files.mark_files import SECTOR

from .guarded_files import NEW, NEWEST, OLD, guard, left_over, mark_path, under

__all__ = ["guard"]  # a fixture


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
        with pytest.raises(InvalidArgument, match=f"leads out of the folder, to {outside}"):
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
