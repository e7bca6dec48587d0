"""One process that runs handlers, as its worker sees it: started by "spawn", killed with its group, always reaped."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import multiprocessing.util  # whose own exit function, which waits for processes, then runs after ours
import os
import signal
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ....tasks.main_guard import PROCESS
from . import child

_spawn = multiprocessing.get_context("spawn")
# Starting a process also reaps others that have ended, whose ids would then be free while another thread kills them.
_reaping = threading.Lock()
_alive: weakref.WeakSet[Spawned] = weakref.WeakSet()

wait = multiprocessing.connection.wait


class Spawned:
    """A process and the connection to it; `ready` and `receive` are for one thread, `kill` is for any."""

    def __init__(self) -> None:
        ours, theirs = _spawn.Pipe()
        self._connection = ours
        self._process = _spawn.Process(target=child.main, args=(theirs,), name=PROCESS)
        try:
            # Else the first process that is begun unblocks the signals again.
            multiprocessing.resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, child.QUIET)  # until it has handlers for them
            try:
                with _reaping:
                    self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid: int = self._process.pid or 0
        self._death = self._watched()
        self._dead = False
        self.is_ending = False
        self.made_by = os.getpid()
        _alive.add(self)

    def _watched(self) -> int:
        """Return what becomes readable when the process has ended."""
        # The sentinel is a pipe, which whatever the process has forked keeps open.
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return self._process.sentinel

    def ready(self, also: Sequence[int] = (), *, seconds: float | None) -> tuple[bool, bool, bool]:
        """Wait for a message, its end, or until one of *also* is readable; return which of the three."""
        found = wait([self._connection, self._death, *also], seconds)
        return self._connection in found, self._death in found, any(one in found for one in also)

    def receive(self) -> Any:
        """Return its next message; raise `EOFError` if it has hung up."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise EOFError from None
        except Exception as error:  # as bad: where the next message begins is unknown
            raise EOFError(f"{type(error).__name__}: {error}") from error

    def send(self, message: object) -> None:
        """Send it a message; if it can receive none any more, `ready` reports its end."""
        with suppress(OSError):
            self._connection.send(message)

    def end(self) -> None:
        """Have it end when it has nothing left to do."""
        self.is_ending = True
        self.send(None)

    def kill(self) -> None:
        """Kill it and everything that its handlers have started, unless that has moved to a group of its own."""
        with _reaping:
            if not self._dead:
                self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._has_group():
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def _has_group(self) -> bool:
        try:
            return os.getpgid(self.pid) == self.pid  # else it has just begun
        except ProcessLookupError:
            return True  # reaped when another one was started; what it has started may live on

    def reap(self) -> int:
        """Wait for its end, leave nothing of it behind, and return its exit code, or minus its signal."""
        with suppress(ValueError):
            multiprocessing.connection.wait([self._death])
        with _reaping:
            if not self.is_ending:
                self._kill()  # what it has started
            self._process.join()
            code = self._process.exitcode
            if code is None:
                # Reaped by other code, or by the kernel, where SIGCHLD is ignored. It would count as running for
                # ever, and could not be closed.
                vars(self._process)["_popen"].returncode = code = -signal.SIGKILL
                self._process.join()
            self._dead = True
            if self._death != self._process.sentinel:
                os.close(self._death)
            self._process.close()
        self._connection.close()
        _alive.discard(self)
        return code


def how(code: int) -> str:
    """Return the words for an exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (by hand, or because memory ran out)" if -code == signal.SIGKILL else "")


@atexit.register
def _end_all() -> None:
    """Kill what is left of workers that were not stopped: else Python would wait for them for ever."""
    for one in list(_alive):
        if one.made_by == os.getpid():  # and not in a fork
            one.kill()
