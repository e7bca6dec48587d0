"""The file guard: locks, forks, and file systems that other machines write to."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import GuardUnavailable, Unfenced
from leasehold.core.marks import Writer
from leasehold.guards import FileGuard
from leasehold.guards.files import file_systems
from leasehold.guards.files.locks import KeyLock, holder

from .guarded_files import NEW, OLD, guard, under

__all__ = ["guard"]  # a fixture


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
    assert forked[0] == 0 and "was forked during a write" in str(error), error  # the folder has "forked" in its name
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
