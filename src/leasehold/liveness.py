"""
What this process is, and whether another process of this machine has certainly ended.

A process is named by host, boot, pid namespace, process id and start time. Only where all but the last two are our own
can its death be proved; everything else waits for its deadline.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from .core.ownership import Process


class _CallingProcess(Process):
    """The default of `claim(process=…)`, whose repr `help` shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<the calling process>"


SELF: Final = _CallingProcess("", "", "", 0, 0)

_known: list[Process | None] = []  # this process, once it was asked for; a forked child asks anew


def this_process() -> Process | None:
    """Return the name of this process, or None where the system does not tell enough (no /proc)."""
    if not _known:
        _known.append(identify(os.getpid()))
    return _known[0]


def is_gone(process: Process) -> bool:
    """Return True only if *process* has certainly ended; False also means "cannot tell"."""
    mine = this_process()
    # Containers share the host's boot id, not its process ids: without the namespace we would look up a stranger.
    if mine is None or process[:3] != mine[:3] or process.pid == mine.pid:
        return mine is not None and process[:4] == mine[:4] and process.started != mine.started
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to another user
    state = _stat(process.pid)
    if state is None:
        return False
    status, started = state
    # The id may have been given to another process since. A zombie has ended, unless only its main thread did.
    return started != process.started or (status in "ZX" and _threads(process.pid) <= 1)


def identify(pid: int) -> Process | None:
    """Return what tells the process with that id from every other; None if it is gone, or /proc cannot be read."""
    state = _stat(pid)
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        # Start times are counted from the boot as the time namespace shows it, so it is part of the name.
        namespace = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time") if _has(kind))
    except OSError:
        return None
    return None if state is None else Process(socket.gethostname(), boot, namespace, pid, state[1])


def _has(namespace: str) -> bool:
    return os.path.lexists(f"/proc/self/ns/{namespace}")


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 2  # unreadable: assume that something still runs


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_known.clear)
