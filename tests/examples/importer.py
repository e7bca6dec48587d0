"""
Runs examples/import_csv.py in a fresh process as often as it is told to, and tells how each ended.

It is told by a line on its standard input: the URL, the file, and before which SQL statement SQLite kills the process
(0: none). It answers with the pid, and when that process has ended, with its exit code; below zero is a signal.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "import_csv.py"
BATCH = 2


def import_(url: str, path: str, fatal: int) -> None:
    """Run the example, in a process of its own."""
    if fatal:
        _die_before(fatal)
    sys.argv = ["import_csv.py", path, url]
    spec = importlib.util.spec_from_file_location("import_csv", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    sys.modules["import_csv"] = example
    spec.loader.exec_module(example)
    example.BATCH = BATCH
    example.main(path)


def _die_before(fatal: int) -> None:
    """Kill this process before its *fatal*-th SQL statement, on whichever connection and thread."""
    connect, lock, count = sqlite3.connect, threading.Lock(), 0

    def traced(statement: str) -> None:
        nonlocal count
        with lock:
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(traced)
        return connection

    sqlite3.connect = connected  # type: ignore[assignment]


def main() -> None:
    """Serve the lines of standard input."""
    for line in sys.stdin:
        url, path, fatal = json.loads(line)
        go, ready = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ready)
            os.read(go, 1)  # the test knows the pid by now
            status = 1
            try:
                os.dup2(2, 1)  # what the example prints is not an answer
                import_(url, path, fatal)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(go)
        print(child, flush=True)  # noqa: T201
        sys.stdin.readline()
        os.close(ready)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    # Once, and not in every process.
    for name in ("stores.sqlite", "stores.postgres", "worker.worker", "worker.settling"):
        importlib.import_module(f"leasehold.{name}")
    main()
