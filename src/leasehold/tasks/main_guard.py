"""Refuses to add jobs while a process of handlers imports the main module: the program would run a second time."""

from __future__ import annotations

import sys
from typing import Final

from ..errors import Unsupported

PROCESS: Final = "leasehold-handler"  # the name of such a process
UNGUARDED: Final = 87  # its exit code then
GUARD: Final = 'put the code that starts the program under `if __name__ == "__main__":`'


def refuse_in_an_import(what: str) -> None:
    """Refuse *what* in a process that is only importing the main module; a process of handlers ends, in one line."""
    module = sys.modules.get("multiprocessing.process")
    if module is None or not getattr(current := module.current_process(), "_inheriting", False):
        return
    text = f"{what} while a handler process imports the main module: {GUARD}."
    if current.name != PROCESS:
        raise Unsupported(text)
    sys.stderr.write(f"leasehold: {text}\n")
    sys.stderr.flush()
    raise SystemExit(UNGUARDED)  # which no `except Exception` of the program takes, and its worker understands
