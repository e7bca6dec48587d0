"""
The process that `Child` starts: it opens a guard, writes once, and stops at a step until a line arrives.

Reads one line of JSON, and answers in lines of JSON on standard output. It waits only for its parent. It is run as a
file, so that it imports what its task names, and neither pytest nor the rest of the battery.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Do what the first line of the input asks for."""
    first = json.loads(sys.stdin.readline())
    for name, file in first["modules"].items():
        _load(name, Path(file))
    factory, put, key, value, presented, stop = pickle.loads(base64.b64decode(first["task"]))
    guard = factory()
    arrived = False

    def at(step: str) -> None:
        nonlocal arrived
        if step == stop and not arrived:
            arrived = True
            _answer({"at": step})
            sys.stdin.readline()

    guard.at = at
    try:
        if put is None:
            guard.write(key, value, **presented)
        else:
            put(guard, key, value, presented)
    except Exception as error:
        _answer({"error": type(error).__name__, "message": str(error)})
    else:
        _answer({"wrote": True})


def _answer(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _load(name: str, file: Path) -> None:
    """Import a module by its name, or from its file if it cannot be found by that."""
    try:
        importlib.import_module(name)
    except ImportError:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        parent = name.rpartition(".")[0]
        while parent and parent not in sys.modules:  # pickle imports the first part of a name too
            sys.modules[parent] = ModuleType(parent)
            parent = parent.rpartition(".")[0]
        spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
