"""
`--processes N`: one process watches over N workers, each a process of its own.

Each worker has a socket to the supervisor. The supervisor sends `stop` and `hurry`, the worker sends its pulse twice a
second, and a closed socket means that the other process is gone. Not signals: a service manager may signal the whole
group, so that a worker would get each signal twice, and a second signal means `hurry`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ..core.clock import SteadyClock
from ..worker.signals import signals
from ..worker.worker import Worker
from .health import STARTING, Pulse

log = logging.getLogger("leasehold.cli")

FLAG = "--supervised-by"  # with the number of the socket
SETTLED, FAILED, USAGE, UNSETTLED = 0, 1, 2, 3
_WORST = (SETTLED, UNSETTLED, USAGE, FAILED)  # from best to worst
_REST_US = (200_000, 30_000_000)  # before a process is restarted: the first time, and at most
PULSE_SECONDS = 0.5
_STEADY_US = 60_000_000  # a process that has run this long begins with the shortest rest again
_SILENT_US = 5_000_000  # without a pulse for this long, a process counts as unhealthy
_STARTING = Pulse(False, STARTING, None, 0, 0, {})


# In a worker


class Supervised:
    """The worker's end of the socket."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.set_inheritable(False)  # the other side must see its end when this process has ended
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="leasehold-supervised", daemon=True).start()

    def direct(self, worker: Worker) -> None:
        """Pass the supervisor's orders on to *worker*. An order that comes before this ends the process."""
        with self._lock:
            self._worker = worker

    def send(self, pulse: Pulse) -> None:
        """Send the pulse; drop it if the socket is full or closed."""
        with suppress(OSError):
            self._socket.send(pulse.as_json().encode() + b"\n", socket.MSG_DONTWAIT)

    def _listen(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as orders:
            for order in orders:
                self._obey(order.decode().strip())
        log.warning("the supervisor process is gone; stopping")
        self._obey("stop")

    def _obey(self, order: str) -> None:
        with self._lock:
            if self._worker is None:
                os._exit(SETTLED)
            elif order == "hurry":
                self._worker.hurry()
            else:
                self._worker.end()


# In the supervisor


class _Child:
    """One worker process, and after it the one that replaces it."""

    def __init__(self, number: int, over: Callable[[_Child], None]) -> None:
        self.number = number
        self.code: int | None = None
        self.pulse = _STARTING
        self.rests = 0
        self.start_us: int | None = 0  # when to start it; None: it runs, or is not to run
        self._over = over
        self._steady = SteadyClock()
        self._started_us = self._pulse_us = 0
        self._before: dict[str, int] = {}  # the tally of its processes that have ended

    def start(self, write: Callable[[str, int], None] | None) -> None:
        """Start a process. Its output goes to our own stdout and stderr, or line by line to *write*."""
        self.start_us, self.code, self.pulse = None, None, _STARTING
        self._started_us = self._pulse_us = self._steady.now()
        self._socket, theirs = socket.socketpair()
        read, printed = os.pipe() if write is not None else (None, None)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:], FLAG, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=printed if sys.stdout.isatty() else None,
                stderr=printed,
                pass_fds=[theirs.fileno()],
                process_group=0,  # so that Ctrl-C comes to the supervisor alone
            )
        log.info("process %d started, pid %d", self.number, self._process.pid)
        listening = [threading.Thread(target=self._listen, args=[self._socket], daemon=True)]
        if read is not None and printed is not None and write is not None:
            os.close(printed)
            listening.append(threading.Thread(target=_copy, args=[read, write], daemon=True))
        for thread in listening:
            thread.start()
        threading.Thread(target=self._await, args=[self._process, listening], daemon=True).start()

    def order(self, what: str) -> None:
        """Send `stop` or `hurry`; does nothing if the process has ended."""
        if self.start_us is None and self.code is None:
            with suppress(OSError):
                self._socket.send(what.encode() + b"\n")

    def ended(self) -> str:
        """Record that the process ended, and describe how."""
        self.code = self._process.wait()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        lived = self._steady.now() - self._started_us
        self._before = self.now().tally
        self.pulse = Pulse(False, "exited", None, 0, 0, {})
        if lived > _STEADY_US:
            self.rests = 0
        if self.code >= 0:
            return f"process {self.number} exited with code {self.code}"
        return f"process {self.number} was killed by {_signal(-self.code)}"

    def rest(self) -> float:
        """Schedule a restart, and return after how many seconds."""
        least, most = _REST_US
        rest: int = min(least * 2 ** min(self.rests, 16), most)
        self.rests += 1
        self.start_us = self._steady.now() + rest
        return rest / 1_000_000

    def now(self) -> Pulse:
        """Return the last pulse, as unhealthy if it is too old, with the tally of all processes of this number."""
        pulse, before = self.pulse, self._before
        if pulse.consuming and self._steady.now() - self._pulse_us > _SILENT_US:
            pulse = pulse._replace(consuming=False, why=f"no health report for more than {_SILENT_US // 1_000_000} s")
        return pulse._replace(
            tally={name: before.get(name, 0) + pulse.tally.get(name, 0) for name in {*before, *pulse.tally}}
        )

    def _listen(self, line: socket.socket) -> None:
        with suppress(OSError), line.makefile("rb") as pulses:
            for pulse in pulses:
                with suppress(ValueError, TypeError):  # cut off by its end
                    self.pulse, self._pulse_us = Pulse(**json.loads(pulse)), self._steady.now()

    def _await(self, process: subprocess.Popen[bytes], listening: list[threading.Thread]) -> None:
        process.wait()
        for thread in listening:
            thread.join(1.0)  # for its last output; a process that it forked may hold its pipes open
        self._over(self)


def _copy(read: int, write: Callable[[str, int], None]) -> None:
    with open(read, "rb") as lines:
        for line in lines:
            write(line.decode(errors="replace").rstrip("\n"), logging.INFO)


class Supervisor:
    """Runs worker processes, restarts those that die, and stops them all at a signal."""

    def __init__(self, count: int, *, until_empty: bool, write: Callable[[str, int], None] | None = None) -> None:
        self._until_empty = until_empty
        self._write = write
        self._desk: SimpleQueue[str] = SimpleQueue()
        self._over: SimpleQueue[_Child] = SimpleQueue()
        self._children = [_Child(number, self._has_ended) for number in range(count)]
        self._steady = SteadyClock()
        self._signals = 0
        self._stopping = False
        self._consumed = False  # some process was healthy once, so the command line is right

    def pulse(self) -> Pulse:
        """Return the sum of all pulses: healthy if each process is."""
        found = [child.now() for child in self._children]
        tally: dict[str, int] = {}
        for pulse in found:
            for name, count in pulse.tally.items():
                tally[name] = tally.get(name, 0) + count
        idle = [f"process {number}: {pulse.why}" for number, pulse in enumerate(found) if not pulse.consuming]
        since = [pulse.claimed_seconds for pulse in found if pulse.claimed_seconds is not None]
        return Pulse(
            not idle,
            "; ".join(idle),
            max(since, default=None),
            sum(pulse.running for pulse in found),
            sum(pulse.free for pulse in found),
            tally,
        )

    def run(self) -> int:
        """Run until a signal comes or all processes have ended by themselves; return the worst of their exit codes."""
        with signals(self._desk):
            while not self._finished():
                self._start()
                self._heed()
        codes = [child.code for child in self._children if child.code is not None]
        return max((code if code in _WORST else FAILED for code in codes), key=_WORST.index, default=SETTLED)

    def _finished(self) -> bool:
        return all(child.start_us is None and child.code is not None for child in self._children) or (
            self._stopping and not any(child.start_us is None and child.code is None for child in self._children)
        )

    def _start(self) -> None:
        if self._stopping:
            return
        now = self._steady.now()
        first, *others = self._children
        # Start the others once the first has sent a pulse, so that a wrong command line is reported once.
        ready = [first, *others] if self._consumed or first.pulse is not _STARTING else [first]
        for child in ready:
            if child.start_us is not None and child.start_us <= now:
                try:
                    child.start(self._write)
                except OSError as error:  # out of memory or process ids: may pass, and the others work on
                    log.error("could not start process %d; retrying in %.1f s: %s", child.number, child.rest(), error)

    def _heed(self) -> None:
        with suppress(Empty):
            word = self._desk.get(timeout=0.1)
            if word == "signal":
                self._signalled()
        self._consumed = self._consumed or any(child.pulse.consuming for child in self._children)
        with suppress(Empty):
            while True:
                self._look_at(self._over.get_nowait())

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("stopping: waiting for %d running jobs; a second signal releases them now", self.pulse().running)
            self._stop()
        else:
            log.warning("second signal: releasing running jobs now")
            self._order_all("hurry")

    def _stop(self) -> None:
        self._stopping = True
        for child in self._children:
            if child.code is not None:
                child.start_us = None
        self._order_all("stop")

    def _order_all(self, order: str) -> None:
        for child in self._children:
            child.order(order)

    def _has_ended(self, child: _Child) -> None:
        self._over.put(child)
        self._desk.put("ended")

    def _look_at(self, child: _Child) -> None:
        exit_line = child.ended()
        code = child.code
        if self._stopping or (self._until_empty and code == SETTLED):
            log.info("%s", exit_line)
        elif code in (FAILED, USAGE) and not self._consumed:
            log.error("%s before any worker became healthy; not restarting", exit_line)
            self._stop()
        else:
            log.warning("%s; restarting in %.1f s", exit_line, child.rest())


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
