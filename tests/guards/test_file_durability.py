"""The file guard: what a write costs, in which order things become durable, full disks and dead writers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from leasehold import GuardUnavailable, InDoubt
from leasehold.guards import FileGuard
from leasehold.guards.files.temporary import Temporary, collect

from .guarded_files import NEW, OLD, guard, left_over, under

__all__ = ["guard"]  # a fixture


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
    with pytest.raises(GuardUnavailable, match="is not a folder, so no file in it can be guarded"):
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
