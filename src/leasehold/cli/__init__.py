"""
The command `leasehold`, also as `python -m leasehold`.

    app          the group, its help, and how an error becomes one line and an exit code
    store        check a store, and advance its epochs
    worker       run the handlers of a router's tasks
    completion   the scripts for shells, and what a store completes
    loading      the Router that an import path names
    supervising  several worker processes, watched over by one
    health       whether a worker consumes, for probes
    logs         lines for people, or JSON
    status       the line at the bottom of a terminal
    demo/        stale owners being refused, played with real threads and processes
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command and exit: 0 if all is well, 1 if not, 2 if it was called wrongly, 130 after Ctrl-C."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing and sys.argv[1:] in (["--version"], ["-V"]):  # which needs neither
        from .. import __version__

        print(f"leasehold {__version__}")
        raise SystemExit(0)
    if missing:
        print(f"The command needs {' and '.join(missing)}: pip install {' '.join(missing)}", file=sys.stderr)
        raise SystemExit(2)
    from .app import run  # on use: the library itself is imported without click and rich

    raise SystemExit(run())
