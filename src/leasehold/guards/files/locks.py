"""
The lock of a key, and who holds it.

It is an flock on a file of its own: the kernel releases it when its process ends, however it ends. Each use opens the
file anew, so it also excludes threads of one process. Its first line names the holder while it is held, so that a
process that waits in vain can say for whom; that line is empty otherwise.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ...core.clock import patience
from ...core.marks import Writer
from ...core.wording import shown
from ...errors import GuardUnavailable
from ...liveness import this_process

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.0005, 0.02

_held: set[int] = set()  # file descriptors


class KeyLock:
    """Held inside `with`. Raises `GuardUnavailable`, which names the holder, if it is not free in time."""

    def __init__(self, path: str, writer: Writer, *, resource: str, busy_seconds: float) -> None:
        self._path = path
        self._writer = writer
        self._resource = resource
        self._busy_seconds = busy_seconds
        self._process = 0
        self._fd = -1

    def __enter__(self) -> Self:
        left = patience(self._busy_seconds)
        pause = _FIRST_PAUSE_SECONDS
        while not self._try():
            if left() <= 0:
                raise self._busy()
            time.sleep(max(min(pause, left()), 0))
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            return  # forked inside: the child's copy was closed when it began
        with suppress(OSError):  # the write has happened; a stale name in a free lock does no harm
            os.pwrite(self._fd, b"\n", 0)
        # Not by closing alone: a child that was forked a moment ago may still have a copy, which would hold the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._close()

    def check(self) -> None:
        """Raise `GuardUnavailable` if the lock excludes no one: after a fork, and if its file was removed."""
        if self._process != os.getpid():
            raise GuardUnavailable(
                f"{self._resource}: this process was forked during a write, and the lock of that write belongs to "
                f"process {self._process}. This process wrote nothing. Begin a new write here."
            )
        if not self._is_at_its_path():
            raise GuardUnavailable(
                f"{self._resource}: its lock file {self._path} was removed while this process held the lock, so "
                "another process may have written meanwhile. This write was not made; try again."
            )

    def _is_at_its_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _try(self) -> bool:
        self._process = os.getpid()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If the file was removed meanwhile, this lock excludes no one who opens the new file.
            is_mine = self._is_at_its_path()
        except BlockingIOError:
            is_mine = False
        if not is_mine:
            self._close()
            return False
        _held.add(self._fd)
        self._name_holder()
        return True

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        _held.discard(fd)
        os.close(fd)

    def __del__(self) -> None:
        # An exception from outside, such as KeyboardInterrupt, may come before `with` has entered.
        if self._fd >= 0 and self._process == os.getpid():
            self._close()

    def _name_holder(self) -> None:
        process = this_process()
        facts = {
            "pid": self._process,
            "started": None if process is None else process.started,
            "host": None if process is None else process.host,
            "epoch": self._writer.epoch,
            "owner": self._writer.owner,
        }
        # Over what is there, and not truncated: that would be a change of the file system's own records each time.
        with suppress(OSError):  # on a full disk the lock holds all the same, and a waiter cannot name this process
            os.pwrite(self._fd, json.dumps(facts).encode() + b"\n", 0)

    def _busy(self) -> GuardUnavailable:
        facts = holder(self._path)
        if facts is None:
            who, advice = "another process", f"Find that process with `lsof {self._path}`"
        else:
            who = f"process {facts['pid']} on {facts['host']} (owner {shown(facts['owner'])}, epoch {facts['epoch']})"
            advice = (
                f"If that process is stopped, resume it (kill -CONT {facts['pid']}) or end it (kill -KILL "
                f"{facts['pid']}), which releases the lock"
            )
        return GuardUnavailable(
            f"{self._resource}: its lock {self._path} is held by {who}, and was not free within {self._busy_seconds:g} "
            f"seconds. Nothing was written; try again. {advice}."
        )


def holder(path: str) -> dict[str, Any] | None:
    """Return the facts of the process that holds the lock at *path*; None if it is free, or does not say."""
    try:
        with open(path, "rb") as file:
            facts = json.loads(file.readline())
        return facts if isinstance(facts, dict) and {"pid", "host", "epoch", "owner"} <= facts.keys() else None
    except (OSError, ValueError):
        return None


def _close_copies() -> None:
    """Close the locks that this process has from its parent: a parent that is killed must not leave them held."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_copies)
