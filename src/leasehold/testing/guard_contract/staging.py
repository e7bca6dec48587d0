"""A write that stops at a step: in a thread, or in a process that can be killed or stopped."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from ...guard import Guard
from .support import Hooks

PATIENCE_SECONDS = 60  # with what should happen at once; only a test that fails waits so long
BLOCKED_SECONDS = 0.1  # after which a writer that has not come to its step is taken to wait for the other one


class Staged:
    """
    A call in a thread of its own, which stops at a step until it may go on.

    `arrive` waits until it has come there, or has ended, or seems to wait for another owner: an interleaving that
    cannot be staged is then left to the guard, which has to be right in any. Where nothing *blocks*, it comes there
    however long that takes.
    """

    def __init__(self, guard: Guard, step: str | None, call: Callable[[], Any], *, blocks: bool) -> None:
        self._patience = BLOCKED_SECONDS if blocks else PATIENCE_SECONDS
        self.error: BaseException | None = None
        self._step = step
        self._call = call
        self._arrived = threading.Event()
        self._may_go = threading.Event()
        guard.at = self._at
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _at(self, step: str) -> None:
        if step == self._step and not self._may_go.is_set():
            self._arrived.set()
            if not self._may_go.wait(PATIENCE_SECONDS):
                raise AssertionError(f"a write that stopped at {step!r} was never continued")

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error
        finally:
            self._arrived.set()

    def arrive(self) -> bool:
        """Wait for the step, and return whether the call is stopped there."""
        return self._arrived.wait(self._patience) and self._thread.is_alive()

    def release(self) -> None:
        """Let the call go on, and wait for its end, unless it seems to wait for another owner."""
        self._may_go.set()
        self._thread.join(self._patience)

    def finish(self) -> BaseException | None:
        """Let the call go on to its end, and return its error."""
        self._may_go.set()
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            raise AssertionError(f"a call that was stopped at {self._step!r} did not end in {PATIENCE_SECONDS} s")
        return self.error


class Child:
    """
    A process that opens the guard by its factory, writes once, and stops at a step.

    `arrive` waits for the step. Then `kill`, or `freeze` and `thaw`; `finish` returns the outcome of the write.
    """

    def __init__(self, hooks: Hooks, key: str, value: bytes, presented: dict[str, Any], step: str | None) -> None:
        # What is not named is not imported there: a child that knows its guard alone starts in half the time.
        put = None if type(hooks).put is Hooks.put else type(hooks).put
        task = pickle.dumps((hooks.factory, put, key, value, presented, step))
        first = {"modules": _modules(hooks.factory, put), "task": base64.b64encode(task).decode()}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send(json.dumps(first))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child process ended with {self.process.wait()} before it answered"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def arrive(self) -> None:
        """Wait until it has stopped at its step."""
        answer = self._receive()
        assert "at" in answer, f"the child process did not come to its step: {answer}"

    def freeze(self) -> None:
        """Stop it with SIGSTOP, and wait until it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> dict[str, Any]:
        """Let it go on, and return the outcome of its write: `{"wrote": true}`, or the error's kind and message."""
        self.process.send_signal(signal.SIGCONT)
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Let the write go on to its end, and return its outcome."""
        self._send("go")
        return self._receive()

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _modules(*functions: Any) -> dict[str, str]:
    """The modules that the child has to import, and their files: tests need not be importable by their name."""
    functions += tuple(part for each in functions for part in (getattr(each, "func", None), *getattr(each, "args", ())))
    names = {getattr(each, "__module__", None) for each in functions}
    found: dict[str, str] = {}
    for name in names:
        module = sys.modules.get(name or "")
        if isinstance(module, ModuleType) and getattr(module, "__file__", None):
            found[module.__name__] = str(module.__file__)
    return found
