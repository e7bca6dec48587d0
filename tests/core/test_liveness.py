"""A process is gone only if that is certain."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold.core.ownership import Process
from leasehold.liveness import _stat, identify, is_gone, this_process

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="this system has no /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def named(child: subprocess.Popen[bytes]) -> Process:
    """The name of a process that runs here."""
    name = identify(child.pid)
    assert name is not None
    return name


def mine() -> Process:
    """The name of this process."""
    name = this_process()
    assert name is not None
    return name


def test_this_process_is_here() -> None:
    """It has a name, always the same, and is not gone."""
    assert mine().pid == os.getpid()
    assert mine() == mine()
    assert not is_gone(mine())


def test_a_live_process_is_not_gone(child: subprocess.Popen[bytes]) -> None:
    """Of the same host, boot and namespace."""
    assert named(child)[:3] == mine()[:3]
    assert not is_gone(named(child))


def test_a_dead_process_is_gone(child: subprocess.Popen[bytes]) -> None:
    """Once it is reaped, its id is nobody's."""
    name = named(child)

    child.kill()
    child.wait()

    assert is_gone(name)


def test_a_dead_process_that_nobody_reaped_is_gone(child: subprocess.Popen[bytes]) -> None:
    """A zombie does nothing any more."""
    name = named(child)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert is_gone(name)


def test_a_process_of_another_user_is_not_gone(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may not let us signal it, and says so with EPERM: it is there."""
    name = named(child)

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert not is_gone(name)

    child.kill()
    child.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert not is_gone(name)  # nor where nothing can be read of it


_MAIN_THREAD_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.buffer.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_has_ended_is_not_gone() -> None:
    """The system shows it as a zombie, and its other threads still work."""
    with subprocess.Popen([sys.executable, "-S", "-c", _MAIN_THREAD_ENDS], stdin=subprocess.PIPE) as process:
        try:
            name = named(process)
            for _ in range(PATIENCE_SECONDS * 100):
                if (_stat(process.pid) or "?")[0] == "Z":
                    break
                threading.Event().wait(0.01)
            assert (_stat(process.pid) or "?")[0] == "Z"
            assert process.poll() is None

            assert not is_gone(name)
        finally:
            process.kill()
        process.wait()
        assert is_gone(name)


def test_an_id_that_was_given_again_is_another_process(child: subprocess.Popen[bytes]) -> None:
    """The start time tells them apart, also for the id of this process."""
    assert is_gone(named(child)._replace(started=1))
    assert is_gone(mine()._replace(started=1))


@pytest.mark.parametrize("elsewhere", [{"host": "other"}, {"boot": "other"}, {"namespace": "pid:[1]"}], ids=str)
def test_of_elsewhere_nothing_is_certain(child: subprocess.Popen[bytes], elsewhere: dict[str, str]) -> None:
    """Another machine, an earlier boot, another container: its ids are not ours to look up."""
    name = named(child)
    child.kill()
    child.wait()

    assert not is_gone(name._replace(**elsewhere))  # type: ignore[arg-type]  # text fields only
    assert not is_gone(mine()._replace(**elsewhere, started=1))  # type: ignore[arg-type]  # likewise


def test_a_process_that_never_was_has_no_name() -> None:
    """Nothing is made up."""
    assert identify(2**22 + 1) is None


def test_a_forked_child_has_a_name_of_its_own() -> None:
    """It does not inherit what its parent was called."""
    before = mine()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        name = this_process()
        os.write(writing, repr(tuple(name) if name else None).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)

    with os.fdopen(reading) as answer:
        told = answer.read()

    assert str(pid) in told
    assert told != repr(tuple(before))
