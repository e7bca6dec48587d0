"""
Guards for the resources that jobs write to, each by the clauses of `leasehold.guard`.

    FileGuard     files below a folder
    Gate          what cannot compare epochs itself: a request handler, a tool, a device
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..guard import Doubt, Guard, GuardKey, Mark, Seal, Writer

if TYPE_CHECKING:
    from .files import FileGuard
    from .gate import AsyncGate, Gate, Use

__all__ = ["AsyncGate", "Doubt", "FileGuard", "Gate", "Guard", "GuardKey", "Mark", "Seal", "Use", "Writer"]

_LAZY = {"AsyncGate": "gate", "FileGuard": "files", "Gate": "gate", "Use": "gate"}  # each with what its module needs


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
