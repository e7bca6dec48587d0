"""
Ends the servers of a test process that is gone, and removes their folders.

A process that SIGTERM or SIGKILL ends runs no code of its own any more. So it tells this one, through a pipe, what it
has started; when the pipe is closed, by whatever end, what is left goes. PR_SET_PDEATHSIG would not do: it follows the
*thread* that started the server, and leaves the folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time


def main() -> None:
    """Read what there is until nobody writes any more."""
    servers: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin.buffer:
        what, _, which = line.decode().rstrip("\n").partition("\t")
        if what == "server":
            servers.add(int(which))
        elif what == "no server":
            servers.discard(int(which))
        elif what == "folder":
            folders.add(which)
        else:
            folders.discard(which)
    for pid in servers:
        end(pid)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end(pid: int) -> None:
    """End a server, and wait until it is gone: its processes write into the folder until then."""
    try:
        os.kill(pid, signal.SIGQUIT)  # at once, and all of its processes
        os.kill(pid, signal.SIGCONT)  # a test may have stopped it
        for _ in range(3000):
            os.kill(pid, 0)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
