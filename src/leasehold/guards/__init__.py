"""
Guards for the resources that jobs write to, each by the clauses of `leasehold.guard`.

    FileGuard     files below a folder
    GitGuard      branches of a git repository
    ObjectGuard   objects in S3, Google Cloud Storage or Azure Blob Storage; needs the extra `s3`
    SqlGuard      rows of a PostgreSQL or SQLite database that is not leasehold's own
    Gate          what cannot compare epochs itself: a request handler, a tool, a device
    HttpGuard     a service behind a gate; `leasehold.guards.http` has the middleware of the service
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..guard import Doubt, Guard, GuardKey, Mark, Seal, Writer

if TYPE_CHECKING:
    from .files import FileGuard
    from .gate import AsyncGate, Gate, Use
    from .git import GitGuard
    from .http import HttpGuard
    from .objects import ObjectGuard
    from .sql import AsyncSqlGuard, Fence, SqlGuard

__all__ = [
    "AsyncGate",
    "AsyncSqlGuard",
    "Doubt",
    "Fence",
    "FileGuard",
    "Gate",
    "GitGuard",
    "Guard",
    "GuardKey",
    "HttpGuard",
    "Mark",
    "ObjectGuard",
    "Seal",
    "SqlGuard",
    "Use",
    "Writer",
]

_LAZY = {  # each with what its module needs
    "AsyncGate": "gate",
    "AsyncSqlGuard": "sql",
    "Fence": "sql",
    "FileGuard": "files",
    "Gate": "gate",
    "GitGuard": "git",
    "HttpGuard": "http",
    "ObjectGuard": "objects",
    "SqlGuard": "sql",
    "Use": "gate",
}
_EXTRAS = {"obstore"}  # the libraries of extras that a guard here imports


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise Unsupported(f"{name} needs {error.name}: pip install {error.name}.") from None
